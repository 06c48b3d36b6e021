"""Generate an answer and see what speculation brought.

Run it: python examples/generate.py [MAX_TOKENS]

Fetches SmolLM2-135M (about 100 MB) the first time.
"""

import sys

from slipstream import Engine, SlipstreamError

MAX_TOKENS = int(sys.argv[1]) if len(sys.argv) > 1 else 120
QUESTION = """Repeat these lines:

The fox runs over the hill.
The fox runs over the bridge.
The fox runs into the forest."""


def main() -> None:
    """Load, generate, print."""
    with Engine.load("smollm2-135m", draft="suffix", fetch=True) as engine:
        answer = engine.generate([{"role": "user", "content": QUESTION}], temperature=0, max_tokens=MAX_TOKENS)

    timings, statistics = answer.timings, answer.statistics
    print(answer.text)
    print()
    print(f"{timings.predicted_n} tokens in {statistics.rounds} rounds, {timings.predicted_seconds:.2f} s")
    print(
        f"{timings.draft_n_accepted} of {timings.draft_n} guessed tokens were right; finished by {answer.finish_reason}"
    )


if __name__ == "__main__":
    try:
        main()
    except SlipstreamError as error:  # everything a user can cause; the message says what to do
        sys.exit(str(error))
