# SPDX-License-Identifier: MIT
"""
cli.py - from a command line to one command module.

    quire NAME ...  ->  import cmd_NAME  ->  cmd_NAME.add_arguments(parser)  ->  cmd_NAME.run(args)  ->  exit code

A command is one file, cmd_NAME.py, found by its name; to add a command, add the file:

    HELP = "one line for the list of commands"
    TAKES_PROGRAM = True                    # optional: what follows `--` lands in args.program
    def add_arguments(parser): ...          # an argparse parser
    def run(args) -> int: ...               # the exit code; raise errors.QuireError to end with a message

Only the module of the command that runs is imported, so that a command starts in a fraction of a second.
Not here: what any command does, nor setting up a checkout (the front door `quire` at the root does that).
"""

import argparse
import codecs
import errno
import gc
import importlib
import io
import os
import re
import signal
import sys

import stops
import ui
from errors import (
    EXIT_OK,
    EXIT_SIGNAL_BASE,
    EXIT_TOOL_FAILED,
    EXIT_USAGE,
    EnvironmentLacks,
    QuireError,
    UsageError,
)
from lazily import difflib
from version import VERSION

HERE = os.path.dirname(os.path.abspath(__file__))
# A hundred thousand call sites are a million objects without a cycle; to look for one every 700 is half of the tool's time.
OBJECTS_BETWEEN_COLLECTIONS = 200_000
PREFERRED_ORDER = ["try", "record", "replay", "advise", "bench", "env"]


def command_names():
    """Names of all commands: the cmd_*.py files beside this one, best known first."""
    found = [f[4:-3] for f in os.listdir(HERE) if f.startswith("cmd_") and f.endswith(".py")]
    rank = {name: i for i, name in enumerate(PREFERRED_ORDER)}
    return sorted(found, key=lambda n: (rank.get(n, len(rank)), n))


def load(name):
    """The module of one command."""
    return importlib.import_module(f"cmd_{name}")


def nearest(word, choices):
    """A sentence with the choice that looks most like `word`, or an empty string."""
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    return f"did you mean `{close[0]}`?" if close else ""


class Parser(argparse.ArgumentParser):
    """argparse with this tool's errors: one line, a suggestion, exit 2."""

    def error(self, message):
        message = re.sub(r"invalid int value: ('.*')$", r"\1 is no whole number", message)
        raise UsageError(f"{self.prog}: {message}", fix=f"{self.prog} --help")

    def options(self):
        """Every option string this parser knows."""
        return [s for a in self._actions for s in a.option_strings]


def refuse_unknown(parser, unknown):
    """Ends with a usage error that names the first unknown word and the nearest option."""
    word = unknown[0].split("=", 1)[0]
    kind = "option" if word.startswith("-") else "argument"
    hint = nearest(word, parser.options()) if kind == "option" else ""
    raise UsageError(
        f"{parser.prog}: unknown {kind} `{word}`", why=hint, fix=f"{parser.prog} --help"
    )


