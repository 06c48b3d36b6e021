"""Everything that decides what a trained drafter is: it stands in the drafter's file."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from slipstream.core.params import check_number, check_whole
from slipstream.errors import UsageError

Kind = Literal["head", "model"]
QUANTISATIONS = ("Q8_0", "Q4_0", "F16", "F32")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a drafter is trained.

    target, fingerprint: of the target's file
    seed:           of prompts, answers, initial weights and the order of texts
    prompts:        "shipped", or a digest of the user's files
    tokens:         of answers, at most; answers end sooner where prompts or time do
    answer_tokens:  of one answer, at most
    prompt_tokens:  longer prompts are left out
    greedy_share:   of answers at temperature 0; the others are sampled at 1 without filters
    layers:         whose inputs a head reads (docs/heads.md, `target_layers`)
    direct:         a head adds the embedding to its stream (docs/heads.md, `embd_fc`)
    vocabulary:     tokens that can be drafted, the most frequent in the answers
    width, depth, feed_forward, heads: of a draft model; a head has the target's
    self_fed_steps: of the training-time test (EAGLE-3, arXiv 2503.01840, section 3.2)
    single_share:   of the optimiser's steps, the first ones, in which a head guesses one token only
    step_decay:     weight of a step against the one before
    start:          "target" begins a head as the target's last layer where it can, "random" with random matrices;
                    "head:" and a digest of its file: with the weights of that head (`train.start`)
    batch:          texts' tokens in one step of the optimiser
    pack:           tokens of a row of the batch; longer texts are cut
    optimiser:      of the matrices that no row of belongs to a token; all others have AdamW
    table_rate:     the highest learning rate of embedding and output rows
    epochs:         times that every text is seen, where time allows
    quantisation:   of the matrices in the file
    """

    kind: Kind
    target: str
    fingerprint: str
    seed: int = 0
    prompts: str = "shipped"
    tokens: int = 1_500_000
    answer_tokens: int = 320
    prompt_tokens: int = 512
    greedy_share: float = 0.5
    layers: tuple[int, ...] = ()
    direct: bool = True
    vocabulary: int = 8192
    width: int = 0
    depth: int = 0
    feed_forward: int = 0
    heads: int = 0
    self_fed_steps: int = 3
    single_share: float = 0.4
    step_decay: float = 0.8
    start: str = "random"
    batch: int = 2048
    pack: int = 512
    epochs: float = 3.0
    optimiser: Literal["muon", "adamw"] = "muon"
    learning_rate: float = 4e-3
    table_rate: float = 6e-4
    final_rate: float = 0.05
    warmup: float = 0.03
    weight_decay: float = 0.1
    clip: float = 1.0
    quantisation: str = "Q8_0"

    def as_dict(self) -> dict[str, Any]:
        """For files."""
        return asdict(self)

    def check(self, layer_count: int) -> None:
        """Raise UsageError for a value that cannot be, of a target with so many layers."""
        for name in ("tokens", "answer_tokens", "vocabulary", "self_fed_steps", "batch"):
            check_whole(name, getattr(self, name), 1, 10**12)
        for name in ("prompt_tokens", "pack"):
            check_whole(name, getattr(self, name), 16, 1 << 20)
        for name in ("greedy_share", "step_decay", "final_rate", "learning_rate", "table_rate"):
            check_number(name, getattr(self, name), 0, 1)
        for name in ("weight_decay", "single_share"):
            check_number(name, getattr(self, name), 0, 1)
        check_number("warmup", self.warmup, 0, 0.9)
        if self.quantisation not in QUANTISATIONS:
            raise UsageError(f"quantisation must be one of {', '.join(QUANTISATIONS)}, not {self.quantisation!r}.")
        if self.start not in ("random", "target"):
            raise UsageError(f"start must be random or target, not {self.start!r}.")
        if self.optimiser not in ("muon", "adamw"):
            raise UsageError(f"optimiser must be muon or adamw, not {self.optimiser!r}.")
        count = 3 if self.kind == "head" else len(self.layers)
        if len(self.layers) != count or not all(1 <= layer <= layer_count for layer in self.layers):
            raise UsageError(f"layers must be three numbers from 1 to {layer_count}, joined by commas.")

    @property
    def answers_key(self) -> str:
        """The same for recipes that want the same answers, however many."""
        return _key(self, ("fingerprint", "seed", "prompts", "answer_tokens", "prompt_tokens", "greedy_share"))

    @property
    def states_key(self) -> str:
        """The same for recipes that read the same of the target."""
        return _key(self, ("fingerprint", "layers"))

    @property
    def key(self) -> str:
        """The same for recipes that train the same drafter."""
        return _key(self, tuple(self.as_dict()))


def _key(recipe: Recipe, names: tuple[str, ...]) -> str:
    values = {name: getattr(recipe, name) for name in names}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
