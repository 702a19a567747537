"""Telling one process from another, also after its end, and one machine from another of the same name."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


def process_started(pid: int) -> str | None:
    """What distinguishes this process from a later one with its pid; None where it is gone (or a zombie).

    The clock ticks since boot: unlike a wall-clock time they do not move when the clock is set.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()  # proc(5); fields[0] is field 3
        if fields[0] in (b"Z", b"X"):
            return None
        return f"{BOOT_ID.read_text()[:8]}-{fields[19].decode()}"
    except OSError:
        return None


def pid_namespace() -> str | None:
    """Inside which container pids mean what they mean; None where the system does not say."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return None


@cache
def machine() -> str | None:
    """`<machine>-<boot>`: this machine by its installation (machine-id(5), hashed) and by its present boot.

    A host's name is not enough: containers and cloned machines share theirs. None where the system does not say.
    """
    try:
        boot = BOOT_ID.read_text()[:8]
    except OSError:
        return None
    for path in MACHINE_IDS:
        try:
            installed = path.read_bytes().strip()
        except OSError:
            continue
        if installed:
            return f"{hashlib.sha256(b'pipeline' + installed).hexdigest()[:12]}-{boot}"
    return f"-{boot}"


def boot_time() -> float:
    """When this machine was started, in seconds since 1970."""
    import psutil

    return psutil.boot_time()
