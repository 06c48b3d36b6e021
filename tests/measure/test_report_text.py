import pytest

from slipstream.measure.ratios import Ratio
from slipstream.measure.records import Failure
from slipstream.measure.report_text import HEADS, describe, interval, listing, markdown, shorten, table
from slipstream.measure.summary import summarise
from tests.measure.answers import HEADER, answer, bench, full_bench


def test_the_table_has_a_line_for_each_kind_and_configuration() -> None:
    head, *lines = table(summarise(full_bench()))
    assert head.split("  ")[0] == "kind"
    assert len(lines) == 9
    assert lines[0].split() == ["chat", "off", "100.0", "-", "-", "-", "1.00"]
    first, *rest = lines[1].split()
    assert first == "suffix"
    assert rest[1] == "1.49x"
    assert rest[3] == "to"
    assert rest[5:] == ["75%", "3.00"]
    assert len({len(line) for line in (head, *lines)}) == 1


def test_a_narrow_terminal_cuts_names_not_numbers() -> None:
    summary = summarise(full_bench())
    wide, narrow = table(summary), table(summary, 76)
    assert max(map(len, wide)) > 76
    assert max(map(len, narrow)) <= 76
    assert "model:dra….gguf,n=4" not in wide[3]
    assert "…" in narrow[3]
    assert wide[3].split()[-1] == narrow[3].split()[-1]


def test_a_very_narrow_terminal_gets_blocks_of_lines() -> None:
    lines = listing(summarise(full_bench()), 40)
    assert max(map(len, lines)) <= 40
    assert lines[:5] == [
        "chat",
        "  off",
        "    100.0 tok/s, 1.00 tokens/round",
        "  suffix",
        "    149.3 tok/s, 1.49x (1.42 to 1.57),",
    ]


@pytest.mark.parametrize(("width", "text"), [(9, "abcdefghi"), (8, "abcd…ghi"), (3, "a…i"), (2, "a…")])
def test_shortening_leaves_out_the_middle(width: int, text: str) -> None:
    assert shorten("abcdefghi", width) == text


def test_a_single_pair_has_no_interval() -> None:
    assert interval(Ratio(2, 2, 2, 1, 1)) == "-"
    assert interval(Ratio(2, 1.5, 2.5, 1, 2)) == "1.50 to 2.50"
    assert interval(None) == "-"


def test_a_header_as_sentences() -> None:
    assert describe(HEADER) == [
        "Target: target.gguf (native, avx2, rows bit-exact).",
        "Machine: Some CPU, 2 threads.",
        "Sampling: temperature 0.7, top-p 0.95, seed 0, at most 8 tokens an answer, 2 repeats.",
        "Made with slipstream 9.9.9, 2026-01-02T03:04:05+00:00.",
    ]
    assert describe({}) == []


def test_markdown_has_a_table_and_the_remarks_of_each_run() -> None:
    text = markdown([full_bench(), bench([answer()], [Failure("It *broke*.", "a|b")])])
    lines = text.splitlines()
    assert lines[0] == "# Benchmark"
    assert lines.count("## target.gguf") == 2
    assert lines.count(f"| {' | '.join(HEADS)} |".replace("%", "%")) == 2
    rows = [line for line in lines if line.startswith("|")]
    assert {row.replace("\\|", "").count("|") for row in rows} == {len(HEADS) + 1}
    assert "- warning: a\\|b: It \\*broke\\*." in lines
