import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.engine.text import TextStream
from slipstream.errors import UsageError
from tests.fakes import ByteVocabulary

END = 256


def run(
    tokens: list[int] | bytes, stop: list[str] | None = None, max_tokens: int = 1000
) -> tuple[str, str | None, int]:
    """Text, finish reason, and how many tokens were taken."""
    stream = TextStream(ByteVocabulary(), stop or [], max_tokens)
    text = ""
    for taken, token in enumerate(tokens, 1):
        emission = stream.push(token)
        text += emission.text
        if emission.finish_reason:
            return text, emission.finish_reason, taken
    return text + stream.flush(), None, len(tokens)


def test_an_end_token_stops_and_has_no_text() -> None:
    assert run([*b"hi", END, *b"more"]) == ("hi", "stop", 3)


def test_the_budget_ends_with_length() -> None:
    assert run(b"abcdef", max_tokens=3) == ("abc", "length", 3)


def test_an_end_token_as_the_last_of_the_budget_is_a_stop() -> None:
    assert run([*b"ab", END], max_tokens=3) == ("ab", "stop", 3)


def test_a_stop_string_across_token_borders_is_cut_and_its_last_token_kept() -> None:
    assert run(b"one\n\nUser: two", ["\n\nUser:"]) == ("one", "stop", 10)


def test_the_earliest_stop_string_wins() -> None:
    assert run(b"abcXYdefZ", ["Z", "XY"]) == ("abc", "stop", 5)


def test_what_might_become_a_stop_string_is_held_back_and_then_released() -> None:
    stream = TextStream(ByteVocabulary(), ["###"], 100)
    assert [stream.push(token).text for token in b"a##b"] == ["a", "", "", "##b"]


def test_held_text_comes_out_at_the_end() -> None:
    assert run(b"a##", ["###"]) == ("a##", None, 3)
    assert run(b"a##", ["###"], max_tokens=3) == ("a##", "length", 3)
    assert run([*b"a##", END], ["###"]) == ("a##", "stop", 4)


def test_characters_come_whole() -> None:
    stream = TextStream(ByteVocabulary(), [], 100)
    assert [stream.push(token).text for token in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]


def test_half_a_character_at_the_end_is_marked() -> None:
    assert run("é".encode()[:1], max_tokens=1) == ("\ufffd", "length", 1)


def test_a_stop_string_of_several_bytes_per_character() -> None:
    assert run("ja 🙂🙃 nein".encode(), ["🙃"]) == ("ja 🙂", "stop", 11)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        TextStream(ByteVocabulary(), [""], 1)


@given(st.text(alphabet="ab🙂#", max_size=30), st.lists(st.text(alphabet="ab🙂#", min_size=1, max_size=4), max_size=3))
def test_streamed_text_is_the_text_before_the_first_stop_string(text: str, stop: list[str]) -> None:
    got, reason, taken = run(text.encode(), stop)
    # the first to be complete stops; of those complete at that token, the one that begins first cuts
    ends = [text.find(string) + len(string) for string in stop if string in text]
    if not ends:
        assert (got, reason) == (text, None)
        return
    seen = text.encode()[:taken].decode()
    assert len(seen) == min(ends)
    assert reason == "stop"
    assert got == seen[: min(seen.find(string) for string in stop if string in seen)]
