# SPDX-License-Identifier: MIT
"""Plans for real programs that no reason is behind: every return address that led to malloc goes to some arena. Never wrong, whatever the plan says."""

import json
import os
import random
import subprocess
import sys

from preload_kit import BUILD, ROOT, environment

sys.path.insert(0, str(ROOT / "tools" / "quire"))

from steerplan import Frame, Module, Plan, Pool, Site  # noqa: E402

POOLS = 40


def record(folder, command, **options):
    """The ways to malloc of the busiest process of a command, as the analyser tells them."""
    trace = folder / "wild.qtr"
    env = {**environment(), "LD_PRELOAD": str(BUILD / "tools" / "libquire-record.so"), "QUIRE_RECORD": str(trace), **options.pop("env", {})}
    subprocess.run([str(w) for w in command], env=env, check=False, capture_output=True, timeout=300, **options)  # on libc it may end otherwise
    busiest = max(folder.glob("wild.qtr*"), key=os.path.getsize)
    paths = folder / "paths.json"
    analyse = BUILD / "tools" / "quire-analyse"
    subprocess.run([analyse, busiest, "--paths", paths], check=True, capture_output=True, timeout=300)
    return json.loads(paths.read_text(errors="backslashreplace"))


def wild_plan(ways, path, seed):
    """Writes the plan; how many return addresses it has. Half of the wrappers are looked behind, also where their frames differ in size."""
    rng, plan = random.Random(seed), Plan("a test", "wild")
    plan.modules = [Module(m["build_id"] or "00", m["path"]) for m in ways["modules"]]
    plan.frames = [Frame(f["module"], f["offset"], 1, 2, ["here|:0"]) for f in ways["frames"]]
    plan.pools = [Pool("arena", rng.choice([0, 100000, 10000000])) for _ in range(POOLS)]
    plan.memory_bytes = rng.choice([0, 30000000])
    ends = {}
    for stack in ways["stacks"]:
        frames = stack["frames"]
        first = (plan.frames[frames[0]].module, plan.frames[frames[0]].offset)
        deep = rng.random() < 0.5 and len(frames) > 1 and stack["slots"] and 0 < stack["slots"][0][0] < 512
        kind, step = ends.setdefault(first, (deep, stack["slots"][0][0] if deep else 0))
        if not kind:
            ends.setdefault((first, None), [(0, frames[0])])
        elif len(frames) > 1:
            second = plan.frames[frames[1]]
            ends.setdefault((first, (second.module, second.offset)), [(0, frames[0]), (step, frames[1])])
    for number, (key, way) in enumerate(ends.items()):
        if isinstance(key[0], tuple):
            plan.sites.append(Site(number, rng.randint(1, POOLS), 1, 1, "wild", "at random", [way]))
    plan.write(str(path))
    return len(plan.sites)


def plan_of_one(ways, path):
    """Writes a plan for the one site of 2000 blocks by `operator new`."""
    names = [f["function"] for f in ways["frames"]]
    number = next(s["frames"][1] for s in ways["stacks"] if s["allocs"] == 2000 and names[s["frames"][0]].startswith("operator new"))
    frame, plan = ways["frames"][number], Plan("a test", "one site")
    plan.modules = [Module(m["build_id"] or "00", m["path"]) for m in ways["modules"]]
    plan.frames, plan.pools = [Frame(frame["module"], frame["offset"], 1, 2, ["here|:0"])], [Pool("arena", 100000)]
    plan.sites = [Site(1, 1, 2000, 128000, "make", "all of it", [[(0, 0)]])]
    plan.write(str(path))
