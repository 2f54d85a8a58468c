"""What this machine lends to this process: CPUs and memory, and what limits each.

A container sees its host's processors and memory; what it may use stands in its control groups (cgroups), in the
group's own files or in those of any group above it.
"""

from __future__ import annotations

import contextlib
import operator
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from embed.errors import OptionError

DEVICES = ("auto", "cpu", "cuda")
THREADS_PER_CPU = 8  # more can't be meant
PROC = Path("/proc")


@dataclass(frozen=True)
class Limit:
    """At most `count` (threads, or bytes), because of `reason`."""

    count: int
    reason: str


def whole_number(value: object, name: str) -> int:
    """Return `value` as an int; raise `OptionError` for what isn't a whole number (NumPy's integers are)."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise OptionError(f"{name} {value!r} is not a whole number")


def thread_count(threads: int | None) -> int:
    """Return `threads` if it's a sensible number, by default what `thread_limit` says; else raise `OptionError`."""
    if threads is None:
        return thread_limit().count
    threads, most = whole_number(threads, "threads"), THREADS_PER_CPU * (os.cpu_count() or 1)
    if not 1 <= threads <= most:
        raise OptionError(f"threads {threads}: this machine takes 1 to {most}")
    return threads


def thread_limit(proc: Path = PROC) -> Limit:
    """Return how many threads to compute on, and what limits them: the least of affinity, quota, OMP_NUM_THREADS."""
    limits = [_affinity(), *_cpu_quotas(proc)]
    with contextlib.suppress(ValueError):  # a value that isn't a number is ignored, as by OpenMP, whose variable it is
        limits.append(Limit(int(os.environ.get("OMP_NUM_THREADS", "").split(",")[0]), "OMP_NUM_THREADS"))
    return min((limit for limit in limits if limit.count > 0), key=lambda limit: limit.count)


def memory_limit(proc: Path = PROC) -> Limit:
    """Return how many bytes of memory this process may use: the machine's, or less if a cgroup says so."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [Limit(machine, "the machine's memory"), *_memory_limits(proc)]
    return min(limits, key=lambda limit: limit.count)


def _affinity() -> Limit:
    if hasattr(os, "sched_getaffinity"):
        mine, all_cpus = len(os.sched_getaffinity(0)), os.cpu_count() or 1
        return Limit(mine, "the machine's CPUs" if mine >= all_cpus else "the CPUs this process is bound to")
    return Limit(os.cpu_count() or 1, "the machine's CPUs")


def _cpu_quotas(proc: Path) -> Iterator[Limit]:
    """Yield each cgroup's quota as a number of threads.

    To the nearest whole number: a thread too many has the whole team throttled for part of each period, but one too
    few gives up to a whole CPU away.
    """
    for group in _groups(proc, "cpu"):
        for name, words in (
            ("cpu.max", _words(group / "cpu.max")),
            ("cpu.cfs_quota_us", _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")),
        ):
            if len(words) == 2 and all(map(str.isdecimal, words)) and int(words[1]) > 0:  # not "max", not -1
                cpus = int(words[0]) / int(words[1])
                yield Limit(max(1, int(cpus + 0.5)), f"a quota of {cpus:g} CPUs in {group / name}")


def _memory_limits(proc: Path) -> Iterator[Limit]:
    for group in _groups(proc, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = "".join(_words(group / name))
            if text.isdecimal():  # not "max"
                yield Limit(int(text), f"a limit in {group / name}")


def _groups(proc: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's cgroups that carry `controller`, from its own up to the mount's root."""
    mounts = list(_mounts(proc))
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        for root, point, kind, options in mounts:
            matches = kind == "cgroup2" if not controllers else kind == "cgroup" and controller in options
            if not matches or (controllers and controller not in controllers.split(",")):
                continue
            # In a container the mount may show a subtree only (`root`); a path outside of it is that subtree's root.
            base = "" if root == "/" else root
            inside = path[len(base) :] if f"{path}/".startswith(f"{base}/") else ""
            group = point / inside.strip("/") if ".." not in inside.split("/") else point
            yield group
            while group != point:
                group = group.parent
                yield group


def _mounts(proc: Path) -> Iterator[tuple[str, Path, str, list[str]]]:
    """Yield (root, mount point, file system, super options) of each cgroup mount. See proc_pid_mountinfo(5)."""
    for line in _lines(proc / "self" / "mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) >= 5 and len(kind) >= 3 and kind[0] in ("cgroup", "cgroup2"):
            root, point = (re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), field) for field in fields[3:5])
            yield root, Path(point), kind[0], kind[2].split(",")


def _words(path: Path) -> list[str]:
    return [word for line in _lines(path) for word in line.split()]


def _lines(path: Path) -> list[str]:
    """Return the file's lines; none where this kernel, or this cgroup, has no such file."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
