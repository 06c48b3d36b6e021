from pathlib import Path

import numpy as np
import pytest

from slipstream.engine import Engine
from slipstream.errors import UsageError
from slipstream.measure.prompts import BenchPrompt
from slipstream.train.answers import MOST_REPEATED, Limits, answer_held_out, before_looping, make_answers
from slipstream.train.prompts import Ask, Source, shipped_source
from slipstream.train.recipe import Recipe
from slipstream.train.texts import Shard, shard_path


def nothing(*_: object) -> None:
    pass


def made(
    engine: Engine,
    recipe: Recipe,
    folder: Path,
    source: Source | None = None,
    tokens: int | None = None,
    **more: object,
) -> list[Shard]:
    limits = Limits(recipe.tokens if tokens is None else tokens)
    arguments = {"progress": nothing, "say": nothing} | more
    return make_answers(engine, source or shipped_source(0), recipe, folder, limits, **arguments)  # type: ignore[arg-type]


def same(one: list[Shard], other: list[Shard]) -> bool:
    texts = [[text for shard in shards for text in shard.texts] for shards in (one, other)]
    return len(texts[0]) == len(texts[1]) and all(
        np.array_equal(a.tokens, b.tokens) and a[1:] == b[1:] for a, b in zip(*texts, strict=True)
    )


def test_there_are_as_many_tokens_as_were_asked_for(engine: Engine, recipe: Recipe, tmp_path: Path) -> None:
    shards = made(engine, recipe, tmp_path)
    assert sum(shard.answer_tokens for shard in shards) >= recipe.tokens
    assert sum(shard.answer_tokens for shard in shards[:-1]) < recipe.tokens
    assert {text.temperature for shard in shards for text in shard.texts} == {0.0, 1.0}


def test_answers_are_the_engines_own(engine: Engine, recipe: Recipe, tmp_path: Path) -> None:
    text = made(engine, recipe, tmp_path)[0].texts[5]
    options = {"temperature": text.temperature, "seed": text.seed, "max_tokens": text.answer_length}
    alone = engine.generate(text.tokens[: text.prompt].tolist(), top_p=1.0, min_p=0.0, **options)  # type: ignore[arg-type]
    assert alone.tokens == text.tokens[text.prompt :].tolist()


def test_work_that_was_interrupted_ends_with_the_same_texts(engine: Engine, recipe: Recipe, tmp_path: Path) -> None:
    whole = made(engine, recipe, tmp_path / "whole")
    rounds = iter(range(10**6))
    made(engine, recipe, tmp_path / "parts", should_stop=lambda: next(rounds) > 60)
    assert not (tmp_path / "parts" / "finished.json").exists()
    assert same(made(engine, recipe, tmp_path / "parts"), whole)


def test_what_is_there_is_not_made_again(engine: Engine, recipe: Recipe, tmp_path: Path) -> None:
    first = made(engine, recipe, tmp_path)
    engine.close()
    assert same(made(engine, recipe, tmp_path), first)


def test_more_can_be_asked_for_later(engine: Engine, recipe: Recipe, tmp_path: Path) -> None:
    few = made(engine, recipe, tmp_path)
    many = made(engine, recipe, tmp_path, tokens=3000)
    assert len(many) > len(few)
    assert same(many[: len(few)], few)


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:200] + b"?" + data[201:], lambda _: b""])
def test_a_damaged_shard_is_made_again_with_a_sentence(
    engine: Engine, recipe: Recipe, tmp_path: Path, damage: object
) -> None:
    whole = made(engine, recipe, tmp_path)
    path = shard_path(tmp_path, 0)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    said: list[str] = []
    assert same(made(engine, recipe, tmp_path, say=said.append), whole)
    assert said == ["texts-00000.bin is damaged; it and the answers after it are made again."]


def test_prompts_of_ones_own_come_to_an_end(engine: Engine, recipe: Recipe, tmp_path: Path) -> None:
    asks = [Ask("chat", f"Say {number}.") for number in range(10)] + [Ask("text", plain="the and the thing " * 9)]
    source = Source("own", asks.__getitem__, len(asks), [], "")
    shards = made(engine, recipe, tmp_path, source, tokens=10**6)
    assert len(shards) == 1
    assert len(shards[0].texts) == 11
    assert shards[0].texts[-1].prompt == 1
    assert same(made(engine, recipe, tmp_path, source, tokens=10**6), shards)


def test_nothing_to_train_on_is_an_error(engine: Engine, recipe: Recipe, tmp_path: Path) -> None:
    source = Source("own", [Ask("chat", "far too long " * 99)].__getitem__, 1, [], "")
    with pytest.raises(UsageError, match="give other prompts"):
        made(engine, recipe, tmp_path, source)


def test_held_out_prompts_are_answered_at_both_temperatures(engine: Engine, recipe: Recipe, tmp_path: Path) -> None:
    prompts = [BenchPrompt(f"p{n}", "chat", ({"role": "user", "content": f"What is {n}?"},)) for n in range(3)]
    texts = answer_held_out(engine, prompts, recipe, tmp_path)
    assert [text.temperature for text in texts] == [0.0, 1.0] * 3
    engine.close()
    again = answer_held_out(engine, prompts, recipe, tmp_path)
    assert all(np.array_equal(a.tokens, b.tokens) for a, b in zip(texts, again, strict=True))


def test_a_loop_is_cut_off_after_a_while() -> None:
    fresh = list(range(100))
    assert before_looping(fresh) == 100
    assert before_looping(fresh + [7, 8] * 60) == 100 + 2 + 3 + MOST_REPEATED
    assert before_looping([]) == 0
