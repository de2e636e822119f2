# SPDX-License-Identifier: MIT
"""
steering.py - the advice carried out on the unmodified program: plan files, and the environment that preloads them.

    recording + mix --write_plan()--> NAME.plan --environment()--> the program under libquire-malloc.so --report--> counters()

    written = steering.write_plan(recording, mixed, path)       recording: tracefile.analyse(); mixed: advise.mix.choose()
        -> Written(path, sites, steered_allocs, allocs, left, memory_bytes)   sites: how many are steered; 0: there is nothing to carry out
                                                                left: [(site number, why it is left to the heap)]
    env = steering.environment(base, path, report=FILE, control=False, timed=False)
        -> base with LD_PRELOAD and QUIRE_CONF, ours first; other preloaded libraries and the user's QUIRE_CONF stay
           control  the same lookups, every block from the heap: what finding the site costs
           timed    some of the frees that a changed program would not make are timed (for one more run, not for a measured one)
           report   the JSON report goes there when the process ends; None: none is written; a process is told by %p in the name
    said = steering.counters(FILE, ...)
        -> Counters(blocks, bytes, needless_frees, needless_free_ns, fallbacks, sites, refused); None: there is no report, or no plan in it
           needless_frees    frees of blocks in arenas: a changed program would not make them
           needless_free_ns  CPU time of all of them together, from those that were timed; None unless timed
           sites             [{"site": n, "blocks": n, "bytes": n, "fallbacks": n, "sent_back": bool}]
           refused           why the library served everything from the heap, in all processes; "" when it took the plan
    plan = steering.read(path)         a plan file, checked; QuireError (exit 3, one line) when it is damaged or of a newer version

The saving with the frees in place is what the run under environment() measures; without them it is that and needless_free_ns more.
Not here: which site goes where (advise/mix.py), what the file looks like (steerplan.py), what the library does with it (src/steer/), a plan of
another build (rebuilt.py).
"""

import contextlib
import json
import os
import re
from collections import namedtuple

import render
import serving
import tracefile
import ui
from lazily import tempfile
from steerplan import Frame, Module, Plan, Pool, Site, read  # read: for callers
from version import VERSION

LEVELS_MAX = 2  # return addresses that are looked at: each costs every call that comes that way two nanoseconds or three
STEERED_PERCENT_MIN = 80  # of the blocks that come by a wrapper, or all of them go to the heap unasked
STRANGERS_PERCENT_MAX = 10  # of the blocks of a return address that goes to one arena, those that the plan has elsewhere
TOGETHER_PERCENT_MIN = 80
WHOLE_PERCENT_MIN = 25  # of all blocks: where fewer are steered, finding the sites of all others costs more than it saves
SMALL_BYTES_MAX = 32 << 10  # larger blocks have mappings of their own, or may have
POOL_BYTES_MIN = 256 << 10  # a call site whose blocks hold as much at their peak has chunks of its own: they lie beside each other
ARENA_BYTES_MIN = 2 << 20  # at its peak: what is less the heap hands out again warm, and finding its sites costs more than that they lie together saves
STRANGERS_SHARE_MAX = 1 / 8  # of the arena's peak: what these hold at their own
POOLS_MAX = 63
OTHER_PROGRAM = "it is of another program"  # the library's words: STEER_OTHER_PROGRAM
CXX_LIBRARY = re.compile(r"lib(stdc\+\+|c\+\+|c\+\+abi)\.so")

Written = namedtuple("Written", "path sites steered_allocs allocs left memory_bytes")
Counters = namedtuple(
    "Counters", "blocks bytes needless_frees needless_free_ns fallbacks sites refused"
)


# One way to an arena that is told from others: the site that allocates most there, the arena, what all its sites hold at their peaks, and
# [(step, frame), ...].
End = namedtuple("End", "site arena peak_bytes path")


class Way:
    """One stack that led to malloc: its frames from malloc's caller on, and how far apart their return addresses lay."""

    def __init__(self, stack, frames, pool):
        self.site = stack["site"]
        self.allocs = stack["allocs"]
        self.pool = pool
        self.frames = stack["frames"]
        seen = {tuple(slots) for slots in stack["slots"]}
        self.steps = [self._step(seen, level) for level in range(1, len(self.frames))]
        first = frames[self.frames[0]]
        # Our operator new is in the library: its caller is malloc's here.
        if first["function"].startswith("operator new") and CXX_LIBRARY.search(first["module_path"]) and len(self.frames) > 1:
            self.frames, self.steps = self.frames[1:], self.steps[1:]
            if self.steps and self.steps[0] is not None:
                self.steps[0] -= 1  # counted from the word behind the return address

    @staticmethod
    def _step(seen, level):
        """Words from one return address to the next; None: it was not always the same, or is not known."""
        steps = set()
        for slots in seen:
            here, below = slots[level - 1], slots[level - 2] if level > 1 else 0
            steps.add(here - below if here >= 0 and below >= 0 else None)
        return steps.pop() if len(steps) == 1 else None


