# SPDX-License-Identifier: MIT
"""
leaksites.py - who allocated what is live when a program ends: its stacks, kept by the recorder that runs in front of the heap.

    LD_PRELOAD=libquire-record.so:libquire-malloc.so  ->  trace  ->  quire-analyse --profile  ->  stacks with live blocks, most bytes first

Not here: the sums, which are the heap's own (src/preload/leaks.c).
"""

import json
import os

import native
import suppressions
import tracefile
from cxxnames import brief
from errors import EnvironmentLacks, QuireError

SITES_MAX = 100
TRACE_BYTES_MAX = 2 << 30  # in the directory for temporary files, until it has been read
BEGINNINGS = ("__libc_start_call_main", "__libc_start_main", "_start", "start_thread", "clone3", "__clone3", "clone")
# Columns of a stack in "quire.profile/1" (tools/native/analyse/profile_write.cc).
LOCATIONS, LIVE_BLOCKS, LIVE_BYTES = 0, 6, 7


def watching(environment, folder):
    """The environment with the recorder in front of what it preloads; as it is where there is no recorder."""
    try:
        recorder = native.helper("libquire-record.so")
    except EnvironmentLacks:
        return environment
    preload = ":".join([recorder, environment["LD_PRELOAD"]])
    return {**environment, "LD_PRELOAD": preload, "QUIRE_RECORD": os.path.join(folder, "leaks.qtr"), "QUIRE_RECORD_LIMIT": str(TRACE_BYTES_MAX)}


def collect(folder, pid, lines=()):
    """
    ([{"count", "bytes", "stack"}], [{"line", "count", "bytes"}] of what suppressions took, why it is not all of them or "") of the process with that
    number.
    """
    found = []
    for path in tracefile.family(os.path.join(folder, "leaks.qtr")):
        try:
            about = json.loads(native.call("quire-analyse", [path, "--sites", "-", "--profile", path + ".json"]))["trace"]
        except (QuireError, ValueError) as error:
            return [], [], f"the stacks cannot be read: {error}"
        if about["pid"] == pid:
            found.append((about["exited"], about["wall_s"], path))
    if not found:
        return [], [], "there are no stacks: the recorder was not loaded"
    path = max(found)[-1]  # a process that became another program has a trace of each
    with open(path + ".json", encoding="utf-8", errors="backslashreplace") as file:
        return *sites(json.load(file), lines), tracefile.stopped(path)


def asked_bytes(document):
    """Bytes of all blocks of a report that were live at exit, as they were asked for; None where the stacks of some are not known."""
    known = [*(document.get("leak_sites") or []), *(document.get("leak_suppressed") or [])]
    if "leak_sites" not in document or sum(row["count"] for row in known) != document["report"]["leaked_blocks"]:
        return None
    return sum(row["bytes"] for row in known)


def sites(profile, lines=()):
    """(stacks with live blocks, most bytes first, each as lines from the innermost frame; what each line of the suppressions took)."""
    found, taken = [], {}
    for stack in sorted((s for s in profile["stacks"] if s[LIVE_BLOCKS]), key=lambda s: -s[LIVE_BYTES]):
        count, size = stack[LIVE_BLOCKS], stack[LIVE_BYTES]
        line = suppressions.taken_by(lines, names(profile, stack[LOCATIONS])) if lines else None
        if line:
            before = taken.get(line.text, (0, 0))
            taken[line.text] = before[0] + count, before[1] + size
        elif len(found) < SITES_MAX:
            found.append({"count": count, "bytes": size, "stack": frames(profile, stack[LOCATIONS])})
    suppressed = [{"line": text, "count": count, "bytes": size} for text, (count, size) in taken.items()]
    return found, sorted(suppressed, key=lambda s: -s["bytes"])


def names(profile, locations):
    """What a suppression may name: functions, source files and modules of all frames."""
    return {name for location in locations for index in profile["locations"][location] for name in (profile["functions"][index][i] for i in (0, 1, 3))}


def frames(profile, locations):
    """"function (file:line)", innermost first, inlined ones too, as far out as the program's own code begins."""
    found = []
    for location in locations:
        for index in profile["locations"][location]:
            function, file, line, module, _ = profile["functions"][index]
            if function in BEGINNINGS and found:
                return found
            name = brief(function) or function  # a place without a name may have nothing brief
            found.append(f"{name} ({os.path.basename(file)}:{line})" if file else f"{name} ({module})")
    return found
