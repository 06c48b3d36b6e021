"""What a certificate is about: prompts with seeds, and the answers of an engine to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Drafter, Logits
from slipstream.engine import Completion, Engine, GenerationOptions
from slipstream.engine.options import sampling_params
from slipstream.errors import ContextLimitError
from slipstream.measure.prompts import BenchPrompt
from slipstream.measure.rehearsal import Witness
from slipstream.measure.watch import Watch


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt with one seed.

    name:   the prompt's, for people
    tokens: the prompt's ids
    """

    name: str
    tokens: tuple[int, ...]
    seed: int

    def options(self, given: GenerationOptions) -> GenerationOptions:
        """What to generate with: the given options, this seed, log-probabilities."""
        return cast(GenerationOptions, {**given, "seed": self.seed, "logprobs": True})

    def params(self, engine: Engine, given: GenerationOptions) -> SamplingParams:
        """The sampling parameters that these options come to."""
        return sampling_params(engine.defaults, self.options(given))


def make_cases(engine: Engine, prompts: Sequence[BenchPrompt], seed: int, seeds: int) -> list[Case]:
    """Every prompt with every seed from `seed` on. Raises ContextLimitError for a prompt that leaves no room."""
    cases = []
    for prompt in prompts:
        tokens = tuple(engine.tokenize(prompt.for_model(has_template=engine.template is not None)))
        limit = engine.target.context_length
        if len(tokens) >= limit:
            raise ContextLimitError(
                f"The prompt {prompt.id} has {len(tokens)} tokens and the context holds {limit}, "
                "which leaves no room for an answer; shorten it or give a larger --ctx."
            )
        cases += [Case(prompt.id, tokens, (seed + number) % 2**64) for number in range(seeds)]
    return cases


def answer(engine: Engine, case: Case, given: GenerationOptions, watch: Watch) -> Completion:
    """The engine's answer; the watch can end it between rounds."""
    with engine.stream(case.tokens, **case.options(given)) as stream:
        for _ in stream:
            watch.pulse()
    return stream.completion


def with_drafter(engine: Engine, drafter: Drafter, length: int = 1) -> Engine:
    """An engine on the same target whose drafts of up to `length` nodes are this drafter's."""
    return engine.sharing(draft=drafter, speculation="on", num_draft_tokens=length)


def row_after(engine: Engine, tokens: Sequence[int]) -> Logits:
    """[vocab] the target's raw logits after these tokens, computed for one token alone."""
    witness = Witness()
    with with_drafter(engine, witness) as watched:
        watched.generate(list(tokens), max_tokens=1, temperature=0.0, logprobs=False)
    return witness.rows[len(tokens)]
