"""What a text may be: JSON by a schema, a regular expression, a Lark grammar. Needs the extra `server`."""

from slipstream.grammar.constraint import GrammarConstraint
from slipstream.grammar.grammar import Grammar
from slipstream.grammar.vocabulary import GrammarVocabulary

__all__ = ["Grammar", "GrammarConstraint", "GrammarVocabulary"]
