# SPDX-License-Identifier: MIT
"""
measure.py - replays in interleaved rounds, and what can honestly be said of the figures.

    round 1:  libc  null  mimalloc  jemalloc  mix  mix-null
    round 2:        null  mimalloc  jemalloc  mix  mix-null  libc          every round begins one further on
    ...
    net(libc) = libc - null        net(mix) = mix - mix-null               what the replayer itself costs is taken away
    saved(mix) = libc - mix                                                what both do cancels

Each replay is a process of its own, so that no allocator inherits another's heap.
Intervals are order statistics of the median (no assumption about the noise), 95 % or the whole range where rounds are few.
Not here: the replayer (a C helper), verdicts (advise/advice.py).
"""

import math
import os
import time
from collections import namedtuple

import native
import serving
import ui
from errors import QuireError, UsageError
from lazily import statistics, tempfile

ROUNDS_MIN = 5
ROUNDS_USUAL = 15
ROUNDS_MAX = 31
ROUNDS_JUDGED_MIN = 3
ROUNDS_95_MIN = 6  # of fewer, the whole range holds the median less often than that
PATIENCE = 2
CONFIDENCE = 0.95

Backend = namedtuple("Backend", "name library plan null")
Estimate = namedtuple("Estimate", "value low high")
# is_hard: no patience for the first rounds; each_s: a malloc of which one replay takes longer is left out
Limits = namedtuple("Limits", "rounds seconds is_hard each_s", defaults=(False, None))


def check_limits(args):
    """--rounds and --time-limit of a command make sense, or it ends here."""
    if args.rounds is not None and args.rounds < 1:
        raise UsageError("--rounds must be at least 1")
    check_time_limit(args.time_limit)


def check_time_limit(seconds):
    """--time-limit alone."""
    if not 0 < seconds < float("inf"):
        raise UsageError("--time-limit must be a number of seconds above 0")


def backends(peers, plan):
    """What one round replays: libc, each peer, the mix when there is a plan; and the empty runs to take away."""
    chosen = [Backend("libc", None, None, False), Backend("null", None, None, True)]
    chosen += [Backend(p.name, p.path, None, False) for p in peers]
    if plan:
        chosen += [Backend("mix", None, plan, False), Backend("mix-null", None, plan, True)]
    return chosen


def run_once(program, backend, verify=False, extra=(), traced=False, most_s=None):
    """
    One replay; its figures. A peer that does not really serve malloc is an error. extra: options of quire-replay. traced: recorded as a program is.
    most_s: how long it may take.
    """
    arguments = [program, *extra]
    if backend.plan:
        arguments += ["--plan", backend.plan]
    if backend.null:
        arguments += ["--null"]
    if verify:
        arguments += ["--verify"]
    env = {
        k: v
        for k, v in os.environ.items()
        if k not in ("LD_PRELOAD", "QUIRE_RECORD", "MALLOC_CONF")
    }
    if backend.library:
        env = {**serving.without_passthrough(env), "LD_PRELOAD": backend.library}
        arguments += ["--expect-malloc", backend.library]
    if traced:
        return _traced(arguments, env)
    figures = native.call_json("quire-replay", arguments, env, most_s)
    if not backend.library and not os.path.basename(figures["malloc_library"]).startswith(
        ("libc.", "libc-", "ld-musl")
    ):
        raise QuireError(
            "the replay for libc did not use libc's malloc",
            f"it used {figures['malloc_library']}",
            "look at /etc/ld.so.preload",
        )
    return figures


def _traced(arguments, env):
    """A replay under the recorder; its trace is thrown away."""
    with tempfile.TemporaryDirectory(prefix="quire-") as folder:
        env = {**env, "LD_PRELOAD": native.helper("libquire-record.so"), "QUIRE_RECORD": f"{folder}/t.qtr"}
        return native.call_json("quire-replay", arguments, env)


def rank(rounds):
    """How many order statistics to leave out at each end for a 95 % interval of the median."""
    cut, tail = 0, 0.5**rounds
    while cut < (rounds - 1) // 2:
        following = tail + math.comb(rounds, cut + 1) * 0.5**rounds
        if 2 * following > 1 - CONFIDENCE:
            break
        tail, cut = following, cut + 1
    return cut


