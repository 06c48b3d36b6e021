import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.fakes import FakeModel

LIMIT = ("--max-tokens", "12", "--seed", "5")


def answers(out: str) -> list[str]:
    return re.findall(r"^[a-z]+$", out, re.MULTILINE)


def test_every_line_is_a_turn(cli: Cli, fake: FakeModel) -> None:
    result = cli("chat", *LIMIT, stdin="hello\n\nand then\n")
    assert result.code == 0
    assert len(answers(result.out)) == 2
    assert result.err.count("seed 5") == 2
    assert fake.closed


def test_the_last_line_needs_no_line_feed_and_exit_ends_before_the_rest(cli: Cli, fake: FakeModel) -> None:
    assert len(answers(cli("chat", *LIMIT, stdin="hello").out)) == 1
    assert len(answers(cli("chat", *LIMIT, stdin="hello\n/exit\nmore\n").out)) == 1


def test_a_backslash_continues_a_turn(cli: Cli, fake: FakeModel) -> None:
    two_lines = cli("chat", *LIMIT, stdin="a\\\nb\n")
    assert len(answers(two_lines.out)) == 1
    assert two_lines.out == cli("run", "a\nb", *LIMIT).out


def test_the_kv_cache_is_kept(cli: Cli, fake: FakeModel) -> None:
    out = cli("chat", *LIMIT, stdin="hello\nagain\n/stats\n").out
    found = re.search(r"(\d+) tokens read, (\d+) reused", out)
    assert found is not None
    first_prompt = len("[user]hello<") + len("[assistant]")  # `<end>` is one token
    assert int(found[2]) >= first_prompt
    assert re.search(r"turns +2, 0 of them", out)
    assert re.search(r"model +fake.gguf \(fake\)$", out, re.MULTILINE)


def test_the_figures_name_both_models_and_their_runtimes(cli: Cli, tiny: Path) -> None:
    arguments = ("chat", *LIMIT, "-m", tiny, "-d", tiny, "--threads", "1")
    out = cli(*arguments, "--runtime", "llamacpp", "--draft-runtime", "llamacpp", stdin="hello\n/stats\n").out
    assert re.search(r"model +tiny.gguf \(llamacpp\), drafts by tiny.gguf \(llamacpp\)$", out, re.MULTILINE)


def test_clear_begins_again(cli: Cli, fake: FakeModel) -> None:
    first, _, third = answers(cli("chat", *LIMIT, stdin="hello\nmore\n/clear\nhello\n").out)
    assert first == third


def test_regenerate_gives_another_answer(cli: Cli, fake: FakeModel) -> None:
    result = cli("chat", *LIMIT, stdin="hello\n/regenerate\n")
    first, second = answers(result.out)
    assert first != second
    assert "seed 6" in result.err


def test_a_seed_and_a_system_text_can_be_set(cli: Cli, fake: FakeModel) -> None:
    changed = cli("chat", *LIMIT, stdin="/seed 8\n/system be brief\nhello\n")
    same = cli("run", "--system", "be brief", "hello", "--max-tokens", "12", "--seed", "8")
    assert changed.out == same.out
    assert "System text: be brief" in changed.err


def test_a_seed_that_is_set_after_a_second_answer_is_used_as_it_is(cli: Cli, fake: FakeModel) -> None:
    result = cli("chat", *LIMIT, stdin="hello\n/regenerate\n/seed 40\nmore\n")
    assert [int(seed) for seed in re.findall(r"seed (\d+)", result.err)] == [5, 6, 40]


def test_a_conversation_that_outgrows_the_context_says_so_and_goes_on(cli: Cli, fake: FakeModel) -> None:
    result = cli("chat", *LIMIT, stdin="".join(f"turn {number}\n" for number in range(12)))
    assert result.code == 0
    assert len(answers(result.out)) == 12
    assert "no longer fit the context of 400 tokens" in result.err


@pytest.mark.parametrize("name", ["talk.md", "talk.json"])
def test_a_conversation_can_be_saved_once(cli: Cli, fake: FakeModel, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    result = cli("chat", *LIMIT, stdin=f"hello\n/save {path}\n")
    assert result.code == 0
    [answer] = answers(result.out)
    saved = path.read_text()
    if name.endswith("json"):
        assert json.loads(saved) == [{"role": "user", "content": "hello"}, {"role": "assistant", "content": answer}]
    else:
        assert saved == f"## User\n\nhello\n\n## Assistant\n\n{answer}\n\n"
    again = cli("chat", *LIMIT, stdin=f"other\n/save {path}\n")
    assert again.code == 1
    assert "exists; name another file." in again.err
    assert path.read_text() == saved


def test_help_lists_every_command(cli: Cli, fake: FakeModel) -> None:
    out = cli("chat", stdin="/help\n").out
    for name in ("/help", "/exit", "/clear", "/system TEXT", "/regenerate", "/stats", "/save FILE", "/seed N"):
        assert name in out


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/saev x", "did you mean /save?"),
        ("/xyzzy", "/help lists them all."),
        ("/seed many", "whole number"),
        ("/seed 99999999999999999999999999", "seed must be a whole number from"),
        ("/save", "Name a file"),
        ("/regenerate", "no answer yet"),
    ],
)
def test_wrong_commands_say_what_is_right(cli: Cli, fake: FakeModel, line: str, sentence: str) -> None:
    result = cli("chat", stdin=f"{line}\n")
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert sentence in result.err
