# SPDX-License-Identifier: MIT
"""
advice.py - from figures to words: what the mix saves, the verdict.

    plan (quire-plan) + names (quire-analyse)  ->  Site rows
    series (measure.py) + the program's time   ->  Outcome: share, saving, verdict

The rules are pure functions of small arguments; doc/advice.md tells them in prose.
Not here: classes of sites (the C helper quire-plan), which of them the mix serves (advise/mix.py), printing (render.py).
"""

import math
from collections import namedtuple

import native
from lazily import statistics
from measure import Estimate, estimate

YES, NO, INCONCLUSIVE = "YES", "NO, leave it alone", "INCONCLUSIVE"

SAVING_PERCENT_MIN = 3.0
MEMORY_PERCENT_MIN = 10.0
EVENTS_MIN = 2000

Verdict = namedtuple("Verdict", "word reason")
SITE_FACTS = "id name where stack klass arena slab allocs bytes peak_live ops elsewhere"
# What is known of it besides: `caller` called it, `frame` is its own place in the stack, `no_arena` why it has none.
SITE_MORE = {
    "key": "",
    "path": "",
    "line": 0,
    "inlined": False,
    "frame": 0,
    "frees": 0,
    "resizes": 0,
    "largest": 0,
    "peak_live_bytes": 0,
    "generations": 0,
    "threads": 0,
    "no_arena": None,
}


class Site(namedtuple("Site", f"{SITE_FACTS} {' '.join(SITE_MORE)}", defaults=SITE_MORE.values())):
    """`bytes`: the sum of all sizes that were asked for, at allocations and at reallocs."""

    __slots__ = ()

    @property
    def mean_bytes(self):
        """Of one size that was asked for; never more than `largest`."""
        return mean_bytes(self.bytes, self.allocs, self.resizes)


def mean_bytes(total, allocs, resizes):
    """The mean of all sizes that were asked for."""
    return total / max(1, allocs + resizes)


def plan(recording, path, waste_percent=None, no_arenas=False):
    """Runs quire-plan; its document. The plan itself is written to `path`."""
    arguments = ["--plan", path] + ["--no-arenas"] * no_arenas
    if waste_percent is not None:
        arguments += ["--waste-percent", waste_percent]
    planned = native.call_json("quire-plan", arguments + [recording.program])
    lines = heap_lines(recording, planned)
    with open(path, "a", encoding="ascii") as file:
        file.writelines(f"site {number} heap 0\n" for number in lines)
    return planned


def heap_lines(recording, planned):
    """
    Sites that allocate too seldom for a class of their own, one for each caller, may together be a busy line: the heap's.
    Their class is changed in the plan; their numbers.
    """
    rules, together = planned["rules"], {}
    for facts in planned["sites"]:
        named = recording.sites.get(facts["site"])
        mean = mean_bytes(facts["bytes"], facts["allocs"], facts["resizes"])
        if named and facts["class"] == "leave alone" and mean <= rules["mean_bytes_max"]:
            line = (named.get("function"), named.get("file"), named.get("line"))
            together.setdefault(line, []).append(facts)
    moved = []
    for same in together.values():
        if sum(facts["allocs"] for facts in same) >= rules["allocs_min"]:
            for facts in same:
                facts["class"] = "heap"
                moved.append(facts["site"])
    return moved


def where(named):
    """file:line of a site; of a place without a name the exported one before it; or nothing."""
    if not named.get("file"):
        return f"(after {named['after']})" if named.get("after") else ""
    return (
        f"{named['file'].rsplit('/', 1)[-1]}:{named['line']}"
        if named.get("line")
        else named["file"]
    )


def sites(recording, planned):
    """All sites with operations, busiest first."""
    rows = []
    for facts in planned["sites"]:
        named = recording.sites.get(facts["site"], {})
        rows.append(
            Site(
                facts["site"],
                named.get("function") or f"site {facts['site']}",
                where(named),
                named.get("stack", []),
                facts["class"],
                facts["arena"],
                facts["slab"],
                facts["allocs"],
                facts["bytes"],
                facts["peak_live"],
                facts["allocs"] + facts["frees"] + facts["resizes"],
                facts["frees_elsewhere"],
                named.get("key", ""),
                named.get("file", ""),
                named.get("line", 0),
                named.get("inlined", False),
                named.get("frame", 0),
                facts["frees"],
                facts["resizes"],
                facts["largest_bytes"],
                facts["peak_live_bytes"],
                facts["generations"],
                facts["threads"],
                facts["no_arena"],
            )
        )
    return sorted(rows, key=lambda r: r.allocs, reverse=True)


