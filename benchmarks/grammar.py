#!/usr/bin/env python3
"""Microseconds of what a grammar costs for each token, along JSON texts of several schemas.

    python benchmarks/grammar.py [MODEL]

Only the model's vocabulary is used. Each text is walked several times with a fresh constraint, because the first visit
to a state costs more than those after it; the figures are over all steps of all walks.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from slipstream import Engine
from slipstream.core.protocols import Vocabulary
from slipstream.grammar import Grammar, GrammarVocabulary

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
        "mail": {"type": "string", "format": "email"},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string", "maxLength": 40}, "zip": {"pattern": "^[0-9]{5}$"}},
            "required": ["street", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags", "mail", "address"],
    "additionalProperties": False,
}
SOMEBODY = {
    "name": "A fox who learns to code in Python",
    "age": 12,
    "tags": ["red", "blue"],
    "mail": "fox@forest.example",
    "address": {"street": "Under the old oak 7", "zip": "01234"},
}
CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "schema": (PERSON, SOMEBODY),
    "any object": ({"type": "object"}, SOMEBODY),
    "list of 500 words": (
        {"type": "array", "items": {"enum": [f"word {number}" for number in range(500)]}},
        [f"word {number}" for number in range(0, 500, 25)],
    ),
}
WALKS = 20


def timed(times: list[float], action: Callable[[], object]) -> None:
    """Note how many microseconds something takes."""
    started = perf_counter()
    action()
    times.append((perf_counter() - started) * 1e6)


def measure(vocabulary: Vocabulary, spelt: GrammarVocabulary, schema: dict[str, Any], value: Any) -> str:
    """A line of figures for one schema."""
    tokens = vocabulary.tokenize(json.dumps(value), add_bos=False, parse_special=False)
    made: list[float] = []
    masks: list[float] = []
    looks: list[float] = []
    advances: list[float] = []
    row = np.zeros(spelt.size, np.float32)
    forced = 0
    for _ in range(WALKS):
        started = perf_counter()
        constraint = Grammar.from_json_schema(schema).constraint(spelt)
        made.append((perf_counter() - started) * 1e6)
        for token in tokens:
            row.fill(0)
            timed(masks, partial(constraint.mask, row))
            timed(looks, constraint.forced)
            forced += len(constraint.forced()) > 0
            timed(advances, partial(constraint.advance, token))
    figures = [f"{np.median(times):5.0f} {np.percentile(times, 95):5.0f}" for times in (masks, looks, advances, made)]
    return f"{' | '.join(figures)} | {forced / (WALKS * len(tokens)):4.0%}"


def main() -> None:
    """Median and 95th percentile of each step."""
    with Engine.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m", draft=None, fetch=True) as engine:
        started = perf_counter()
        spelt = engine.grammar_vocabulary
        print(f"{spelt.size} tokens; vocabulary made ready in {perf_counter() - started:.2f} s")
        columns = " | ".join(f"{name:>11}" for name in ("mask", "forced", "advance", "constraint"))
        print(f"{'µs: median, 95th percentile':28} | {columns} | forced tokens")
        for name, (schema, value) in CASES.items():
            print(f"{name:28} | {measure(engine.target.vocabulary, spelt, schema, value)}")


if __name__ == "__main__":
    main()
