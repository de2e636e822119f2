# SPDX-License-Identifier: MIT
"""
tracefile.py - trace files: their names, and what the analyser makes of them.

    jq.qtr  jq.qtr.1234 ...   one a process (the first has the plain name)
       |
    quire-analyse -> sites (JSON: who allocates, quire.sites/1) + program (.qrp: what to replay)

Nothing is ever overwritten without -f.  Two that record at the same time never have one name: it is held from when it is
chosen until the command ends, by an abstract socket, which the kernel takes back from whoever is killed.
Not here: recording (launch.py), judging (advise/advice.py).
"""

import contextlib
import errno
import glob
import json
import os
import struct

import native
import ui
from errors import EnvironmentLacks, QuireError, UsageError

ANALYSED_MAX = 6
# Of a file's name: endings (.qtr, .PID, .sites.json) must have room.
NAME_CHARS_MAX = 200
MAGIC = b"QTRACE\r\n"
HEADER_BYTES_READ = 136
CPU_NS_AT = 96
COMMAND_AT, COMMAND_BYTES = 152, 1024
BLOCK_HEAD = struct.Struct("<7I20xQ")  # of a block, and the part and how much of it is used, where it is live
BLOCK_MAGIC, BLOCK_BYTES_MIN, LIVE, PACKED = 0x4B4C4251, 48, 2, 3
STOPS = {
    1: "the disk was full",
    2: "the trace reached its largest size",
    3: "the file size limit (ulimit -f) was reached",
    4: "the file was replaced or removed",
    5: "the recorder ran out of memory",
}


held = []  # sockets: names that are ours


class Recording:
    """One analysed trace: `facts` about the run, `sites` by id; files: the replay program, the ways to each site (steering.py)."""

    def __init__(self, path, document, program, paths=None, span_ns=None):
        self.path = path
        self.span_ns = span_ns  # what was called between these moments (CLOCK_MONOTONIC); None: all
        self.document = document
        self.program = program
        self.paths = paths
        self.facts = document.get("trace", document)
        self.sites = {site["id"]: site for site in document.get("sites", [])}

    def missing(self, is_ended_by_us):
        """What is not in the trace, or nothing.  A server that is ended after its load need not say that it ends."""
        notes = [n for n in (self.facts.get("note") or "").split("; ") if n and not (is_ended_by_us and n.startswith("the program has no exit mark"))]
        return "; ".join(notes)

    @property
    def events(self):
        """How many operations were recorded."""
        return self.facts.get("events", 0)

    def nameless(self):
        """Files without names that make a hundredth of the allocations: stripped programs and libraries, busiest first."""
        found, total = {}, sum(site["count"] for site in self.sites.values())
        for site in sorted(self.sites.values(), key=lambda s: s["count"], reverse=True):
            file = os.path.basename(site.get("module") or "")
            if file and site["function"].startswith(file + "+0x"):
                found[file] = found.get(file, 0) + site["count"]
        return [file for file, count in found.items() if 100 * count >= total]

    @property
    def events_outside(self):
        """How many others were recorded, before and after the time that was asked for."""
        return self.facts.get("events_outside", 0)

    @property
    def has_python(self):
        """Whether CPython allocates in it, whatever it is called."""
        return any(os.path.basename(site.get("module") or "").startswith(("python", "libpython", "pypy", "libpypy")) for site in self.sites.values())

    @property
    def begun_late(self):
        """What a reader must know of a recording that began in a running process; else empty."""
        return begun_late(self.facts)

    @property
    def command(self):
        """The recorded command line as one string."""
        command = self.facts.get("command", "")
        return " ".join(command) if isinstance(command, list) else command

    @property
    def executable(self):
        """The name of the recorded program, without directories, and without what a server puts behind it (nginx: master process /usr/sbin/nginx)."""
        command = self.facts.get("command", "")
        words = command if isinstance(command, list) else command.split()
        return os.path.basename(words[0].split(": ")[0]) if words else "?"


def begun_late(facts):
    """A sentence on a trace that began in a running process; else empty."""
    if not facts.get("attached"):
        return ""
    frees = facts.get("unknown_frees", 0)
    of_such = f" (frees of such: {frees:,})" if frees else ""
    return f"{facts['wall_s']:.1f} s of a process that ran before and after: blocks from before are not counted{of_such}"


def add_wrapper_option(parser):
    """--wrapper, of every command that reads a trace."""
    parser.add_argument(
        "--wrapper",
        action="append",
        default=[],
        metavar="NAME",
        help="a function to look through, as malloc's wrappers are",
    )


