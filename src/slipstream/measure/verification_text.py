"""What a verification comes to, for people: tables, and one line at the end that is the verdict."""

from collections.abc import Iterator, Sequence

from slipstream.core.protocols import Vocabulary
from slipstream.measure.certificate import Comparison
from slipstream.measure.distribution import LawTest
from slipstream.measure.divergence import END, LOG_PROBABILITY, Parting
from slipstream.measure.law_report import LEVEL, LawReport
from slipstream.measure.selftest import GENUINE, Finding
from slipstream.measure.verification import Verification

LISTED = 12
"""Partings of one way that are listed one by one; `--json` has all."""


def lines(verification: Verification) -> Iterator[str]:
    """The whole report."""
    yield from _head(verification)
    yield ""
    yield from _comparisons(verification)
    if verification.law is not None:
        yield ""
        yield from _law(verification.law)
    if verification.self_test is not None:
        yield ""
        yield from _self_test(verification)
    yield ""
    yield verdict(verification)


def verdict(verification: Verification) -> str:
    """One line."""
    parts = ["Partial, because it was stopped:"] if verification.partial else []
    parts.append(_of_texts(verification))
    if verification.law is not None and verification.law.failed:
        parts.append("The law of what is drawn is NOT the target's.")
    elif verification.law is not None and verification.law.tests:
        parts.append("Tokens come as often as the target's distribution says.")
    if verification.self_test is not None:
        parts.append(_of_self_test(verification.self_test.findings, complete=verification.self_test.complete))
    return " ".join(parts)


def _head(verification: Verification) -> Iterator[str]:
    target, params, cases = verification.engine.target, verification.params, verification.cases
    seeds = sorted({case.seed for case in cases})
    kind = "bit-exact rows" if verification.certificate.exact else "rows are not bit-exact"
    yield f"{target.name} on the {target.runtime} runtime ({kind})"
    filters = [f"temperature {params.temperature:g}"]
    filters += [f"top-k {params.top_k}"] if params.top_k else []
    filters += [f"top-p {params.top_p:g}"] if params.top_p < 1 else []
    filters += [f"min-p {params.min_p:g}"] if params.min_p else []
    filters += ["penalties"] if params.has_penalties else []
    prompts = len({case.name for case in cases})
    span = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    yield f"{_count(prompts, 'prompt')}, {span}, {', '.join(filters)}"
    if not verification.certificate.exact:
        yield from _rounding(verification)


def _rounding(verification: Verification) -> Iterator[str]:
    figures = verification.certificate.rounding.as_dict()
    decisions, everywhere = figures["decisions"], figures["everywhere"]
    if decisions:
        most, usual, rare = (decisions[name] for name in ("largest", "median", "p99"))
        yield (
            f"Measured rounding, {figures['rows']} rows alone and beside others: decisions move by {usual:.2g} logits "
            f"(median), {rare:.2g} (99 %), {most:.2g} (most); unlikely tokens by up to {everywhere['largest']:.2g}"
        )


def _comparisons(verification: Verification) -> Iterator[str]:
    comparisons = verification.certificate.comparisons
    heads = ("way", "texts", "identical", "tokens", "drafted", "accepted")
    figures = [(c.way, c.texts, c.identical, c.tokens, c.drafted, c.accepted) for c in comparisons]
    yield from _table(heads, [tuple(map(str, row)) for row in figures])
    for comparison in comparisons:
        yield from _partings(comparison, verification.engine.target.vocabulary)


def _partings(comparison: Comparison, vocabulary: Vocabulary) -> Iterator[str]:
    # what is real comes first, or a long list of near-ties would hide it
    ordered = sorted(comparison.partings, key=lambda parting: not parting.real)
    for parting in ordered[:LISTED]:
        yield f"  {comparison.way}: {describe(parting, vocabulary)}"
    if len(ordered) > LISTED:
        yield f"  {comparison.way}: {len(ordered) - LISTED} more"


def describe(parting: Parting, vocabulary: Vocabulary) -> str:
    """A parting in one line."""
    kind = "DIFFERENT" if parting.real else "near-tie"
    where = f"{parting.prompt}, seed {parting.seed}, token {parting.index + 1}"
    if parting.what == LOG_PROBABILITY:
        what = f"the log-probability of {_name(parting.plain, vocabulary)} is off by {parting.gap:.3g}"
    elif parting.what == END:
        what = f"{_name(parting.plain, vocabulary)} became {_name(parting.other, vocabulary)}"
    else:
        plain, other = (_name(token, vocabulary) for token in (parting.plain, parting.other))
        what = f"{plain} became {other}, which takes {parting.gap:.3g} logits"
    limit = f" (rounding: up to {parting.allowed:.3g})" if parting.allowed else ""
    return f"{kind}: {where}: {what}{limit}"


def _name(token: int | None, vocabulary: Vocabulary) -> str:
    if token is None:
        return "the end"
    text = vocabulary.token_bytes(token).decode("utf-8", "replace") or vocabulary.token_name(token)
    return repr(text)


