"""`--draft layers`: a part of the target's layers drafts for it, on its own weights and KV cache."""

from pathlib import Path

import pytest

from slipstream import Engine, ModelOptions
from slipstream.engine import learning
from slipstream.engine.layers import drafting_layers
from slipstream.errors import SlipstreamError, UnsupportedModelError, UsageError
from slipstream.models import cache_directory, layer_profiles, read_model_header
from slipstream.models.layer_profiles import LayerProfile
from slipstream.models.layer_sets import without_the_middle
from slipstream.policy import AdaptivePolicy
from slipstream.policy.calibration import PRIOR
from tests.tiny_models import Shape, tiny_decoder, tiny_llama

SHAPE = Shape(heads=4, key_value_heads=2, feed_forward=96, layers=6)
OPTIONS = ModelOptions(runtime="native", context_length=256, max_sequences=3, threads=1)
LLAMACPP = ModelOptions(runtime="llamacpp", draft_runtime="llamacpp", context_length=256, threads=1)
PROMPTS = [[40, 41, 42, 40, 41], list(range(60, 130)), [50]]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "big.gguf", shape=SHAPE)


def texts(path: Path, temperature: float, **load: str) -> tuple[list[list[int]], int, int]:
    """Ids of each prompt alone and of all of them together; tokens accepted, and tested."""
    with Engine.load(path, options=OPTIONS, **load) as engine:  # type: ignore[arg-type]
        several = [engine.generate(one, seed=3, temperature=temperature, max_tokens=40) for one in PROMPTS]
        several += engine.generate_many(PROMPTS, seed=3, temperature=temperature, max_tokens=40)
    statistics = [one.statistics for one in several]
    return [one.tokens for one in several], sum(s.accepted for s in statistics), sum(s.tested for s in statistics)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("draft", ["layers", "layers:0-3", "suffix+layers", "layers:0-4+layers:0,5"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_the_text_is_the_same(tmp_path: Path, architecture: str, draft: str, temperature: float) -> None:
    path = tiny_decoder(tmp_path / "tiny.gguf", architecture, shape=SHAPE)
    plain, *_ = texts(path, temperature, speculation="off")
    drafted, accepted, tested = texts(path, temperature, draft=draft, speculation="on")
    assert drafted == plain
    assert 0 < accepted < tested
    assert texts(path, temperature, draft=draft)[0] == plain


def test_subsets_that_are_named_have_names_of_their_own(target: Path) -> None:
    """What is learned of one must not be taken for the other's."""
    with Engine.load(target, draft="layers:0-4+layers:0,5", options=OPTIONS) as engine:
        assert [drafter.name for drafter in engine.drafters] == ["layers:0-4", "layers:0,5"]


def test_it_takes_no_memory(target: Path) -> None:
    with Engine.load(target, draft="layers", speculation="on", options=OPTIONS) as engine:
        assert engine.memory()["drafter"] == 0
        assert engine.drafter_name == "layers"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("layers:a-b", "layers: must be followed by the layers that are run"),
        ("layers:0-3,", "layers: must be followed by the layers that are run"),
        ("layers:1-", "layers: must be followed by"),
        ("layers:-1", "layers: must be followed by"),
        ("layers:3-1", "in ascending order and each once, not '3-1'"),
        ("layers:3,1", "in ascending order"),
        ("layers:0-2,2-4", "in ascending order and each once"),
        ("layers:0-6", "big.gguf has the layers 0 to 5, and layers:0-6 names the layer 6"),
        ("layers:99999999", "layers: must be followed by"),
        ("layers:0-5", "layers:0-5 is all of big.gguf"),
    ],
)
def test_layers_that_cannot_be(target: Path, spec: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        Engine.load(target, draft=spec, options=OPTIONS)
    assert str(caught.value).count(". ") == 0


def test_a_model_of_one_layer_has_none_to_leave_out(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "one.gguf", shape=Shape(layers=1))
    with pytest.raises(UnsupportedModelError, match="has 1 layer, of which none can be left out"):
        Engine.load(path, draft="layers", options=OPTIONS)


def test_the_default_leaves_out_the_middle_and_a_profile_is_used_instead(target: Path) -> None:
    header = read_model_header(target)
    assert drafting_layers(header, "", renumbered=False) == [(0, 1, 5)]
    found = LayerProfile("big.gguf", 6, ((0, 1, 2, 3, 5), (0, 1, 3)), (1.2, 1.1))
    path = layer_profiles.save(target, found)
    assert drafting_layers(header, "", renumbered=False) == list(found.subsets)
    assert drafting_layers(header, "", renumbered=True) == [found.subsets[0]]
    assert drafting_layers(header, "0", renumbered=False) == [(0,)]
    with Engine.load(target, draft="suffix+layers", speculation="on", options=OPTIONS) as engine:
        assert engine.drafter_name == "suffix+layers+layers2"
    path.write_text('{"format": 1, "subsets": [[0, 9]], "count": 6}')
    assert drafting_layers(header, "", renumbered=False) == [(0, 1, 5)]


def test_the_policy_begins_with_the_rates_that_a_search_has_found(target: Path) -> None:
    found = LayerProfile("big.gguf", 6, ((0, 1, 5), (0, 5)), (1.2, 1.1), "", (0.4, 0.25))
    path = layer_profiles.save(target, found)
    assert layer_profiles.find(target, 6) == found
    with Engine.load(target, draft="layers+layers:0,4", options=OPTIONS) as engine:
        assert isinstance(engine.policy, AdaptivePolicy)
        begun = {drafter.name: engine.policy.acceptance.by_level(drafter.name)[0] for drafter in engine.drafters}
        assert begun == {"layers": 0.4, "layers2": 0.25, "layers:0,4": PRIOR}
    for rates in ("[2.0]", "[NaN]", '"x"'):
        path.write_text(path.read_text().replace("[0.4, 0.25]", rates))
        assert layer_profiles.find(target, 6) is None
        layer_profiles.save(target, found)
    path.write_text(path.read_text().replace(', "rates": [0.4, 0.25]', ""))
    older = layer_profiles.find(target, 6)
    assert older is not None
    assert (older.subsets, older.rate((0, 1, 5))) == (found.subsets, None)


@pytest.mark.parametrize(("count", "period"), [(2, 1), (30, 1), (32, 1), (26, 6), (7, 6), (12, 6)])
def test_the_middle_is_in_the_middle(count: int, period: int) -> None:
    kept = without_the_middle(count, 0.5, period)
    left_out = sorted(set(range(count)) - set(kept))
    assert left_out == list(range(left_out[0], left_out[-1] + 1))
    assert len(left_out) % period == 0
    assert abs(left_out[0] - (count - 1 - left_out[-1])) <= 1
    assert all(layer % period == place % period for place, layer in enumerate(kept))


def test_costs_of_a_subset_are_measured_and_kept_under_its_layers(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    inner = learning.profile

    def profile(model: object, seconds: float = 0, **options: bool) -> object:
        measured.append(model.name)  # type: ignore[attr-defined]
        return inner(model, 0.05, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(learning, "profile", profile)
    monkeypatch.setattr(learning, "fits", lambda model, table: True)
    for draft in ("layers:0-3", "layers:0-3", "layers:0,5"):
        with Engine.load(target, draft=draft, options=OPTIONS) as engine:
            assert isinstance(engine.policy, AdaptivePolicy)
            assert engine.policy.steps[0] is not None
            engine.generate(PROMPTS[0], seed=1, max_tokens=12)
    assert measured == ["layers:0-3 of big.gguf", "big.gguf", "layers:0,5 of big.gguf"]


def copies() -> list[Path]:
    return sorted((cache_directory() / "copies").glob("*.gguf"))


@pytest.mark.parametrize("draft", ["layers", "layers:0-2,5"])
def test_llama_cpp_gets_a_copy_with_these_layers(target: Path, draft: str) -> None:
    seen: list[str] = []
    with Engine.load(target, speculation="off", options=LLAMACPP) as engine:
        plain = engine.generate(PROMPTS[0], seed=3, temperature=0.8, max_tokens=40)
    with Engine.load(
        target, draft=draft, speculation="on", options=LLAMACPP, progress=lambda name, done: seen.append(name)
    ) as engine:
        drafted = engine.generate(PROMPTS[0], seed=3, temperature=0.8, max_tokens=40)
        assert [model.runtime for model in engine.draft_models] == ["llamacpp"]
        assert engine.memory()["drafter"] > 0
    assert drafted.tokens == plain.tokens
    assert drafted.statistics.accepted > 0
    assert drafted.drafter == draft
    [copy] = copies()
    kept = read_model_header(copy).integer("llama.block_count")
    assert f"copy of big.gguf with {kept} layers" in seen
    with Engine.load(target, draft=draft, speculation="on", options=LLAMACPP):
        assert copies() == [copy]


def test_a_copy_that_would_break_a_pattern_is_refused(tmp_path: Path) -> None:
    path = tiny_decoder(tmp_path / "tiny.gguf", "gemma3", shape=SHAPE)  # a pattern of three
    with pytest.raises(SlipstreamError, match="every 3 of them are a pattern; leave out 3 in a row"):
        Engine.load(path, draft="layers:0-1,3-5", options=LLAMACPP)
    assert copies() == []
    with Engine.load(path, draft="layers", speculation="on", options=LLAMACPP) as engine:
        assert engine.generate(PROMPTS[0], seed=3, max_tokens=20).statistics.drafted > 0
    assert read_model_header(copies()[0]).integer("gemma3.block_count") == 3


def test_what_a_search_found_and_no_copy_can_have_is_passed_over(tmp_path: Path) -> None:
    path = tiny_decoder(tmp_path / "tiny.gguf", "gemma3", shape=SHAPE)
    header = read_model_header(path)
    layer_profiles.save(path, LayerProfile("tiny.gguf", 6, ((0, 1, 3, 4, 5),), (0.8,)))
    assert drafting_layers(header, "", renumbered=False) == [(0, 1, 3, 4, 5)], "used though no gain is predicted"
    assert drafting_layers(header, "", renumbered=True) == [without_the_middle(6, 0.5, 3)]
    layer_profiles.save(path, LayerProfile("tiny.gguf", 6, ((0, 1, 3, 4, 5), (0, 4, 5)), (0.8, 0.7)))
    assert drafting_layers(header, "", renumbered=True) == [(0, 4, 5)]
    with Engine.load(path, draft="layers", speculation="on", options=LLAMACPP) as engine:
        assert engine.generate(PROMPTS[0], seed=3, max_tokens=20).statistics.drafted > 0
