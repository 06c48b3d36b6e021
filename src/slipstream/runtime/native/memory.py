"""How much memory a model may take: what the machine has free, within the cgroup's limit."""

from pathlib import Path

ROOT = Path("/")


def available_memory(root: Path = ROOT) -> int | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    limits = [_meminfo(root), _cgroup(root)]
    return min((limit for limit in limits if limit is not None), default=None)


def gigabytes(count: int) -> str:
    """For people: "1.45 GB"."""
    return f"{count / 1e9:.2f} GB"


def _meminfo(root: Path) -> int | None:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup(root: Path) -> int | None:
    """What the cgroup (version 2, then 1) leaves; file pages that it can drop count as free."""
    for limit, used, statistics in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        group = root / "sys/fs/cgroup"
        most, now = _read(group / limit), _read(group / used)
        if most.isdigit() and now.isdigit():
            return max(0, int(most) - int(now) + _droppable(_read(group / statistics)))
    return None


def _droppable(statistics: str) -> int:
    counts = dict(line.split() for line in statistics.splitlines() if len(line.split()) == 2)
    return int(counts.get("inactive_file", 0)) + int(counts.get("active_file", 0))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