class Tree:
    """Which return addresses have to be looked at to tell the pools apart: paths, as short as can be."""

    def __init__(self, ways, peak_of_pool, peak_of_site):
        self.ends = []  # End
        self.left = {}  # site: why its blocks, or some of them, stay with the heap
        self.steered = 0  # blocks
        self.served = set()  # sites whose blocks go where the plan has them, all or some
        self.peak_of_pool = peak_of_pool
        self.peak_of_site = peak_of_site
        self._part(ways, 0, [])

    def _part(self, ways, level, path):
        groups = {}
        for way in ways:
            groups.setdefault(way.frames[level], []).append(way)
        for frame, group in groups.items():
            step = (group[0].steps[level - 1], frame) if level else (0, frame)
            self._settle(group, level, path + [step])

    def _settle(self, group, level, path):
        weights = {}
        for way in group:
            weights[way.pool] = weights.get(way.pool, 0) + way.allocs
        pool, allocs = max(weights, key=weights.get), sum(weights.values())
        if len(weights) == 1:
            self._end(group, pool, path)
        elif self._tolerable(group, pool, weights[pool] / allocs):
            self._end(group, pool, path, "it shares return addresses with blocks that mostly go elsewhere")
        elif 100 * (allocs - weights.get(0, 0)) < STEERED_PERCENT_MIN * allocs:
            self._end(group, 0, path, "most of what comes by its wrapper is the heap's: to look further would cost more")
        else:
            why = self._no_deeper(group, level)
            if why:
                self._end(group, 0, path, why)
            else:
                self._part(group, level + 1, path)

    def _tolerable(self, group, pool, share):
        """Whether all may go to one arena: strangers are few, and hold little at their peak."""
        if not pool or 100 * (1 - share) > STRANGERS_PERCENT_MAX:
            return False
        strangers = {way.site for way in group if way.pool != pool}
        return sum(self.peak_of_site.get(site, 0) for site in strangers) <= STRANGERS_SHARE_MAX * self.peak_of_pool.get(pool, 0)

    def _end(self, group, pool, path, why=None):
        """All of the group go to a pool."""
        for way in group:
            if way.pool and way.pool != pool:
                self.left[way.site] = why
        if pool:
            sites = {}
            for way in group:
                sites[way.site] = sites.get(way.site, 0) + way.allocs * (way.pool == pool)
            peak_bytes = sum(self.peak_of_site.get(site, 0) for site in sites)
            self.ends.append(End(max(sites, key=sites.get), pool, peak_bytes, path))
            self.steered += sum(way.allocs for way in group)
            self.served |= {way.site for way in group if way.pool == pool}

    def drop_if_few(self, allocs):
        """No site is steered where all of them together allocate little."""
        if 100 * self.steered < WHOLE_PERCENT_MIN * allocs:
            self.left.update(dict.fromkeys((end.site for end in self.ends), "all call sites that could be steered allocate too little together"))
            self.ends, self.steered, self.served = [], 0, set()

    @staticmethod
    def _no_deeper(group, level):
        """Why the next return address cannot be looked at; None: it can."""
        if level + 1 >= LEVELS_MAX:
            return "its callers are the same for more return addresses than are looked at"
        if any(level + 1 >= len(way.frames) for way in group):
            return "its stack ends where others go on"
        steps = {way.steps[level] for way in group}
        if steps == {None} or None in steps or len(steps) > 1:
            return "its wrapper's frame is not always of one size"
        if not 0 < max(steps) <= 512:
            return "its wrapper's frame is too large"
        return None


def placed(plan_path):
    """{site: arena} of a plan file of quire-plan's; slabs and slots are the heap's pages of one size."""
    arenas = {}
    with open(plan_path, encoding="ascii") as file:
        for line in file:
            words = line.split()
            if words[0] == "site" and words[2] == "arena":
                arenas[int(words[1])] = int(words[3])
    return arenas


def dies_together(site):
    """Whether most of what a site allocates in a generation lives at that generation's peak: else its chunks would hold what is dead."""
    own = site["generations"]
    return 100 * own["peak_live_bytes_sum"] >= TOGETHER_PERCENT_MIN * own["allocated_bytes_sum"]


