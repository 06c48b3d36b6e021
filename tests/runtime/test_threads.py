"""Thread counts from a pretended /sys and /proc."""

from pathlib import Path

import pytest

from slipstream.runtime import threads


def machine(root: Path, siblings: list[str]) -> Path:
    """CPUs 0, 1, ... with these `thread_siblings_list`s."""
    for cpu, text in enumerate(siblings):
        write(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", text)
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_hardware_threads_of_one_core_count_once(tmp_path: Path) -> None:
    machine(tmp_path, ["0,4", "1,5", "2,6", "3,7"] * 2)
    assert threads.physical_cores(range(8), tmp_path) == 4
    assert threads.physical_cores({0, 4, 5}, tmp_path) == 2


def test_cpus_of_unknown_topology_count_each(tmp_path: Path) -> None:
    assert threads.physical_cores({3, 9}, tmp_path) == 2


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"sys/fs/cgroup/cpu.max": "250000 100000"}, 2.5),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000"}, 3),
        (  # the tightest of our group and its parents
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/cpu.max": "800000 100000",
                "sys/fs/cgroup/a/cpu.max": "300000 100000",
            },
            3,
        ),
        ({"proc/self/cgroup": "4:cpu,cpuacct:/x", "sys/fs/cgroup/cpu/x/cpu.max": "100000 100000"}, 1),
        ({"sys/fs/cgroup/cpu.max": "nonsense"}, None),
    ],
)
def test_cgroup_quota(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    for name, text in files.items():
        write(tmp_path / name, text)
    assert threads.cgroup_quota(tmp_path) == quota


@pytest.mark.parametrize(("quota", "expected"), [("max 1", 3), ("250000 100000", 2), ("20000 100000", 1)])
def test_default_is_cores_within_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int
) -> None:
    machine(tmp_path, ["0", "1", "2", "3"])
    write(tmp_path / "sys/fs/cgroup/cpu.max", quota)
    monkeypatch.setattr(threads, "usable_cpus", lambda: frozenset({0, 1, 3}))
    assert threads.default_threads(tmp_path) == expected
