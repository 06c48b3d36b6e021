from collections.abc import Sequence

import pytest

from slipstream.measure.records import Answer, Failure
from slipstream.measure.summary import ALL, acceptance, remarks, summarise, tokens_per_round
from tests.measure.answers import answer, bench, draft_round, full_bench, plain_rounds


def sentences(answers: Sequence[Answer], failures: Sequence[Failure] = (), **header: object) -> list[tuple[str, str]]:
    return [(one.level, one.sentence) for one in remarks(bench(answers, failures, **header))]


def many(configuration: str = "off", **more: object) -> list[Answer]:
    """Enough answers to say something."""
    return [answer(configuration, f"chat-{number}", **more) for number in range(8)]


def test_a_row_for_each_kind_and_one_for_all() -> None:
    summary = summarise(full_bench())
    assert [(row.kind, row.prompts) for row in summary.rows] == [("chat", 3), ("code", 3), (ALL, 6)]
    assert summary.configurations == ["off", "suffix", "model:draft.gguf,n=4"]
    off, suffix, model = (summary.rows[1].cells[name] for name in summary.configurations)
    assert off.ratio is None
    assert off.tokens_per_second == pytest.approx(100)
    assert (off.acceptance, off.tokens_per_round) == (None, 1.0)
    assert suffix.ratio is not None
    assert suffix.ratio.value == pytest.approx(2.0, rel=0.03)
    assert suffix.acceptance == pytest.approx(6 / 8)
    assert suffix.tokens_per_round == pytest.approx(3.0)
    assert model.ratio is not None
    assert model.ratio.is_certain
    assert model.ratio.value < 1
    assert not summary.remarks


def test_one_kind_has_no_row_for_all() -> None:
    assert [row.kind for row in summarise(bench([answer()])).rows] == ["chat"]


def test_a_kind_that_is_called_all_is_not_the_row_for_all() -> None:
    rows = summarise(bench([answer(kind="all"), answer(kind="chat", prompt="2")])).rows
    assert [row.kind for row in rows] == ["chat", "all", "all kinds"]


def test_a_run_without_answers_has_no_rows() -> None:
    summary = summarise(bench([], [Failure("It broke.", "off")]))
    assert (summary.rows, summary.configurations) == ([], [])
    assert [remark.sentence for remark in summary.remarks] == ["off: It broke."]


def test_looping_answers_are_counted_and_left_out() -> None:
    answers = [*many(), *many("suffix", looping=0.9, seconds=0.01)]
    summary = summarise(bench(answers))
    cell = summary.rows[0].cells["suffix"]
    assert (cell.tokens_per_second, cell.ratio, cell.acceptance, cell.tokens_per_round) == (None, None, None, None)
    [(level, sentence)] = sentences(answers)
    assert level == "note"
    assert sentence.startswith("8 of 16 answers repeat themselves (over 33% of their 4-grams)")
    assert sentence.endswith("(chat-0, chat-1, chat-2, chat-3, ...).")


def test_other_ids_are_an_error_where_rows_are_bit_exact() -> None:
    answers = [*many(), *many("suffix", ids_hash="other")]
    [(level, sentence)] = sentences(answers)
    assert level == "error"
    assert sentence.startswith("8 of 8 answers of suffix have other token ids than plain decoding (chat-0")
    assert sentence.endswith("please report it.")
    [(level, sentence)] = sentences(answers, target={"bit_exact": False})
    assert level == "note"
    assert sentence.endswith("slipstream verify tells near-ties from mistakes.")


def test_failures_say_whose_they_are() -> None:
    failures = [Failure("A.", "x"), Failure("B.", "x", "chat-1"), Failure("C.")]
    assert sentences(many(), failures) == [("warning", "x: A."), ("warning", "x, prompt chat-1: B."), ("warning", "C.")]


def test_what_is_worst_comes_first() -> None:
    answers = [*many(), *many("suffix", ids_hash="other", looping=1.0)]
    assert [level for level, _ in sentences(answers, [Failure("A.", "x")])] == ["error", "warning", "note"]


def test_few_answers_and_early_ends_are_said() -> None:
    found = [one.sentence for one in remarks(bench([answer()], complete=False))]
    assert found[0] == "The run was ended before its end; these are the answers until then."
    assert found[1].startswith("So few answers say little")


def test_a_server_without_rounds_has_its_own_counts() -> None:
    assert acceptance([answer(drafted=10, accepted=4), answer(drafted=0, accepted=0)]) == pytest.approx(0.4)
    assert acceptance([answer(), answer(rounds=plain_rounds(3))]) is None
    assert tokens_per_round([answer()]) is None
    assert acceptance([answer(rounds=[draft_round(4, 3)], drafted=9, accepted=9)]) == pytest.approx(0.75)


def test_json_has_everything() -> None:
    values = summarise(full_bench()).as_dict()
    assert values["rows"][0]["cells"]["suffix"]["ratio"]["prompts"] == 3
    assert values["remarks"] == []
