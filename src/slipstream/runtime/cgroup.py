"""Where Linux says what our cgroup may use: containers, systemd scopes and batch systems set limits there."""

from pathlib import Path, PurePosixPath


def cgroups(controller: str, root: Path) -> list[Path]:
    """Directories of our cgroup and all its parents, for a version 1 `controller` and for version 2.

    Some may not exist: inside a container our own group is usually mounted as the root.
    """
    mount = root / "sys/fs/cgroup"
    groups = [mount, mount / controller]
    for line in read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            base = mount
        elif controller in controllers.split(","):
            base = mount / controller
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        groups += [base / group for group in (own, *own.parents)]
    return groups


def read(path: Path) -> str:
    """The text of a small file without white space around it; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
