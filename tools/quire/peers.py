# SPDX-License-Identifier: MIT
"""
peers.py - the other allocators of this machine, found by file name.

    peers.installed() -> [Peer("mimalloc", "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2"), ...]

A peer is a library that defines malloc when it is preloaded.  That a file exists does not prove that preloading
works: whoever measures with one checks it in the measured process (quire-replay --expect-malloc).
Not here: libc's own malloc, which needs no file.
"""

import glob
import os
from collections import namedtuple

import native

Peer = namedtuple("Peer", "name path")

DROP_IN = "drop-in"  # libquire-malloc.so in a table of allocators

# name, file patterns (the first that matches wins), Debian package or None
KNOWN = [
    ("mimalloc", ["libmimalloc.so.*", "libmimalloc.so"], "libmimalloc2.0"),
    ("jemalloc", ["libjemalloc.so.*", "libjemalloc.so"], "libjemalloc2"),
    (
        "tcmalloc",
        ["libtcmalloc_minimal.so.*", "libtcmalloc.so.*", "libtcmalloc_minimal.so"],
        "libtcmalloc-minimal4",
    ),
    ("snmalloc", ["libsnmallocshim.so*", "libsnmalloc*.so*"], None),
    ("rpmalloc", ["librpmallocwrap.so*", "librpmalloc.so*"], None),
    ("tbbmalloc", ["libtbbmalloc_proxy.so.*"], "libtbbmalloc2"),
    ("hardened_malloc", ["libhardened_malloc.so*"], None),
]


def library_directories():
    """Directories the dynamic loader looks in, as far as a name can tell."""
    places = ["/usr/local/lib", "/usr/lib64", "/usr/lib", "/lib"]
    places[1:1] = sorted(glob.glob("/usr/lib/*-linux-gnu"))
    return [p for p in places if os.path.isdir(p)]


def find(patterns):
    """The first file that matches, shortest name first (the link rather than its target)."""
    for place in library_directories():
        for pattern in patterns:
            hits = [h for h in glob.glob(os.path.join(place, pattern)) if os.path.isfile(h)]
            if hits:
                return min(hits, key=lambda h: (len(h), h))
    return None


def installed():
    """Every known peer that has a file here."""
    found = [(name, find(patterns)) for name, patterns, _ in KNOWN]
    return [Peer(name, path) for name, path in found if path]


def with_drop_in():
    """The same and libquire-malloc.so, where it is built: what replaces malloc without a change of the program."""
    library = native.library("libquire-malloc.so")
    return installed() + ([Peer(DROP_IN, library)] if library else [])


def missing_packages():
    """Debian packages that would add a peer."""
    have = {p.name for p in installed()}
    return [package for name, _, package in KNOWN if package and name not in have]


def pick(names):
    """The peers of a comma-separated list; KeyError with the unknown name."""
    have = {p.name: p for p in installed()}
    return [have[n] for n in names]
