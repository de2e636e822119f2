# SPDX-License-Identifier: MIT
"""needs - the Debian packages that a command needs, which of them are missing, and how they get
here.

    dpkg-query --> missing --> root, or sudo without a question: apt-get install -y, by name
                                 (what may wait: by whoever calls what ensure() returns)
                           --> anybody else: the exact line to run, exit status 3

QUIRE_NO_INSTALL=1 makes everybody "anybody else".  Optional packages (peers to compare with) never
stop a command. Where there is no dpkg the same needs are looked for as commands and pkg-config
modules, and only named.
"""

import functools
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from frontdoor import say

BUILD = [
    "cmake", "ninja-build", "gcc", "g++", "pkg-config",
    "libunwind-dev", "libdw-dev", "libelf-dev", "libzstd-dev",
]  # fmt: skip
# jq is no peer, but the program of the README's example.
PEERS = ["libmimalloc2.0", "libjemalloc2", "libtcmalloc-minimal4", "jq"]
# What builds find, if it is there when they are configured.
BUILD_TESTS = ["libgtest-dev", "scdoc"]
# What the front door's own tests look with, which wait for nothing else.
FRONTDOOR = ["man-db"]
TEST = ["strace", "valgrind", "sqlite3", "procps", "gdb", "chromium", "chromium-driver", "patch", "libdebuginfod1"]
# Programs of kinds that are rare: static, in Rust, with libraries opened past every preload, with another malloc.
PROGRAMS = ["busybox-static", "ripgrep", "php-cli", "lua5.4"]
# The other processor's compiler and an emulator of it: 54 MiB, about 15 s.  Its tests are skipped
# without.
CROSS = ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user"]
CROSS_LONG = ["g++-aarch64-linux-gnu"]  # for QUIRE_TEST_LONG=1: the unit tests there
# Compares the ABI with the stored one: 1.9 MB, 4 s to install.  That test is skipped without.
ABI = ["abigail-tools"]
# For QUIRE_TEST_LONG=1: compilers that build the library, what makes packages and looks at them, another libc, Go's pprof, which opens what `quire profile` writes, allocators to link with, what looks at a process
# beside gdb, and an emulator that a chroot of the other processor can run.  2 GB with what they bring.  Tests of one that is not there are skipped.
LONG = [
    "gcc-11", "g++-11", "clang", "lld", "clang-13", "lld-13", "clang-15", "lld-15", "clang-16", "lld-16", "clang-19", "lld-19",
    "debhelper", "dpkg-dev", "lintian", "autopkgtest", "debootstrap", "rpm", "rpmlint", "shellcheck", "musl-tools", "golang-go",
    "libmimalloc-dev", "libjemalloc-dev", "bpftrace", "heaptrack", "linux-perf", "lldb", "qemu-user-static",
]  # fmt: skip
INSTALL = ["apt-get", "install", "-y", "--no-install-recommends"]
APT_OPTIONS = ["-o", "DPkg::Lock::Timeout=120", "-o", "Dpkg::Use-Pty=0"]
APT_LISTS = Path("/var/lib/apt/lists")

_COMMAND_OF = {
    "cmake": "cmake", "ninja-build": "ninja", "gcc": "gcc", "g++": "g++", "pkg-config": "pkg-config",
    "valgrind": "valgrind", "strace": "strace", "sqlite3": "sqlite3", "jq": "jq", "procps": "ps",
    "gdb": "gdb", "scdoc": "scdoc", "man-db": "man", "chromium": "chromium",
    "chromium-driver": "chromedriver", "patch": "patch", "busybox-static": "busybox", "ripgrep": "rg", "abigail-tools": "abidiff", "php-cli": "php", "lua5.4": "lua5.4",
    "golang-go": "go",
    "gcc-aarch64-linux-gnu": "aarch64-linux-gnu-gcc", "qemu-user": "qemu-aarch64",
    "libc6-dev-arm64-cross": "aarch64-linux-gnu-gcc",
}  # fmt: skip
_MODULE_OF = {
    "libunwind-dev": "libunwind",
    "libdw-dev": "libdw",
    "libelf-dev": "libelf",
    "libzstd-dev": "libzstd",
    "libgtest-dev": "gtest",
}
_LIBRARY_OF = {
    "libmimalloc2.0": "libmimalloc.so.2",
    "libjemalloc2": "libjemalloc.so.2",
    "libtcmalloc-minimal4": "libtcmalloc_minimal.so.4",
    "libdebuginfod1": "libdebuginfod.so.1",
}


