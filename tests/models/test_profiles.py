from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.errors import ModelFileError, ProfileError, StorageError
from slipstream.models import profiles
from slipstream.models.fingerprint import fingerprint
from slipstream.models.profiles import Profile, find, profiles_directory, read, save


@pytest.fixture
def target(home: Path) -> Path:
    path = home / "target.gguf"
    path.write_bytes(bytes(range(256)) * 1000)
    return path


def profile(target: Path, /, **changes: object) -> Profile:
    made = Profile(
        target=target.name,
        fingerprint=fingerprint(target),
        runtime="native",
        draft="suffix",
        ratio=1.5,
        low=1.4,
        high=1.625,
        kinds={"chat": 1.25, "code editing": 2.0},
        date="2025-01-02T03:04:05+00:00",
        version="0.1.0",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_what_was_saved_is_found_again(target: Path) -> None:
    made = profile(target, num_draft_tokens=8, draft='/odd "name" \\ \x7f\ttab\nü.gguf', draft_runtime="llamacpp")
    save(made)
    assert find(target) == made
    assert find(target, "native") == made
    assert find(target, "llamacpp") is None


def test_a_target_is_known_by_its_bytes(target: Path) -> None:
    save(profile(target))
    moved = target.rename(target.with_name("other.gguf"))
    assert find(moved) is not None
    moved.write_bytes(bytes(range(256)) * 999 + bytes(255) + b"!")
    assert find(moved) is None


def test_saving_again_replaces_also_under_another_name(target: Path) -> None:
    save(profile(target))
    save(profile(target, target="renamed.gguf", draft="none"))
    assert len(list(profiles_directory().iterdir())) == 1
    found = find(target)
    assert found is not None
    assert found.draft == "none"


def test_each_runtime_has_its_own_and_the_newest_is_found(target: Path) -> None:
    save(profile(target, runtime="llamacpp", draft="none", date="2026-01-01T00:00:00+00:00"))
    save(profile(target))
    newest, native = find(target), find(target, "native")
    assert newest is not None
    assert newest.runtime == "llamacpp"
    assert native is not None
    assert native.draft == "suffix"


def test_without_profiles_the_target_is_not_read(home: Path) -> None:
    assert find(home / "nowhere.gguf") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ratio = ", "is damaged"),
        ("draft = 'suffix'", "does not state target, fingerprint, runtime"),
        ("draft = 3", "draft = 3, which cannot be"),
        ("ratio = -1.0", "ratio = -1.0, which is no speed-up"),
        ("ratio = nan", "which is no speed-up"),
        ("num_draft_tokens = true", "which cannot be"),
        ("num_draft_tokens = 65", "outside 0 to 64"),
        ("[kinds]\nchat = 'fast'", "chat = 'fast'"),
    ],
)
def test_a_damaged_profile_is_a_sentence_that_names_the_file(target: Path, text: str, reason: str) -> None:
    file = save(profile(target))
    good = profiles.written(profile(target, kinds={}))
    name = text.partition(" ")[0]
    rest = [line for line in good.splitlines() if not line.startswith(f"{name} ")]
    file.write_text(text if "does not state" in reason else "\n".join([*rest, text]), encoding="utf-8")
    with pytest.raises(ProfileError) as error:
        find(target)
    assert str(file) in str(error.value)
    assert reason in str(error.value)
    assert "advise --save" in str(error.value)


def test_bytes_that_are_no_text_are_damage(target: Path) -> None:
    file = save(profile(target))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ProfileError, match="is damaged"):
        find(target)


def test_keys_of_later_versions_are_passed_over(target: Path) -> None:
    file = save(profile(target, kinds={}))
    file.write_text(file.read_text(encoding="utf-8") + "later = 1\n", encoding="utf-8")
    assert read(file) == profile(target, kinds={})


def test_a_draft_model_that_is_gone_is_a_sentence(target: Path) -> None:
    assert profile(target).missing is None
    assert profile(target, draft=f"suffix+{target}").missing is None
    gone = profile(target, draft="suffix+/gone/small.gguf")
    assert gone.draft_files == [Path("/gone/small.gguf")]
    assert gone.missing is not None
    assert "/gone/small.gguf" in gone.missing


def test_a_place_that_cannot_be_written(target: Path, home: Path) -> None:
    (home / "file").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIPSTREAM_CONFIG_DIR", str(home / "file"))
        with pytest.raises(StorageError, match="SLIPSTREAM_CONFIG_DIR"):
            save(profile(target))


def test_a_name_that_is_not_utf_8(target: Path) -> None:
    with pytest.raises(StorageError, match="not UTF-8"):
        save(profile(target, draft="/odd\udcff.gguf"))


def test_a_target_that_is_not_there(target: Path) -> None:
    save(profile(target))
    target.unlink()
    with pytest.raises(ModelFileError, match="cannot be read"):
        find(target)
