# SPDX-License-Identifier: MIT
"""build - configures and builds a CMake preset into build/PRESET; when nothing changed, ninja says
so in a moment.

No stamps of our own: ninja knows what is out of date, and configures again by itself when a
CMakeLists.txt changed.  What it cannot know is that a package came: what was looked for and missed (a
library, scdoc) is looked for again when dpkg's database is younger than the configuration.  A build
folder that was made for another place (a moved or copied checkout) is configured from the beginning.

Locks: one front door at a time sets up and builds (build/.lock); a second one waits and says so,
unless the first one started it (a test that runs ./quire): that would wait for ever.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess

from frontdoor import say

PACKAGES = "/var/lib/dpkg/status"
HELD = "QUIRE_LOCK_HELD"


@contextlib.contextmanager
def lock(root):
    path = root / "build" / ".lock"
    if os.environ.get(HELD) == str(path):
        yield
        return
    try:
        path.parent.mkdir(exist_ok=True)
        held = open(path, "w")
    except OSError as problem:
        raise say.Stopped(
            f"cannot write {path}: {problem.strerror}; use a checkout that you may write to"
        ) from None
    with held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say.line("another ./quire is setting up this checkout; waiting for it")
            fcntl.flock(held, fcntl.LOCK_EX)
        os.environ[HELD] = str(path)
        try:
            yield
        finally:
            del os.environ[HELD]


def ensure(root, preset):
    """Builds a preset with a line on stderr; raises say.Stopped with the compiler's words when that
    fails."""
    log = say.fresh_log(root, f"build-{preset}")
    for command, title in commands(root, preset):
        if say.run(command, title, log) != 0:
            raise say.Stopped(
                f"{title} failed:\n{say.tail(log)}\nquire: the whole log is"
                f" {log.relative_to(root)}",
                status=1,
            )


def is_new(root, preset):
    """Whether that was never built here."""
    return not (root / "build" / preset / "build.ninja").exists()


def commands(root, preset, takes=False):
    """[(command, title)]: what brings build/PRESET up to date.  `takes`: as takes_objects() says."""
    folder = root / "build" / preset
    # GoogleTest's tests are listed at build time by running them: the build needs this as well.
    prefix = without_aslr() if preset == "tsan" else []
    configure = ["cmake", "-S", root, "-B", folder, "--preset", preset]
    if takes:
        configure.append(f"-DQUIRE_TEST_FILES_OF={root / 'build' / 'check'}")
    steps = []
    if _is_elsewhere(root, folder):
        steps = [
            (prefix + configure + ["--fresh"], f"configuring {preset} again, for its new place")
        ]
    elif is_new(root, preset):
        steps = [(prefix + configure, f"configuring {preset}")]
    elif _packages_came_after(folder):
        steps = [(prefix + configure, f"configuring {preset} again, for packages that came")]
    return steps + [(prefix + ["cmake", "--build", folder], f"building {preset}")]


def takes_objects(preset, presets):
    """Whether the tests' objects of `check` serve here, too, when this is configured anew beside that (test/CMakeLists.txt)."""
    return preset == "asan" and "check" in presets and not os.environ.get("QUIRE_TEST_LONG")


def _is_elsewhere(root, folder):
    try:
        cache = (folder / "CMakeCache.txt").read_text(encoding="utf-8")
    except OSError:
        return False
    return f"CMAKE_HOME_DIRECTORY:INTERNAL={root}\n" not in cache


def _packages_came_after(folder):
    """Every configuration writes its build.ninja anew, whatever it finds."""
    try:
        return os.stat(PACKAGES).st_mtime_ns > os.stat(folder / "build.ninja").st_mtime_ns
    except OSError:
        return False  # no Debian


def without_aslr():
    """ThreadSanitizer of gcc 12 dies under kernels that randomise more address bits than it
    knows."""
    command = ["setarch", "-R"]
    if (
        shutil.which("setarch")
        and subprocess.run([*command, "true"], capture_output=True).returncode == 0
    ):
        return command
    return []  # a container that forbids it, or no need: the sanitizer will say so itself
