#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
old_machine.py - what works with an old glibc and an old compiler: everything built and tested in a bare Debian 11 (glibc 2.31, gcc 10, Python 3.9).

    debootstrap -> FOLDER/machine -> git clone -> CMake: library, drop-in, tools, tests -> unit, fault, death, model; the recorder's; check, run, record, try

Of what is built there nothing asks for more than Debian 10's glibc 2.28 has (glibc_needed.py); that system itself is in the archive no more.

As root; about 2 GB and, on two idle cores, ten minutes.  Exit: 0 all passed, 1 one failed, 3 it cannot be made here.
Not here: an old kernel, for the machine is a chroot; what failing system calls do is test/fault's.  Race tests: gcc 10 does not compile them.
"""

import argparse
import sys

import fresh_machine

CODENAME = "bullseye"
PACKAGES = "git,python3,python3-pytest,ca-certificates,gcc,g++,cmake,ninja-build,pkg-config,libgtest-dev,libzstd-dev,libunwind-dev,libdw-dev,perl,procps"
TOOLS = "-DCMAKE_BUILD_TYPE=Release -DQUIRE_BUILD_TOOLS=ON -DQUIRE_BUILD_BENCH=OFF"
CHECK = "-DCMAKE_BUILD_TYPE=Release -DQUIRE_CHECK=1 -DQUIRE_BUILD_TESTS=ON -DQUIRE_BUILD_TOOLS=OFF -DQUIRE_BUILD_BENCH=OFF -DCMAKE_CXX_FLAGS_RELEASE=-O0"
KINDS = ("unit", "fault", "death", "model")
PROGRAM = """perl -e '$x{$_} = "a$_" for 1..50000; print scalar(keys %x), "\\n"'"""
QUIRE = "QUIRE_BUILD_DIR=build/release python3 -B tools/quire"
COMMANDS = (
    ("tools", f"cmake -S . -B build/release -G Ninja {TOOLS} >/dev/null && ninja -C build/release | tail -n 20"),
    ("glibc 2.28", "python3 -B scripts/glibc_needed.py 2.28 build/release"),
    ("build", f"cmake -S . -B build/check -G Ninja {CHECK} >/dev/null && ninja -C build/check {' '.join('test_' + kind for kind in KINDS)} | tail -n 1"),
    *((kind, f"build/check/test/test_{kind} --gtest_brief=1 | tail -n 3") for kind in KINDS),
    ("recorder", "python3 -B -m pytest -q -p no:cacheprovider --rootdir . --confcutdir test test/native/record_test.py"),
    *((word, f"{QUIRE} {word} -- {PROGRAM}") for word in ("check", "run", "record", "try")),
    ("env", f"{QUIRE} env"),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--keep", action="store_true", help="leave the machine's folder where it is")
    args = parser.parse_args()
    steps = [(name, f"bash -o pipefail -c '{quoted(command)}'") for name, command in COMMANDS]
    return fresh_machine.carry_out("old machine", args.keep, steps, CODENAME, PACKAGES)


def quoted(command):
    """For within a pair of single quotes."""
    return command.replace("'", "'\\''")


if __name__ == "__main__":
    sys.exit(main())
