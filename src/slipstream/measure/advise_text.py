"""Advice as lines for people."""

from collections.abc import Iterable, Sequence

from slipstream.measure.advise import Advice
from slipstream.measure.assessment import VERIFIED_ROWS, Assessment, KindFigures
from slipstream.measure.memory_bill import MemoryBill

HEADS = ("kind", "speed-up", "predicted", "accepted", "tokens a round")
ALL = "all"
NOTHING = "-"
MARK = " *"
"""Behind a prediction that differs from the measurement."""


def lines(advice: Advice) -> list[str]:
    """All of it, the verdict last."""
    return [
        *_target(advice),
        *(line for one in advice.assessments for line in _assessment(one)),
        *_left_out(advice),
        *_suggestions(advice),
        *_notes(advice),
        "",
        f"Verdict: {advice.verdict.sentence}",
    ]


def _target(advice: Advice) -> list[str]:
    context = f"{advice.context:,} tokens of context"
    if advice.kv_bytes:
        context += f" at {_bytes(advice.kv_bytes)} each"
    speeds = ", ".join(f"{kind} {speed:.1f}" for kind, speed in advice.plain.items())
    plain = [f"Plain decoding, tokens a second: {speeds}."] if speeds else []
    return [f"Target: {advice.target} on {advice.runtime}, {context}.", *plain]


def _assessment(one: Assessment) -> list[str]:
    runtime = f" on {one.runtime}" if one.runtime else ""
    rows = [_row(kind, figures) for kind, figures in one.kinds.items()]
    if len(rows) > 1:
        rows.append(_row(ALL, one.overall))
    return [
        "",
        f"{one.candidate.name}{runtime}",
        *(f"  {line}" for line in _table([HEADS, *rows])),
        *(f"  {line}" for line in (_costs(one), *_fixed(one), *_memory(one.memory), *_surprise(one), *_differing(one))),
        *(f"  {sentence}" for sentence in one.failures),
    ]


def _row(kind: str, figures: KindFigures) -> tuple[str, ...]:
    accepted, length = figures.acceptance_rate, figures.tokens_per_round
    predicted = NOTHING if figures.predicted is None else f"{figures.predicted:.2f}x"
    return (
        kind,
        NOTHING if figures.ratio is None else str(figures.ratio),
        predicted + (MARK if figures.surprising else ""),
        NOTHING if accepted is None else f"{accepted:.0%}",
        NOTHING if length is None else f"{length:.2f}",
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, two blanks apart; predictions keep room for their mark."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _costs(one: Assessment) -> str:
    verify = f"checking {VERIFIED_ROWS} rows takes {one.costs.verify:.2f} steps of the target"
    if one.costs.draft_step is None:
        return f"Costs: drafting takes next to nothing, {verify}."
    return f"Costs: a draft step takes {one.costs.draft_step:.2f} and {verify}."


def _fixed(one: Assessment) -> list[str]:
    ratios = {} if one.prediction is None else one.prediction.by_length()
    if not ratios:
        return []
    texts = ", ".join(f"{length}: {ratio:.2f}x" for length, ratio in ratios.items())
    return [f"Predicted for drafts of a fixed length: {texts}."]


def _memory(bill: MemoryBill) -> list[str]:
    if not bill.total:
        return ["Memory: none."]
    types = ", ".join(f"{name} {_bytes(size)}" for name, size in bill.formats.items())
    sizes = {
        f"of weights ({types})" if types else "of weights": bill.weights,
        f"of KV cache for {bill.context:,} tokens": bill.kv_cache,
        "of buffers": bill.buffers,
        "of tables of its own": bill.own,
    }
    parts = [f"{_bytes(size)} {what}" for what, size in sizes.items() if size]
    text = f"Memory: {_bytes(bill.total)}: {_joined(parts)}" if len(parts) > 1 else f"Memory: {parts[0]}"
    if bill.target_context is not None:
        text += f"; that would have held {bill.target_context:,} tokens more of the target's context"
    return [f"{text}.", *_fallen(bill)]


def _fallen(bill: MemoryBill) -> list[str]:
    """Says which matrices are wider than the name of their file promises."""
    if not bill.fallen_back:
        return []
    sizes = _joined([f"{_bytes(size)} of {name}" for name, size in bill.fallen_back.items()])
    return [f"{sizes} are wider than was asked for: rows of these matrices are no whole blocks of that type."]


def _joined(texts: Sequence[str]) -> str:
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _surprise(one: Assessment) -> list[str]:
    """Says where prediction and measurement are apart."""
    kinds = [kind for kind, figures in one.kinds.items() if figures.surprising]
    where = [*kinds, *(["all together"] if one.overall.surprising else [])]
    if not where:
        return []
    reasons = "Other programs at work are the usual reason."
    return [
        f"* Prediction and measurement differ by over 10 % for {', '.join(where)}; the measurement counts. {reasons}"
    ]


def _differing(one: Assessment) -> list[str]:
    if not one.differing:
        return []
    answers = "answer has" if one.differing == 1 else "answers have"
    return [f"{one.differing} {answers} other tokens than plain decoding; slipstream verify tells near-ties from bugs."]


def _left_out(advice: Advice) -> list[str]:
    return _section("Not measured:", (f"{one.name}: {one.reason}" for one in advice.left_out))


def _suggestions(advice: Advice) -> list[str]:
    texts = (f"{one.name} ({one.parameters:g} billion parameters): {one.why}." for one in advice.suggestions)
    return _section("Worth fetching as a GGUF file, to be named with --candidates:", texts)


def _notes(advice: Advice) -> list[str]:
    notes = list(dict.fromkeys(advice.failures))
    if advice.unreached:
        notes.append(f"There was no time for {', '.join(advice.unreached)}; give more --minutes or fewer --kinds.")
    if advice.looping:
        notes.append(f"Left out, because the answers repeat themselves: {', '.join(advice.looping)}.")
    return _section("Notes:", notes)


def _section(title: str, texts: Iterable[str]) -> list[str]:
    items = [f"  {text}" for text in texts]
    return ["", title, *items] if items else []


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.{0 if count >= 10 * size else 1}f} {unit}"
    return f"{count:.0f} bytes"
