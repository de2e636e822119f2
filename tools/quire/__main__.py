# SPDX-License-Identifier: MIT
"""Entry point: `python3 tools/quire ARGS`.  Not here: anything but finding the package."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import cli  # noqa: E402  (the path above must be set first)

if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
