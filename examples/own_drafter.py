"""A drafter of your own, in one class. It can make decoding faster or slower, but never change the text.

Run it: python examples/own_drafter.py [MAX_TOKENS]
"""

import sys
from collections.abc import Sequence
from itertools import pairwise

from slipstream import Engine
from slipstream.draft import BaseDrafter, Growth

MAX_TOKENS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
QUESTION = """Repeat these lines:

The fox runs over the hill.
The fox runs over the bridge.
The fox runs into the forest."""


class LastFollower(BaseDrafter):
    """Guesses that a token is followed by what followed it the last time."""

    name = "last follower"
    free = True  # it looks at committed tokens alone and takes no time worth counting

    def extend(self, frontier: Sequence[Growth]) -> None:
        """Add up to `limit` tokens to the end of each draft, which may have some already."""
        for growth in frontier:
            sequence, draft = growth.sequence, growth.draft
            follower = dict(pairwise(sequence.tokens))
            token, end = (draft.tokens or sequence.tokens)[-1], len(draft) + growth.limit
            while token in follower and len(draft) < end:
                token = follower[token]
                draft.append(token, source=self.name)


for drafter in (None, LastFollower()):
    with Engine.load("smollm2-135m", draft=drafter, fetch=True) as engine:
        answer = engine.generate([{"role": "user", "content": QUESTION}], temperature=0, max_tokens=MAX_TOKENS)
    statistics = answer.statistics
    print(f"{answer.drafter}: {statistics.rounds} rounds, {statistics.mean_accepted_length:.2f} tokens a round")
print("accepted at draft positions 1, 2, ...:", [f"{share:.2f}" for share in statistics.accepted_per_position])
print(answer.text)
