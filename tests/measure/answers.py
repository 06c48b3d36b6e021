"""Answers and runs made up for tests of what reads them."""

from collections.abc import Sequence
from typing import Any

from slipstream.measure.records import Answer, Bench, Failure, Round

HEADER: dict[str, Any] = {
    "slipstream": "9.9.9",
    "created": "2026-01-02T03:04:05+00:00",
    "target": {"name": "target.gguf", "runtime": "native", "instruction_set": "avx2", "bit_exact": True},
    "machine": {"cpu": "Some CPU", "threads": 2},
    "sampling": {"temperature": 0.7, "top_p": 0.95, "top_k": 0, "repetition_penalty": 1.0},
    "configurations": [{"name": "off"}, {"name": "suffix"}, {"name": "model:draft.gguf,n=4"}],
    "kinds": ["chat", "code"],
    "seed": 0,
    "max_tokens": 8,
    "repeats": 2,
    "costs": {"1": 0.004, "2": 0.0044, "8": 0.006, "32": 0.021},
}


def plain_rounds(count: int, seconds: float = 0.01) -> list[Round]:
    """One token a round."""
    return [Round(10 + place, 0, 0, 0, 1, 0, "", 0.0, seconds - 1e-3, 1e-3, 0.0) for place in range(count)]


def draft_round(tested: int, accepted: int, *, drafted: int = 4, verify: float = 0.012) -> Round:
    return Round(10, drafted, tested, accepted, accepted + 1, drafted, "suffix", 1e-3, verify, 1e-3, 1e-4)


def answer(configuration: str = "off", prompt: str = "chat-1", repeat: int = 0, **more: Any) -> Answer:
    """Ten tokens in a tenth of a second unless `more` says otherwise."""
    given = {"tokens": 10, "seconds": 0.1, "kind": prompt.partition("-")[0], "ids_hash": "same", **more}
    return Answer(configuration=configuration, prompt=prompt, repeat=repeat, **given)


def bench(
    answers: Sequence[Answer], failures: Sequence[Failure] = (), *, complete: bool = True, **header: Any
) -> Bench:
    return Bench({**HEADER, **header}, list(answers), list(failures), complete=complete)


def full_bench() -> Bench:
    """Two kinds of three prompts, two repeats, three configurations: suffix 1.5 to 2 times as fast, a model slower."""
    answers = []
    for kind, gain in (("chat", 1.5), ("code", 2.0)):
        for number in range(3):
            for repeat in range(2):
                prompt, wobble = f"{kind}-{number}", 1 + 0.02 * number - 0.03 * repeat
                suffix = [draft_round(4, 4), draft_round(1, 0), draft_round(3, 2)] * 4
                model = [draft_round(2, 1, drafted=3, verify=0.011)] * 8
                answers += [
                    answer("off", prompt, repeat, rounds=plain_rounds(10)),
                    answer("suffix", prompt, repeat, seconds=0.1 / gain * wobble, rounds=suffix),
                    answer("model:draft.gguf,n=4", prompt, repeat, seconds=0.13 * wobble, rounds=model),
                ]
    return bench(answers)