def parse(module, name, argv):
    """The parsed arguments of one command; TAKES_PROGRAM commands get args.program."""
    takes_program = getattr(module, "TAKES_PROGRAM", False)
    usage = f"quire {name} [options]" + (" [--] PROGRAM [ARGS...]" if takes_program else " ...")
    parser = Parser(
        prog=f"quire {name}",
        usage=usage if takes_program else None,
        description=ui.reflowed(module.HELP),
        epilog=ui.reflowed(getattr(module, "EPILOG", "")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    tail = []
    if takes_program:
        parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
        if "--" in argv:
            cut = argv.index("--")
            argv, tail = argv[:cut], argv[cut + 1 :]
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        refuse_unknown(parser, unknown)
    if takes_program:
        # `try jq -- x` means jq with the arguments `--` and `x`; `try -- jq x` means jq with x.
        args.program = (
            args.program + ["--"] + tail if args.program and tail else args.program + tail
        )
    return args


def overview():
    """The text of `quire --help`."""
    lines = [
        "quire: would this allocator help YOUR program, where, and by how much?",
        "",
        "  quire try -- yourprogram args     run it under each allocator, and say YES or NO",
        "",
        "commands (`quire COMMAND --help` for each):",
    ]
    lines += [f"  {name:<8} {load(name).HELP}" for name in command_names()]
    lines += ["", f"quire {VERSION}"]
    return "\n".join(lines)


def dispatch(argv):
    """Runs one command line and returns its exit code."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        ui.say(overview().splitlines())
        return EXIT_OK if argv else EXIT_USAGE
    if argv[0] in ("-V", "--version"):
        print(f"quire {VERSION}")
        return EXIT_OK
    name = argv[0]
    names = command_names()
    if name not in names:
        kind = "option" if name.startswith("-") else "command"
        choices = names if kind == "command" else ["--help", "--version"]
        raise UsageError(f"unknown {kind} `{name}`", why=nearest(name, choices), fix="quire --help")
    module = load(name)
    return module.run(parse(module, name, argv[1:]))


def hold_standard_streams():
    """Streams that our caller closed become /dev/null, so that no file of ours takes their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))


class Diagnostics(io.FileIO):
    """Standard error: what nobody can take (a full disk, a closed pipe) is dropped, and the exit status says the rest."""

    refused = None  # why, the last time; a reader that goes away knows it

    def write(self, data):
        """As if all of it had been written."""
        try:
            return super().write(data)
        except OSError as error:
            self.refused = None if isinstance(error, BrokenPipeError) else error
            return len(data)


def drop_unwritable_diagnostics():
    """A command ends with its own status also where its diagnostics cannot be written."""
    if sys.stderr is sys.__stderr__:
        raw = io.BufferedWriter(Diagnostics(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, sys.stderr.encoding, line_buffering=True)


def say_unprintable_names():
    """Names that are no valid text (arguments, files) are shown escaped, as `ui.printable` does it, instead of ending us."""
    codecs.register_error("quire.escape", lambda error: ("".join(map(ui.escape, error.object[error.start : error.end])), error.end))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="quire.escape")


def main(argv):
    """One command line from beginning to end; its exit code."""
    hold_standard_streams()
    drop_unwritable_diagnostics()
    say_unprintable_names()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    with stops.raised():
        return guarded(argv)


def guarded(argv):
    """`dispatch`, with errors turned into a message on stderr and an exit code."""
    try:
        code = dispatch(argv)
        sys.stdout.flush()
        return code
    except QuireError as error:
        ui.say(error.text().splitlines(), sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as stop:
        number = signal.Signals(getattr(stop, "number", signal.SIGINT))
        why = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
        print(f"quire: {why}", file=sys.stderr)
        return EXIT_SIGNAL_BASE + number
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing to say, and nobody to say it to.
        drop_unwritten_output()
        return EXIT_SIGNAL_BASE + signal.SIGPIPE
    except OSError as error:
        found = of_system(error, argv[0])
        ui.say(found.text().splitlines(), sys.stderr)
        drop_unwritten_output()
        return found.exit_code


def drop_unwritten_output():
    """What cannot be written is not tried again when Python ends, which would change the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def of_system(error, name):
    """What the system refused a command, as an error of ours: 125 where the status is a program's, else the environment's."""
    place = str(error.filename) if error.filename else "its output"
    fixes = {
        errno.ENOSPC: "make room there, or choose another place",
        errno.EDQUOT: "make room there, or choose another place",
        errno.EACCES: f"ls -ld {place}   (who may?)",
        errno.EPERM: f"ls -ld {place}   (who may?)",
        errno.EMFILE: "ulimit -n 4096   and again",
    }
    takes_program = name in command_names() and getattr(load(name), "TAKES_PROGRAM", False)
    return EnvironmentLacks(
        f"{name} cannot use {place}",
        error.strerror or str(error),
        fixes.get(error.errno, "another file or place"),
        EXIT_TOOL_FAILED if takes_program else None,
    )