def reason(facts, klass):
    """Why a site is where it is, in words."""
    if klass == "arena":
        times = facts["generations"]
        return f"its blocks die together, {times} time{'s' * (times != 1)}"
    if klass in ("slab", "recycling slot"):
        return f"{klass}: the heap's pages of one size"
    return facts["no_arena"] or "leave alone"


def site_line(recording, facts, pool):
    """One site for the plan file."""
    named = recording.sites.get(facts["site"], {})
    where = f"{named.get('function', '?')}"
    if named.get("file"):
        where += f" at {os.path.basename(named['file'])}:{named.get('line', 0)}"
    klass = "arena" if pool else facts["class"] if facts["class"] != "arena" else "heap"
    return Site(facts["site"], pool, facts["allocs"], facts["bytes"], where, reason(facts, klass), [])


def pools_of(ends, order, peaks):
    """(Pools, {site: pool}): large ends have one of their own, the others of an arena share one."""
    pools, pool_of_end, shared = [], {}, {}
    for end in sorted(ends, key=lambda e: e.peak_bytes, reverse=True):
        if end.site in pool_of_end:
            continue
        own = end.peak_bytes >= POOL_BYTES_MIN and len(pools) < POOLS_MAX - len(order)
        if not own and end.arena in shared:
            pool_of_end[end.site] = shared[end.arena]
            continue
        pools.append(Pool("arena", end.peak_bytes if own else peaks.get(end.arena, 0)))
        pool_of_end[end.site] = len(pools)
        if not own:
            shared[end.arena] = len(pools)
    return pools, pool_of_end


def why_not(facts, is_small):
    """Why a site that the advice has on an arena is the heap's while its frees are made; "": it is not."""
    if not dies_together(facts):
        return "its blocks die one by one: its arena would hold what is dead"
    return "its arena holds little at a time: the heap hands so few blocks out again as fast" if is_small else ""