class Outcome:
    """What the replays say about the program; every time is CPU time."""

    def __init__(self, series, program_cpu_s, today_cpu_s=(), before="libc", times=1.0):
        """
        `today_cpu_s`: runs with the allocator that the program has today, where that is not libc's (CPython's own, a preloaded one).
        `before`: the backend that all others are compared with. `times`: how often the replayed process stands for one like it.
        """
        self.series, self.before, self.times = series, before, times
        self.program_cpu_s, self.today_cpu_s = list(program_cpu_s), list(today_cpu_s)
        self.today_s = estimate(today_cpu_s) if today_cpu_s else None
        self.program_s = estimate(program_cpu_s)
        self.share_percent = self.of_program(series.net_ns(before))
        self.saving_s = Estimate(0.0, 0.0, 0.0)
        self.saving_percent = Estimate(0.0, 0.0, 0.0)
        self.memory_saved_bytes = 0
        if series.has("mix"):
            saved_ns = series.saved_ns("mix", before)
            self.saving_s = Estimate(*(times * v / 1e9 for v in estimate(saved_ns)))
            self.saving_percent = self.of_program(saved_ns)
            self.memory_saved_bytes = series.peak_bytes(before) - series.peak_bytes("mix")

    @property
    def saving_today_percent(self):
        """The mix's saving against the program as it runs today, its own allocator included."""
        return self.saving_percent if self.today_s is None else self._against_today(self.saving_s)

    def saving_today_with(self, name):
        """The same for a backend that replaces malloc as a whole."""
        return self._against_today(Estimate(*(self.times * v / 1e9 for v in estimate(self.series.saved_ns(name)))))

    def _against_today(self, saved):
        """A saving in seconds against libc as percent of the program as it runs today."""
        # The runs took turns, so each pair met the same weather: its difference is what its own allocator saves already.
        ahead = estimate([a - b for a, b in zip(self.program_cpu_s, self.today_cpu_s)])
        middle = saved.value - ahead.value
        # Two independent uncertainties add as squares.
        down = math.hypot(saved.value - saved.low, ahead.high - ahead.value)
        up = math.hypot(saved.high - saved.value, ahead.value - ahead.low)
        share = 100 / max(self.today_s.value, 1e-6)
        return Estimate(share * middle, share * (middle - down), share * (middle + up))

    def of_program(self, values_ns):
        """Nanoseconds as percent of the program's CPU time, at most all; the interval takes in the program's own noise."""
        middle, low, high = (self.times * v / 1e9 for v in estimate(values_ns))
        times = [max(t, 1e-6) for t in self.program_s]
        shares = (
            100 * middle / times[0],
            min(100 * low / t for t in times),
            max(100 * high / t for t in times),
        )
        return Estimate(*(min(share, 100.0) for share in shares))

    def ns_per_op(self, name):
        """Nanoseconds of allocation for each operation, over the rounds."""
        ops = max(1, self.series.ops())
        return Estimate(*(v / ops for v in estimate(self.series.net_ns(name))))

    def program_with(self, name):
        """The program's CPU time if this backend served it."""
        saved_s = self.times * statistics.median(self.series.saved_ns(name, self.before)) / 1e9
        # Where the replay is dearer than the program (tryreport says so) it can exceed it.
        return max(0.0, self.program_s.value - saved_s)

    def best_peer(self):
        """The peer that saves most, and its saving; (None, None) when none was measured."""
        peers = [b for b in self.series.backends if b.library and self.series.has(b.name)]
        peers = [b for b in peers if b.name not in self.series.failed]
        if not peers:
            return None, None
        best = max(peers, key=lambda b: self.saving_with(b.name).value)
        return best, self.saving_with(best.name)

    def saving_with(self, name):
        """Percent of the program's CPU time that this backend saves."""
        return self.of_program(self.series.saved_ns(name, self.before))


def verdict(saving_percent, memory_percent):
    """The verdict from the saving's interval and from the peak memory that is saved beyond noise, both in percent of the program."""
    if saving_percent.low >= SAVING_PERCENT_MIN:
        return Verdict(
            YES, f"at least {SAVING_PERCENT_MIN:.0f} % of the run time is saved, beyond noise"
        )
    loses_time = saving_percent.high < 0 or saving_percent.value <= -SAVING_PERCENT_MIN / 2
    if memory_percent >= MEMORY_PERCENT_MIN and not loses_time:
        return Verdict(YES, f"peak memory falls by {memory_percent:.0f} %")
    middling = saving_percent.value >= SAVING_PERCENT_MIN / 2
    wide = saving_percent.high - saving_percent.low > 2 * SAVING_PERCENT_MIN
    if saving_percent.high >= SAVING_PERCENT_MIN and (middling or wide):
        return Verdict(
            INCONCLUSIVE,
            f"the interval reaches over {SAVING_PERCENT_MIN:.0f} %: too much noise, or too short a run",
        )
    if saving_percent.high >= SAVING_PERCENT_MIN:
        return Verdict(
            NO, f"most likely less than {SAVING_PERCENT_MIN / 2:.1f} % of the run time would be saved"
        )
    return Verdict(NO, f"less than {SAVING_PERCENT_MIN:.0f} % of the run time would be saved")


def judge(outcome, program_peak_bytes):
    """The verdict on one program."""
    if not outcome.series.has("mix"):
        return Verdict(NO, "no call site gains by an arena, a slab or a heap")
    if outcome.today_s is not None:
        found = verdict(outcome.saving_today_percent, 0)
        return found._replace(reason="against the allocator it has today, " + found.reason)
    memory_percent = 100 * outcome.memory_saved_bytes / max(1, program_peak_bytes)
    return verdict(outcome.saving_percent, memory_percent)
