"""The adaptive policy of loaded models: costs measured or remembered, acceptance and credit of earlier programs."""

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from slipstream.core.layer_subset import LayerSubset
from slipstream.core.protocols import Drafter, Model
from slipstream.models.fingerprint import fingerprint
from slipstream.models.layer_sets import spelled
from slipstream.models.paths import cache_directory
from slipstream.policy import Acceptance, AdaptivePolicy, CostTable, ExcessBank, Store
from slipstream.policy.bank import LARGEST_BALANCE, STARTING_CREDIT
from slipstream.policy.probing import FIRST_CREDIT
from slipstream.policy.profile import fits, profile
from slipstream.runtime import LoadOptions
from slipstream.runtime.threads import default_threads

REMEMBERED = 20.0
"""Observations that what an earlier program learned counts for at most: enough to begin with, soon outvoted."""

SUBSET_SECONDS = 0.7
"""For the costs of some of a model's layers, of which there may be several to measure at load."""


@dataclass(slots=True)
class Costs:
    """Cost tables of this process's models, measured once each.

    origins: files and options of models that were loaded from one; others (a test's) are measured and not remembered
    """

    store: Store
    origins: WeakKeyDictionary[Model, tuple[Path, LoadOptions]] = field(default_factory=WeakKeyDictionary)
    _tables: WeakKeyDictionary[Model, CostTable] = field(default_factory=WeakKeyDictionary)

    def table(self, model: Model, *, drafts: bool = False) -> CostTable:
        """The table of a loaded model: the one of this process, a remembered one that still fits, or a new one."""
        table = self._tables.get(model)
        if table is None:
            table = self._tables[model] = self._remembered(model) or _measured(model, drafts=drafts)
            self.remember(model)
        return table

    def remember(self, model: Model) -> None:
        """Keep a model's table, as it stands now, for the next program."""
        if model in self._tables and (key := self.key(model)) is not None:
            self.store.write("costs", key, {"seconds": self._tables[model].as_dict()})

    def key(self, model: Model) -> str | None:
        """What a model's costs depend on: file, runtime and its options, machine, version. None without a file."""
        origin = self.origins.get(model)
        if origin is None:
            return None
        path, options = origin
        options = replace(options, threads=options.threads or default_threads())
        layers = [spelled(model.layers)] if isinstance(model, LayerSubset) else []
        parts = (fingerprint(path), *layers, model.runtime, getattr(model, "instruction_set", ""), options)
        return " ".join(map(str, (*parts, _machine(), version("slipstream-decoding"))))

    def _remembered(self, model: Model) -> CostTable | None:
        key = self.key(model)
        values = {} if key is None else self.store.read("costs", key)
        try:
            table = CostTable.from_dict(values["seconds"])
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        return table if fits(model, table) else None


def _measured(model: Model, *, drafts: bool) -> CostTable:
    if isinstance(model, LayerSubset):
        return profile(model, SUBSET_SECONDS, drafts=drafts)
    return profile(model, drafts=drafts)


def new_costs() -> Costs:
    """Costs that are kept in Slipstream's cache."""
    return Costs(Store(cache_directory() / "policy"))


def adaptive_policy(
    costs: Costs,
    target: Model,
    drafters: Sequence[Drafter],
    *,
    max_slowdown: float,
    most: int,
    most_predicted: int | None = None,
) -> AdaptivePolicy:
    """Measure what has to be measured, recall what was learned."""
    models = [None if drafter.free else drafter.model for drafter in drafters]
    # copies: what a drafter's steps take beyond its model's forwards is its own
    steps = [None if model is None else costs.table(model, drafts=True).copied() for model in models]
    # without drafters nothing depends on costs, so nobody has to wait for them
    table = costs.table(target) if drafters else CostTable({1: 1e-3})
    key = _learned_key(costs, target, drafters)
    values = {} if key is None else costs.store.read("learned", key)
    found = [(drafter.name, getattr(drafter, "expected_rate", None)) for drafter in drafters]
    rates = {name: rate for name, rate in found if rate is not None}
    acceptance, credit, tries = Acceptance(rates), STARTING_CREDIT, FIRST_CREDIT
    try:
        acceptance.nodes.recall(values["nodes"])
        acceptance.levels.recall(values["levels"])
        credit, tries = _seconds(values, "balance"), _seconds(values, "tries")
    except (KeyError, TypeError, ValueError, OverflowError):
        acceptance, credit = Acceptance(rates), STARTING_CREDIT

    def keep(policy: AdaptivePolicy) -> None:
        if key is not None and policy.ledger.rounds:
            learned = policy.acceptance
            costs.store.write(
                "learned",
                key,
                {
                    "nodes": learned.nodes.remembered(REMEMBERED),
                    "levels": learned.levels.remembered(REMEMBERED),
                    # another program may have changed it meanwhile; what is lost stays lost
                    "balance": _kept_balance(costs.store.read("learned", key), credit) + policy.bank.balance - credit,
                    # short answers would never save enough for a try
                    "tries": policy.tries,
                },
            )
            costs.remember(target)

    return AdaptivePolicy(
        table,
        steps,
        trees=target.capabilities.trees,
        bank=ExcessBank(max_slowdown, credit),
        tries=tries,
        acceptance=acceptance,
        most=most,
        most_predicted=most_predicted,
        most_rows=target.max_rows,
        on_close=keep,
    )


def _kept_balance(values: dict[str, Any], otherwise: float) -> float:
    """What is in the bank by now; `otherwise` if nothing usable is stated."""
    try:
        return _seconds(values, "balance")
    except (KeyError, TypeError, ValueError, OverflowError):
        return otherwise


def _seconds(values: dict[str, Any], name: str) -> float:
    """What was kept under a name, within what can be. Raises KeyError, TypeError, ValueError, OverflowError."""
    seconds = float(values[name])
    if not math.isfinite(seconds):
        raise ValueError(f"{name} is no time")
    return min(max(seconds, -LARGEST_BALANCE), LARGEST_BALANCE)


def _learned_key(costs: Costs, target: Model, drafters: Sequence[Drafter]) -> str | None:
    """Target, drafters and machine; None where one of them is not known by a file."""
    keys = [drafter.name if drafter.model is None else costs.key(drafter.model) for drafter in drafters]
    keys.append(costs.key(target))
    known = [key for key in keys if key is not None]
    return " | ".join(known) if drafters and len(known) == len(keys) else None


@cache
def _machine() -> str:
    """The processor's name, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
