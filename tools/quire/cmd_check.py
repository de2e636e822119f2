# SPDX-License-Identifier: MIT
"""
cmd_check.py - `quire check -- PROGRAM`: is Quire, or another preloaded malloc, really serving there?

    LD_PRELOAD set: that one is asked about;  not set: libquire-malloc.so, as `quire run` would preload it
    --pid N: a process that runs

Exit: 0 it serves, 1 it does not, and why.  The program is not run.
Not here: asking the loader (serving.py, bindings.py).
"""

import contextlib
import glob
import os

import deepbind
import follow
import options
import own
import render
import serving
import target as targets
import ui
from errors import EXIT_CONDITION_FALSE, EXIT_OK, EnvironmentLacks, QuireError, UsageError, kernel_thread

HELP = "is Quire (or another preloaded malloc) really serving a program? says why not"
TAKES_PROGRAM = True
EPILOG = """The program is not run: the dynamic loader is asked what it would bind. Scripts, shims (pyenv, rbenv, rustup), wrappers
(env, nice, nohup ...) and shells (sh -c, bash FILE) are followed to what they execute, timeout, xargs and their like to what they start, and that is
what is judged; where the text does not decide it, only a run tells, and that is said. With LD_PRELOAD set the library named
there is asked about, else libquire-malloc.so. Exit: 0 it serves, 1 it does not; 126, 127 when there is no such program."""

PASSTHROUGH_WORDS = ("1", "true", "yes", "on")


def add_arguments(parser):
    """Options of `check`."""
    parser.add_argument(
        "--pid", type=options.at_least(1), metavar="N", help="a running process instead of a program"
    )
    parser.add_argument(
        "--preload", metavar="LIB", help="ask about this library (default: see below)"
    )
    parser.add_argument(
        "--json", action="store_true", help='JSON alone on stdout, "schema":"quire.check/1"'
    )


def passthrough(environment):
    """Whether QUIRE_CONF tells the library to hand everything to libc."""
    said = False
    for part in environment.get("QUIRE_CONF", "").lower().split(","):
        key, colon, value = map(str.strip, part.partition(":"))
        if key == "passthrough":
            said = value in PASSTHROUGH_WORDS or not colon
    return said


def library_asked_about(args):
    """--preload, else the first of LD_PRELOAD, else ours."""
    if args.preload:
        if not os.path.exists(args.preload):
            raise UsageError(f"no such library: {args.preload}")
        return os.path.abspath(args.preload)
    first = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    return first[0] if first else serving.drop_in()


def living(pid):
    """Its place in /proc, or that of a thread of it: once the first has ended the process's own is empty."""
    for place in [f"/proc/{pid}", *sorted(glob.glob(f"/proc/{pid}/task/*"))]:
        with contextlib.suppress(OSError):
            if os.readlink(f"{place}/exe"):
                return place
    return f"/proc/{pid}"


def surroundings(pid):
    """Its environment as it was started; empty where that may not be known."""
    try:
        with open(f"{living(pid)}/environ", encoding="utf-8", errors="replace") as file:
            return dict(word.split("=", 1) for word in file.read().split("\0") if "=" in word)
    except OSError:
        return {}