def hold(path):
    """Keeps a trace's name from all others that record, until this process ends; False: somebody has it."""
    import hashlib  # here: who only reads traces needs neither
    import socket

    folder = os.stat(os.path.dirname(os.path.abspath(path)))
    name = f"{folder.st_dev}:{folder.st_ino}:{os.path.basename(path)}"
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind("\0quire-trace-" + hashlib.blake2b(os.fsencode(name), digest_size=20).hexdigest())
    except OSError as error:
        lock.close()
        return error.errno != errno.EADDRINUSE
    held.append(lock)
    return True


def default_path(name):
    """NAME.qtr here, or the first NAME.N.qtr that neither exists nor is held; it is ours from now on."""
    safe = "".join(c if c.isalnum() or c in "._+-" else "_" for c in name)[:NAME_CHARS_MAX] or "program"
    number, path = 0, f"{safe}.qtr"
    while os.path.lexists(path) or family(path) or not hold(path):
        number += 1
        path = f"{safe}.{number}.qtr"
    return path


def output_path(args, name):
    """Where the trace goes, ours from now on: -o FILE (refused when it exists, unless -f), else a name of its own."""
    if args.output in ("", "-"):
        why = "" if not args.output else "standard output is the program's own"
        raise UsageError("-o: a trace needs the name of a file", why, "-o program.qtr")
    path = os.path.abspath(args.output or default_path(name))
    folder = os.path.dirname(path)
    there = [path] if os.path.lexists(path) else [p for p in family(path) if head_of(p) == MAGIC]
    if there:
        if not os.path.isfile(there[0]):
            raise UsageError(f"{args.output} is not a regular file", fix="choose another name")
        if not args.force:
            raise UsageError(
                f"{shown(there[0])} exists already",
                "a trace is never overwritten by itself",
                "add -f to replace it, or choose another name",
            )
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise EnvironmentLacks(
            f"cannot write a trace into {folder}",
            "no such directory, or no permission",
            "give another place: -o /tmp/program.qtr",
        )
    if args.output and not hold(path):
        raise UsageError(
            f"{shown(path)} is being recorded by another command", fix="wait for it, or choose another name"
        )
    return path


@contextlib.contextmanager
def fresh(path, force):
    """
    A recording that `output_path` allowed: what -f replaces stays where nothing comes in its place; where it fails nothing else is left.
    Yields a list: afterwards it holds the traces that came.  What stands under their names alone may be the earlier ones.
    """
    replaced, came = set_aside(path, force), []
    others = set(family(path))
    try:
        yield came
    except QuireError:
        for half in set(family(path)) - others:
            os.unlink(half)
        raise
    finally:
        came += [one for one in family(path) if one not in others]
        for aside, old in replaced:
            if came:
                os.unlink(aside)
            else:
                os.replace(aside, old)


def set_aside(path, force):
    """Makes room for a recording: [(where it is now, an earlier recording's file)]."""
    bring_back(path, force)
    replaced = []
    for old in (p for p in family(path) if p == path or head_of(p) == MAGIC):
        if not force:
            raise UsageError(f"{shown(old)} has appeared", "a trace is never overwritten by itself", "try again")
        folder, name = os.path.split(old)
        aside = os.path.join(folder, f".{name}.before-{os.getpid()}")
        os.replace(old, aside)
        replaced.append((aside, old))
    return replaced


def bring_back(path, force):
    """What a recording that was killed has set aside, and nobody put back: the trace to replace where there is no other, else it is named."""
    folder, name = os.path.split(path)
    for aside in glob.glob(os.path.join(glob.escape(folder), f".{glob.escape(name)}.before-*")):
        pid = aside.rpartition("-")[2]
        if not pid.isdigit() or os.path.exists(f"/proc/{pid}"):
            continue
        if force and not os.path.lexists(path):
            os.replace(aside, path)
        else:
            ui.note(f"{shown(aside)} is the trace that {shown(path)} was before a recording that was killed")


def head_of(path):
    """A file's first bytes; empty where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC))
    except OSError:
        return b""


def is_trace(path):
    """By its first bytes; one that was just made may have none yet."""
    return os.path.isfile(path) and head_of(path).strip(b"\0") in (b"", MAGIC)


def family(path):
    """The traces of one recording: the path itself and one for each further process; no other file that has a number behind the same name."""
    numbered = [p for p in glob.glob(glob.escape(path) + ".*") if p[len(path) + 1 :].replace(".", "").isdigit()]
    return [p for p in [path] if os.path.exists(p)] + [p for p in sorted(numbered) if is_trace(p)]


def stopped(path):
    """Why recording ended before the program did, from the trace's header (doc/trace-format.md); empty: it did not."""
    with open(path, "rb") as file:
        head = file.read(HEADER_BYTES_READ)
    if len(head) < HEADER_BYTES_READ or head[:8] != MAGIC or head[8:12] != b"\1\0\0\0":
        return ""
    return STOPS.get(int.from_bytes(head[132:136], "little"), "")


