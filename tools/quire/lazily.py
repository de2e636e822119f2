# SPDX-License-Identifier: MIT
"""
lazily.py - modules of the standard library that a run may well not need, loaded when something of theirs is first used.

    from lazily import tempfile        # in place of `import tempfile`; the same names behind the dot

What each would take of a start: `python3 -X importtime tools/quire check --help`.  Half a dozen of them are a sixth of it.
Not here: our own modules; a command's are loaded by its name (cli.py).
"""

import sys


class Lazy:
    """Stands for a module; the first name behind its dot loads it."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, what):
        __import__(self._name)
        return getattr(sys.modules[self._name], what)


csv, ctypes, difflib, html, logging, platform, random, secrets, socket, statistics, tempfile, textwrap, unicodedata = map(
    Lazy,
    "csv ctypes difflib html logging platform random secrets socket statistics tempfile textwrap unicodedata".split(),
)
