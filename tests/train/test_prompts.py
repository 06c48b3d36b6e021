import json
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import UsageError
from slipstream.train import library
from slipstream.train.prompts import PASSAGE, REPEATS, cut, own_source, plain_text, shipped_source


def test_what_is_asked_depends_on_seed_and_number_alone() -> None:
    one, same, other = shipped_source(1), shipped_source(1), shipped_source(2)
    asks = [one.ask(number) for number in range(200)]
    assert asks == [same.ask(number) for number in range(200)]
    assert asks != [other.ask(number) for number in range(200)]
    assert {"chat", "code", "summary", "other"} == {ask.kind for ask in asks}


def test_every_held_out_prompt_says_where_it_is_from() -> None:
    text = files("slipstream.train").joinpath("data/held_out.jsonl").read_text(encoding="utf-8")
    items = [json.loads(line) for line in text.splitlines()]
    assert all(item["source"] and item["licence"] in ("Apache-2.0", "PSF-2.0") for item in items)
    assert {item["kind"] for item in items} == {"chat", "code", "summary"}
    assert len({plain_text(item["prompt"]) for item in items}) == len(items)


def test_held_out_texts_are_in_no_prompt_of_the_library() -> None:
    """The answers' maker compares what the target writes; this is what nobody compares later."""
    trained = {plain_text(text) for text in (*library.passages(), *library.functions())}
    for prompt in shipped_source(0).held_out:
        held = plain_text(prompt.messages[0]["content"])
        assert not any(text in held or held in text for text in trained)


def test_documents_become_tasks_and_one_in_ten_is_held_back(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"doc{number:02}.md").write_text(f"# Chapter {number}\n\n" + f"Number {number} is a number. " * 12)
    source = own_source([tmp_path], 0)
    assert len(source.held_out) == 3
    asks = [source.ask(number) for number in range(source.texts or 0)]
    assert len(asks) == 27 * REPEATS + 27
    held = [prompt.messages[0]["content"] for prompt in source.held_out]
    for ask in asks:
        assert ask.content not in held
        assert ask.plain is None or not any(ask.plain in text for text in held)


def test_prompts_of_a_file_keep_their_kinds(tmp_path: Path) -> None:
    lines = [json.dumps({"kind": "sql", "prompt": f"Query number {number}"}) for number in range(12)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    source = own_source([tmp_path / "prompts.jsonl"], 0)
    assert len(source.held_out) == 2
    assert {source.ask(number).kind for number in range(source.texts or 0)} == {"sql"}


def test_other_files_are_another_source(tmp_path: Path) -> None:
    keys = []
    for text in ("one thing " * 20, "another thing " * 20):
        (tmp_path / "a.txt").write_text(f"{text}\n\n" * 30)
        keys.append(own_source([tmp_path], 0).key)
    assert keys[0] != keys[1]


@pytest.mark.parametrize("name", ["missing", "empty.txt", "latin.txt"])
def test_files_that_cannot_be_used_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin.txt").write_bytes("Käse ".encode("latin-1") * 50)
    with pytest.raises(UsageError, match=r"missing|no prompts and no text|not UTF-8"):
        own_source([tmp_path / name], 0)


@settings(deadline=None)
@given(st.text(alphabet="ab \n", max_size=9000))
def test_pieces_of_a_document_are_its_lines_in_order(text: str) -> None:
    pieces = cut(text)
    assert all(len(piece) <= PASSAGE for piece in pieces)
    places = [text.find(piece) for piece in pieces]
    assert -1 not in places
    assert all(one <= other for one, other in pairwise(places)) or len(set(pieces)) < len(pieces)
