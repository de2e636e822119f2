# SPDX-License-Identifier: MIT
"""Entry point: `python3 tools/quire ARGS`.  Not here: anything but finding the package, and a Ctrl-C before that is done."""

import os
import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while modules are loaded ends us without a word; then see stops.py

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import cli  # noqa: E402  (the path above must be set first)

if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
