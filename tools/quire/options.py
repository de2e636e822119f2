# SPDX-License-Identifier: MIT
"""
options.py - numbers on the command line, with what they may be.

    parser.add_argument("--sites", type=options.at_least(1))        --sites -3  ->  usage error, exit 2

Not here: which options there are (cmd_*.py), --rounds and --time-limit (measure.check_limits).
"""

import argparse


def at_least(least):
    """For argparse's `type`: whole numbers from `least` on."""

    def number(text):
        try:
            value = int(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from error
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return value

    return number
