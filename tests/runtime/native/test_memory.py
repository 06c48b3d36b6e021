"""Memory is known before it is taken, and too little of it is a sentence with the numbers."""

import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.errors import RuntimeUnavailableError
from slipstream.runtime.memory import available_memory, gigabytes
from slipstream.runtime.native import load_native, loading
from tests.tiny_models import Shape, tiny_llama

MEMINFO = "MemTotal:       8000000 kB\nMemFree:  100 kB\nMemAvailable:    4000000 kB\n"


def system(root: Path, **files: str) -> Path:
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_what_the_machine_has_free(tmp_path: Path) -> None:
    assert available_memory(system(tmp_path, proc__meminfo=MEMINFO)) == 4_000_000 * 1024


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None
    assert available_memory(system(tmp_path, proc__meminfo="MemFree: 3 kB\n")) is None


GROUP = "sys__fs__cgroup__"


def test_the_limit_of_a_cgroup(tmp_path: Path) -> None:
    """File pages are dropped for us: they count as free."""
    files = {GROUP + "memory.max": "3000\n", GROUP + "memory.current": "2500\n"}
    statistics = "anon 1\ninactive_file 300\nactive_file 70\nodd\n"
    root = system(tmp_path, proc__meminfo=MEMINFO, **files)
    assert available_memory(root) == 500
    assert available_memory(system(root, **{GROUP + "memory.stat": statistics})) == 870
    assert available_memory(system(root, **{GROUP + "memory.current": "9999"})) == 0


def test_a_cgroup_without_a_limit(tmp_path: Path) -> None:
    files = {GROUP + "memory.max": "max\n", GROUP + "memory.current": "2500\n"}
    assert available_memory(system(tmp_path, proc__meminfo=MEMINFO, **files)) == 4_000_000 * 1024


def test_the_older_cgroups(tmp_path: Path) -> None:
    old = GROUP + "memory__memory."
    root = system(tmp_path, **{old + "limit_in_bytes": "3000", old + "usage_in_bytes": "1000"})
    assert available_memory(root) == 2000


def limited(root: Path, group: str, most: str, used: str) -> Path:
    """A cgroup of version 2."""
    return system(root, **{f"{GROUP}{group}memory.max": most, f"{GROUP}{group}memory.current": used})


def test_the_tightest_of_our_cgroup_and_its_parents(tmp_path: Path) -> None:
    """A systemd scope, a step of a batch job: the limit is not at the root, which has no such file."""
    root = system(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="0::/job/step\n")
    limited(root, "job__step__", "max", "1000")
    limited(root, "other__", "20", "10")
    assert available_memory(root) == 4_000_000 * 1024
    limited(root, "job__", "9000", "2000")
    assert available_memory(root) == 7000
    limited(root, "job__step__", "3000", "1000")
    assert available_memory(root) == 2000


def test_the_older_cgroups_of_a_job(tmp_path: Path) -> None:
    """Pages that children of the group can drop are the group's as well."""
    old = GROUP + "memory__job__memory."
    files = {old + "limit_in_bytes": "3000", old + "usage_in_bytes": "2500"}
    groups = "5:cpu,cpuacct:/elsewhere\n4:memory:/job/step\n"
    root = system(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup=groups, **files)
    assert available_memory(root) == 500
    statistics = "inactive_file 1\nactive_file 1\ntotal_inactive_file 200\ntotal_active_file 70\n"
    assert available_memory(system(root, **{old + "stat": statistics})) == 770


def test_this_machine() -> None:
    assert (available_memory() or 0) > 1 << 20


def test_gigabytes() -> None:
    assert gigabytes(1_449_000_000) == "1.45 GB"


def test_too_little_memory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken before: loading would be noticed by its progress."""
    monkeypatch.setattr(loading, "available_memory", lambda: 50_000_000)
    seen: list[float] = []
    with pytest.raises(RuntimeUnavailableError) as caught:
        load_native(file, context_length=2000, max_sequences=200, max_rows=512, threads=1, progress=seen.append)
    message = str(caught.value)
    # 200 sequences x 32 blocks of 64 x 3 layers x 64 channels x keys and values x 2 bytes
    assert "KV cache of 200 sequence(s) of 2000 tokens 0.31 GB" in message
    assert message.startswith("tiny.gguf needs 0.32 GB of memory (weights 0.00 GB, ")
    assert message.endswith("and 0.05 GB are free; choose a shorter context, fewer sequences or a smaller model.")
    assert seen == []


def test_memory_that_just_suffices(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"context_length": 512, "max_sequences": 2, "max_rows": 64, "threads": 1}
    model = load_native(file, **options)
    needed = model.memory()
    model.close()
    monkeypatch.setattr(loading, "available_memory", lambda: needed)
    load_native(file, **options).close()
    monkeypatch.setattr(loading, "available_memory", lambda: needed - 1)
    with pytest.raises(RuntimeUnavailableError, match="needs"):
        load_native(file, **options)


def test_a_system_that_does_not_say_is_believed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "available_memory", lambda: None)
    load_native(file, context_length=64, threads=1).close()


LOAD = """
import sys
from slipstream.core.protocols import Segment
from slipstream.runtime.native import load_native

def kilobytes(what):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(what))

before = kilobytes("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # VmHWM begins anew
model = load_native(sys.argv[1], context_length=256, threads=2)
print(kilobytes("VmHWM") - before, kilobytes("VmRSS") - before, model.memory_parts["weights"])
"""


def test_loading_takes_little_more_than_what_stays(tmp_path: Path) -> None:
    """Peak at most 1.15 times the final size, on 30 MB of weights."""
    shape = Shape(width=1024, heads=8, head_size=128, feed_forward=3072, layers=2)
    path = tiny_llama(tmp_path / "it.gguf", shape=shape, storage="F16")
    done = subprocess.run([sys.executable, "-c", LOAD, str(path)], capture_output=True, text=True, check=True)
    peak, final, weights = (int(number) for number in done.stdout.split())
    assert weights > 25_000_000
    assert final * 1024 > 0.95 * weights  # the weights are there
    assert peak <= 1.15 * final
