#!/usr/bin/env python3
"""llama-server of exactly the llama.cpp that llama-cpp-python contains: build it.

    scripts/bench peer [--jobs 2]      builds it if it is not there yet (minutes), prints its path

The source comes from the source distribution of the installed llama-cpp-python. It is built for this machine's CPU
with the options of scripts/setup, so that the comparison is with the same kernels that `--runtime llamacpp` has.
`CMAKE_ARGS` is added, as there. The web page of the server is left out; nothing but the package index is asked.
"""

import argparse
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import IO

from slipstream.models.paths import cache_directory
from slipstream.models.storage import exclusive

PACKAGE = "llama-cpp-python"
TARGET = "llama-server"

# As in scripts/setup, and for the reason given there.
PROJECT_OPTIONS = "add_compile_options(-U__AMX_INT8__)\n"
CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)


class PeerError(Exception):
    """llama-server could not be built or does not answer; the message says where to look."""


def server_path() -> Path:
    """Where llama-server of the installed version, built for this CPU, is or will be."""
    return cache_directory() / "benchmarks" / f"{TARGET}-{version(PACKAGE)}-{_build_key()}" / TARGET


def _build_key() -> str:
    """What decides which instructions the compiler chooses."""
    cpu = Path("/proc/cpuinfo")
    names = ("model name", "flags", "Features", "CPU part")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    facts = sorted({line for line in lines if line.startswith(names)})
    facts += [PROJECT_OPTIONS, *CMAKE_OPTIONS, os.environ.get("CMAKE_ARGS", ""), platform.machine(), platform.system()]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]


def ensure_server(jobs: int = 2) -> Path:
    """Path of llama-server, built if need be. Raises PeerError with the end of the log if that fails."""
    path = server_path()
    with exclusive(path.parent.with_name(f"{path.parent.name}.lock"), lambda: None):
        if not path.exists():
            print(f"Building {path.parent.name}; this takes minutes.", file=sys.stderr, flush=True)
            _build(path, jobs)
    return path


def _build(path: Path, jobs: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    log = path.with_name("build.log")
    with tempfile.TemporaryDirectory(dir=path.parent) as work, log.open("w") as output:
        source = fetch_source(Path(work), output)
        options = Path(work) / "options.cmake"
        options.write_text(PROJECT_OPTIONS)
        build = Path(work) / "build"
        include = f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={options}"
        extra = shlex.split(os.environ.get("CMAKE_ARGS", ""))
        _run(["cmake", "-S", str(source), "-B", str(build), include, *CMAKE_OPTIONS, *extra], output)
        _run(["cmake", "--build", str(build), "--target", TARGET, "--parallel", str(jobs)], output)
        shutil.move(build / "bin" / TARGET, path)


def fetch_source(work: Path, output: IO[str]) -> Path:
    """llama.cpp's source tree, out of the source distribution of the installed version."""
    requirement = f"{PACKAGE}=={version(PACKAGE)}"
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE, "--dest"]
    _run([*pip, str(work), requirement], output)
    [archive] = work.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(work, filter="data")
    [source] = work.glob("*/vendor/llama.cpp")
    return source


def _run(command: Sequence[str], output: IO[str]) -> None:
    output.write(f"--- {shlex.join(command)}\n")
    output.flush()
    try:
        subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=True)
    except FileNotFoundError:
        raise PeerError(f"there is no {command[0]}; install it, then try again.") from None
    except subprocess.CalledProcessError:
        raise PeerError(f"{Path(command[0]).name} failed; {output.name} says why.") from None


def main() -> None:
    """Build and print the path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="compilers at once")
    try:
        print(ensure_server(parser.parse_args().jobs))
    except PeerError as error:
        sys.exit(f"peer.py: {error}")


if __name__ == "__main__":
    main()
