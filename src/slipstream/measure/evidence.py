"""What predictions are made from: plain answers, what drafters propose for them, and what that takes."""

from collections.abc import Callable, Mapping, Sequence

from slipstream.core.protocols import Drafter
from slipstream.core.sampling import Sampler
from slipstream.engine import Completion, Engine, GenerationOptions
from slipstream.engine.options import sampling_params
from slipstream.errors import UsageError
from slipstream.measure.alternation import Alternation, alternate
from slipstream.measure.contestants import PROMPT_ERRORS
from slipstream.measure.looping import LOOPING, repeated_share
from slipstream.measure.prediction import Evidence, Machine, Prediction, predict
from slipstream.measure.prompts import BenchPrompt
from slipstream.measure.records import Round
from slipstream.measure.tracing import Trace, trace
from slipstream.policy import CostTable
from slipstream.policy.profile import profile

SIBLINGS = 3
"""Candidates for each token that are asked of a drafter, where the target takes trees."""
PROFILE_SECONDS = 1.5
"""For the cost curve of one model."""


def gather(
    plain: Engine,
    drafters: Mapping[str, Sequence[Drafter]],
    prompt: BenchPrompt,
    options: GenerationOptions,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Evidence]:
    """One plain answer and what several engines' drafters propose for it, by the engines' names.

    options: with the seed, so that the proposals can use the answer's noise
    Empty for prompts that cannot be answered, for answers that repeat themselves, and where the user has had enough.
    """
    given = prompt.for_model(has_template=plain.template is not None)
    try:
        completion = plain.generate(given, **options)
    except PROMPT_ERRORS:
        return {}
    if repeated_share(completion.tokens) > LOOPING:
        return {}
    rounds = [Round.of(record) for record in completion.rounds]
    found = {}
    for name, several in drafters.items():
        traces: list[Trace | None] = []
        alternations: list[Alternation | None] = []
        for drafter in several:
            traces.append(_trace(plain, drafter, completion, options, should_stop))
            if should_stop():
                return {}
            known = None if drafter.free else alternate(plain, drafter, completion.prompt_tokens, options)
            alternations.append(known)
        ids = completion.prompt_tokens, completion.tokens
        found[name] = Evidence(prompt.id, prompt.kind, *ids, rounds, traces, alternations)
    return found


def tables_of(drafters: Sequence[Drafter]) -> list[CostTable | None]:
    """Cost tables of the drafters' models, measured now; None for those without one."""
    models = [drafter.model for drafter in drafters]
    return [None if model is None else profile(model, PROFILE_SECONDS) for model in models]


def machine_of(
    plain: Engine, target: CostTable, drafters: Sequence[Drafter], tables: Sequence[CostTable | None]
) -> Machine:
    """What simulations have to know of loaded models. target: the target's table."""
    model = plain.target
    return Machine(target, drafters, tables, model.vocabulary.size, model.capabilities.trees)


def predicted_from(
    plain: Engine, engine: Engine, target: CostTable, prompts: Sequence[BenchPrompt], options: GenerationOptions
) -> Prediction:
    """The prediction for an engine that shares the target of `plain`, whose own table is `target`.

    Raises UsageError if none of the prompts can be used.
    """
    machine = machine_of(plain, target, engine.drafters, tables_of(engine.drafters))
    found = [gather(plain, {"": engine.drafters}, prompt, options) for prompt in prompts]
    evidence = [one[""] for one in found if one]
    if not evidence:
        raise UsageError("None of the prompts has an answer that can be used; give others.")
    return predict(evidence, machine)


def _trace(
    plain: Engine,
    drafter: Drafter,
    completion: Completion,
    options: GenerationOptions,
    should_stop: Callable[[], bool],
) -> Trace | None:
    """What a drafter proposes for the answer; None for a free one, which can be played itself."""
    if drafter.free:
        return None
    params = sampling_params(plain.defaults, options)
    sampler = Sampler(params, plain.target.vocabulary.size, completion.prompt_tokens)
    siblings = SIBLINGS if plain.target.capabilities.trees else 1
    ids = completion.prompt_tokens, completion.tokens
    return trace(drafter, *ids, sampler, siblings=siblings, should_stop=should_stop, plain=plain)
