# SPDX-License-Identifier: MIT
"""venv - the checkout's own Python in .venv, with the few packages that the tool and its tests
import.

Made when it is missing or broken, filled when a package is missing, otherwise only looked at (no
process is started).  The tests' runner takes the commands and runs them beside its builds. The Python it is made from: the one that runs ./quire when that can make one,
else Debian's, which needs python3-venv.
"""

import os
import subprocess
import sys

from frontdoor import say

TOOL = {
    "jinja2": "jinja2>=3.1,<4",
    "matplotlib": "matplotlib>=3.8,<4",
    "numpy": "numpy>=1.26,<3",
    "rich": "rich>=13,<16",
}
TEST = {
    "cmake": "cmake>=3.16,<3.17",  # the oldest that may build the library
    "meson": "meson>=1,<2",
    "mkdocs": "mkdocs>=1.6,<2",
    "pytest": "pytest>=7,<9",
    "selenium": "selenium>=4.20,<5",
}
VERSION_MIN = (3, 11)
DEBIAN_PYTHON = "/usr/bin/python3"
# Without compiling every module that comes along: what is imported is compiled then, and kept.
PIP_INSTALL = ["-m", "pip", "install", "--quiet", "--no-compile", "--retries", "1", "--disable-pip-version-check"]
_CAN_MAKE_ONE = f"import sys, venv, ensurepip; sys.exit(sys.version_info < {VERSION_MIN})"


def python_of(root):
    return root / ".venv" / "bin" / "python"


def tool_python(root):
    """The Python that runs the tool: .venv's once it has what the tool imports, else the one that
    runs ./quire."""
    if TOOL and _is_whole(root) and not _absent(root, TOOL):
        return str(python_of(root))
    if sys.version_info < VERSION_MIN:
        wanted = ".".join(map(str, VERSION_MIN))
        raise say.Stopped(
            f"{sys.executable} is too old, the tool needs Python {wanted} or later; run it as:"
            f" python{wanted} quire ..."
        )
    return sys.executable


def packages_missing(root, requirements):
    """The Debian packages that are missing for making .venv: none, or python3-venv."""
    return [] if not requirements or _is_whole(root) or _maker() else ["python3-venv"]


def ensure(root, requirements):
    """Makes .venv with these packages in it, where that is not so already; needs none when there
    are none."""
    steps = commands(root, requirements)
    if steps:
        say.fresh_log(root, "venv")
    for command, title in steps:
        _must(root, command, title)


def commands(root, requirements):
    """[(command, title)]: what brings .venv up to these packages; nothing when it has them."""
    whole = _is_whole(root)
    absent = _absent(root, requirements)
    if absent and os.environ.get("QUIRE_NO_INSTALL", "0") != "0":
        wanted = " ".join(f"'{requirements[name]}'" for name in absent)
        raise say.Stopped(
            "some Python packages are missing and may not be installed from here (QUIRE_NO_INSTALL"
            f" is set); this installs them:\n{_hand_line(wanted)}"
        )
    if not requirements or (whole and not absent):
        return []
    steps = []
    if not whole:
        steps, absent = [(_make_command(root), "making .venv")], list(requirements)
    install = [python_of(root), *PIP_INSTALL, *(requirements[name] for name in absent)]
    return [*steps, (install, f"installing {' '.join(absent)} into .venv")]


def ensure_if_possible(root, requirements):
    """The same for what a command can do without: a line says what it goes without."""
    try:
        ensure(root, requirements)
    except say.Stopped as stopped:
        reason = str(stopped).splitlines()[0].rstrip(":")
        say.line(f"going on without {' '.join(requirements)}, so without pictures: {reason}")


def _hand_line(wanted):
    return f"python3 -m venv .venv && .venv/bin/pip install {wanted}"


def _make_command(root):
    maker = _maker()
    if maker is None:
        raise say.Stopped(
            f"no Python 3.11 or later here can make a virtual environment ({sys.executable} and"
            f" {DEBIAN_PYTHON} cannot); install python3-venv"
        )
    return [maker, "-m", "venv", "--clear", root / ".venv"]


def _must(root, command, title):
    log = root / "build" / "log" / "venv.txt"
    if say.run(command, title, log) != 0:
        raise say.Stopped(
            f"{title} failed:\n{say.tail(log)}\nquire: check the network connection, then run the"
            " same command again"
        )


def _is_whole(root):
    # Not Path.exists(): that raises where the link leads into somebody else's home.
    return os.access(python_of(root), os.X_OK) and _has(root, "pip")


def _absent(root, requirements):
    return [name for name in requirements if not _has(root, name)]


def _has(root, name):
    return any((root / ".venv").glob(f"lib/python3*/site-packages/{name}-*.dist-info/RECORD"))


def _maker():
    """A Python that can make a virtual environment with pip in it, or None."""
    for python in dict.fromkeys([sys.executable, DEBIAN_PYTHON]):
        try:
            if subprocess.run([python, "-c", _CAN_MAKE_ONE], capture_output=True).returncode == 0:
                return python
        except OSError:
            continue
    return None
