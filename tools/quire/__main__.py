# SPDX-License-Identifier: MIT
"""Entry point: `python3 tools/quire ARGS`.  Not here: anything but finding the package, a Ctrl-C before that is done, and the name we
were called by (QUIRE_TYPED, from ./quire or the installed script)."""

import os
import resource
import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while modules are loaded ends us without a word; then see stops.py

sys.argv[0] = os.environ.pop("QUIRE_TYPED", "") or sys.argv[0]  # render.command() repeats it; no program that we start sees it
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
    sys.dont_write_bytecode = True  # Python 3.11 keeps as much of a module's as such a limit lets it write, and no later start can read it

import cli  # noqa: E402  (the path above must be set first)

if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