def is_zombie(pid):
    """Whether a process has ended, and its parent has not asked how."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0] in ("Z", "X")
    return False


def ended(pid):
    """The error for such a process."""
    return EnvironmentLacks(f"process {pid} has ended", "it is a zombie, whose parent has not asked how it ended", f"ps -o ppid= -p {pid}   (its parent)")


def mapped(pid):
    """Files that a process has mapped, and its program."""
    try:
        place = living(pid)
        with open(f"{place}/maps", encoding="utf-8", errors="replace") as file:
            words = [line.split(None, 5) for line in file]
        return {w[5].strip() for w in words if len(w) == 6}, os.readlink(f"{place}/exe")
    except FileNotFoundError:
        if os.path.exists(f"/proc/{pid}"):
            raise ended(pid) if is_zombie(pid) else kernel_thread(pid) from None
        raise EnvironmentLacks(f"there is no process {pid}", "it has ended, or never was", "pgrep -a NAME   (finds its number)") from None
    except PermissionError:
        raise EnvironmentLacks(f"process {pid} may not be looked at", "it is another user's", "the same command with sudo") from None


def startable(program):
    """(why it cannot be there, what to do) for a program that runs without the library."""
    try:
        targets.resolve_for_preload([program])
    except targets.Unfit as unfit:
        return f": {unfit.reason}", unfit.fix
    except QuireError:  # its file is gone, or another's
        return "", ""
    return "", f"quire run -- {program}"


def running(pid, args):
    """The Answer for a process: the library is mapped there, and nothing of its own comes before."""
    files, exe = mapped(pid)
    program = follow.called(living(pid), exe)
    wanted = os.path.basename(args.preload or serving.LIBRARY)
    found = [f for f in files if os.path.basename(f).startswith(wanted)]
    if not found:
        reason, fix = startable(program) if wanted == serving.LIBRARY else ("", "")
        return serving.Answer(False, "", f"{wanted} is not in process {pid}{reason}", fix), program
    file = targets.elf.read(program)
    if file and file.defines_malloc:
        return serving.Answer(False, program, f"{program} has its own malloc inside", ""), program
    first = next(iter(surroundings(pid).get("LD_PRELOAD", "").replace(":", " ").split()), "")
    before = [f for f in files if first and os.path.basename(f).startswith(os.path.basename(first)) and f not in found]
    if before and getattr(targets.elf.read(before[0]), "defines_malloc", False):
        return serving.Answer(False, before[0], f"{os.path.basename(before[0])} comes before it in LD_PRELOAD", ""), program
    return serving.Answer(True, found[0]), program


def run(args):
    """Asks, says, 0 or 1."""
    if bool(args.program) == (args.pid is not None):
        raise UsageError(
            "no program to check" if not args.program else "a program or --pid, not both",
            fix="quire check -- PROGRAM   or   quire check --pid N",
        )
    if args.pid is not None:
        answer, name = running(args.pid, args)
    else:
        name = args.program[0]
        library = library_asked_about(args)
        answer = serving.ask(args.program, library, started=True)
    if answer.serves and passthrough(os.environ if args.pid is None else surroundings(args.pid)) and serving.LIBRARY in os.path.basename(answer.owner):
        answer = serving.Answer(
            False, "", "QUIRE_CONF says passthrough: everything goes on to libc", "unset QUIRE_CONF", answer.target
        )
    say(args, name, answer)
    return EXIT_OK if answer.serves else EXIT_CONDITION_FALSE


def say(args, name, answer):
    """The answer on stdout."""
    command = args.program or [name]
    past = serving.opening_past(answer.target) if answer.serves and answer.target else []
    if args.json:
        document = {
            "schema": "quire.check/1",
            "program": name,
            "serves": answer.serves,
            "malloc_library": answer.owner or None,
            "judged": answer.target.binary if answer.target else None,
            "sure": answer.target.sure and not past if answer.target else True,
            "opens_past_preloads": past,
            "reason": answer.reason or None,
            "fix": answer.fix or None,
            "inside": answer.serves and inside(answer) and inside(answer)._asdict() or None,
        }
        print(ui.json_text(document))
    elif answer.serves:
        ui.say([f"{ui.printable(name)}: malloc is served by {ui.printable(answer.owner)}"])
    else:
        ui.say([f"{ui.printable(name)}: NOT served: {ui.printable(answer.reason)}"])
        if answer.fix:
            ui.say([f"  fix: {ui.printable(answer.fix)}"])
    if not args.json and answer.serves and (beside := inside(answer)):
        ui.say([f"  but it calls {own.shown(beside)} by names of its own, in {ui.printable(beside.path)}: what that allocates is not malloc's."])
        ui.say([f"  {render.command()} try -- {ui.words(command)}   measures it with others in its place"] * (not beside.refused))
    if not args.json:
        ui.say([f"  only a run tells: {ui.printable(library)} {deepbind.MAY}" for library in past])
    if not args.json and answer.target and judged(command, answer.target):
        ui.say(judged(command, answer.target))


def inside(answer):
    """The allocator that a program calls by other names than malloc's, or None."""
    target = answer.target
    return own.look(target.binary, targets.libraries(target.binary)) if target else None


def judged(command, target):
    """Lines on which process that is about, where it is not the file that was named."""
    lines = []
    if target.by:
        lines.append(f"  judged: {ui.printable(target.binary)}, {target.by}")
    if not target.sure:
        name = os.path.basename(target.path if target.by else target.binary)
        lines.append(f"  only a run tells what {ui.printable(name)} executes in its place: {render.command()} run --strict -- {ui.words(command)}")
    return lines
