import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.errors import ModelFileError, UnknownModelError, UnsupportedModelError
from slipstream.models import CATALOG, list_models, locate, models_directory, resolve
from tests.models.gguf_writer import model_bytes, write_model


def ollama_model(home: Path, name: str, *, digest: str | None = None, namespace: str = "library") -> Path:
    """Lay down a model as Ollama does, under a host that does not exist."""
    content = model_bytes(general__name=name)
    root = home / ".ollama" / "models"
    digest = digest or f"sha256:{hashlib.sha256(content).hexdigest()}"
    blob = root / "blobs" / digest.replace(":", "-")
    blob.parent.mkdir(parents=True, exist_ok=True)
    if "/" not in digest:
        blob.write_bytes(content)
    model, tag = name.split(":")
    manifest = root / "manifests" / "registry.example" / namespace / model / tag
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "0" * 64},
        {"mediaType": "application/vnd.ollama.image.model", "digest": digest},
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return blob


def hub_model(home: Path, repository: str, file: str, revision: str = "abc", *, main: bool = True) -> Path:
    """Lay down a model as the hub's library does: a snapshot of links into blobs."""
    root = home / ".cache" / "huggingface" / "hub" / f"models--{repository.replace('/', '--')}"
    blob = write_model(root / "blobs" / f"{revision}{Path(file).name}blob")
    link = root / "snapshots" / revision / file
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(blob)
    if main:
        (root / "refs").mkdir(exist_ok=True)
        (root / "refs" / "main").write_text(revision)
    return link


@pytest.fixture
def machine(home: Path) -> Path:
    """A home with models of every program, none of them writable."""
    hub_model(home, "acme/Tiny-GGUF", "tiny-q8_0.gguf")
    hub_model(home, "acme/Tiny-GGUF", "deep/tiny-q4_0.gguf")
    ollama_model(home, "llama3.2:1b")
    ollama_model(home, "phi:latest")
    ollama_model(home, "mine:v2", namespace="ann")
    write_model(home / ".lmstudio" / "models" / "acme" / "Small-GGUF" / "small.gguf", general__license="mit")
    write_model(models_directory() / "own.gguf")
    return home


def refusal(name: str, error: type[Exception] = UnknownModelError) -> str:
    with pytest.raises(error) as caught:
        resolve(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def tree(home: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in home.rglob("*")}


def test_every_cache_is_listed_and_none_is_touched(machine: Path) -> None:
    before = tree(machine)
    found = {model.name: model for model in list_models()}
    assert set(found) == {
        "own",
        "hf:acme/Tiny-GGUF/tiny-q8_0.gguf",
        "hf:acme/Tiny-GGUF/deep/tiny-q4_0.gguf",
        "ollama:llama3.2:1b",
        "ollama:phi:latest",
        "ollama:ann/mine:v2",
        "lmstudio:acme/Small-GGUF/small.gguf",
    }
    small = found["lmstudio:acme/Small-GGUF/small.gguf"]
    assert (small.source, small.architecture, small.quantisation, small.licence, small.problem) == (
        ("lmstudio", "llama", "Q8_0", "mit", None)
    )
    assert small.size == small.path.stat().st_size
    assert {model.source for model in found.values()} == {"slipstream", "huggingface", "ollama", "lmstudio"}
    for name in found:
        resolve(name)
    assert tree(machine) == before


def test_caches_may_be_read_only(machine: Path) -> None:
    folders = [path for path in machine.rglob("*") if path.is_dir()]
    for path in folders:
        path.chmod(0o555)
    try:
        assert len(list_models()) == 7
    finally:
        for path in folders:
            path.chmod(0o755)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("own", "own.gguf"),
        ("OWN.gguf", "own.gguf"),
        ("hf:acme/Tiny-GGUF/tiny-q8_0.gguf", "tiny-q8_0.gguf"),
        ("acme/Tiny-GGUF/tiny-q8_0.gguf", "tiny-q8_0.gguf"),
        ("tiny-q8_0", "tiny-q8_0.gguf"),
        ("tiny-q4_0.gguf", "tiny-q4_0.gguf"),
        ("small", "small.gguf"),
        ("lmstudio:acme/Small-GGUF/small.gguf", "small.gguf"),
        ("ollama:llama3.2:1b", None),
        ("llama3.2:1b", None),
        ("ollama:phi", None),
        ("phi", None),
        ("ann/mine:v2", None),
    ],
)
def test_names_of_other_programs(machine: Path, name: str, file: str | None) -> None:
    path = resolve(name)
    assert path.is_file()
    assert path.name == file if file else path.name.startswith("sha256-")


def test_a_path_comes_first(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_model(machine / "here" / "own").parent)
    assert resolve("own") == Path("own")
    assert resolve(machine / "here" / "own") == machine / "here" / "own"
    assert resolve("~/here/own") == machine / "here" / "own"


def test_a_directory_does_not_hide_a_short_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "smollm2-135m").mkdir()
    monkeypatch.chdir(home)
    assert "slipstream pull smollm2-135m" in refusal("smollm2-135m")


def test_a_known_model_that_is_not_here(home: Path) -> None:
    message = refusal("SmolLM2-135M")
    assert message == "smollm2-135m is not on this machine yet; fetch it with `slipstream pull smollm2-135m`."


