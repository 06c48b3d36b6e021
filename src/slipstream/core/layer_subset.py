"""Some layers of a model, as a model of its own."""

from collections.abc import Sequence

from slipstream.core.protocols import Capabilities, Model, Rows, Segment, Session, Vocabulary


class LayerSubset:
    """Implements `core.protocols.Model` with some layers of a loaded one, whose weights and sessions it uses.

    What a forward reads without giving rows, a prompt, goes through all layers, as the whole model has read it where
    this one drafts for it. Rows that are asked for go through the subset: they can be held, never committed.

    whole:  of `Capabilities.layer_subsets`
    layers: ascending
    """

    def __init__(self, whole: Model, layers: Sequence[int], name: str) -> None:
        assert whole.capabilities.layer_subsets, "a model whose layers can be chosen"
        self.name = name
        self.whole = whole
        self.layers = tuple(layers)
        self.runtime = whole.runtime
        self.instruction_set = getattr(whole, "instruction_set", "")
        self.notice: str | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        return self.whole.vocabulary

    @property
    def capabilities(self) -> Capabilities:
        return self.whole.capabilities

    @property
    def context_length(self) -> int:
        return self.whole.context_length

    @property
    def max_rows(self) -> int:
        return self.whole.max_rows

    def open_session(self) -> Session:
        """One of the whole model's. Raises RuntimeUnavailableError when all are in use."""
        return self.whole.open_session()

    def forward(
        self, batch: Sequence[Segment], *, layers: Sequence[int] | None = None, hidden: Sequence[int] = ()
    ) -> Sequence[Rows]:
        """Through the subset, or through all layers where no segment is asked for rows."""
        assert layers is None, "its layers are chosen"
        read = all(segment.outputs == 0 for segment in batch)
        return self.whole.forward(batch, layers=None if read else self.layers, hidden=hidden)

    def memory(self) -> int:
        """Nothing beside the whole model's."""
        return 0

    def close(self) -> None:
        """The whole model stays; it belongs to somebody else."""
