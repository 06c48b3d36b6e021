"""The adaptive policy in a sentence or two."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.policy.adaptive import AdaptivePolicy

LEVELS = 8


def explain(policy: "AdaptivePolicy") -> str:
    """What was chosen, why, what it gained so far, what would have to change."""
    ledger = policy.ledger
    if not ledger.rounds:
        return "Nothing was generated yet."
    share = ledger.speculated / ledger.rounds
    if not policy.drafters:
        return "Plain decoding: there is no drafter."
    if share < 0.05:
        return f"Plain decoding, {_whole(share)} of the rounds with drafts: {_why_not(policy)} {_gained(policy)}"
    length = ledger.nodes / max(ledger.speculated, 1)
    drafts = f"Drafts of {length:.1f} tokens on average in {_whole(share)} of the rounds"
    if share >= 0.5:
        return f"{drafts}: {_costs(policy, round(length))} and {_acceptance(policy)}. {_gained(policy)}"
    return f"{drafts}, plain decoding in the others: {_why_not(policy)} {_gained(policy)}"


def _gained(policy: "AdaptivePolicy") -> str:
    ledger, gain = policy.ledger, policy.ledger.gain or 1.0
    if abs(gain - 1) < 0.005:
        return f"About as fast as plain decoding so far ({ledger.tokens} tokens)."
    if gain > 1:
        return f"{gain:.2f} times as fast as plain decoding so far ({ledger.tokens} tokens, by measured costs)."
    left = f"{max(policy.bank.balance, 0):.2f} s more may be lost"
    return f"{ledger.actual - ledger.plain:.2f} s of {ledger.actual:.1f} s were lost so far; {left}."


def _costs(policy: "AdaptivePolicy", nodes: int) -> str:
    base = policy.costs.seconds(1)
    checked = policy.costs.seconds(1 + max(nodes, 1)) / base
    tokens = "1 token" if nodes <= 1 else f"{nodes} tokens"
    return f"checking {tokens} costs {checked:.2f} times a plain step here"


def _acceptance(policy: "AdaptivePolicy") -> str:
    """First-level acceptance of every drafter that was seen."""
    seen = [
        f"{drafter.name} is right {_whole(policy.acceptance.by_level(drafter.name)[0])} of the time"
        for drafter in policy.drafters
        if policy.acceptance.seen(drafter.name) >= 1
    ]
    return " and ".join(seen) or "no drafter has proposed anything yet"


def _why_not(policy: "AdaptivePolicy") -> str:
    """Why there are no drafts, and what would have to change."""
    if policy.bank.balance <= 0:
        return "what may be lost is used up until more was gained."
    reasons = [_reason(policy, index) for index in range(len(policy.drafters))]
    return "; ".join(reasons) + "."


def _reason(policy: "AdaptivePolicy", index: int) -> str:
    drafter = policy.drafters[index]
    table = None if drafter.free else policy.steps[index]
    step = 0.0 if table is None else table.seconds(1)
    base = policy.costs.seconds(1)
    needed, length = _break_even(policy, step)
    price = "" if drafter.free else f"a step of it takes {_whole(step / base)} of a plain step, "
    check = f"{price}{_costs(policy, length)}"
    if needed is None:
        return f"{drafter.name} could not pay if it were always right ({check})"
    if not drafter.free and policy.too_dear > 0 and policy.acceptance.seen(drafter.name) < 1:
        why = f"and {policy.bank.balance:.1f} s may be lost"
        if policy.too_dear <= policy.bank.balance:
            why = "more than it would bring soon"
        return f"{drafter.name} would have to read the prompt first, which takes {policy.too_dear:.1f} s, {why}"
    if policy.acceptance.seen(drafter.name) < 1:
        return f"{drafter.name} " + ("found nothing to propose" if drafter.free else "was not tried yet")
    right = policy.acceptance.by_level(drafter.name)[0]
    if right < needed:
        return f"{drafter.name} is right {_whole(right)} of the time and would have to be {_whole(needed)} ({check})"
    return f"{drafter.name} is right {_whole(right)} of the time where it proposes ({check})"


def _break_even(policy: "AdaptivePolicy", step: float) -> tuple[float | None, int]:
    """(smallest acceptance per level with which some length pays, that length); None if none does."""
    base = policy.costs.seconds(1)
    best: tuple[float | None, int] = (None, LEVELS // 2)
    for length in range(1, LEVELS + 1):
        price = (length * step + policy.costs.seconds(1 + length) - base) / base
        if price < length:
            needed = _solve(price, length)
            if best[0] is None or needed < best[0]:
                best = needed, length
    return best


def _solve(price: float, length: int) -> float:
    """The acceptance a with a + a^2 + ... + a^length = price."""
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        total = sum(middle**level for level in range(1, length + 1))
        low, high = (middle, high) if total < price else (low, middle)
    return high


def _whole(share: float) -> str:
    return f"{share:.0%}"