def command(path):
    """The first word of the recorded command line, from the trace's header; empty where there is none."""
    with open(path, "rb") as file:
        head = file.read(COMMAND_AT + COMMAND_BYTES)
    return os.fsdecode(head[COMMAND_AT:].split(b"\0")[0]) if head[:8] == MAGIC else ""


def cpu_s(path):
    """CPU seconds of the recorded process, from the trace's header: at its end, or, where that did not tell, when it was written to last."""
    with open(path, "rb") as file:
        head = file.read(HEADER_BYTES_READ)
    return int.from_bytes(head[CPU_NS_AT : CPU_NS_AT + 8], "little") / 1e9 if head[:8] == MAGIC else 0.0


def stream_bytes(path):
    """
    How much was recorded, in bytes of the threads' streams; the file's size where no block can be read. Two traces of one and the same work differ in
    size by how much of them was packed, which is less on a busy machine (doc/trace-format.md).
    """
    parts, read, size = {}, 0, os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(16)
        at = int.from_bytes(head[12:16], "little") if head[:8] == MAGIC else size
        while 0 < at < size:
            head = os.pread(file.fileno(), BLOCK_HEAD.size, at)
            if len(head) < BLOCK_HEAD.size:
                break
            magic, kind, length, thread, part, _, raw, live = BLOCK_HEAD.unpack(head)
            if magic != BLOCK_MAGIC or length < BLOCK_BYTES_MIN:
                break
            if thread and kind == PACKED:
                parts[thread, part] = raw
            elif thread and kind == LIVE:  # void where a packed one has its number
                parts.setdefault((thread, live >> 32), live & 0xFFFFFFFF)
            at, read = at + length, read + 1
    return sum(parts.values()) if read else size


def shown(path):
    """A path as the user would type it from here."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def typed(path):
    """The same as a word of a command line, which no command takes for an option."""
    said = shown(path)
    return ui.word(f"./{said}" if said.startswith("-") else said)


def analyse(path, folder, wrappers=(), profile=None, span_ns=None):
    """
    Runs the analyser; a Recording with its products in `folder`. Unreadable traces end with one clear line.
    `profile`: a file for what pictures need, in the same run. `span_ns`: of what was called between these moments (CLOCK_MONOTONIC) alone.
    """
    if not os.path.exists(path):
        raise QuireError(
            f"no such trace: {path}", fix="record one: quire record -- PROGRAM ARGS", exit_code=2
        )
    stem = os.path.join(folder, os.path.basename(path)[-NAME_CHARS_MAX:])
    sites, program, paths = stem + ".sites.json", stem + ".qrp", stem + ".paths.json"
    arguments = [path, "--sites", sites, "--program", program, "--paths", paths]
    arguments += ["--profile", profile] if profile else []
    arguments += ["--from", span_ns[0], "--to", span_ns[1]] if span_ns else []
    for name in wrappers:
        arguments += ["--wrapper", name]
    try:
        native.call("quire-analyse", arguments)
    except EnvironmentLacks:
        raise
    except QuireError as error:
        if error.why.startswith("cannot write"):
            what = f"no room to analyse {shown(path)}"
            fix = "free some space, or use another place: TMPDIR=/var/tmp"
            raise EnvironmentLacks(what, error.why, fix) from error
        raise QuireError(
            f"{shown(path)} cannot be used as a trace",
            error.why.removeprefix(f"{path}: "),
            "record again: quire record -- PROGRAM ARGS",
            exit_code=2,
        ) from error
    # Names of functions and files are bytes; what is no text is shown escaped.
    with open(sites, encoding="utf-8", errors="backslashreplace") as file:
        return Recording(path, json.load(file), program, paths, span_ns)


def analyse_family(path, folder, wrappers=(), span_ns=None):
    """Recordings of all processes of one run, most operations first; those that cannot be read are left out."""
    paths = sorted(family(path), key=stream_bytes, reverse=True)[:ANALYSED_MAX]
    recordings, failed = [], None
    for one in paths:
        try:
            recordings.append(analyse(one, folder, wrappers, span_ns=span_ns))
        except EnvironmentLacks:
            raise
        except QuireError as error:
            failed = error
    if not recordings and failed:
        raise failed
    return sorted(recordings, key=lambda r: r.events, reverse=True)
