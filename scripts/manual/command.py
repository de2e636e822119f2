# SPDX-License-Identifier: MIT
"""command - what a command's page takes from the command itself: its options, from argparse.

    cmd_NAME.py: parser.add_argument("--limit", metavar="SIZE", help="most memory")
        -->  *--limit* _SIZE_
                 most memory

Not here: what the command is for and how it ends (doc/man/quire-NAME.1.scd).
"""

import argparse
import sys
from pathlib import Path

from manual import scd

TOOL = Path(__file__).resolve().parents[2] / "tools" / "quire"


def _cli():
    if str(TOOL) not in sys.path:
        sys.path.insert(0, str(TOOL))
    import cli

    return cli


def names():
    """Every command."""
    return _cli().command_names()


def help_of(name):
    """The one line that `quire --help` has for a command."""
    return _cli().load(name).HELP


def actions(name):
    """The argparse actions of a command that a user may write, `-h` among them."""
    parser = argparse.ArgumentParser(prog=f"quire {name}", allow_abbrev=False)
    _cli().load(name).add_arguments(parser)
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    return parser, shown


def options(name):
    """The scdoc lines of a command's arguments and options, in its order; `-h` comes last."""
    parser, shown = actions(name)
    formatter, lines = parser._get_formatter(), []
    for action in sorted(shown, key=lambda action: isinstance(action, argparse._HelpAction)):
        said = formatter._expand_help(action) if action.help else ""
        lines += [_head(action), "\t" + scd.sentence(" ".join(said.split())), ""]
    return lines


def _head(action):
    metavar = action.metavar or "|".join(action.choices or [action.dest.upper()])
    if not action.option_strings:
        return f"_{scd.escape(metavar)}_"
    value = "" if action.nargs == 0 else f" _{scd.escape(metavar)}_"
    return ", ".join(scd.bold(option) + value for option in action.option_strings)


def overview():
    """The scdoc lines of all commands."""
    lines = []
    for name in names():
        lines += [f"*quire-{name}*(1)", "\t" + scd.sentence(help_of(name)), ""]
    return lines
