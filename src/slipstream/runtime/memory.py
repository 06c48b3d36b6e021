"""How much memory a model may take: what the machine has free, within the cgroup's limit."""

from pathlib import Path

from slipstream.runtime.cgroup import cgroups, read

ROOT = Path("/")


def available_memory(root: Path = ROOT) -> int | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    limits = [_meminfo(root), *map(_left_in, cgroups("memory", root))]
    return min((limit for limit in limits if limit is not None), default=None)


def gigabytes(count: int) -> str:
    """For people: "1.45 GB"."""
    return f"{count / 1e9:.2f} GB"


def _meminfo(root: Path) -> int | None:
    for line in read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _left_in(group: Path) -> int | None:
    """What one cgroup (version 2, then 1) leaves; file pages that it can drop count as free. None is no limit."""
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        most, now = read(group / limit), read(group / used)
        if most.isdigit() and now.isdigit():
            return max(0, int(most) - int(now) + _droppable(read(group / "memory.stat")))
    return None


def _droppable(statistics: str) -> int:
    counts = dict(line.split() for line in statistics.splitlines() if len(line.split()) == 2)
    # version 1 counts the group alone, and with its children as "total_"
    return sum(int(counts.get(f"total_{kind}", counts.get(kind, 0))) for kind in ("inactive_file", "active_file"))
