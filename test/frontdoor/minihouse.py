# SPDX-License-Identifier: MIT
"""minihouse - a small checkout for the front door to open: the real ./quire and scripts, around a
project of nothing.

    ROOT/quire, scripts/frontdoor   copies of the real ones
    ROOT/CMakeLists.txt             no language, one test a preset
    ROOT/.venv/bin/python           hands over to this Python
    BIN/dpkg-query                  says what $HOUSE/installed lists
    BIN/apt-get                     notes its arguments, then installs (or fails)
    BIN/sudo                        runs what follows, or refuses
    ROOT/tools/quire/__main__.py    prints its arguments

Nothing here touches the machine's packages; every fake notes its calls in $HOUSE/calls.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

REAL_ROOT = Path(__file__).resolve().parent.parent.parent
NOBODY = 65534

CMAKE = """# SPDX-License-Identifier: MIT
cmake_minimum_required(VERSION 3.25)
project(mini LANGUAGES NONE)
add_custom_command(OUTPUT made DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/input
  COMMAND cmake -E touch made)
add_custom_target(mini ALL DEPENDS made)
enable_testing()
add_test(NAME unit.passes COMMAND true)
set_tests_properties(unit.passes PROPERTIES LABELS unit)
"""
PRESETS = '{"version": 6, "configurePresets": [%s]}'
PRESET = '{"name": "%s", "generator": "Ninja", "binaryDir": "${sourceDir}/build/${presetName}"}'
TOOL = "import sys\nprint('tool:', *sys.argv[1:])\nsys.exit(5 if 'five' in sys.argv else 0)\n"

FAKES = {
    "dpkg-query": (
        """#!/bin/sh
echo "dpkg-query" >>"$HOUSE/calls"
while read -r name; do echo "$name installed"; done <"$HOUSE/installed"
"""
    ),
    "apt-get": (
        """#!/bin/sh
echo "apt-get $*" >>"$HOUSE/calls"
[ -e "$HOUSE/no-network" ] && { echo "E: Unable to fetch some archives" >&2; exit 100; }
for word in "$@"; do
  case $word in -*|*=*|install) ;; *) echo "$word" >>"$HOUSE/installed" ;; esac
done
"""
    ),
    "sudo": (
        """#!/bin/sh
echo "sudo $*" >>"$HOUSE/calls"
[ -e "$HOUSE/no-sudo" ] && exit 1
shift
exec "$@"
"""
    ),
}


def python_packages():
    """What the front door wants in .venv."""
    from frontdoor import venv

    return [*venv.TOOL, *venv.TEST]


class House:
    def __init__(self, folder, python=sys.executable):
        self.python = python
        self.root, self.bin, self.state = folder / "checkout", folder / "bin", folder / "state"
        for path in (
            self.bin,
            self.state,
            self.root / "tools" / "quire",
            self.root / "scripts",
            self.root / "test" / "unit",
        ):
            path.mkdir(parents=True)
        shutil.copy2(REAL_ROOT / "quire", self.root / "quire")
        shutil.copytree(
            REAL_ROOT / "scripts" / "frontdoor",
            self.root / "scripts" / "frontdoor",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        presets = ", ".join(PRESET % name for name in ("release", "check", "asan", "tsan"))
        self.write("CMakeLists.txt", CMAKE)
        self.write("CMakePresets.json", PRESETS % presets)
        self.write("input", "")
        self.write("tools/quire/__main__.py", TOOL)
        self.write("test/unit/a_test.cc", "")
        self.write("scripts/check.py", "print('checks: 3 passed, 0 failed')\n")
        for name, text in FAKES.items():
            self.program(self.bin / name, text)
        self.fill_venv("pip", *python_packages())
        (self.state / "calls").touch()
        self.install_all()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    @staticmethod
    def program(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def fill_venv(self, *packages):
        self.program(
            self.root / ".venv" / "bin" / "python", f'#!/bin/sh\nexec {self.python} "$@"\n'
        )
        for name in packages:
            self.write(f".venv/lib/python3.11/site-packages/{name}-1.0.dist-info/RECORD", "")

    def install_all(self):
        from frontdoor import needs

        names = needs.BUILD + needs.BUILD_TESTS + needs.FRONTDOOR + needs.TEST + needs.optional_for_tests() + needs.CROSS
        (self.state / "installed").write_text("\n".join(names) + "\n")

    def uninstall(self, *names):
        kept = [n for n in (self.state / "installed").read_text().split() if n not in names]
        (self.state / "installed").write_text("\n".join(kept) + "\n")

    def flag(self, name):
        (self.state / name).touch()

    def be_quiet(self):
        """However busy the machine is, no step takes so long here that a line is said of it."""
        say = self.root / "scripts" / "frontdoor" / "say.py"
        text = say.read_text(encoding="utf-8")
        assert "\nQUIET_S = 0.4\n" in text
        say.write_text(text.replace("\nQUIET_S = 0.4\n", "\nQUIET_S = 400\n"), encoding="utf-8")

    def calls(self):
        return (self.state / "calls").read_text().splitlines()

    def open_to_everybody(self):
        for path in [self.root.parent, *self.root.parent.rglob("*")]:
            path.chmod(0o777 if path.is_dir() or os.access(path, os.X_OK) else 0o666)

    def environment(self, **told):
        """The fakes first in PATH, and what a test says."""
        meddling = ("QUIRE_NO_INSTALL", "QUIRE_LOCK_HELD", "CI", "NO_COLOR", "COLUMNS", "TERM")
        env = {k: v for k, v in os.environ.items() if k not in meddling}
        return env | {"PATH": f"{self.bin}:/usr/bin:/bin", "HOUSE": str(self.state), "QUIRE_TEST_TURN": "0", **told}

    def command(self, *arguments):
        """What runs ./quire there."""
        return ["/usr/bin/python3", str(self.root / "quire"), *arguments]

    def run(self, *arguments, user=None, timeout=300, **environment):
        """Runs ./quire there with the fakes first in PATH; returns the finished process."""
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
            user=user,
            cwd="/",
            timeout=timeout,
        )
