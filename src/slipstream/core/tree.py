"""Drafts: small trees of proposed tokens.

A draft hangs below the *pending* token (the last committed token, not yet in the KV cache), which is the
root and has index `ROOT`. A chain is a tree in which every node has one child.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from slipstream.errors import UsageError

ROOT = -1


@dataclass(slots=True)
class Draft:
    """A tree of proposed tokens in topological order: a node's parent always comes before it.

    tokens:    [n] token ids
    parents:   [n] index of the parent node, `ROOT` for children of the pending token
    estimates: [n] estimate of P(node accepted | parent accepted), in [0, 1]
    sources:   [n] name of the drafter that proposed the node
    buckets:   [n] the drafter's own class of the node, by which acceptance is calibrated
    tip:       the node that `append` goes on from: the end of the draft's main chain
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    estimates: list[float] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    buckets: list[int] = field(default_factory=list)
    tip: int = ROOT

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: Sequence[int], source: str = "", estimate: float = 0.5) -> "Draft":
        """A draft without branches."""
        draft = cls()
        for token in tokens:
            draft.append(token, source=source, estimate=estimate)
        return draft

    def append(self, token: int, *, source: str, estimate: float = 0.5, bucket: int = 0) -> int:
        """Make the main chain longer by one node; returns its index."""
        self.tip = self.add(token, self.tip, source=source, estimate=estimate, bucket=bucket)
        return self.tip

    def add(self, token: int, parent: int, *, source: str, estimate: float = 0.5, bucket: int = 0) -> int:
        """Add a child to any node, beside the main chain; returns its index.

        Raises UsageError, which names the source, if the node has a child with this token.
        """
        assert ROOT <= parent < len(self.tokens), "a parent comes before its children"
        if self.child(parent, token) is not None:
            raise UsageError(f"The drafter {source} proposed a token twice below the same one.")
        self.tokens.append(int(token))
        self.parents.append(parent)
        self.estimates.append(min(max(float(estimate), 0.0), 1.0))
        self.sources.append(source)
        self.buckets.append(int(bucket))
        return len(self.tokens) - 1

    def shorten(self, size: int, tip: int) -> None:
        """Take all nodes but the first `size` out again; `tip` is one of those."""
        for numbers in (self.tokens, self.parents, self.estimates, self.sources, self.buckets):
            del numbers[size:]
        self.tip = tip

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that carries `token`."""
        tokens, parents = self.tokens, self.parents
        for index in range(node + 1, len(parents)):  # a parent comes before its children
            if parents[index] == node and tokens[index] == token:
                return index
        return None

    def has_children(self, node: int) -> bool:
        return node in self.parents

    def path(self, node: int) -> list[int]:
        """Node indices from the root's child down to `node`."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def path_tokens(self, node: int) -> list[int]:
        """Tokens from the root's child down to `node`."""
        return [self.tokens[index] for index in self.path(node)]

    @property
    def is_chain(self) -> bool:
        return all(parent == index - 1 for index, parent in enumerate(self.parents))

    def path_estimates(self) -> Iterator[float]:
        """S for every node: P(node accepted), the product of the estimates along its path."""
        reached: list[float] = []
        for parent, estimate in zip(self.parents, self.estimates, strict=True):
            reached.append(estimate * (1.0 if parent == ROOT else reached[parent]))
            yield reached[-1]

    def expected_accepted(self) -> float:
        """Expected number of accepted tokens if the estimates are right."""
        return sum(self.path_estimates())

    def subset(self, nodes: Sequence[int]) -> "Draft":
        """The draft of these nodes alone. nodes: ascending, and the parent of each is among them."""
        if len(nodes) == len(self.tokens):
            return self
        if nodes and nodes[-1] == len(nodes) - 1:  # the first so many
            count = len(nodes)
            return Draft(
                self.tokens[:count],
                self.parents[:count],
                self.estimates[:count],
                self.sources[:count],
                self.buckets[:count],
                self._last_of_main_chain(range(ROOT, count)),
            )
        places = {node: place for place, node in enumerate([ROOT, *nodes], ROOT)}
        return Draft(
            [self.tokens[node] for node in nodes],
            [places[self.parents[node]] for node in nodes],
            [self.estimates[node] for node in nodes],
            [self.sources[node] for node in nodes],
            [self.buckets[node] for node in nodes],
            places[self._last_of_main_chain(places)],
        )

    def _last_of_main_chain(self, kept: Container[int]) -> int:
        """Where the main chain ends if only these nodes are kept."""
        node = self.tip
        while node not in kept:
            node = self.parents[node]
        return node