def ensure(root, required, optional, may_wait=()):
    """
    Installs what is missing, or raises say.Stopped with the line that does.  Returns the function that installs those
    of `may_wait`, for when others work already, and raises the same; None: none of them is missing.
    """
    absent = missing(required + optional)
    if not absent:
        return None
    vital = [name for name in absent if name in required]
    elevated = _elevation()
    if elevated is not None:
        at_once, later = ([name for name in absent if (name in may_wait) == waits] for waits in (False, True))
        if at_once:
            _install(root, elevated, at_once, [name for name in vital if name in at_once])
        return functools.partial(_install, root, elevated, later, [name for name in vital if name in later]) if later else None
    if vital:
        raise say.Stopped(
            "some packages are missing and may not be installed from here; run this as root, then"
            f" the same command again:\n{_install_line(absent)}"
        )
    say.line(
        f"going on without {' '.join(absent)}; as root, this installs them:"
        f" {_install_line(absent)}"
    )
    return None


def optional_for_tests():
    """Peers, programs to look at, abidiff, and the cross compiler where Debian has it; apt would remove gcc-multilib for it."""
    may_have = platform.machine() == "x86_64" and missing(["gcc-multilib"])
    is_long = os.environ.get("QUIRE_TEST_LONG", "0") != "0"
    cross = CROSS + CROSS_LONG * is_long if may_have else []
    return PEERS + PROGRAMS + ABI + cross + LONG * is_long


def missing(names):
    """Those of the packages that are not installed, in the order given."""
    if shutil.which("dpkg-query"):
        command = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *names]
        done = subprocess.run(command, capture_output=True, text=True)
        rows = [row.split() for row in done.stdout.splitlines()]
        installed = {row[0] for row in rows if len(row) == 2 and row[1] == "installed"}
        return [name for name in names if name not in installed]
    return [name for name in names if not _found_without_dpkg(name)]


def _found_without_dpkg(name):
    if name in _COMMAND_OF:
        return shutil.which(_COMMAND_OF[name]) is not None
    if name in _LIBRARY_OF:
        caches = [Path(d) for d in ("/usr/lib64", "/usr/lib", "/usr/local/lib")]
        return any((directory / _LIBRARY_OF[name]).exists() for directory in caches)
    if name in _MODULE_OF and shutil.which("pkg-config"):
        return subprocess.run(["pkg-config", "--exists", _MODULE_OF[name]]).returncode == 0
    return False


def _install_line(names):
    return " ".join(INSTALL + names)


def _elevation():
    """What to put before apt-get: nothing for root, sudo where it works; None when we may not
    install."""
    if os.environ.get("QUIRE_NO_INSTALL", "0") != "0" or not shutil.which("apt-get"):
        return None
    frontend = ["env", "DEBIAN_FRONTEND=noninteractive"]
    if os.geteuid() == 0:
        return frontend
    if not shutil.which("sudo"):
        return None
    if subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ["sudo", "-n", *frontend]
    if sys.stdin.isatty() and sys.stderr.isatty() and "CI" not in os.environ:
        say.line("packages are missing; sudo may ask for your password to install them")
        return ["sudo", *frontend] if subprocess.run(["sudo", "-v"]).returncode == 0 else None
    return None


def _install(root, elevated, absent, vital):
    log = say.fresh_log(root, "apt")
    command = elevated + INSTALL[:3] + APT_OPTIONS + INSTALL[3:]
    title = f"installing {' '.join(absent)}"
    status = 1
    if _has_lists():
        status = say.run(command + absent, title, log)
    if status != 0:  # no package lists, or lists so old that they name files that are gone
        say.run(elevated + ["apt-get", "update", *APT_OPTIONS], "fetching the package lists", log)
        status = say.run(command + absent, title, log)
    if status != 0 and (known := _known(absent)) != absent:  # this release does not have them all
        status = say.run(command + known, f"installing {' '.join(known)}", log)
    # A peer that cannot be had must not stop the rest.
    if status != 0 and vital and vital != absent:
        status = say.run(command + vital, f"installing {' '.join(vital)}", log)
    if status != 0 and missing(vital):
        raise say.Stopped(
            f"installing packages failed:\n{say.tail(log)}\nquire: mend that, or run this as root,"
            f" then the same command again:\n{_install_line(absent)}"
        )


def _known(names):
    """Those of the packages that apt's lists have."""
    listed = set(subprocess.run(["apt-cache", "pkgnames"], capture_output=True, text=True).stdout.split())
    return [name for name in names if name in listed] if listed else names


def _has_lists():
    try:
        return any(
            name.name.endswith(("_Packages", "_Packages.lz4")) for name in APT_LISTS.iterdir()
        )
    except OSError:
        return False