def test_a_known_model_is_fetched_when_allowed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def pull(name: str, progress: object) -> Path:
        asked.extend([name, progress])
        return home / "fetched.gguf"

    monkeypatch.setattr(locate, "pull", pull)
    assert resolve("gemma3-270m", fetch=True) == home / "fetched.gguf"
    assert resolve("hf:acme/Tiny/x.gguf", fetch=True) == home / "fetched.gguf"
    assert asked == ["gemma3-270m", None, "hf:acme/Tiny/x.gguf", None]


def test_a_known_model_in_the_cache(home: Path) -> None:
    entry = CATALOG["smollm2-135m"]
    path = models_directory() / entry.file_name
    path.parent.mkdir(parents=True)
    path.touch()
    os.truncate(path, entry.size)
    assert resolve("smollm2-135m") == path
    os.truncate(path, entry.size - 1)
    assert "slipstream pull" in refusal("smollm2-135m")


def test_a_hub_file_that_is_not_here(home: Path) -> None:
    assert "slipstream pull hf:acme/Tiny/x.gguf" in refusal("hf:acme/Tiny/x.gguf")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("smolm2-135m", "smollm2-135m"),
        ("gemma3", "gemma3-270m"),
        ("tiny-q8", "tiny-q8_0"),
        ("llama3.2:2b", "llama3.2:1b"),
    ],
)
def test_an_unknown_name_names_the_nearest(machine: Path, name: str, nearest: str) -> None:
    message = refusal(name)
    assert "did you mean" in message
    assert repr(nearest) in message


def test_an_unknown_name_near_to_nothing(home: Path) -> None:
    message = refusal("zzzzzzzzzz")
    assert "no model called 'zzzzzzzzzz'" in message
    assert "slipstream models" in message


def test_an_empty_name(home: Path) -> None:
    assert "empty" in refusal("")


def test_an_ambiguous_name_lists_the_choices(machine: Path) -> None:
    write_model(machine / ".lmstudio" / "models" / "other" / "Small-GGUF" / "small.gguf")
    message = refusal("small")
    assert "lmstudio:acme/Small-GGUF/small.gguf, lmstudio:other/Small-GGUF/small.gguf" in message


def test_a_path_that_is_not_there_lists_its_neighbours(machine: Path) -> None:
    write_model(machine / "m" / "right.gguf")
    message = refusal(str(machine / "m" / "wrong.gguf"), ModelFileError)
    assert "There is no file" in message
    assert "right.gguf" in message
    assert "slipstream models" in refusal("./wrong.gguf", ModelFileError)
    assert "There is no file" in refusal("~nobody-of-this-name/x.gguf", ModelFileError)
    message = refusal(str(machine / "m"), ModelFileError)
    assert "is a directory" in message
    assert "right.gguf" in message


@pytest.mark.parametrize("name", ["hf:acme", "hf:acme/x.gguf", "hf:a/b/c.bin", "hf:a/../c.gguf", "hf:a//c.gguf"])
def test_hub_names_that_are_none(home: Path, name: str) -> None:
    assert "hf:owner/repo/file.gguf" in refusal(name)


def test_a_later_part_of_a_split_hub_model(home: Path) -> None:
    message = refusal("hf:a/b/big-00002-of-00003.gguf", UnsupportedModelError)
    assert "name the part that ends in -00001-of-00003.gguf" in message


def test_a_split_hub_model_is_there_with_its_last_part(home: Path) -> None:
    first = hub_model(home, "acme/Big", "big-00001-of-00002.gguf", "aaa")
    name = "hf:acme/Big/big-00001-of-00002.gguf"
    assert "slipstream pull" in refusal(name)
    hub_model(home, "acme/Big", "big-00002-of-00002.gguf", "aaa")
    assert resolve(name) == first


def test_the_hub_s_main_revision_wins(home: Path) -> None:
    hub_model(home, "acme/Tiny", "x.gguf", "aaa", main=False)
    current = hub_model(home, "acme/Tiny", "x.gguf", "bbb")
    hub_model(home, "acme/Tiny", "x.gguf", "ccc", main=False)
    assert [model.path for model in list_models()] == [current]
    assert resolve("hf:acme/Tiny/x.gguf") == resolve("x") == current


def test_models_that_cannot_be_used_are_listed_with_the_reason(home: Path) -> None:
    folder = home / ".lmstudio" / "models" / "acme" / "Repo"
    write_model(folder / "mmproj.gguf", general__type="mmproj")
    (folder / "cut.gguf").write_bytes(model_bytes()[:100])
    (folder / "gone.gguf").symlink_to(home / "nowhere")
    problems = {model.path.name: model.problem or "" for model in list_models()}
    assert "vision projector" in problems["mmproj.gguf"]
    assert "truncated" in problems["cut.gguf"]
    assert "gone.gguf" in problems


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "{",
        lambda text: "[]",
        lambda text: '{"layers": 3}',
        lambda text: '{"layers": [3]}',
        lambda text: "[" * 100_000,
        lambda text: text.replace("sha256:", "sha256:../../"),
        lambda text: text.replace("image.license", "image.model"),
        lambda text: text.replace("image.model", "image.other"),
    ],
)
def test_damaged_ollama_manifests_are_passed_over(home: Path, damage: Callable[[str], str]) -> None:
    ollama_model(home, "good:1b")
    ollama_model(home, "bad:1b")
    (manifest,) = (home / ".ollama" / "models" / "manifests").glob("*/library/bad/1b")
    manifest.write_text(damage(manifest.read_text()))
    assert [model.name for model in list_models()] == ["ollama:good:1b"]


def test_no_caches_at_all(home: Path) -> None:
    assert list_models() == []
