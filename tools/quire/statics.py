# SPDX-License-Identifier: MIT
"""
statics.py - static programs: no loader prepares them, so the recorder is brought in by ptrace before their first step.

    quire record -- ./app (static, with symbols)     quire-launch --into=libquire-static.so: the entries of its malloc are patched (tools/native/static)

Nothing can be put in the place of its malloc: what others would save is replayed, against the replay of the malloc that it has.
Not here: how the recorder comes in (tools/native/launch), what is inside of dynamic programs (own.py).
"""

import errno
import os

import native
import own
from errors import EnvironmentLacks

LIBRARY = "libquire-static.so"
STAYS = "it is a static program, in which no other malloc can be put in the place of its own"
SYMBOLS_FIX = "build it with its symbols (without -s, or before strip(1); Rust: strip = false in the profile), or link it dynamically (without -static), and try that"
TRACING_FIX = "sudo quire record -- ...   or: sudo sysctl kernel.yama.ptrace_scope=0   or, in a container: docker run --cap-add=SYS_PTRACE ..."


def look(path, binary, file):
    """(the allocator inside of a static program, None), or (None, (why it cannot be recorded, the fix))."""
    if native.built(LIBRARY) is None:
        return None, (f"{binary} is a static binary: no loader runs, so nothing can be preloaded", "link it dynamically (without -static) and try again")
    if not os.path.samefile(path, binary):
        return None, (f"{binary} is a static binary that something else starts: it can be recorded only where it is named itself", f"quire record -- {binary} ...")
    inside = own.look(binary, [])
    if not file.libc or not inside or own.is_stripped(inside):
        what = "has no symbols" if not inside or own.is_stripped(inside) else "begins in no way that is known: neither glibc's start nor musl's is among its symbols"
        return None, (f"{binary} is a static binary, so nothing can be preloaded, and it {what}", SYMBOLS_FIX)
    if inside.name == own.UNKNOWN and file.has_libc_malloc:
        inside = inside._replace(name=file.libc)
    return inside, None


def launcher(target, env):
    """What quire-launch has to be told to record this program."""
    return [f"--into={native.helper(LIBRARY)}"] if target.static and "QUIRE_RECORD" in env else []


def not_entered(target, code):
    """The error of a program that was started, but into which the recorder could not be brought; it has done nothing."""
    if code == -errno.EPERM:
        return EnvironmentLacks(f"{target.name} cannot be traced: it is static, and tracing by ptrace is forbidden here", os.strerror(-code), TRACING_FIX)
    why = "its segments or thread-local storage are laid out in a way that is not known" if code == -errno.ENOTSUP else os.strerror(-code)
    return EnvironmentLacks(f"{target.name} cannot be traced: it is static, and the recorder could not be brought into it", why, "link it dynamically (without -static) and try again")


def replayed_as(target, series):
    """The replay that stands for the malloc inside: glibc's own, or an installed library of the same name; None where there is none."""
    name = "libc" if not target.inside or target.inside.name == "glibc" else target.inside.name
    return name if series.has(name) and name not in series.failed else None
