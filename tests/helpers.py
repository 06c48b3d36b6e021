"""Small stand-ins that several test files share."""

from collections.abc import Sequence
from itertools import count

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Constraint, Session
from slipstream.core.sampling import Sampler
from slipstream.core.tree import Draft
from slipstream.core.verify import Commit, Verdict

GREEDY = SamplingParams(temperature=0, seed=1)
_ids = count(1000)


class View:
    """What a drafter sees of a sequence."""

    def __init__(
        self,
        tokens: list[int],
        params: SamplingParams = GREEDY,
        vocabulary_size: int = 258,
        draft_limit: int = 64,
        constraint: Constraint | None = None,
        prediction: Sequence[int] = (),
        session: Session | None = None,
        scope: str = "",
    ) -> None:
        self.id = next(_ids)
        self.tokens = tokens
        self.sampler = Sampler(params, vocabulary_size, tokens, constraint=constraint)
        self.draft_limit = draft_limit
        self.session = session
        self.prediction = prediction
        self.scope = scope


def accept_first(draft: Draft, accepted: int) -> Verdict:
    """The verdict that a chain's first `accepted` tokens were right, and the next was not."""
    commits = [Commit(draft.tokens[node], node, draft.sources[node], "", None) for node in range(accepted)]
    return Verdict([*commits, Commit(-1, None, "", "", None)], min(accepted + 1, len(draft)))