def write_plan(recording, mixed, path, small_too=False):
    """Writes the plan of the mix for the library; a Written. small_too: also arenas that the heap serves as well."""
    with open(recording.paths, encoding="utf-8", errors="backslashreplace") as file:
        ways = json.load(file)
    for frame in ways["frames"]:
        frame["module_path"] = ways["modules"][frame["module"]]["path"]
    arenas = placed(mixed.path) if mixed.path else {}
    small = {arena["arena"] for arena in mixed.planned["arenas"] if arena["peak_bytes"] < (0 if small_too else ARENA_BYTES_MIN)}
    unfit = {site: why_not(recording.sites[site], arena in small) for site, arena in arenas.items()}
    arenas = {site: arena for site, arena in arenas.items() if not unfit[site]}
    busiest = {}
    for facts in mixed.planned["sites"]:
        if facts["site"] in arenas:
            arena = arenas[facts["site"]]
            busiest[arena] = busiest.get(arena, 0) + facts["allocs"]
    order = sorted(busiest, key=busiest.get, reverse=True)[: POOLS_MAX // 2]
    number_of = {arena: number + 1 for number, arena in enumerate(order)}
    known = [w for w in ways["stacks"] if all(nameable(ways, f) for f in w["frames"][:1])]
    stacks = [Way(w, ways["frames"], number_of.get(arenas.get(w["site"]), 0)) for w in known]
    peaks = {number_of[arena["arena"]]: arena["peak_bytes"] for arena in mixed.planned["arenas"] if arena["arena"] in number_of}
    tree = Tree(stacks, peaks, {facts["site"]: facts["peak_live_bytes"] for facts in mixed.planned["sites"]})
    tree.drop_if_few(sum(way.allocs for way in stacks))
    plan = assemble(recording, mixed.planned, ways, (arenas, unfit, pools_of(tree.ends, order, peaks)), tree)
    plan.write(path)
    steered = any(site.pool for site in plan.sites)
    return Written(
        path,
        len(tree.served) if steered else 0,
        tree.steered if steered else 0,
        sum(site.allocs for site in plan.sites),
        sorted(tree.left.items()),
        plan.memory_bytes,
    )


def nameable(ways, number):
    """Whether a return address can be known again: it lies in a file with a build id."""
    return bool(ways["modules"][ways["frames"][number]["module"]]["build_id"])


def assemble(recording, planned, ways, placing, tree):
    """The Plan of a tree."""
    arenas, unfit, (pools, pool_of_end) = placing
    plan = Plan(f"quire {VERSION}", recording.command)
    plan.memory_bytes = sum(site["bytes_at_program_peak"] for site in recording.sites.values() if site["sizes"]["max"] <= SMALL_BYTES_MAX)
    frames, modules = {}, {}

    def module_of(number):
        if number not in modules:
            modules[number] = len(modules)
            plan.modules.append(Module(ways["modules"][number]["build_id"], ways["modules"][number]["path"]))
        return modules[number]

    def frame_of(number):
        if number not in frames:
            frame = ways["frames"][number]
            frames[number] = len(frames)
            plan.frames.append(
                Frame(module_of(frame["module"]), frame["offset"], frame["from_function"], frame["function_bytes"], frame["lines"])
            )
        return frames[number]

    plan.pools = pools
    paths = {}
    for end in tree.ends:
        if all(nameable(ways, frame) for _, frame in end.path):
            paths.setdefault(end.site, []).append([(step, frame_of(frame)) for step, frame in end.path])
    for number, module in enumerate(ways["modules"]):
        if module["path"] == ways["program"] and module["build_id"]:
            plan.program = module_of(number)
    for facts in sorted(planned["sites"], key=lambda f: f["allocs"], reverse=True):
        pool = pool_of_end.get(facts["site"], 0) if facts["site"] in paths else 0
        site = site_line(recording, facts, pool)
        if pool == 0 and facts["site"] in tree.left:
            site = site._replace(reason=f"left to the heap: {tree.left[facts['site']]}")
        elif unfit.get(facts["site"]):
            site = site._replace(reason=unfit[facts["site"]])
        elif pool == 0 and facts["site"] in arenas:
            site = site._replace(reason="found by another site's return addresses, which go to the same arena")
        plan.sites.append(site._replace(paths=paths.get(facts["site"], []) if pool else []))
    return plan


def folder_place():
    """Where a folder for plans and reports may be made: None for the usual place; QUIRE_CONF cannot name a file with a comma."""
    return "/tmp" if "," in tempfile.gettempdir() else None


def as_typed(recording, target, words, small, setting=""):
    """What carries the advice out, to be typed; with a setting before the program.  Where the command starts the program that the plan is of (a shell), each process is told of it."""
    trace, plan = tracefile.typed(recording.path), os.path.splitext(recording.path)[0] + ".plan"
    span = " --span {}-{}".format(*recording.span_ns) if recording.span_ns else ""  # of the load: the rest is in no figure
    advise = f"{render.command()} advise{' --small' * small}{span} -o {tracefile.typed(plan)} {trace}"
    if recording.executable in {target.name, os.path.basename(target.binary), os.path.basename(os.path.realpath(target.binary))}:
        return f"{advise} && {setting}{render.command()} run --plan {tracefile.typed(plan)} -- {words}"
    return f"{advise} && {setting}QUIRE_CONF=plan:{ui.word(os.path.abspath(plan))} {render.command()} run -- {words}"


def environment(base, path, report=None, control=False, timed=False):
    """`base` with the library preloaded and the plan in QUIRE_CONF."""
    if "," in path or "," in (report or ""):
        raise ValueError("QUIRE_CONF cannot name a file with a comma")
    parts = [base["QUIRE_CONF"]] if base.get("QUIRE_CONF") else []
    parts.append(f"plan:{path}")
    parts += ["plan_control:1"] * control + ["plan_timed:1"] * timed
    if report:
        parts += ["stats:exit", "stats_format:json", f"stats_file:{report}"]
    others = base.get("LD_PRELOAD")
    library = serving.drop_in()
    return {
        **base,
        "LD_PRELOAD": f"{library}:{others}" if others else library,
        "QUIRE_CONF": ",".join(parts),
    }


def counters_of(document):
    """The Counters of a report (quire.exit/1); None: no plan was asked for."""
    said = document.get("plan")
    if said is None:
        return None
    needless_ns = None
    if said["timed_frees"]:
        needless_ns = said["timed_ns"] * said["needless_frees"] / said["timed_frees"]
    return Counters(
        said["blocks"], said["bytes"], said["needless_frees"], needless_ns, said["fallbacks"], said["sites"], said["refused"]
    )


def together(all_of_them):
    """The Counters of several processes as those of one: of them that took the plan; of none, why not. None: nobody said anything of it."""
    its_own = [c for c in all_of_them if c and c.refused != OTHER_PROGRAM]  # not a shell's that has started the program
    took = [c for c in its_own if not c.refused]
    if not took:
        return next(iter(its_own), None)
    timed = [c.needless_free_ns for c in took if c.needless_free_ns is not None]
    blocks, bytes_, frees, fallbacks = (sum(getattr(c, name) for c in took) for name in ("blocks", "bytes", "needless_frees", "fallbacks"))
    return Counters(blocks, bytes_, frees, sum(timed) if timed else None, fallbacks, [site for c in took for site in c.sites], "")


def counters(*paths):
    """The same of the reports' files, of all processes of a run together."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8", errors="replace") as file:
            found.append(counters_of(json.load(file)))
    return together(found)
