from dataclasses import replace

import pytest

from slipstream.measure.advise import Advice
from slipstream.measure.advise_text import lines
from slipstream.measure.assessment import Assessment, CostFigures, KindFigures, differing_answers, figures
from slipstream.measure.candidates import Candidate, LeftOut
from slipstream.measure.memory_bill import MemoryBill
from slipstream.measure.prediction import Prediction
from slipstream.measure.ratios import Ratio
from slipstream.measure.records import Answer, Round
from slipstream.measure.verdict import Verdict
from slipstream.models.families import Suggestion

RATIO = Ratio(1.5, 1.4, 1.6, 2, 6)
MEMORY = (
    "Memory: 146 MB: 99 MB of weights and 47 MB of KV cache for 2,048 tokens; "
    "that would have held 2,374 tokens more of the target's context."
)
SURPRISE = (
    "* Prediction and measurement differ by over 10 % for code; the measurement counts. "
    "Other programs at work are the usual reason."
)
PREDICTION = Prediction({"a": 1.45, "b": 1.9}, {4: {"a": 1.4, "b": 1.6}})


def assessment(**changes: object) -> Assessment:
    made = Assessment(
        candidate=Candidate("small", "/small.gguf"),
        runtime="native",
        overall=KindFigures(RATIO, 1.55, 0.71, 2.414),
        kinds={"chat": KindFigures(RATIO, 1.45, 0.7, 2.4), "code": KindFigures(RATIO, 1.9, None, None)},
        costs=CostFigures(0.11, 1.2),
        memory=MemoryBill(99_000_000, 47_000_000, 0, 2048, 2374),
        prediction=PREDICTION,
        differing=0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def advice(*assessments: Assessment, **changes: object) -> Advice:
    verdict = Verdict("yes", "yes: use small.", "small")
    made = Advice("big.gguf", "native", 4096, 61_440.0, verdict, assessments=list(assessments), plain={"chat": 30.04})
    return replace(made, **changes)  # type: ignore[arg-type]


def test_the_whole_page() -> None:
    assert lines(advice(assessment())) == [
        "Target: big.gguf on native, 4,096 tokens of context at 61 kB each.",
        "Plain decoding, tokens a second: chat 30.0.",
        "",
        "small on native",
        "  kind  speed-up              predicted  accepted  tokens a round",
        "  chat  1.50x (1.40 to 1.60)  1.45x      70%       2.40",
        "  code  1.50x (1.40 to 1.60)  1.90x *    -         -",
        "  all   1.50x (1.40 to 1.60)  1.55x      71%       2.41",
        "  Costs: a draft step takes 0.11 and checking 5 rows takes 1.20 steps of the target.",
        "  Predicted for drafts of a fixed length: 4: 1.50x.",
        f"  {MEMORY}",
        f"  {SURPRISE}",
        "",
        "Verdict: yes: use small.",
    ]


def test_one_kind_needs_no_line_for_all_and_no_model_no_memory() -> None:
    kinds = {"chat": KindFigures(None, None, None, 1.0)}
    suffix = assessment(runtime="", kinds=kinds, costs=CostFigures(None, 1.2), memory=MemoryBill(), prediction=None)
    assert lines(advice(suffix))[3:8] == [
        "small",
        "  kind  speed-up  predicted  accepted  tokens a round",
        "  chat  -         -          -         1.00",
        "  Costs: drafting takes next to nothing, checking 5 rows takes 1.20 steps of the target.",
        "  Memory: none.",
    ]


HALF = MemoryBill(30_000_000, 20_000_000, 1_500_000, 512, None, 0, {"Q4_0": 29_000_000, "F32": 1_000_000})
HALF_TEXT = (
    "Memory: 52 MB: 30 MB of weights (Q4_0 29 MB, F32 1.0 MB), 20 MB of KV cache for 512 tokens and 1.5 MB of buffers."
)
FALLEN = MemoryBill(8, target_context=1, formats={"Q3_K": 5, "Q5_0": 2}, fallen_back={"Q5_0": 2, "Q8_0": 1})
FALLEN_TEXT = (
    "Memory: 8 bytes of weights (Q3_K 5 bytes, Q5_0 2 bytes); that would have held 1 tokens more of the target's "
    "context.\n2 bytes of Q5_0 and 1 bytes of Q8_0 are wider than was asked for: rows of these matrices are no whole "
    "blocks of that type."
)
OWN = MemoryBill(own=2_000_000)


@pytest.mark.parametrize(
    ("bill", "expected"),
    [(OWN, "Memory: 2.0 MB of tables of its own."), (HALF, HALF_TEXT), (FALLEN, FALLEN_TEXT)],
)
def test_a_bill_says_what_it_is_made_of(bill: MemoryBill, expected: str) -> None:
    text = "\n".join(line.strip() for line in lines(advice(assessment(memory=bill))))
    assert f"\n{expected}\n" in text


def test_what_was_left_out_suggested_or_went_wrong_is_said() -> None:
    one = assessment(differing=2, failures=["It failed."])
    text = "\n".join(
        lines(
            advice(
                one,
                left_out=[LeftOut("other", "it is too large")],
                suggestions=[Suggestion("tiny-0.1B", 0.135, "they share a tokenizer")],
                unreached=["maths", "prose"],
                looping=["chat-3"],
                failures=["It does not fit.", "It does not fit."],
            )
        )
    )
    assert "  2 answers have other tokens than plain decoding" in text
    assert "  It failed." in text
    assert "Not measured:\n  other: it is too large" in text
    assert "  tiny-0.1B (0.135 billion parameters): they share a tokenizer." in text
    assert "There was no time for maths, prose; give more --minutes or fewer --kinds." in text
    assert text.count("It does not fit.") == 1
    assert "repeat themselves: chat-3." in text


@pytest.mark.parametrize(("predicted", "surprising"), [(1.64, False), (1.66, True), (1.36, False), (1.34, True)])
def test_a_prediction_surprises_from_a_tenth_of_the_measurement_on(predicted: float, surprising: bool) -> None:
    assert KindFigures(RATIO, predicted, None, None).surprising is surprising


def answer(configuration: str, prompt: str, seconds: float, **more: object) -> Answer:
    rounds = [Round(10, 4, 3, 2, 3, 4, "model", 0.0, 0.0, 0.0, 0.0), Round(13, 0, 0, 0, 1, 0, "", 0.0, 0.0, 0.0, 0.0)]
    given = {"ids_hash": "same", "kind": prompt, "rounds": rounds} | more
    return Answer(4, seconds, configuration=configuration, prompt=prompt, **given)  # type: ignore[arg-type]


def test_figures_are_of_the_answers_that_do_not_loop() -> None:
    answers = [
        answer("off", "a", 2.0),
        answer("small", "a", 1.0),
        answer("off", "b", 2.0),
        answer("small", "b", 4.0, looping=0.9, rounds=[]),
    ]
    everything = figures(answers, "small", PREDICTION)
    assert everything.ratio is not None
    assert (everything.ratio.value, everything.predicted) == (2.0, pytest.approx(1.45))
    assert (everything.acceptance_rate, everything.tokens_per_round) == (pytest.approx(2 / 3), 2.0)
    assert figures(answers, "small", PREDICTION, "b") == KindFigures(None, None, None, None)
    assert figures(answers, "small", None, "a").predicted is None


def test_answers_with_other_ids_are_counted() -> None:
    answers = [answer("off", "a", 1.0), answer("small", "a", 1.0, ids_hash="other"), answer("suffix", "a", 1.0)]
    assert (differing_answers(answers, "small"), differing_answers(answers, "suffix")) == (1, 0)
