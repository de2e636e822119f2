# SPDX-License-Identifier: MIT
"""quire_tool - the command of the Python package: the tool that is installed beside this file, run by this Python.

    quire_tool/__init__.py  share/quire/tool/  libexec/quire/  lib/libquire-malloc.so       as `cmake --install` lays a prefix out
"""

import os
import sys


def main():
    tool = os.path.join(os.path.dirname(os.path.abspath(__file__)), "share", "quire", "tool")
    os.environ["QUIRE_TYPED"] = sys.argv[0]  # for what the tool tells the user to type
    os.execv(sys.executable, [sys.executable, tool, *sys.argv[1:]])
