# SPDX-License-Identifier: MIT
"""
attaching.py - a process that runs already: may it be recorded, and for how long it is.

    PID --check--> refused (exit 3, nothing done) | quire-attach PID ... --"attached"--> beats, until time is over or we are told --> "ended"

The helper does all that touches the process, and its standard input is our leash: when we end, in whichever way, it ends the recording. Where it is
killed too the recorder in the process ends by itself (tools/native/attach/area.h).
Not here: the trace (tracefile.py), what the helper does (tools/native/attach/main.c).
"""

import contextlib
import os
import re
import struct
import subprocess
import threading
import time

import elf
import native
import own
import stops
import target as targets
import ui
from errors import EnvironmentLacks, QuireError

LIBRARY = "libquire-attach.so"
PRELOADED = "libquire-record.so"
KERNEL_THREAD = 0x00200000  # of a process's flags
EM_X86_64 = 62
CAP_SYS_PTRACE = 19
LOADS_S, LOOKS_S = 2.0, 0.01  # for a loader that has just begun
YAMA = "/proc/sys/kernel/yama/ptrace_scope"


class Process:
    """One running process, as /proc tells."""

    def __init__(self, pid):
        self.pid = pid
        try:
            self.status = dict(re.findall(r"^(\w+):\s*(.*)$", self._read("status"), re.MULTILINE))
            self.flags = int(self._read("stat").rpartition(")")[2].split()[6])
        except (OSError, IndexError, ValueError):
            raise EnvironmentLacks(f"there is no process {pid}", "it has ended, or never was", "pgrep -a NAME   (finds its number)") from None
        self.name = self.status.get("Name", str(pid))

    def _read(self, name):
        with open(f"/proc/{self.pid}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read()

    def number(self, name, base=10):
        """One number of its status; 0 where the kernel does not tell."""
        words = self.status.get(name, "").split()
        return int(words[0], base) if words else 0

    def threads(self):
        """Each as one of these; without those that end meanwhile."""
        for tid in os.listdir(f"/proc/{self.pid}/task"):
            with contextlib.suppress(EnvironmentLacks):
                yield Process(int(tid))

    def paths(self):
        """Files that it has mapped; "PATH (deleted)" where another one is there now."""
        return set(re.findall(r"^[0-9a-f]+-\S+ \S+ \S+ \S+ \S+\s+(/.*)$", self._read("maps"), re.MULTILINE))

    def mapped(self):
        """Their names."""
        return {os.path.basename(path.removesuffix(" (deleted)")) for path in self.paths()}

    def environ(self):
        """{name: value} as it was started with."""
        with open(f"/proc/{self.pid}/environ", "rb") as file:
            return dict(os.fsdecode(word).partition("=")[::2] for word in file.read().split(b"\0") if word)

    @property
    def hides_blocks(self):
        """Whether it is CPython with its own allocator for small blocks."""
        is_told = self.environ().get("PYTHONMALLOC") == "malloc"
        return os.path.basename(os.readlink(f"/proc/{self.pid}/exe")).startswith("python") and not is_told

    def program(self):
        """Its file, as a word of a command line."""
        return ui.word(os.readlink(f"/proc/{self.pid}/exe").removesuffix(" (deleted)"))

    def machine(self):
        """Class and machine of its program file."""
        with open(f"/proc/{self.pid}/exe", "rb") as file:
            head = file.read(20)
        return head[4:5], struct.unpack_from("<H", head, 18)[0] if len(head) == 20 else 0

    def shares(self, place):
        """Whether it sees the same as we do there: "ns/mnt" or "root"."""
        theirs, ours = os.stat(f"/proc/{self.pid}/{place}"), os.stat(f"/proc/self/{place}")
        return (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)


def refuse(process, reason, why, fix):
    """Ends with exit 3: nothing has been done to it."""
    raise EnvironmentLacks(f"{process.name} ({process.pid}) cannot be recorded: {reason}", why, fix)


def check(pid):
    """The Process, if all that can be known beforehand says that it can be recorded."""
    process = Process(pid)
    _check_life(process)
    _check_rights(process)
    try:
        _check_place(process)
        _check_program(process)
    except PermissionError:
        _forbidden(process)
    return process


def _check_life(process):
    if process.pid == os.getpid():
        refuse(process, "it is this command", "", "quire record -- PROGRAM")
    owner = process.number("Tgid")
    if owner != process.pid:
        refuse(process, f"it is a thread of process {owner}", "", f"quire record --pid {owner}")
    if process.flags & KERNEL_THREAD:
        refuse(process, "it is a thread of the kernel", "it has no memory of its own", "ps -ef   (names in brackets are the kernel's)")
    state = process.status.get("State", "?")[0]
    if state == "Z" and any(thread.pid != process.pid for thread in process.threads()):
        refuse(process, "its first thread has ended", "by pthread_exit(); the others go on, but nobody can trace the process by its number", "quire record -- PROGRAM")
    if state in "ZX":
        refuse(process, "it has ended", "it is a zombie, whose parent has not asked how it ended", f"ps -o ppid= -p {process.pid}   (its parent)")
    _check_tracer(process)
    if state == "T":
        refuse(process, "it is stopped", "by SIGSTOP, or Ctrl-Z at its terminal", f"kill -CONT {process.pid}")


def _check_tracer(process):
    tracer = process.number("TracerPid")
    if tracer:
        refuse(process, f"process {tracer} traces it already", "a debugger, strace or another quire record --pid", f"ps -p {tracer}   (who is it?)")


def _check_rights(process):
    users = process.status.get("Uid", "").split()
    if os.geteuid() != 0 and users[:3] != [str(os.geteuid())] * 3:
        refuse(process, "it is another user's", f"its user is {users[0]}, ours {os.geteuid()}", f"sudo quire record --pid {process.pid}")
    own = Process(os.getpid()).number("Seccomp_filters")
    for thread in process.threads():
        mode, filters = thread.number("Seccomp"), thread.number("Seccomp_filters")
        if mode == 1 or (mode == 2 and (filters > own or not filters)):
            who = "it" if thread.pid == process.pid else f"its thread {thread.pid}"
            why = "a system call that the filter forbids would end it"
            refuse(process, f"{who} has shut itself in (seccomp)", why, "start it under quire record, or without its sandbox")


def _check_place(process):
    if not process.shares("ns/mnt") or not process.shares("root"):
        why = "it could load neither our library nor write the trace"
        refuse(process, "it sees other files than we do (a container, a chroot)", why, "run quire inside of it")


def _has_libc(mapped):
    return any(name == "libc.so.6" or name.startswith("libc-2.") for name in mapped)


def _loaded(process, file):
    """What is mapped once the loader of a dynamic program, which may just have begun, has come to libc."""
    until_s = time.monotonic() + LOADS_S
    while not _has_libc(mapped := process.mapped()) and file and file.interpreter and time.monotonic() < until_s:
        time.sleep(LOOKS_S)
    return mapped


def _check_program(process):
    size, machine = process.machine()
    if size != b"\2" or machine != EM_X86_64:
        refuse(process, "it is no x86-64 program", "this version attaches to x86-64 alone", "build it for x86-64")
    file = elf.read(f"/proc/{process.pid}/exe")
    if file and "ld-musl" in file.interpreter:
        refuse(process, "it runs on musl, not on glibc", "", "build it for glibc")
    mapped = _loaded(process, file)
    if PRELOADED in mapped:
        refuse(process, "it is being recorded already", f"it was started with {PRELOADED}", "wait for its end")
    if not _has_libc(mapped) and file and file.interpreter:
        refuse(process, "it has no libc", f"its loader has not come to it within {LOADS_S:.0f} s, or it needs none", "ask again when it has begun")
    if not _has_libc(mapped):
        refuse(process, "it is a static program", "no loader is in it that could load the recorder", "start it under quire record   (static programs with symbols are recorded from their start)")
    _check_malloc(process, file)
    others = [path for path in process.paths() if os.path.basename(path).startswith(LIBRARY) and path != library()]
    if others:
        refuse(process, "another build of the recorder is in it", f"an earlier recording has loaded {others[0]}", "restart the program")


def _check_malloc(process, file):
    """One inside is not called by way of slots, so none of it would be seen."""
    bases = tuple(name.partition(".so")[0] + ".so" for name in file.needed) if file else ()
    inside = own.look(f"/proc/{process.pid}/exe", sorted(path for path in process.paths() if bases and os.path.basename(path).startswith(bases)))
    if inside and inside.refused:
        refuse(process, f"{own.shown(inside)} is inside", f"calls of {inside.refused} cannot be seen: {inside.why}", own.STRIPPED_FIX if own.is_stripped(inside) else targets.OWN_MALLOC_FIX)
    if inside:
        refuse(process, f"{own.shown(inside)} is inside", "it is not called by way of slots; a recording from the start sees it", f"quire record -- {process.program()}")
    if file and file.defines_malloc:
        refuse(process, "it has its own malloc inside", "it is not called by way of slots", targets.OWN_MALLOC_FIX)


def library():
    """The recorder, by the name under which the kernel shows it."""
    return os.path.realpath(native.helper(LIBRARY))


def own_signal(process):
    """The signal at which it records itself (QUIRE_CONF=record:FILE,record_signal:USR2), or nothing."""
    try:
        keys = dict(key.partition(":")[::2] for key in process.environ().get("QUIRE_CONF", "").replace(" ", "").split(","))
        return keys.get("record_signal", "") if "record" in keys and any(n.startswith("libquire-malloc.so") for n in process.mapped()) else ""
    except OSError:
        return ""


def _forbidden(process):
    """Ends with who forbids it, and the line that allows it."""
    _check_tracer(Process(process.pid))  # another may have begun to trace it just now
    pid, its_own = process.pid, own_signal(process)
    if its_own:
        why = "tracing is forbidden, but it records itself: its QUIRE_CONF has record and record_signal"
        refuse(process, "the kernel forbids it", why, f"kill -{its_own} {pid}   (starts, and the next one stops)")
    try:
        with open(YAMA, encoding="ascii") as file:
            scope = int(file.read())
    except (OSError, ValueError):
        scope = 0
    may = process_may_trace()
    if scope == 3:
        refuse(process, "this system lets nobody trace", "kernel.yama.ptrace_scope is 3, until the next start of the system", "start it under quire record")
    if scope and not may:
        refuse(process, "this system lets nobody trace but parents", f"kernel.yama.ptrace_scope is {scope}", f"sudo quire record --pid {pid}   or: sudo sysctl kernel.yama.ptrace_scope=0")
    if os.geteuid() == 0 and not may:
        refuse(process, "tracing is forbidden here", "root without CAP_SYS_PTRACE, as in a container", "docker run --cap-add=SYS_PTRACE ...")
    refuse(process, "the kernel forbids it", "it has more rights than we have, or seccomp forbids tracing here (a container)", f"sudo quire record --pid {pid}   or: docker run --cap-add=SYS_PTRACE ...")


def goes_on(pid):
    """Whether a process is there that is no zombie."""
    with contextlib.suppress(EnvironmentLacks):
        return Process(pid).status.get("State", "Z")[0] not in "ZX"
    return False


def process_may_trace():
    """Whether we may trace what is not ours."""
    return bool(Process(os.getpid()).number("CapEff", 16) >> CAP_SYS_PTRACE & 1)


class Helper:
    """quire-attach, and what it says."""

    def __init__(self, process, path, duration_s, limit_bytes):
        self.process = process
        limit = (8 << 30) if limit_bytes is None else limit_bytes
        argv = [native.helper("quire-attach"), process.pid, library(), path, max(1, round(duration_s * 1000)) if duration_s else 0, limit]
        errors = None if "QUIRE_ATTACH_HALT" in os.environ else subprocess.DEVNULL  # a test listens
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
        self.popen = subprocess.Popen([str(word) for word in argv], text=True, errors="replace", **pipes)

    def line(self):
        """The next thing it says, empty at its end."""
        return self.popen.stdout.readline().strip()

    def attached(self):
        """Until it records: how many slots lead to the recorder."""
        said = self.line()
        if said.startswith("attached "):
            return int(said.split()[1])
        if said == "refused":
            what, why, fix = (self.line() for _ in range(3))
            self.popen.wait()
            if what == "forbidden":
                _forbidden(self.process)
            refuse(self.process, what, why, fix)
        raise QuireError("quire-attach ended early", f"it said {said or 'nothing'!r}", f"ps -p {self.process.pid}   (the process goes on)")

    def tell(self):
        """It is to end the recording."""
        if not self.popen.stdin.closed:
            self.popen.stdin.close()

    def end(self):
        """How it ended: "ended", "gone", "left", or nothing where it was killed."""
        said = self.line()
        self.popen.wait()
        self.popen.stdout.close()
        return said


def record(process, path, duration_s, limit_bytes, over=None):
    """Records it; how that ended, as Helper.end(). over: a function that returns when it is to end, in a thread of its own."""
    with stops.Watch(stops.SIGNALS) as watch:
        helper = Helper(process, path, duration_s, limit_bytes)
        try:
            helper.attached()
            how_long = f"for {ui.seconds(duration_s)}: Ctrl-C ends it earlier" if duration_s else "until Ctrl-C"
            ui.note(f"recording {process.name} ({process.pid}) {how_long}")
            if over:
                threading.Thread(target=lambda: (over(), helper.tell()), daemon=True).start()
            while helper.popen.poll() is None:
                if watch.take():
                    helper.tell()
                    break
                watch.sleep()
            return helper.end()
        finally:
            helper.tell()
            helper.popen.wait()
