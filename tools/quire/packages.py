# SPDX-License-Identifier: MIT
"""
packages.py - Python packages that are missing, as a command that brings them to the Python that runs us.

    Debian's own Python, which pip may not touch     apt-get install -y python3-jinja2 ...
    any other (a virtual environment, pyenv)         PYTHON -m pip install jinja2 ...

Not here: which packages a command needs (report/page.py, cmd_bench.py, cmd_top.py); ./quire in a checkout brings them by itself.
"""

import os
import shlex
import shutil
import sys
import sysconfig


def is_managed():
    """Whether this Python belongs to the system's package manager alone (PEP 668)."""
    marker = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    return sys.prefix == sys.base_prefix and os.path.exists(marker)


def install_line(names):
    """The command."""
    if is_managed() and shutil.which("apt-get"):
        return f"apt-get install -y {' '.join(f'python3-{name}' for name in names)}"
    if is_managed():
        return f"python3 -m venv ~/.quire && ~/.quire/bin/pip install {' '.join(names)}   then: QUIRE_PYTHON=~/.quire/bin/python"
    return f"{shlex.quote(sys.executable)} -m pip install {' '.join(names)}"
