# SPDX-License-Identifier: MIT
"""
native.py - where the C helpers live, and how they are called.

    $QUIRE_BUILD_DIR/tools  ->  CHECKOUT/build/release/tools  ->  PREFIX/libexec/quire      first that has the helper

Helpers: quire-analyse, quire-plan, quire-replay, quire-demo, quire-launch, quire-witness, quire-pace, quire-own, quire-attach,
libquire-record.so, libquire-static.so, libquire-attach.so, libquire-sample.so, libquire-swap.so.
Not here: what their output means.
"""

import json
import os
import re
import stat
import subprocess
import zlib

import stops
from errors import EnvironmentLacks, QuireError
from lazily import tempfile

MULTIARCH = f"{os.uname().machine}-linux-gnu"
SPLITS = re.compile("[ :]")
HERE = os.path.dirname(os.path.abspath(__file__))


def directories():
    """Where helpers may be, best first."""
    places = []
    if os.environ.get("QUIRE_BUILD_DIR"):
        places.append(os.path.join(os.path.abspath(os.environ["QUIRE_BUILD_DIR"]), "tools"))
    places.append(os.path.normpath(os.path.join(HERE, "..", "..", "build", "release", "tools")))
    places.append(os.path.normpath(os.path.join(HERE, "..", "..", "..", "libexec", "quire")))
    return places


def built(name):
    """The path of one helper; None when it was never built."""
    paths = (os.path.join(place, name) for place in directories())
    return next((path for path in paths if os.path.exists(path)), None)


def helper(name):
    """The path of one helper; EnvironmentLacks when it was never built."""
    path = built(name)
    if path:
        return preloadable(path) if name.endswith(".so") else path
    raise EnvironmentLacks(
        f"the helper {name} is not built",
        why=f"looked in {', '.join(directories())}",
        fix="cmake --preset release && cmake --build --preset release   (./quire does this by itself)",
    )


def must_load(name):
    """EnvironmentLacks, in the loader's words, where a library of ours that is to be preloaded lacks another one."""
    try:
        done = subprocess.run(["true"], env={**os.environ, "LD_PRELOAD": helper(name), "LC_ALL": "C"}, capture_output=True, text=True, errors="replace", check=False)
    except OSError:
        return
    _, lacks, words = done.stderr.partition("error while loading shared libraries: ")
    if lacks:
        raise EnvironmentLacks(f"{name} cannot be loaded", words.strip(), "install that library (Debian: apt-get install libunwind8), or build on this machine: ./quire try")


def library(name):
    """The path of one of our shared libraries, as built or as installed; None when it is nowhere."""
    for place in directories():
        for folder in ("..", "../../lib", "../../lib64", "../../lib/" + MULTIARCH):
            path = os.path.normpath(os.path.join(place, folder, name))
            if os.path.isfile(path):
                return preloadable(path)
    return None


def preloadable(path):
    """The same file by a name that LD_PRELOAD can have: ld.so splits it at spaces and colons."""
    if not SPLITS.search(path):
        return path
    folder, name = os.path.split(path)
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        own = os.path.join(place, f"quire-{os.getuid()}-{zlib.crc32(os.fsencode(folder)):08x}")
        if not SPLITS.search(own) and _links_to(own, folder):
            return os.path.join(own, "lib", name)
    raise EnvironmentLacks(
        f"{path} cannot be preloaded", "ld.so splits LD_PRELOAD at spaces and colons, and no link to it could be made in /tmp", "a folder without these"
    )


def _links_to(own, folder):
    """Whether the link `lib` in this directory of ours, which nobody else may write to, leads to the folder; it is made where it is not there."""
    link = os.path.join(own, "lib")
    try:
        os.makedirs(own, 0o700, exist_ok=True)
        about = os.lstat(own)
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
            return False
        if not os.path.islink(link):
            os.symlink(folder, link)
        return os.readlink(link) == folder
    except FileExistsError:  # another of us made it just now
        return os.path.realpath(link) == os.path.realpath(folder)
    except OSError:
        return False


def call(name, args, env=None, most_s=None):
    """Runs a helper; its stdout. What it says on stderr becomes the error's reason. most_s: it may take so long, then it is ended, an error as well."""
    argv = [helper(name)] + [str(a) for a in args]
    process = None
    try:
        with stops.held():
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            process = subprocess.Popen(argv, text=True, errors="replace", env=env, **pipes)
        printed, complaints = process.communicate(timeout=most_s)
    except BaseException as error:
        if process:
            process.kill()
            process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise QuireError(f"{name} was ended", why=f"it took more than {most_s:.3g} s") from None
        raise
    if process.returncode != 0:
        code, said = process.returncode, complaints.strip().splitlines()
        ended = f"exit {code}" if code > 0 else f"signal {-code}"
        reason = said[-1].removeprefix(f"{name}: ") if said else "it said nothing"
        raise QuireError(f"{name} failed ({ended})", why=reason)
    return printed


def call_json(name, args, env=None, most_s=None):
    """`call` for helpers that print one JSON document."""
    return json.loads(call(name, args, env, most_s))
