"""Same seed, same text: without speculation and with each kind of drafter.

Run it: python examples/same_text.py [MAX_TOKENS]

The draft model is a smaller copy of the target. On the native runtime all texts are the same, always. llama.cpp
computes one token and several with different kernels, so there texts may part where two tokens are nearly tied
(docs/llamacpp.md); then this says where.
"""

import sys
import tempfile
from pathlib import Path

from slipstream import Engine
from slipstream.models import pull
from slipstream.runtime import requantize

MAX_TOKENS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
PROMPT = [{"role": "user", "content": "Write a short story about a fox, a crow and a piece of cheese."}]


def generate(model: Path, draft: str, label: str) -> list[int]:
    """The ids of an answer, and a line about how they came to be."""
    with Engine.load(model, draft=draft) as engine:
        answer = engine.generate(PROMPT, temperature=0.8, seed=7, max_tokens=MAX_TOKENS)
    print(f"{label:13}{len(answer.tokens):4} tokens in{answer.statistics.rounds:4} rounds", end="   ")
    return answer.tokens


with tempfile.TemporaryDirectory() as folder:
    target = pull("smollm2-135m")
    small = requantize(target, Path(folder) / "draft.gguf", "Q4_0")
    plain = generate(target, "none", "none")
    print("the reference")
    for label, draft in {"suffix": "suffix", "model": str(small), "suffix+model": f"suffix+{small}"}.items():
        tokens = generate(target, draft, label)
        parting = next((i for i, pair in enumerate(zip(plain, tokens, strict=False)) if pair[0] != pair[1]), None)
        print("the same tokens" if tokens == plain else f"a near-tie: they part after {parting} tokens")
