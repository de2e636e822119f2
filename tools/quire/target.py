# SPDX-License-Identifier: MIT
"""
target.py - the program to look at: found, and fit to be traced?

    "jq" -> /usr/bin/jq -> (script, wrapper, shim? what it executes: follow.py) -> ELF file -> dynamic, not setuid, malloc from libc

The tracer is preloaded, so a program that no loader prepares, or that answers malloc itself, cannot be seen.
Not here: running it (launch.py).
"""

import os
import re
import shutil
import stat
import subprocess
import sys

import elf
import follow
import own
import statics
import ui
from errors import EXIT_CANNOT_EXECUTE, EXIT_NOT_FOUND, EnvironmentLacks, QuireError

SCRIPT_DEPTH_MAX = 4
ALLOCATOR_LIBRARIES = (
    "libjemalloc",
    "libtcmalloc",
    "libmimalloc",
    "libsnmalloc",
    "librpmalloc",
    "libtbbmalloc_proxy",
)
OWN_MALLOC_FIX = (
    "build the program with libc's malloc (many have a configure option for it) and try that"
)
LIBC_NAMES = ("libc.so", "ld-linux", "libc-2", "ld-2", "linux-vdso", "ld-musl")


class Target:
    """A program: its arguments, and the ELF file that its process ends up as; `by`: how, in words; not `sure`: as far as can be said before it runs."""

    def __init__(self, argv, path, binary, by="", sure=True):
        self.argv = argv
        self.path = path
        self.binary = binary
        self.by, self.sure = by, sure
        self.name = os.path.basename(argv[0])
        self.linked = ""  # the library of an allocator that it is linked with, where libc's malloc has to be preloaded
        self.cxx = ""  # its libstdc++: the operator new that goes with libc's malloc
        self.inside = None  # own.Inside: the allocator that it brought along, which no preload reaches
        self.static = False  # no loader prepares it: the recorder is brought in by ptrace
        self.only_starts = False  # it is a script of CPython, and what it starts is looked at

    @property
    def is_python(self):
        """Whether it is CPython (as far as names tell, shims included), and looked at."""
        return not self.only_starts and any(map(names_python, (self.binary, os.path.realpath(self.binary), self.name)))


def names_python(path):
    """Whether a program's file is CPython, as far as its name tells."""
    return os.path.basename(path).startswith(("python", "pypy"))


SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"


def locate(name):
    """The file of a command, as a shell would find it."""
    path = shutil.which(name)
    if path:
        return path
    if not name:
        raise QuireError("program not found: its name is empty", "a shell's variable that is not set?", "quire --help", EXIT_NOT_FOUND)
    if os.path.isdir(name) or os.path.exists(name) and ("/" in name or name in os.listdir(".")):
        why = (
            "it is a directory"
            if os.path.isdir(name)
            else "its execute permission is missing, or it is not in PATH"
        )
        typed = [ui.word(n) for n in (name, name if "/" in name else f"./{name}")]
        fix = f"chmod +x {typed[0]}   if it is a program, and call it {typed[1]}"
        raise QuireError(
            f"cannot execute {name}", why, f"ls {typed[0]}   (which program in it?)" if os.path.isdir(name) else fix, EXIT_CANNOT_EXECUTE
        )
    aside = None if "/" in name else shutil.which(name, path=SYSTEM_FOLDERS)  # a user's PATH on Debian goes without them
    if aside:
        raise QuireError(f"program not found: {name}", f"{os.path.dirname(aside)} is not in PATH", f"give its path: {ui.word(aside)}", EXIT_NOT_FOUND)
    fix = (
        "give the path of the program"
        if "/" in name
        else f"apt-get install {ui.word(name)}   (if that is its package)"
    )
    why = "there is no such file" if "/" in name else "it is in no directory of PATH"
    raise QuireError(f"program not found: {name}", why, fix, EXIT_NOT_FOUND)


