#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_exports - what libquire defines is what its headers declare, and nothing of libc's.

    include/quire/**/*.h  declarations  ==  nm -D libquire.so     no name more, no name less
                                            nm -g libquire.a      likewise: inner names stay inside

Looks at the libraries of build/release (else of build/check); build first: ./quire env builds
nothing, ./quire test does.
"""

import subprocess
import sys

import checklib

BUILDS = ("build/release", "build/check")
LIBC_NAMES = {
    "malloc", "free", "calloc", "realloc", "reallocarray", "memalign", "aligned_alloc",
    "posix_memalign", "valloc", "pvalloc", "malloc_usable_size", "malloc_trim", "mallinfo",
    "mallinfo2", "mallopt", "strdup", "strndup", "mmap", "munmap", "brk", "sbrk",
}  # fmt: skip


def check(root):
    declared = {}
    for path in checklib.public_headers(root):
        for declaration in checklib.declarations_of(checklib.read(root, path) or ""):
            declared[declaration.name] = f"{path}:{declaration.line}"
    shared = _library(root, "libquire.so")
    if shared is None:
        return [
            "build/release: libquire.so is not built; run cmake --preset release && cmake --build"
            " --preset release"
        ]
    exported = _names(["nm", "-D", "--defined-only", str(shared)])
    return _differences(root, shared, exported, declared) + _check_archive(root, declared)


def _check_archive(root, declared):
    archive = _library(root, "libquire.a")
    if archive is None:
        return [
            "build/release: libquire.a is not built; run cmake --preset release && cmake --build"
            " --preset release"
        ]
    return _differences(
        root, archive, _names(["nm", "-g", "--defined-only", str(archive)]), declared
    )


def _differences(root, library, defined, declared):
    shown = library.relative_to(root)
    findings = [
        f"{where}: {name} is declared but {shown} does not define it"
        for name, where in sorted(declared.items())
        if name not in defined
    ]
    for name in sorted(defined - set(declared)):
        whose = (
            "libc's; only libquire-malloc may define it"
            if name in LIBC_NAMES
            else "which no public header declares"
        )
        findings.append(f"{shown}:1: defines {name}, {whose}")
    return findings


def _library(root, name):
    for build in BUILDS:
        found = sorted((root / build).rglob(name)) if (root / build).is_dir() else []
        if found:
            return found[0]
    return None


def _names(command):
    """The defined names that nm lists, without their symbol versions; absolute ones are the
    versions themselves."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [row.split() for row in done.stdout.splitlines()]
    return {row[2].split("@")[0] for row in rows if len(row) == 3 and row[1] != "A"}


if __name__ == "__main__":
    sys.exit(checklib.run_check(check))
