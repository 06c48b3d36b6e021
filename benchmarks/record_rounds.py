#!/usr/bin/env python3
"""Record what a draft model proposes at every position of answers, for `scripts/bench simulate`.

    scripts/bench record_rounds TARGET DRAFT --name good [--per-kind 2] [--tokens 64]
    scripts/bench record_rounds --costs      measure the cost curves of the rig's models instead

The target writes the answers at temperature 0 and 1; the draft model, with the same noise, then drafts eight levels of
three candidates at each position. DRAFT may be a type, such as Q2_K: a copy of SmolLM2-135M with coarser weights, as
far as llama.cpp's quantiser makes them, which is a worse drafter. Files go to benchmarks/recordings.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.recordings import FOLDER, UNKNOWN, Costs, Level, Recording, write, write_costs
from benchmarks.rig import loaded, rig_file
from slipstream import Engine, ModelOptions
from slipstream.core.protocols import Growth
from slipstream.core.sampling import Sampler
from slipstream.core.tree import Draft
from slipstream.draft import ModelDrafter
from slipstream.engine.options import sampling_params
from slipstream.measure.prompts import KINDS, BenchPrompt, shipped_prompts
from slipstream.models import resolve
from slipstream.policy.profile import profile
from slipstream.runtime import requantize

LEVELS, CANDIDATES = 8, 3
SEED = 7


class Text:
    """A sequence as a drafter sees it, whose tokens are given."""

    id = 1
    draft_limit = LEVELS * CANDIDATES
    session = None
    prediction = ()
    scope = ""

    def __init__(self, tokens: list[int], sampler: Sampler) -> None:
        self.tokens = tokens
        self.sampler = sampler


def record(engine: Engine, drafter: ModelDrafter, prompt: BenchPrompt, temperature: float, tokens: int) -> Recording:
    """One answer and its drafts."""
    answer = engine.generate(prompt.for_model(), temperature=temperature, seed=SEED, max_tokens=tokens, logprobs=False)
    params = sampling_params(engine.defaults, {"temperature": temperature, "seed": SEED})
    size = engine.target.vocabulary.size
    text = Text(list(answer.prompt_tokens), Sampler(params, size, answer.prompt_tokens))
    drafter.begin(text, 0)
    drafts = []
    for position, token in enumerate(answer.tokens):
        drafts.append(_levels(drafter, text, answer.tokens[position:]))
        text.sampler.accept(token)
        text.tokens.append(token)
    drafter.end(text)
    return Recording(prompt.kind, temperature, answer.prompt_tokens, answer.tokens, drafts)


def _levels(drafter: ModelDrafter, text: Text, following: list[int]) -> list[Level]:
    """A draft of `LEVELS` levels; tokens below a wrong main chain are not kept, for nobody asks for them."""
    draft, levels, right = Draft(), [], True
    for depth in range(LEVELS):
        size = len(draft)
        drafter.extend([Growth(text, draft, CANDIDATES, CANDIDATES)])
        if len(draft) == size:
            break
        tokens = draft.tokens[size:] if right else [UNKNOWN] * (len(draft) - size)
        levels.append(Level(tokens, draft.buckets[size:]))
        right = right and depth < len(following) and draft.tokens[size] == following[depth]
    return levels


def record_all(target: Path, draft: Path, name: str, per_kind: int, tokens: int) -> None:
    """Record all kinds and write the file."""
    options = ModelOptions(context_length=2048)
    with Engine.load(target, speculation="off", options=options) as engine:
        drafter = ModelDrafter(loaded(draft, "auto"))
        recordings = []
        for prompt in shipped_prompts(KINDS, per_kind):
            for temperature in (0.0, 1.0):
                recordings.append(record(engine, drafter, prompt, temperature, tokens))
                print(f"{prompt.kind:12} {temperature} {len(recordings[-1].tokens)} tokens", flush=True)
        drafter.close()
    path = FOLDER / f"{name}.jsonl.gz"
    write(path, recordings)
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


def measure_costs() -> None:
    """Cost curves of the rig's targets and of the draft model, on both runtimes."""
    curves = []
    for runtime in ("native", "llamacpp"):
        draft = _curve(rig_file("SmolLM2-135M Q4_0"), runtime, drafts=True)
        for name, path in (("wide", rig_file("wide Q4_0")), ("135M", resolve("smollm2-135m", fetch=True))):
            curves.append(Costs(f"{name}, {runtime}", _curve(path, runtime), draft))
            print(curves[-1], flush=True)
    write_costs(FOLDER / "costs.json", curves)


def _curve(path: Path, runtime: str, *, drafts: bool = False) -> dict[int, float]:
    model = loaded(path, runtime)
    try:
        return {rows: round(seconds, 6) for rows, seconds in profile(model, 8.0, drafts=drafts).points.items()}
    finally:
        model.close()


def main() -> None:
    """Record, or measure costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?")
    parser.add_argument("draft", nargs="?")
    parser.add_argument("--name", default="good")
    parser.add_argument("--per-kind", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--costs", action="store_true", help="measure cost curves instead")
    arguments = parser.parse_args()
    if arguments.costs:
        measure_costs()
    elif arguments.target is None or arguments.draft is None:
        sys.exit("record_rounds: name a target and a draft model, or give --costs.")
    else:
        with tempfile.TemporaryDirectory() as folder:
            draft = _draft_file(arguments.draft, Path(folder))
            record_all(resolve(arguments.target), draft, arguments.name, arguments.per_kind, arguments.tokens)


def _draft_file(name: str, folder: Path) -> Path:
    if name.startswith("Q") and not Path(name).exists():
        return requantize(rig_file("SmolLM2-135M F16"), folder / "draft.gguf", name)
    return resolve(name)


if __name__ == "__main__":
    main()