def binary_of(path):
    """The ELF file behind a path: the file itself, or the interpreter of a script."""
    for _ in range(SCRIPT_DEPTH_MAX):
        interpreter = follow.first_line(path).interpreter
        if interpreter is None:
            return path
        try:
            path = locate(interpreter)
        except QuireError as error:
            cr = ": the line ends with a carriage return, which belongs to the name then" * interpreter.endswith("\r")
            why = f"its first line names {ui.printable(interpreter)}, which is not there or no program{cr}"
            raise QuireError(f"cannot execute {path}", why, f"head -1 {ui.word(path)}", error.exit_code) from error
    return path


MAPPED = re.compile(r"^\t(?:.* => )?(/.*) \(0x[0-9a-f]+\)$", re.MULTILINE)  # names may have spaces


def libraries(path):
    """Files that the dynamic loader would map for a program, asked of the loader itself: glibc's, for musl's would run the program."""
    file = elf.read(path)
    if not file or "ld-musl" in file.interpreter:
        return []
    env = {**os.environ, "LD_TRACE_LOADED_OBJECTS": "1"}
    env.pop("LD_PRELOAD", None)
    try:
        done = subprocess.run(
            [path], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return MAPPED.findall(os.fsdecode(done.stdout))


class Unfit(EnvironmentLacks):
    """A program that a preloaded library does not reach: exit 3, and the reason without the program's name."""

    def __init__(self, name, reason, fix, lasting=False):
        super().__init__(f"{name} cannot be traced: {reason}", fix=fix)
        self.reason = reason
        self.lasting = lasting  # whatever it becomes: the loader takes the preload away


def refuse(name, reason, fix, lasting=False):
    """Ends with exit 3: this program cannot be traced."""
    raise Unfit(name, reason, fix, lasting)


def check_privileges(path, name):
    """Programs that run with more rights than their caller ignore LD_PRELOAD; who has these rights already gets none."""
    about = os.stat(path)
    special = ""
    if about.st_mode & stat.S_ISUID and about.st_uid != os.geteuid():
        special = "setuid"
    elif about.st_mode & stat.S_ISGID and about.st_gid != os.getegid():
        special = "setgid"
    elif os.geteuid() != 0:
        try:
            special = "given file capabilities" if os.getxattr(path, "security.capability") else ""
        except OSError:
            special = ""
    if special:
        refuse(
            name,
            f"{path} is {special}, and the loader ignores LD_PRELOAD for such programs",
            f"cp {ui.word(path)} {ui.word(f'./{os.path.basename(path)}-plain')}   (a copy has no special rights), then try the copy",
            lasting=True,
        )


def check_own_malloc(path, name, file, fix=OWN_MALLOC_FIX):
    """Programs with a malloc inside never call a preloaded one."""
    if file.defines_malloc:
        refuse(name, f"{path} has its own malloc inside, so a preloaded one is never called", fix)


def linked_malloc(path):
    """The allocator's library that a program is linked with, or nothing. What is preloaded comes before it."""
    return next((library for library in libraries(path) if os.path.basename(library).startswith(ALLOCATOR_LIBRARIES)), "")


def check_malloc(path, name, file):
    """Programs whose malloc is not libc's hide what they do from a preloaded library, or are not libc's customers."""
    fix = OWN_MALLOC_FIX
    check_own_malloc(path, name, file)
    for library in libraries(path):
        base = os.path.basename(library)
        if base.startswith(ALLOCATOR_LIBRARIES):
            reason = f"it is linked with {base}, which serves malloc instead of libc"
            refuse(name, reason, fix + ", or see it on Quire's heap as it is: `quire run` takes it")
        if base.startswith(LIBC_NAMES):
            continue
        other = elf.read(library)
        if other and other.defines_malloc and "asan" not in base:
            refuse(name, f"its library {library} defines malloc", fix)


def check_inside(name, inside):
    """An allocator inside is recorded by the entries of its functions: all of them, or it is refused."""
    if inside.refused:
        reason = f"{own.shown(inside)} is inside of {inside.path}, and calls of {inside.refused} cannot be seen: {inside.why}"
        refuse(name, reason, own.STRIPPED_FIX if own.is_stripped(inside) else OWN_MALLOC_FIX)


def resolve(argv):
    """
    The Target of a command line; QuireError 126/127 or EnvironmentLacks when it cannot be traced. Where it is linked with an allocator's
    library, or has one inside, it says so.
    """
    target, file = resolve_for_preload(argv, inside=True)
    if file.static:
        target.static = True
        target.inside, refused = statics.look(target.path, target.binary, file)
        if refused:
            refuse(argv[0], *refused)
        check_inside(argv[0], target.inside)
        return target
    target.inside = own.look(target.binary, libraries(target.binary))
    if target.inside:
        check_inside(argv[0], target.inside)
        return target
    check_own_malloc(target.binary, argv[0], file)
    target.linked = linked_malloc(target.binary)
    target.cxx = next((library for library in libraries(target.binary) if os.path.basename(library).startswith("libstdc++")), "")
    if not target.linked:
        check_malloc(target.binary, argv[0], file)
    return target


def chain_of(argv, started=False):
    """The follow.Chain of a command line, whose program is there."""
    binary_of(locate(argv[0]))  # who has no interpreter is no program
    return follow.follow(argv, started)


def static_fix(argv, path, binary, file):
    """What can be done with a static program: who only wants to look at it may be able to as it is."""
    fix = "link it dynamically (without -static) and try again"
    can_be_recorded = os.path.samefile(path, binary) and statics.look(path, binary, file)[1] is None
    return fix + f"; to see what it allocates as it is: quire record -- {ui.words(argv)}" * can_be_recorded


def resolve_for_preload(argv, inside=False, chain=None):
    """
    The Target and its Elf, of a program that a preloaded malloc can serve: another's malloc among its libraries is no hindrance. inside: nor
    is one in the program itself, nor that it is static, for who only looks. chain: chain_of() the command line, or another end of it.
    """
    chain, path = chain or chain_of(argv), locate(argv[0])
    binary = binary_of(chain.steps[-1].path)
    if not os.access(binary, os.R_OK):
        refuse(
            argv[0],
            f"{binary} may be executed but not read, so it cannot be checked",
            f"ls -l {binary}",
        )
    file = elf.read(binary)
    if file is None or file.cut:
        raise QuireError(
            f"cannot execute {argv[0]}",
            f"{binary} is cut off" if file else f"{binary} is neither a 64-bit ELF program nor a script with #!",
            f"file {ui.word(binary)}",
            EXIT_CANNOT_EXECUTE,
        )
    if file.is_library:
        raise QuireError(f"cannot execute {argv[0]}", f"{binary} is a shared library, not a program", "name the program that loads it", EXIT_CANNOT_EXECUTE)
    if file.is_go:
        refuse(
            argv[0],
            f"{binary} is a Go program: its memory is its garbage collector's, which asks the kernel and not malloc",
            "GODEBUG=gctrace=1 shows what the collector does, GOGC and GOMEMLIMIT steer it",
        )
    if file.static and not inside:
        refuse(
            argv[0],
            f"{binary} is a static binary: no loader runs, so nothing can be preloaded",
            static_fix(argv, path, binary, file),
        )
    if "ld-musl" in file.interpreter and "ld-musl" not in (elf.read(os.path.realpath(sys.executable)) or file).interpreter:
        refuse(argv[0], f"{binary} runs on musl, and what is built for glibc cannot be preloaded there", "build it for glibc, or static with symbols, and try that")
    check_privileges(binary, argv[0])
    if not inside:
        check_own_malloc(binary, argv[0], file, f"quire try -- {ui.words(argv)}   (measures it with others in the place of its own); {OWN_MALLOC_FIX}")
    return Target(list(argv), path, binary, chain.steps[-1].by, chain.sure and not file.becomes_another), file
