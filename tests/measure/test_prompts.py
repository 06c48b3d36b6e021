import json
from collections import Counter
from pathlib import Path

import pytest

from slipstream.errors import StorageError, UsageError
from slipstream.measure.prompts import KINDS, BenchPrompt, read_prompts, select, shipped_prompts


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_at_least_six_prompts_of_each_of_nine_kinds_are_shipped() -> None:
    counts = Counter(prompt.kind for prompt in shipped_prompts())
    assert tuple(counts) == KINDS
    assert min(counts.values()) >= 6
    assert len({prompt.id for prompt in shipped_prompts()}) == counts.total()


def test_every_shipped_kind_has_its_source_and_licence() -> None:
    from slipstream import measure

    [package] = measure.__path__
    page = (Path(package) / "data" / "README.md").read_text()
    for kind in KINDS:
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{kind}` |")]
        assert row.endswith("| Apache-2.0 |")


@pytest.mark.parametrize("kind", ["summary", "retrieval", "code-editing"])
def test_kinds_that_work_on_a_text_bring_one_of_realistic_length(kind: str) -> None:
    for prompt in shipped_prompts([kind]):
        assert 100 <= len(prompt.messages[0]["content"].split()) <= 400


def test_kinds_and_number_can_be_chosen() -> None:
    assert [prompt.id for prompt in shipped_prompts(["maths", "chat"], 2)] == ["maths-1", "maths-2", "chat-1", "chat-2"]


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'math'; did you mean maths\?"):
        shipped_prompts(["math"])
    with pytest.raises(UsageError, match="there are chat, code"):
        shipped_prompts(["xyzzy"])


def test_a_prompt_is_given_as_messages_or_as_their_text() -> None:
    prompt = BenchPrompt("a", "chat", ({"role": "system", "content": "Be brief."}, *user("Hello.")))
    assert prompt.for_model() == list(prompt.messages)
    assert prompt.for_model(has_template=False) == "Be brief.\n\nHello."
    assert BenchPrompt("b", "chat", text="Once upon").for_model() == "Once upon"


def test_our_json_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path / "own.jsonl",
        {"kind": "chat", "prompt": "Hello."},
        "",
        {"kind": "chat", "messages": user("Bye.")},
        {"prompt": "No kind."},
        {"id": "mine", "text": "Once upon a time"},
    )
    first, second, third, fourth = read_prompts(path)
    assert (first.id, list(first.messages)) == ("chat-1", user("Hello."))
    assert (second.id, list(second.messages)) == ("chat-2", user("Bye."))
    assert (third.id, third.kind) == ("own-1", "own")
    assert (fourth.id, fourth.messages, fourth.text) == ("mine", (), "Once upon a time")


def test_spec_bench(tmp_path: Path) -> None:
    path = write(tmp_path / "question.jsonl", {"question_id": 81, "category": "writing", "turns": ["One.", "Two."]})
    [prompt] = read_prompts(path)
    assert (prompt.id, prompt.kind, list(prompt.messages)) == ("81", "writing", user("One."))


def test_json_lines_are_known_by_name_or_first_character(tmp_path: Path) -> None:
    path = write(tmp_path / "prompts", '  {"prompt": "Hello."}')
    assert [list(prompt.messages) for prompt in read_prompts(path)] == [user("Hello.")]
    path = write(tmp_path / "prompts.txt", '{"is": "plain text"}')
    assert [list(prompt.messages) for prompt in read_prompts(path)] == [user('{"is": "plain text"}')]


def test_plain_text_has_empty_lines_between_prompts(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xef\xbb\xbfWhat is\r\nthis?\r\n\r\n \r\nAnd that?\n")
    prompts = read_prompts(path)
    assert [list(prompt.messages) for prompt in prompts] == [user("What is\nthis?"), user("And that?")]
    assert [(prompt.id, prompt.kind) for prompt in prompts] == [("own-1", "own"), ("own-2", "own")]


GOOD = {"prompt": "Hello."}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"prompt": "Hel', "Line 2 of .* is not JSON"),
        ("[" * 100_000, "Line 2 of .* is not JSON"),
        ([1, 2], "Line 2 of .* is no JSON object"),
        ({"question": "Hello?"}, "Line 2 of .* has none of prompt, messages, text and turns"),
        ({"prompt": 7}, "Line 2 of .* must have text in prompt, not int"),
        ({"prompt": " "}, "Line 2 of .* must have text in prompt, not nothing"),
        ({"messages": []}, "Line 2 of .* must have messages as a list"),
        ({"messages": [{"role": "user"}]}, "Line 2 of .* must have messages as a list"),
        ({"turns": []}, "Line 2 of .* has no turns"),
        ({"turns": [None]}, "Line 2 of .* must have text in turns"),
        ('{"prompt": "Hel\\ud800lo."}', "Line 2 of .* has half a character"),
        ({"id": "own-1", "prompt": "Again."}, "Line 2 of .* has the id 'own-1', which an earlier line has"),
    ],
)
def test_damage_is_one_sentence_with_the_number_of_the_line(tmp_path: Path, line: object, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        read_prompts(write(tmp_path / "damaged.jsonl", GOOD, line, GOOD))


def test_a_kind_is_one_line(tmp_path: Path) -> None:
    [prompt] = read_prompts(write(tmp_path / "kinds.jsonl", {"kind": " a\n b", "prompt": "Hello."}))
    assert prompt.kind == "a b"


def test_files_that_cannot_be_prompts(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read: No such file"):
        read_prompts(tmp_path / "missing.jsonl")
    with pytest.raises(StorageError, match="cannot be read: Is a directory"):
        read_prompts(tmp_path)
    with pytest.raises(UsageError, match="holds no prompts"):
        read_prompts(write(tmp_path / "empty.txt", "\n \n"))
    latin = tmp_path / "latin.txt"
    latin.write_bytes("Où ?".encode("latin-1"))
    with pytest.raises(UsageError, match=r"is not UTF-8 text \(byte 2\)"):
        read_prompts(latin)


def test_selecting_keeps_the_order_of_kinds_asked_for() -> None:
    prompts = [BenchPrompt(str(number), kind, text="x") for number, kind in enumerate("abab")]
    assert [prompt.id for prompt in select(prompts, ["b"], 1)] == ["1"]
    assert select(prompts) == [prompts[0], prompts[2], prompts[1], prompts[3]]
