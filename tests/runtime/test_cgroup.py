"""Our cgroup and its parents, from a pretended /proc."""

from pathlib import Path

import pytest

from slipstream.runtime.cgroup import cgroups, read

MOUNT = "sys/fs/cgroup"


def groups(root: Path, lines: str) -> set[str]:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines)
    return {str(group.relative_to(root)) for group in cgroups("memory", root)}


@pytest.mark.parametrize(
    ("lines", "more"),
    [
        ("", set()),
        ("0::/\n", set()),
        ("0::/a/b\n", {"a", "a/b"}),
        ("4:cpu,memory:/x/y\n3:cpuset:/z\n", {"memory/x", "memory/x/y"}),
        ("7:name=systemd:/u\n4:memory:/x\n0::/a:b\n", {"memory/x", "a:b"}),
        ("2:memoryless:/x\n", set()),
    ],
)
def test_our_group_and_its_parents(tmp_path: Path, lines: str, more: set[str]) -> None:
    assert groups(tmp_path, lines) == {MOUNT, f"{MOUNT}/memory"} | {f"{MOUNT}/{group}" for group in more}


def test_a_system_without_cgroups(tmp_path: Path) -> None:
    assert cgroups("memory", tmp_path) == [tmp_path / MOUNT, tmp_path / MOUNT / "memory"]


def test_what_cannot_be_read_is_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(" 12 \n")
    assert [read(tmp_path / name) for name in ("file", "missing", ".")] == ["12", "", ""]
