"""What a generation cost and what speculation brought, for people and for programs."""

import json
import re
from typing import Any

from slipstream.core.protocols import Model
from slipstream.engine import Completion, Engine


def summary(completion: Completion) -> list[str]:
    """The figures of one generation; joined they are the line at its end."""
    timings = completion.timings.as_dict()
    parts = [
        "1 token" if timings["predicted_n"] == 1 else f"{timings['predicted_n']} tokens",
        f"{timings['predicted_per_second']:.1f} tok/s",
        *(_speculation(completion) if completion.drafter != "none" else ["speculation off"]),
        f"seed {completion.seed}",
    ]
    ends = {"cancelled": "interrupted", "length": "cut at the limit"}
    return parts + ([ends[completion.finish_reason]] if completion.finish_reason in ends else [])


def _speculation(completion: Completion) -> list[str]:
    statistics = completion.statistics
    rate, length = statistics.acceptance_rate, statistics.mean_accepted_length
    whole = sum(statistics.seconds.values()) or 1.0
    split = " ".join(f"{phase} {statistics.seconds[phase] / whole:.0%}" for phase in ("draft", "verify"))
    return [
        f"{length or 0:.2f} tokens a round",
        "nothing drafted" if rate is None else f"{rate:.0%} accepted",
        split,
    ]


def fit(parts: list[str], columns: int) -> str:
    """The parts joined, with line breaks between parts where the terminal is narrow."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        if len(longer) > columns and lines[-1]:
            lines.append(part)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def as_object(completion: Completion, engine: Engine) -> dict[str, Any]:
    """The object of `--json`; `timings` has llama-server's keys."""
    return {
        "text": completion.text,
        "tokens": completion.tokens,
        "finish_reason": completion.finish_reason,
        "seed": completion.seed,
        "timings": completion.timings.as_dict(),
        "speculation": {**completion.speculation(), "policy": policy(engine)},
        "model": _model(engine.target),
        "draft_models": [_model(model) for model in engine.draft_models],
    }


def policy(engine: Engine) -> dict[str, Any]:
    """What the policy says of itself; where nothing drafts its draft length would be no truth."""
    described = engine.policy.describe()
    return described if engine.drafters else described | {"explanation": "Plain decoding: there is no drafter."}


def _model(model: Model) -> dict[str, Any]:
    return {"name": model.name, "runtime": model.runtime, "memory_bytes": model.memory()}


def to_json(value: Any) -> str:
    """JSON for programs that a terminal can show, too: JSON itself leaves DEL and the C1 controls as they are."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return re.sub("[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"
