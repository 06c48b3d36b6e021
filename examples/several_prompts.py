"""Several prompts at once: every round is one pass over the weights for all of them.

Run it: python examples/several_prompts.py [MAX_TOKENS]
"""

import sys
from time import perf_counter

from slipstream import Engine, ModelOptions

MAX_TOKENS = int(sys.argv[1]) if len(sys.argv) > 1 else 40
WORDS = ["river", "lantern", "harbour", "violin"]

prompts = [[{"role": "user", "content": f"Use the word {word} in one sentence."}] for word in WORDS]
options = ModelOptions(max_sequences=len(prompts), context_length=512)

with Engine.load("smollm2-135m", draft="suffix", fetch=True, options=options) as engine:
    started = perf_counter()
    answers = engine.generate_many(prompts, max_tokens=MAX_TOKENS, temperature=0.8, seed=7)
    seconds = perf_counter() - started

for word, answer in zip(WORDS, answers, strict=True):
    print(f"{word}: {answer.text.strip()}\n")
tokens = sum(len(answer.tokens) for answer in answers)
print(f"{len(answers)} answers, {tokens} tokens in {seconds:.2f} s")
