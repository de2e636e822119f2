# SPDX-License-Identifier: MIT
"""
options.py - numbers on the command line, with what they may be.

    parser.add_argument("--sites", type=options.at_least(1))               --sites -3          ->  usage error, exit 2
    parser.add_argument("--limit-bytes", type=options.size(1 << 20))       --limit-bytes 512M  ->  536870912
    parser.add_argument("--duration", type=options.seconds)                --duration 2m       ->  120.0

Not here: which options there are (cmd_*.py), --rounds and --time-limit (measure.check_limits).
"""

import argparse
import re


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


SIZE = re.compile(r"^([0-9]+)([KMGT]?)$")
TIME = re.compile(r"^([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|)$")
TIME_UNITS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600}
UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def size(least):
    """For argparse's `type`: bytes from `least` on, as 1000000, 512M or 2G."""

    def number(text):
        found = SIZE.match(text)
        if not found:
            raise argparse.ArgumentTypeError(f"{text!r} is no size: a number, then K, M, G or T")
        value = int(found[1]) << UNITS[found[2]]
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least} bytes")
        return value

    return number


def seconds(text):
    """For argparse's `type`: a time above 0, as 30, 30s, 500ms or 2m; in seconds."""
    found = TIME.match(text)
    value = float(found[1]) * TIME_UNITS[found[2]] if found else 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time above 0: a number, then ms, s, m or h")
    return value


def span(text):
    """For argparse's `type`: two moments in nanoseconds, the earlier one first, as 1000-2000."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} is no span: two moments in nanoseconds, the earlier one first, as 1000-2000")
    return int(first), int(last)
