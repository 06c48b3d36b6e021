"""What the target thought of each text: kept on disk within a limit, computed anew beyond it."""

import shutil
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from slipstream.errors import StorageError
from slipstream.train.files import HEAD_BYTES, is_whole, write_checked
from slipstream.train.target import States
from slipstream.train.texts import Shard, Text

LEFT_FREE = 1 << 30
"""Bytes of the disk that are left to others."""

Compute = Callable[[Text], States]


class StateStore:
    """States of all texts of some shards.

    limit: bytes of the disk that may be used; shards beyond it are computed whenever they are needed
    """

    def __init__(
        self,
        folder: Path,
        shards: Sequence[Shard],
        compute: Compute,
        *,
        layers: int,
        width: int,
        limit: int,
        say: Callable[[str], None],
    ) -> None:
        self.texts: list[Text] = [text for shard in shards for text in shard.texts]
        self._folder, self._shards, self._compute = folder, shards, compute
        self._layers, self._width = layers, width
        self._limit, self._say = limit, say
        self._stored: list[States | None] = []
        self._kept = 0

    @property
    def token_bytes(self) -> int:
        """Bytes on disk of one token."""
        return 2 * self._layers * self._width + 8

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return self._kept

    def fill(self, progress: Callable[[int, int], None], should_stop: Callable[[], bool] = lambda: False) -> None:
        """Compute what is missing on disk, as far as the limit allows. Raises StorageError.

        should_stop: asked after every shard; what is done by then is kept
        """
        room = self._limit
        total = sum(len(text.tokens) for text in self.texts)
        done = 0
        for number, shard in enumerate(self._shards):
            tokens = sum(len(text.tokens) for text in shard.texts)
            path = self._folder / f"states-{number:05}.bin"
            room -= tokens * self.token_bytes
            if room < 0:
                self._stored += [None] * len(shard.texts)
                path.unlink(missing_ok=True)
            else:
                self._keep(path, shard, tokens)
            done += tokens
            progress(done, total)
            if should_stop():
                return
        left_out = self._stored.count(None)
        if left_out:
            self._say(
                f"States of {left_out} of {len(self.texts)} texts do not fit {self._limit / 1e9:.1f} GB of disk and "
                "are computed whenever they are needed, which takes longer; --disk allows more."
            )

    def __getitem__(self, index: int) -> States:
        """The states of a text, by its number among all."""
        found = self._stored[index]
        return self._compute(self.texts[index]) if found is None else found

    def _keep(self, path: Path, shard: Shard, tokens: int) -> None:
        if path.exists() and not (is_whole(path) and path.stat().st_size == HEAD_BYTES + tokens * self.token_bytes):
            self._say(f"{path.name} is damaged; it is made again.")
            path.unlink()
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._require_space(tokens * self.token_bytes + LEFT_FREE)
            made = [self._compute(text) for text in shard.texts]
            columns = [np.concatenate(column) for column in zip(*made, strict=True)]
            write_checked(path, b"".join(column.tobytes() for column in columns))
        self._kept += tokens * self.token_bytes
        self._stored += self._mapped(path, shard, tokens)

    def _require_space(self, needed: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            raise StorageError(
                f"The target's states need {needed / 1e9:.1f} GB more at {self._folder} and {free / 1e9:.1f} GB are "
                "free; give a smaller --disk, or another --work."
            )

    def _mapped(self, path: Path, shard: Shard, tokens: int) -> list[States]:
        """Views into the file, one for each text."""
        if not tokens:
            return []
        data = np.memmap(path, np.uint8, "r", HEAD_BYTES)
        ends = np.cumsum([2 * self._layers * self._width * tokens, 4 * tokens, 4 * tokens])
        hidden = data[: ends[0]].view(np.float16).reshape(tokens, self._layers, self._width)
        mass, best = data[ends[0] : ends[1]].view(np.float32), data[ends[1] :].view(np.int32)
        starts = np.cumsum([0, *(len(text.tokens) for text in shard.texts)])
        pieces = [slice(start, end) for start, end in pairwise(starts.tolist())]
        return [States(hidden[piece], mass[piece], best[piece]) for piece in pieces]
