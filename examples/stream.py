"""Show tokens as they come; those that the drafter had guessed right are green.

Run it: python examples/stream.py [MAX_TOKENS]
"""

import sys

from slipstream import Engine

MAX_TOKENS = int(sys.argv[1]) if len(sys.argv) > 1 else 120
GREEN, NORMAL = "\033[32m", "\033[0m"

QUESTION = """Repeat these lines:

The fox runs over the hill.
The fox runs over the bridge.
The fox runs into the forest."""

with Engine.load("smollm2-135m", draft="suffix", fetch=True) as engine:
    stream = engine.stream([{"role": "user", "content": QUESTION}], max_tokens=MAX_TOKENS, seed=7)
    for token in stream:  # `stream.close()` ends it early, from another thread `stream.cancel()`
        print(f"{GREEN}{token.text}{NORMAL}" if token.accepted else token.text, end="", flush=True)

completion = stream.completion
print(f"\n\nseed {completion.seed}, finished by {completion.finish_reason}")
if completion.logprobs:
    print(f"mean log-probability of a token: {sum(completion.logprobs) / len(completion.logprobs):.2f}")
