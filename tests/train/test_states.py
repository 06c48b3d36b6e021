from pathlib import Path

import numpy as np
import pytest

from slipstream.core.protocols import Segment
from slipstream.engine import Engine
from slipstream.errors import StorageError
from slipstream.train.states import StateStore
from slipstream.train.target import States, Weights, think
from slipstream.train.texts import Shard, Text

WIDTH, LAYERS = 4, 2


def text(length: int) -> Text:
    return Text(np.arange(length, dtype=np.int32), 2, "chat", 0.0, length)


def compute(one: Text) -> States:
    values = np.arange(len(one.tokens) * LAYERS * WIDTH) + one.seed
    hidden = values.reshape(-1, LAYERS, WIDTH).astype(np.float16)
    return States(hidden, np.full(len(one.tokens), one.seed, np.float32), one.tokens.copy())


def store(
    folder: Path, limit: int = 10**9, said: list[str] | None = None, calls: list[int] | None = None
) -> StateStore:
    def counted(one: Text) -> States:
        if calls is not None:
            calls.append(one.seed)
        return compute(one)

    shards = [Shard([text(5), text(9)], 1.0), Shard([], 1.0), Shard([text(7)], 1.0)]
    made = StateStore(
        folder, shards, counted, layers=LAYERS, width=WIDTH, limit=limit, say=(said if said is not None else []).append
    )
    made.fill(lambda done, total: None)
    return made


def assert_right(made: StateStore) -> None:
    for index, one in enumerate(made.texts):
        assert all(np.array_equal(a, b) for a, b in zip(made[index], compute(one), strict=True))


def test_states_are_kept_on_disk(tmp_path: Path) -> None:
    calls: list[int] = []
    assert_right(store(tmp_path, calls=calls))
    assert calls == [5, 9, 7]
    assert_right(store(tmp_path, calls=calls))
    assert calls == [5, 9, 7]


def test_no_more_of_the_disk_is_taken_than_allowed(tmp_path: Path) -> None:
    said: list[str] = []
    limit = 15 * (2 * LAYERS * WIDTH + 8)
    made = store(tmp_path, limit, said)
    assert_right(made)
    assert made.bytes <= limit
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= limit + 2 * 64
    assert len(said) == 1
    assert "States of 1 of 3 texts do not fit" in said[0]


def test_a_smaller_limit_gives_disk_back(tmp_path: Path) -> None:
    store(tmp_path)
    made = store(tmp_path, 0, [])
    assert_right(made)
    assert made.bytes == 0
    assert not list(tmp_path.glob("states-*"))


@pytest.mark.parametrize("damage", [lambda d: d[:-3], lambda d: d[:100] + b"?" + d[101:], lambda d: d + b"?"])
def test_damaged_states_are_made_again_with_a_sentence(tmp_path: Path, damage: object) -> None:
    store(tmp_path)
    path = tmp_path / "states-00000.bin"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    said: list[str] = []
    calls: list[int] = []
    assert_right(store(tmp_path, said=said, calls=calls))
    assert said == ["states-00000.bin is damaged; it is made again."]
    assert calls == [5, 9]


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StorageError, match="are free"):
        store(tmp_path)


def test_the_target_thinks_what_it_thinks_anyway(engine: Engine) -> None:
    tokens, model = list(range(40, 70)), engine.target
    states = think(model, tokens, 10, [0, 1])
    session = model.open_session()
    (rows,) = model.forward([Segment(session, tokens)], hidden=[0, 1])
    for row in range(len(tokens)):
        logits = rows.logits(row)
        wanted = np.array([rows.hidden(row, layer) for layer in (0, 1)])
        assert np.array_equal(states.hidden[row], wanted.astype(np.float16))
        if row < 9:
            assert (states.mass[row], states.best[row]) == (0, -1)
        else:
            assert states.best[row] == logits.argmax()
            assert states.mass[row] == pytest.approx(np.log(np.exp(logits.astype(float)).sum()), abs=1e-4)
    session.close()


def test_weights_are_read_whatever_their_type(tiny: Path) -> None:
    from slipstream.models import read_model_header

    weights = Weights(read_model_header(tiny))
    embedding = weights.read("token_embd.weight")
    assert embedding.shape == (weights.vocabulary, 64)
    assert np.array_equal(weights.read("token_embd.weight", [5, 2]), embedding[[5, 2]])
    assert np.array_equal(weights.read("output_norm.weight"), np.ones(64))
    assert weights.last_layer() is not None
