"""Grammars, checked when they are made: whatever a stranger sends ends in a grammar or in a sentence."""

import re
from collections.abc import Mapping
from typing import Any

from slipstream.errors import UsageError
from slipstream.grammar.constraint import GrammarConstraint
from slipstream.grammar.library import library, limits, one_line
from slipstream.grammar.schema import MOST_CHARACTERS, checked_json
from slipstream.grammar.vocabulary import GrammarVocabulary

MOST_RULES = 500
"""Of a Lark grammar: the library follows them by recursion."""
_RULE = re.compile(r"^[ \t]*[?!]?\w[^\n:\"/]*:", re.MULTILINE)


class Grammar:
    """What a text may be. Make one with `from_json_schema`, `json_object`, `from_regex` or `from_lark`.

    All of them raise UsageError, which says what is wrong or not supported, and RuntimeUnavailableError where the
    package llguidance is missing.

    source: the library's own form
    """

    def __init__(self, source: str, kind: str = "grammar") -> None:
        self.source = source
        self.kind = kind
        invalid, messages = library().LLMatcher.validate_grammar_with_warnings(source, limits=limits())
        if invalid:
            raise UsageError(f"The {kind} cannot be used: {one_line(messages[0])}.")
        self._compiled: tuple[GrammarVocabulary, GrammarConstraint] | None = None

    @classmethod
    def from_json_schema(cls, schema: Mapping[str, Any]) -> "Grammar":
        """JSON by a schema (docs/structured.md says which keywords), on one line, properties in the schema's order."""
        text = checked_json(schema)
        try:
            return cls(library().LLMatcher.grammar_from_json_schema(text), "JSON schema")
        except ValueError as error:
            raise UsageError(f"The JSON schema cannot be used: {one_line(str(error))}.") from None

    @classmethod
    def json_object(cls) -> "Grammar":
        """Any JSON object."""
        return cls.from_json_schema({"type": "object"})

    @classmethod
    def from_regex(cls, pattern: str) -> "Grammar":
        """Texts that the regular expression matches as a whole. No look-around, no back-references."""
        _check_text("regular expression", pattern)
        return cls(library().LLMatcher.grammar_from_regex(pattern), "regular expression")

    @classmethod
    def from_lark(cls, text: str) -> "Grammar":
        """A context-free grammar in the Lark syntax of llguidance, whose first rule is `start`.

        For programmers, not for strangers: its limits catch mistakes, and malice may find ways around them.
        """
        _check_text("Lark grammar", text)
        if len(_RULE.findall(text)) > MOST_RULES:
            raise UsageError(f"The Lark grammar has too many rules; at most {MOST_RULES} are supported.")
        return cls(library().LLMatcher.grammar_from_lark(text), "Lark grammar")

    @classmethod
    def of(cls, value: "Grammar | Mapping[str, Any]") -> "Grammar":
        """A grammar as it is, and a JSON schema's."""
        return value if isinstance(value, Grammar) else cls.from_json_schema(value)

    def constraint(self, vocabulary: GrammarVocabulary) -> GrammarConstraint:
        """A fresh constraint for one sequence of a model with this vocabulary; compiled once for several of them.

        Raises UsageError if the grammar needs tokens that the model lacks, or if no text can fulfil it.
        """
        known = self._compiled
        if known is not None and known[0] is vocabulary:
            return known[1].fork()
        constraint = GrammarConstraint(self.source, vocabulary)
        if constraint.reason:
            raise UsageError(f"The {self.kind} cannot be used with this model: {constraint.reason}.")
        self._compiled = vocabulary, constraint
        return constraint.fork()


def _check_text(kind: str, text: object) -> None:
    if not isinstance(text, str):
        raise UsageError(f"A {kind} must be text, not {type(text).__name__}.")
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"The {kind} has {len(text)} characters; at most {MOST_CHARACTERS} are supported.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"The {kind} is not valid Unicode (half a surrogate pair).") from None
