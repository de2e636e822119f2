# SPDX-License-Identifier: MIT
"""
preloaded.py - the malloc that LD_PRELOAD already gives a program: which it is, and the environment without it.

    LD_PRELOAD=libjemalloc.so.2 quire try -- jq .    ->  mallocs() = ["/usr/lib/.../libjemalloc.so.2"]
    without(environment, mallocs)                    ->  the same environment, in which jq is on libc's malloc

Replays compare with libc, so the program's own time must be that with libc; what it takes as it is started today is measured beside
that. What else is preloaded stays. Whose malloc it is says the loader, not a name.
Not here: a program that is linked with another malloc (target.py refuses it).
"""

import os
import re

import bindings
import serving


def entries(environment):
    """The libraries that an environment preloads, as they are written there."""
    return [entry for entry in re.split("[: ]+", environment.get("LD_PRELOAD", "")) if entry]


def without(environment, mallocs):
    """The environment with none of these libraries preloaded."""
    rest = {name: value for name, value in environment.items() if name != "LD_PRELOAD"}
    kept = [e for e in entries(environment) if not any(serving.same(path, e) for path in mallocs)]
    return {**rest, "LD_PRELOAD": ":".join(kept)} if kept else rest


def first(environment, library):
    """The environment with this library preloaded before all others."""
    return {**environment, "LD_PRELOAD": ":".join([library] + entries(environment))}


def mallocs(binary, environment=None):
    """Paths of the preloaded libraries whose malloc a program would get: the first, behind it the next, and so on."""
    environment = dict(os.environ if environment is None else environment)
    found = []
    while entries(environment):
        owner = bindings.malloc_owner(binary, environment=environment)
        rest = without(environment, [owner] if owner else [])
        if len(entries(rest)) == len(entries(environment)):
            break
        found.append(owner)
        environment = rest
    return found
