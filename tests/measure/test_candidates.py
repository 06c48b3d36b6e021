from pathlib import Path

import pytest

from slipstream.engine import ModelOptions
from slipstream.errors import UsageError
from slipstream.measure.candidates import Candidates, found_candidates, named_candidates
from slipstream.models import FoundModel, GgufHeader, models_directory, read_model_header
from tests.shipping import ship
from tests.tiny_heads import tiny_head
from tests.tiny_models import Shape, sentencepiece, tiny_llama

LARGE = Shape(width=256, heads=8, feed_forward=512, layers=6)


@pytest.fixture
def target(tmp_path: Path) -> GgufHeader:
    return read_model_header(tiny_llama(tmp_path / "target.gguf", shape=LARGE))


def found(path: Path, problem: str | None = None) -> FoundModel:
    return FoundModel(path.stem, path, path.stat().st_size, "slipstream", "llama", "F32", None, problem)


def reasons(candidates: Candidates) -> dict[str, str]:
    return {one.name: one.reason for one in candidates.left_out}


def test_suffix_comes_first_and_then_what_fits(target: GgufHeader, tmp_path: Path) -> None:
    small = found(tiny_llama(tmp_path / "small.gguf"))
    other = found(tiny_llama(tmp_path / "other.gguf", vocabulary=sentencepiece()))
    large = found(tiny_llama(tmp_path / "large.gguf", shape=LARGE, seed=1))
    broken = found(tiny_llama(tmp_path / "broken.gguf"), problem="it is damaged.")
    candidates = found_candidates(target, [small, other, large, broken, found(target.path)])
    assert [one.name for one in candidates.chosen] == ["suffix", "small"]
    assert candidates.chosen[1].draft == str(tmp_path / "small.gguf")
    assert reasons(candidates).keys() == {"other", "large", "broken"}
    assert "different vocabularies" in reasons(candidates)["other"]
    assert "--draft suffix" not in reasons(candidates)["other"]
    assert reasons(candidates)["other"].endswith("differ; name it with --candidates to have it measured.")
    assert "100% of the target's" in reasons(candidates)["large"]
    assert reasons(candidates)["broken"] == "it is damaged."


def test_of_several_files_of_one_model_the_smallest_is_measured(target: GgufHeader, tmp_path: Path) -> None:
    files = [
        found(tiny_llama(tmp_path / "f32.gguf")),
        found(tiny_llama(tmp_path / "q8.gguf", storage="Q8_0")),
        found(tiny_llama(tmp_path / "f16.gguf", storage="F16")),
    ]
    candidates = found_candidates(target, files)
    assert [one.name for one in candidates.chosen] == ["suffix", "q8"]
    assert set(reasons(candidates)) == {"f32", "f16"}


def test_one_file_under_two_names_is_one_candidate(target: GgufHeader, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "small.gguf")
    (tmp_path / "link.gguf").symlink_to(path)
    candidates = found_candidates(target, [found(path), found(tmp_path / "link.gguf")])
    assert [one.name for one in candidates.chosen] == ["suffix", "small"]
    assert candidates.left_out == []


def test_at_most_a_handful_is_measured_the_best_guess_first(target: GgufHeader, tmp_path: Path) -> None:
    shapes = [Shape(layers=layers) for layers in (1, 2, 3, 4, 5, 6)]
    files = [found(tiny_llama(tmp_path / f"{shape.layers}.gguf", shape=shape)) for shape in shapes]
    candidates = found_candidates(target, files)
    assert len(candidates.chosen) == 5
    shares = [one.header.tensor_bytes / target.tensor_bytes for one in candidates.chosen[1:] if one.header]
    distances = [max(share / 0.1, 0.1 / share) for share in shares]
    assert distances == sorted(distances)
    assert all("--candidates" in reason for reason in reasons(candidates).values())
    assert len(candidates.left_out) == 2


def test_siblings_are_suggested_unless_they_are_here(target: GgufHeader, tmp_path: Path) -> None:
    large = GgufHeader(
        target.path,
        3,
        {**target.metadata, "general.name": "SmolLM2 1.7B", "tokenizer.ggml.pre": "smollm"},
        target.tensors * 400,
        0,
        0,
    )
    assert [one.name for one in found_candidates(large, []).suggestions] == [
        "SmolLM2-135M-Instruct",
        "SmolLM2-360M-Instruct",
    ]
    assert found_candidates(target, []).suggestions == []


def test_named_candidates_are_measured_whatever_their_size(
    target: GgufHeader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(tmp_path / "cache"))
    models_directory().mkdir(parents=True)
    tiny_llama(models_directory() / "small.gguf")
    large = tiny_llama(tmp_path / "large.gguf", shape=LARGE, seed=1)
    other = tiny_llama(tmp_path / "other.gguf", vocabulary=sentencepiece())
    head, foreign = tiny_head(tmp_path / "head.gguf", target.path), tiny_head(tmp_path / "foreign.gguf", other)
    specs = ["suffix", "small", "suffix+small", str(large), str(head), str(other), str(foreign), "nowhere", "small"]
    candidates = named_candidates(specs, target)
    chosen = ["suffix", "small", "suffix+small", str(large), str(head), str(other)]
    assert [one.name for one in candidates.chosen] == chosen
    assert [one.draft for one in candidates.chosen[1:3]] == [
        str(models_directory() / "small.gguf"),
        f"suffix+{models_directory() / 'small.gguf'}",
    ]
    assert "no model called 'nowhere'" in reasons(candidates)["nowhere"]
    assert "does not belong to target.gguf" in reasons(candidates)[str(foreign)]
    assert len(candidates.left_out) == 2, "one of another vocabulary drafts through the text"


@pytest.mark.parametrize("spec", ["none", "off", " "])
def test_plain_decoding_is_no_candidate(target: GgufHeader, spec: str) -> None:
    with pytest.raises(UsageError, match="always measured"):
        named_candidates([spec], target)


def test_the_head_that_comes_with_slipstream_is_measured_with_suffix(
    target: GgufHeader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = ship(monkeypatch, tmp_path, target.path)
    candidates = found_candidates(target, [])
    assert [(one.name, one.draft) for one in candidates.chosen] == [("suffix", "suffix"), ("suffix+head",) * 2]
    assert candidates.chosen[1].header is not None
    assert candidates.chosen[1].header.path == head
    assert [one.draft for one in named_candidates(["auto"], target).chosen] == ["suffix+head"]
    on_llama_cpp = ModelOptions(runtime="llamacpp")
    assert [one.name for one in found_candidates(target, [], on_llama_cpp).chosen] == ["suffix"]
    assert [one.draft for one in named_candidates(["auto"], target, on_llama_cpp).chosen] == ["suffix"]
    head.unlink()
    candidates = found_candidates(target, [])
    assert [one.name for one in candidates.chosen] == ["suffix"]
    assert "is not there; install Slipstream again" in reasons(candidates)["head"]