def _law(report: LawReport) -> Iterator[str]:
    yield f"The law of pairs of tokens ({len(report.tests)} of {report.planned} tests)"
    figures = [
        (place, drafter, test.draws, test.accepted, test.cells, f"{test.p:.2g}", _law_result(test, report.level))
        for place, drafter, test in report.tests
    ]
    heads = ("row", "drafter", "draws", "accepted", "cells", "p", "")
    yield from _table(heads, [tuple(map(str, row)) for row in figures], left=2)
    if any(test.cells > 1 for *_, test in report.tests):
        off = min(report.detectable, 1)
        yield (
            f"The right law fails one of {1 / LEVEL:.0f} such reports (a p below {report.level:.2g}); one that is "
            f"{off:.1%} off in total variation fails each of these tests 9 times of 10."
        )
    else:
        yield "Only one pair of tokens is possible on each row, so only impossible ones could have failed."


def _law_result(test: LawTest, level: float) -> str:
    if test.impossible:
        return f"FAILS: {_count(test.impossible, 'impossible pair')}"
    if test.fails(level):
        return "FAILS"
    return "" if test.accepted else "nothing accepted"


def _self_test(verification: Verification) -> Iterator[str]:
    test, params = verification.self_test, verification.params
    assert test is not None
    yield "Self-test: verifiers that are broken on purpose"
    if verification.own_settings is not None:
        own = verification.own_settings
        yield (
            f"  at temperature {own.get('temperature'):g}, top-p {own.get('top_p'):g} and min-p {own.get('min_p'):g}; "
            f"the given sampling (temperature {params.temperature:g}) leaves too little to chance for mistakes to show"
        )
    rows = [
        (one.mistake.name, one.mistake.what, *(_caught(found) for found in (one.by_ids, one.by_law)), _finding(one))
        for one in test.findings
    ]
    yield from _table(("verifier", "what is wrong with it", "texts", "law", ""), rows, left=5)


def _caught(found: bool) -> str:
    return "caught" if found else "-"


def _finding(finding: Finding) -> str:
    if finding.mistake is GENUINE:
        return "passes" if finding.as_it_should else "DOES NOT PASS"
    return "caught" if finding.as_it_should else "NOT CAUGHT" if not finding.caught else "NOT CAUGHT BY BOTH"


def _of_self_test(findings: Sequence[Finding], *, complete: bool) -> str:
    if not all(finding.as_it_should for finding in findings):
        return (
            "The self-test FAILED: this certificate cannot tell a broken verifier from a sound one; "
            "give more --max-tokens or prompts if they are few."
        )
    if not complete:
        return "The self-test was not finished."
    return f"All {len(findings) - 1} broken verifiers were caught."


def _of_texts(verification: Verification) -> str:
    comparisons = verification.certificate.comparisons
    proving = [comparison for comparison in comparisons if comparison.drafted]  # the others are plain decoding again
    texts = sum(comparison.texts for comparison in proving)
    tokens = sum(comparison.tokens for comparison in proving)
    accepted = sum(comparison.accepted for comparison in proving)
    idle = [comparison.way for comparison in comparisons if comparison.proves_nothing]
    if verification.outcome == "different":
        return _difference(comparisons)
    if verification.outcome == "nothing drafted":
        return _nothing(verification)
    alike = f"{_count(texts, 'text')} and {_count(tokens, 'token')}, {accepted} of them drafted"
    if verification.outcome == "identical":
        also = ", log-probabilities included" if verification.certificate.exact else ""
        sentence = f"IDENTICAL: {alike}, are what plain decoding gives{also}."
    else:
        partings = [parting for comparison in comparisons for parting in comparison.partings]
        largest = max(parting.gap for parting in partings)
        rounding = verification.certificate.rounding.allowed
        sentence = (
            f"NO REAL DIFFERENCE: {alike}; plain decoding's texts but for {_count(len(partings), 'near-tie')} of up to "
            f"{largest:.2g} logits, where rounding moves decisions by up to {rounding:.2g}."
        )
    return sentence + (f" No certificate for {'; '.join(idle)}: nothing was drafted." if idle else "")


def _difference(comparisons: Sequence[Comparison]) -> str:
    where = [comparison.way for comparison in comparisons if comparison.real]
    count = sum(len(comparison.real) for comparison in comparisons)
    return f"DIFFERENT: {_count(count, 'text')} not what plain decoding gives, more than rounding ({'; '.join(where)})."


def _nothing(verification: Verification) -> str:
    if not verification.engine.target.capabilities.rollback:
        name = verification.engine.target.name
        return f"NO CERTIFICATE: {name} cannot take tokens back, so it decodes plainly, with nothing to verify."
    if verification.partial:
        return "NO CERTIFICATE: no draft token had been accepted until then."
    return "NO CERTIFICATE: no draft token was accepted, so nothing was verified; give more --max-tokens or prompts."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Iterator[str]:
    """Columns as wide as they need; the first `left` are aligned to the left."""
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    for row in (heads, *rows):
        cells = [
            cell.ljust(width) if column < left or (column == len(heads) - 1 and left > 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
