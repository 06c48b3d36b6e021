"""How many threads to compute with: physical cores that this process may use, within its cgroup's quota."""

import os
from collections.abc import Collection
from pathlib import Path

from slipstream.runtime.cgroup import cgroups, read

ROOT = Path("/")


def default_threads(root: Path = ROOT) -> int:
    """Physical cores among the CPUs of our affinity mask, at most the cgroup's CPU quota; at least 1.

    Two hardware threads of one core share the units that multiply, so the second adds little and
    makes barriers slower. `root` is where /sys and /proc live (tests give their own).
    """
    cores = physical_cores(usable_cpus(), root)
    quota = cgroup_quota(root)
    return max(1, cores if quota is None else min(cores, int(quota)))


def usable_cpus() -> frozenset[int]:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))  # macOS has no affinity masks


def physical_cores(cpus: Collection[int], root: Path = ROOT) -> int:
    """Number of different cores that `cpus` belong to; a CPU of unknown topology counts as a core."""
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return len({read(root / topology.format(cpu)) or f"cpu {cpu}" for cpu in cpus})


def cgroup_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time that the cgroup (version 2 or 1) and its parents grant; None is no limit."""
    quotas = [quota for group in cgroups("cpu", root) if (quota := _quota(group)) is not None]
    return min(quotas, default=None)


def _quota(group: Path) -> float | None:
    """The quota of one cgroup directory in CPUs."""
    limit = read(group / "cpu.max").split()  # version 2: "max 100000" or "150000 100000"
    if not limit:  # version 1: -1 is no limit
        limit = [read(group / "cpu.cfs_quota_us"), read(group / "cpu.cfs_period_us")]
    try:
        quota, period = int(limit[0]), int(limit[1])
    except (ValueError, IndexError):
        return None
    return quota / period if quota > 0 and period > 0 else None
