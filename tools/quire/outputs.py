# SPDX-License-Identifier: MIT
"""
outputs.py - may the files that a command writes at its end be written? Asked before any of its work is done.

    -o FILE     there already, without -f  ->  usage error, exit 2         a directory  ->  the same
                no directory to hold it, or no permission  ->  exit 3
    --svg DIR   the same of every picture that it may get

What is written later checks again: somebody else may have been quicker. A device (/dev/full) is no file to be replaced: it is written to.
Not here: what stands in them (cmd_report.py, cmd_bench.py, report/trial.py), the names of traces (tracefile.py).
"""

import contextlib
import fnmatch
import os
import sys

from errors import EnvironmentLacks, UsageError

STDOUT = "-"
ELSEWHERE = "another place: -o /tmp/report.html"


def refuse_existing(path):
    """The answer to a file that is there already."""
    return UsageError(
        f"{path} exists already",
        "a file is never overwritten by itself",
        "add -f to replace it, or choose another name",
    )


def special(path):
    """Whether writing there replaces nothing: a device, a FIFO, a descriptor of ours, whatever file that is."""
    is_ours = path in ("/dev/stdout", "/dev/stderr") or path.startswith(("/dev/fd/", "/proc/self/fd/"))
    return os.path.exists(path) and (is_ours or not os.path.isfile(path))


def check_file(path, force, fix=ELSEWHERE):
    """A file that will be written, or stdout."""
    if path == STDOUT:
        return
    if os.path.isdir(path):
        raise UsageError(f"{path} is a directory", fix=f"name a file in it: {os.path.join(path, 'NAME')}")
    if special(path):
        return
    if os.path.lexists(path) and not force:
        raise refuse_existing(path)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise EnvironmentLacks(f"cannot write {path}", "no such directory, or no permission", fix)


def check_folder(folder, names, force):
    """A folder, made when it is not there, that gets some files of these names (`*` may be anything)."""
    above = os.path.abspath(folder)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise UsageError(f"{above} is no directory", fix="choose another name")
    if not os.access(above, os.W_OK):
        raise EnvironmentLacks(f"cannot write into {folder}", "no permission", "another place: --svg /tmp/pictures")
    there = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    for name in there if not force else []:
        if any(fnmatch.fnmatchcase(name, wanted) for wanted in names):
            raise refuse_existing(os.path.join(folder, name))


def _name(draft, path):
    """Gives a file a name that nothing has."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # FAT, folders that a host shares with a virtual machine: no file has two names
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        os.replace(draft, path)


def write_whole(path, data, force):
    """A file that is there whole or not at all; an old one stays until then, or for ever unless `force`."""
    path = os.path.realpath(path)
    draft = f"{path}.{os.getpid()}.new"
    try:
        with open(draft, "xb") as file:
            file.write(data)
        if force:
            os.replace(draft, path)
        else:
            _name(draft, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)


def write(path, content, force, fix=ELSEWHERE):
    """A file that was not there before (unless `force`), a device, or stdout for `-`."""
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    if path == STDOUT:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    is_device = special(path)
    if os.path.lexists(path) and not force and not is_device:
        raise refuse_existing(path)
    try:
        if is_device:
            with open(path, "ab") as file:
                file.write(data)
        else:
            write_whole(path, data, force)
    except FileExistsError as error:
        raise refuse_existing(path) from error
    except OSError as error:
        raise EnvironmentLacks(f"cannot write {path}", error.strerror, fix) from error


def append(path, content, fix=ELSEWHERE):
    """More of a file that others write to, too."""
    try:
        with open(path, "a", encoding="utf-8", errors="replace") as file:
            file.write(content)
    except OSError as error:
        raise EnvironmentLacks(f"cannot write {path}", error.strerror, fix) from error


def check_diagnostics():
    """The OSError that standard error met last, which drops what it cannot write (cli.py)."""
    error = getattr(getattr(getattr(sys.stderr, "buffer", None), "raw", None), "refused", None)
    if error:
        raise error
