# SPDX-License-Identifier: MIT
"""
oomkill.py - whether the kernel has killed a process of this cgroup for want of memory since we started the first program: a program that ends by SIGKILL says nothing of why.

    /proc/self/cgroup --> memory.events (v2), memory.oom_control (v1): "oom_kill N"

The count is of the cgroup and those below it, by its own limit, one above it, or the machine's memory. Where nobody tells, as before Linux 4.13, nothing is said.
Not here: the limit itself (cmd_env.py).
"""

PROC, ROOT = "/proc/self/cgroup", "/sys/fs/cgroup"
SAID = " (the kernel killed it for want of memory: by the limit of its cgroup or container, or the machine's)"


def _lines(path):
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _files():
    """Where the count of this cgroup may be, whatever its version and its place."""
    for line in _lines(PROC):
        number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        path = path.rstrip("/")
        if number == "0":
            yield from (f"{ROOT}{path}/memory.events", f"{ROOT}/unified{path}/memory.events")
        elif "memory" in controllers.split(","):
            yield from (f"{ROOT}/memory{path}/memory.oom_control", f"{ROOT}/memory/memory.oom_control")  # the second: a container sees its own as the root


def kills():
    """How many so far."""
    found = [line.split() for path in _files() for line in _lines(path)]
    return sum(int(words[1]) for words in found if len(words) == 2 and words[0] == "oom_kill" and words[1].isdigit())


_before = None


def begin():
    """Before a program is started: the first time it is counted what there was."""
    global _before
    if _before is None:
        _before = kills()


def words():
    """What is to be said behind "SIGKILL"."""
    return SAID if _before is not None and kills() > _before else ""
