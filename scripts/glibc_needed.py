#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
glibc_needed.py - the oldest glibc that built programs and libraries run with, by the versions of the symbols that they ask for.

    scripts/glibc_needed.py 2.28 build/release       each ELF file below the folder; exit 1 where one asks for something newer

Built on Debian 11 (glibc 2.31, scripts/old_machine.py) this says whether Debian 10's 2.28 would do: its own packages are in Debian's archive no more.
Not here: building (old_machine.py), what a program does with an older kernel (old_kernel.py).
"""

import pathlib
import re
import subprocess
import sys


def is_elf(path):
    """Whether it is a program or a library, by its first bytes."""
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def needed(text):
    """The newest version of glibc's symbols in what `objdump -T` prints, as numbers; (0,) where it asks for none."""
    found = re.findall(r"\*UND\*.*\(?GLIBC_([\d.]+)\)?", text)
    return max((tuple(map(int, version.split("."))) for version in found), default=(0,))


def files(folder):
    """What would be installed of a build: no objects, no libraries of objects."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink() and "CMakeFiles" not in path.parts and path.suffix not in (".o", ".a") and is_elf(path)]


def main(arguments):
    if len(arguments) != 2:
        sys.exit("usage: glibc_needed.py VERSION FOLDER")
    allowed, failed = tuple(map(int, arguments[0].split("."))), 0
    found = files(pathlib.Path(arguments[1]))
    if not found:
        sys.exit(f"no programs or libraries in {arguments[1]}")
    for path in found:
        done = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, check=False)
        newest = needed(done.stdout)
        is_newer = newest > allowed
        failed += is_newer
        print(f"{path.name}: {'.'.join(map(str, newest)) if any(newest) else 'none'}{' is newer than ' + arguments[0] if is_newer else ''}")
    print(f"{len(found)} files, {failed} of them ask for more than glibc {arguments[0]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
