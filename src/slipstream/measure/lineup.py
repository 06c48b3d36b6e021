"""The engines of a benchmark on one loaded target, and the header that describes them."""

import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Model
from slipstream.engine import Engine, GenerationOptions, ModelOptions
from slipstream.engine.loading import LoadProgress
from slipstream.engine.options import sampling_params
from slipstream.measure.configurations import Configuration
from slipstream.policy import AdaptivePolicy


def join(
    plain: Engine, configuration: Configuration, *, max_slowdown: float, progress: LoadProgress | None = None
) -> Engine:
    """An engine for a configuration on the target of `plain`, which is closed last. Raises as `Engine.load` does."""
    return plain.sharing(
        draft=configuration.draft,
        speculation=configuration.speculation,
        num_draft_tokens=configuration.num_draft_tokens,
        max_slowdown=max_slowdown,
        progress=progress,
    )


def effective_params(plain: Engine, options: GenerationOptions) -> SamplingParams:
    """What the answers are sampled with: the file's recommendations, and what was asked for."""
    return sampling_params(plain.defaults, options)


def describe_target(model: Model, options: ModelOptions) -> dict[str, Any]:
    """The target as the header has it."""
    return {
        "name": model.name,
        "runtime": model.runtime,
        "instruction_set": getattr(model, "instruction_set", None),
        "bit_exact": model.capabilities.bit_exact_rows,
        "memory": model.memory(),
        "context_length": model.context_length,
        "kv_type": options.kv_type,
    }


def describe_machine(model: Model, options: ModelOptions) -> dict[str, Any]:
    """Where a run took place."""
    return {"cpu": cpu_name(), "threads": getattr(model, "threads", options.threads), "system": platform.system()}


def cpu_name() -> str:
    """What the system calls the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def header(
    plain: Engine,
    configurations: Sequence[Configuration],
    options: ModelOptions,
    params: SamplingParams,
    **more: Any,
) -> dict[str, Any]:
    """The first line of a record file; `more` is put into it as it is."""
    sampling = {name: value for name, value in asdict(params).items() if name not in ("seed", "logit_bias")}
    return {
        "slipstream": version("slipstream-decoding"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "target": describe_target(plain.target, options),
        "machine": describe_machine(plain.target, options),
        "sampling": sampling | ({"logit_bias": len(params.logit_bias)} if params.logit_bias else {}),
        "configurations": [configuration.as_dict() for configuration in configurations],
        **more,
    }


def measured_costs(engines: Sequence[Engine]) -> dict[str, float]:
    """Seconds of a forward of the target by its rows, as an adaptive policy measured them; empty if none did."""
    for engine in engines:
        if engine.drafters and isinstance(engine.policy, AdaptivePolicy):
            return {str(rows): seconds for rows, seconds in engine.policy.costs.points.items()}
    return {}
