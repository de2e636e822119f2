# SPDX-License-Identifier: MIT
"""
options.py - numbers on the command line, with what they may be.

    parser.add_argument("--sites", type=options.at_least(1))        --sites -3  ->  usage error, exit 2

Not here: which options there are (cmd_*.py).
"""

import argparse


def at_least(least, kind=int):
    """For argparse's `type`: numbers of that kind from `least` on."""

    def number(text):
        try:
            value = kind(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is no number") from error
        if not value >= least:  # also what is no number at all: nan
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return value

    return number
