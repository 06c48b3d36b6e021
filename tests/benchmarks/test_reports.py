"""What benchmarks make of their records."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import agreement, end_to_end, native_report
from benchmarks.native_report import EIGHT, ONE, SMALL, WIDE, Results, Work, report
from benchmarks.records import Recorder, Target, read_records, target_table

Record = dict[str, Any]


def forward(worker: str, work: Work, seconds: list[float], *, part: str = "rows", busy: bool = False) -> Record:
    label = {"kind": "forward", "part": part, "file": WIDE, "worker": worker, "busy": busy}
    return label | work._asdict() | {"seconds": seconds}


def roofline(read: float, dot: float) -> Record:
    size = {"bytes": 800_000_000, "operations": 1_400_000_000}
    label = {"kind": "roofline", "part": "rows", "file": WIDE, "worker": "native"}
    return label | size | {"read": read, "dot": dot, "fma": 1.0}


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "records.jsonl")
    recorder.add("forward", seconds=[0.25, 0.5])
    recorder.add("machine", cpu="a CPU")
    assert read_records(tmp_path / "records.jsonl") == recorder.records
    assert json.loads((tmp_path / "records.jsonl").read_text().splitlines()[0])["seconds"] == [0.25, 0.5]


@pytest.mark.parametrize(
    ("sense", "value", "verdict"),
    [
        ("<=", 0.5, "met"),
        ("<=", 0.51, "**not met**"),
        (">=", 0.5, "met"),
        (">=", 0.49, "**not met**"),
        ("<=", None, "not measured"),
    ],
)
def test_a_target_is_met_at_its_limit_and_not_beyond(sense: Any, value: float | None, verdict: str) -> None:
    [*_, row] = target_table([Target("it", sense, 0.5, lambda results: results)], value)
    assert row.split(" | ")[-1] == f"{verdict} |"


def test_ratios_are_of_medians_over_all_turns() -> None:
    ours = [forward("native", ONE, [0.010, 0.012]), forward("native", ONE, [0.011, 9.0, 0.011])]
    results = Results([*ours, forward("llama.cpp", ONE, [0.022]), forward("native", EIGHT, [0.033])])
    assert results.against("rows", WIDE, ONE) == pytest.approx(0.5)
    assert results.within("rows", WIDE, EIGHT, ONE) == pytest.approx(3.0)
    assert results.against("rows", WIDE, EIGHT) is None, "llama.cpp was not measured there"
    assert results.against("avx2", WIDE, ONE) is None, "another part"


def test_stalls_count_in_the_slowdown_beside_a_busy_process() -> None:
    quiet = forward("native", ONE, [0.01] * 4, part="busy")
    stalled = forward("native", ONE, [0.01, 0.01, 0.01, 0.09], part="busy", busy=True)
    assert Results([quiet, stalled]).slowdown(WIDE) == pytest.approx(3.0)


def test_the_roofline_is_the_longer_of_reading_and_multiplying() -> None:
    results = Results([roofline(read=40.0, dot=700.0)])
    assert results.roofline("rows", WIDE, ONE) == pytest.approx(0.020), "800 MB at 40 GB/s"
    assert results.roofline("rows", WIDE, Work(32)) == pytest.approx(0.064), "32 * 1.4e9 at 700e9 a second"
    assert results.roofline("rows", SMALL, ONE) is None


def test_the_report_names_every_target_of_the_issue_and_invents_no_figure() -> None:
    lines = report([roofline(40.0, 700.0), forward("native", ONE, [0.026]), forward("llama.cpp", ONE, [0.040])])
    targets = [line for line in lines if line.endswith(("| met |", "| **not met** |", "| not measured |"))]
    assert len(targets) == len(native_report.TARGETS)
    assert f"| {WIDE}, 1 row: native / llama.cpp | <= 0.78 | 0.65 | met |" in targets
    assert f"| {WIDE}, 1 to 32 rows: largest time / roofline (a goal) | <= 1.3 | 1.3 | met |" in targets
    assert sum("not measured" in line for line in targets) == len(targets) - 2
    assert "| 1 row | 26.00 | 40.00 | 0.65 | 1.00 | 1.00 | 20.00 | 1.30 |" in lines


def answer(side: str, draft_tokens: int, prompt: int, tokens: list[int], seconds: float, early: int = 1) -> Record:
    label = {"kind": "answer", "side": side, "draft_tokens": draft_tokens, "prompt": prompt, "temperature": 0.0}
    counts = {"early": early, "drafted": 30, "accepted": 20}
    return label | counts | {"tokens": tokens, "decode_seconds": seconds, "seconds": seconds + 1}


def test_a_looping_answer_takes_its_prompt_out_of_both_sides() -> None:
    fine, loop = list(range(41)), [1, 2, 3, 4, 5] * 8
    answers = [
        answer("llama-server", 0, 0, fine, 2.0),
        answer("llama-server", 3, 0, fine, 4.0),
        answer("slipstream", 4, 0, fine, 0.5),
        answer("llama-server", 0, 1, fine, 0.01),
        answer("slipstream", 4, 1, loop, 0.01),
    ]
    results = end_to_end.Results(answers)
    assert results.looping == {(1, 0.0)}
    assert results.best(end_to_end.THEIRS, 0.0) == pytest.approx(20.0), "the better of plain and drafted"
    assert results.speed_up(0.0) == pytest.approx(4.0)
    assert results.speed_up(1.0) is None


def test_decoding_leaves_out_the_whole_first_round() -> None:
    results = end_to_end.Results([answer("slipstream", 4, 0, list(range(44)), 1.0, early=4)])
    summary = results.summary(end_to_end.Setting("slipstream", 4), 0.0)
    assert summary is not None
    assert summary.decode == pytest.approx(40.0)
    assert summary.whole == pytest.approx(22.0)
    assert summary.accepted == pytest.approx(2 / 3)


def test_other_tokens_than_plain_decoding_are_counted() -> None:
    same, other = list(range(20)), list(range(1, 21))
    answers = [answer("slipstream", 0, 0, same, 1.0), answer("slipstream", 3, 0, same, 1.0)]
    assert end_to_end.Results(answers).different() == 0
    assert end_to_end.Results([*answers, answer("slipstream", 5, 0, other, 1.0)]).different() == 1


def test_prompts_are_of_every_kind() -> None:
    assert len(set(end_to_end.mixed_prompts(2))) == 10


def test_two_runs_are_compared_row_by_row() -> None:
    reference = np.log(np.array([[0.5, 0.25, 0.25], [0.2, 0.3, 0.5]], np.float32)) + 7  # softmax does not see the 7
    other = np.log(np.array([[0.25, 0.5, 0.25], [0.2, 0.3, 0.5]], np.float32)) + 7
    compared = agreement.compare(reference, other, [2])
    assert (compared.positions, compared.tokens, compared.agreed) == (2, 1, 1)
    assert compared.surprise == pytest.approx(math.log(4), abs=1e-6)
    assert compared.reference_surprise == pytest.approx(math.log(4), abs=1e-6)
    assert compared.divergence == pytest.approx(0.5 * math.log(2) - 0.25 * math.log(2), abs=1e-6)
    assert compared.largest == pytest.approx(math.log(2), abs=1e-6)


def test_agreement_is_over_all_positions_of_a_file() -> None:
    part = {
        "kind": "part",
        "file": SMALL,
        "name": "native",
        "reference": "llama.cpp",
        "positions": 10,
        "tokens": 9,
        "surprise": 18.0,
    }
    part |= {"reference_surprise": 9.0, "agreed": 10, "divergence": 0.01, "largest": 0.5}
    figures = agreement.Results([part, part | {"agreed": 9, "largest": 0.2}]).figures(SMALL)
    assert figures is not None
    assert figures.agreement == pytest.approx(0.95)
    assert figures.divergence == pytest.approx(0.001)
    assert figures.perplexity_difference == pytest.approx(math.e - 1)
    assert figures.largest == 0.5


def test_windows_cover_the_text_once() -> None:
    assert list(agreement.windows(range(7), 3)) == [range(3), range(3, 6)], "nothing follows a single last token"
    assert list(agreement.windows(range(8), 3)) == [range(3), range(3, 6), range(6, 8)]
