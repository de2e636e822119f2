# SPDX-License-Identifier: MIT
"""
serving.py - is a preloaded library really the one that serves a program's malloc?

    program -> static? setuid? own malloc inside? (target.py) -> whose malloc does the loader give it? (bindings.py) -> Answer

Invariants: V1  yes is said only when the loader said so of every binding of malloc.
Not here: what is done with the answer (cmd_check.py, cmd_run.py).
"""

import os
from collections import namedtuple

import bindings
import deepbind
import native
import target as targets
from errors import EnvironmentLacks, QuireError

LIBRARY = "libquire-malloc.so"

# `owner`: the file whose malloc it is; `reason`, `fix`: when it is not the library's.
# `target`: the program that was judged, which the command line surely ends up as where it is `sure`.
Answer = namedtuple("Answer", "serves owner reason fix target", defaults=("", "", "", None))


def drop_in():
    """The path of libquire-malloc.so; EnvironmentLacks when it is not built."""
    path = native.library(LIBRARY)
    if path:
        return path
    raise EnvironmentLacks(
        f"{LIBRARY} is not built",
        why="looked beside the tool's helpers and in lib/",
        fix="cmake --preset release && cmake --build --preset release   (./quire does this by itself)",
    )


def without_passthrough(environment):
    """The environment in which libquire-malloc.so serves, also where QUIRE_CONF hands everything to libc: of a key's values the last counts."""
    conf = environment.get("QUIRE_CONF", "")
    return {**environment, "QUIRE_CONF": f"{conf},passthrough:0"} if "passthrough" in conf.lower() else environment


def same(path, other):
    """Whether two paths are one file; a bare name, as LD_PRELOAD may have it, is any file of that name."""
    if "/" not in other:
        return os.path.basename(path) == other
    return os.path.realpath(path) == os.path.realpath(other)


def opening_past(target):
    """Libraries of a program that may open others past every preload. Whether they do so only a run tells: libmount, which comes with glib, has such a call."""
    return [library for library in targets.libraries(target.binary) if deepbind.opens_past_preloads(library)]


def ask(argv, library, environment=None, started=False):
    """
    The Answer for a command line and a library to preload; errors of a program that is not there go through. It is sure where all that the command
    line may end up as is answered alike. started: about what wrappers start beside themselves, too.
    """
    chain = targets.chain_of(argv, started)
    answer = _of(argv, chain, library, environment)
    answer.target.sure &= all(_serves(argv, other, library, environment) == answer.serves for other in chain.others)
    return answer


def _serves(argv, chain, library, environment):
    """Whether another end of a command line is served; None where that cannot be said."""
    try:
        answer = _of(argv, chain, library, environment)
    except QuireError:
        return None
    return answer.serves if answer.target.sure else None


def _of(argv, chain, library, environment):
    """The Answer for one end of a command line."""
    try:
        target, _ = targets.resolve_for_preload(argv, chain=chain)
    except targets.Unfit as unfit:
        end = chain.steps[-1]
        is_sure = chain.sure or unfit.lasting and len(chain.steps) == 1
        target = targets.Target(list(argv), targets.locate(argv[0]), targets.binary_of(end.path), end.by, is_sure)
        return Answer(False, "", unfit.reason, unfit.fix, target)
    if deepbind.opens_past_preloads(target.binary):
        reason = (
            f"{target.binary} opens libraries with RTLD_DEEPBIND: these are bound to libc's malloc past every preload, and what one allocates the"
            " other frees"
        )
        return Answer(False, "", reason, "a build of it that opens its libraries without RTLD_DEEPBIND", target)
    found, complaints = bindings.of(target.binary, library, environment)
    owners = sorted({to for source, to in found if not same(source, to)})
    wrong = [owner for owner in owners if not same(owner, library)]
    if complaints:
        return Answer(False, "", complaints[0], "ldd " + library, target)
    if not owners:
        reason = "the loader did not say whose malloc it is: it is not glibc's, or nothing there calls malloc"
        return Answer(False, "", reason, f"ldd {target.binary}", target)
    if wrong:
        reason = f"the loader gives it the malloc of {wrong[0]}"
        return Answer(
            False, wrong[0], reason, f"LD_DEBUG=bindings {argv[0]}   (and look for malloc)", target
        )
    return Answer(True, owners[0], "", "", target)