def estimate(values):
    """Median and interval of a list of figures."""
    ordered = sorted(values)
    cut = rank(len(ordered))
    return Estimate(statistics.median(ordered), ordered[cut], ordered[-1 - cut])


def interval_kind(rounds):
    """What an interval of so many rounds is."""
    if rounds < 2:
        return "one round has no interval"
    return "95 % intervals" if rounds >= ROUNDS_95_MIN else f"intervals are the whole range of the {rounds}"


class Series:
    """Figures of all rounds, by backend."""

    def __init__(self, chosen):
        self.backends = chosen
        self.runs = {b.name: [] for b in chosen}
        self.failed = {}

    @property
    def rounds(self):
        """Complete rounds."""
        return len(self.runs["libc"])

    def column(self, name, key):
        """One figure of one backend over the rounds."""
        return [run[key] for run in self.runs[name]]

    def has(self, name):
        """Whether a backend was measured."""
        return bool(self.runs.get(name))

    def net_ns(self, name):
        """CPU time of allocation alone, each round for itself."""
        empty = "mix-null" if name == "mix" else "null"
        return [a - b for a, b in zip(self.column(name, "cpu_ns"), self.column(empty, "cpu_ns"))]

    def saved_ns(self, name, before="libc"):
        """
        CPU time of a whole replay less than another's, each round for itself. Steps that both take cancel; a free that
        an arena makes needless goes with its step, which stands for the program's own way to the object that it frees.
        """
        return [a - b for a, b in zip(self.column(before, "cpu_ns"), self.column(name, "cpu_ns"))]

    def peak_bytes(self, name):
        """Median peak memory of a backend's replay."""
        return statistics.median(self.column(name, "peak_rss_bytes"))

    def ops(self):
        """Operations of the recorded program."""
        return self.runs["libc"][0]["ops"]


def run_round(program, active, series, verify=False, each_s=None):
    """One round: each backend once, beginning with another one each time. A peer that fails, or takes longer than each_s, is out from then on."""
    turn = series.rounds % len(active)
    results = {}
    for backend in active[turn:] + active[:turn]:
        try:
            results[backend.name] = run_once(program, backend, verify, most_s=each_s if backend.library else None)
        except QuireError as error:
            if not backend.library:
                raise
            series.failed[backend.name] = error.why
    for name, figures in results.items():
        if not verify:
            series.runs[name].append(figures)
    return [b for b in active if b.name not in series.failed]


def wants_more(number, spent_s, limits, is_settled):
    """Whether to begin round `number` (from 0) after so many seconds."""
    if limits.rounds:
        return number < limits.rounds
    if number == 0:
        return True
    if number < ROUNDS_MIN:
        # The first rounds are worth some patience, but a long program's must end too.
        return spent_s + spent_s / number <= (1 if limits.is_hard else PATIENCE) * limits.seconds
    if number >= ROUNDS_MAX or spent_s + spent_s / number > limits.seconds:
        return False
    # One look half-way, not one a round: to stop at the first good moment would flatter the verdict.
    return number != ROUNDS_USUAL or not is_settled()


def replay(program, chosen, limits, settles=lambda series: True):
    """
    Rounds until limits.rounds; without that ROUNDS_USUAL, and up to ROUNDS_MAX where `settles` says that
    they do not suffice; no more than fit into limits.seconds, but never fewer than ROUNDS_MIN. A Series.
    """
    series = Series(list(chosen))
    progress = ui.Progress(1 + (limits.rounds or ROUNDS_USUAL))
    said = f"replaying with {', '.join(b.name for b in chosen if not b.null)}"
    progress.step("replaying once with each allocator, to see that it keeps objects apart")
    served = run_round(program, [b for b in chosen if not b.null], series, True, limits.each_s)
    active = [b for b in chosen if b.null or b in served]
    began_s = time.monotonic()
    while wants_more(series.rounds, time.monotonic() - began_s, limits, lambda: settles(series)):
        progress.step(said, quiet_repeat=True)
        active = run_round(program, active, series, each_s=limits.each_s)
    progress.done()
    return series
