# SPDX-License-Identifier: MIT
"""
rounds.py - the program itself under each allocator, in rounds; each allocator once a round, in an order drawn anew.

    round 1:  tcmalloc  libc  steered  mimalloc  drop-in  jemalloc
    round 2:  libc  drop-in  mimalloc  jemalloc  steered  tcmalloc         --prepare before, --cleanup after each run
    ...
    saved(row) = 1 - CPU time(row) / CPU time(libc), each round for itself: a slow minute is slow for both; times at one pace (pace.py)
    over the rounds the logarithms of the quotients are averaged: noise makes a quotient as often twice as large as half as large, which is no loss

Where the time does not suffice for ROUNDS_ALL rounds of all rows, the rows that decide go on alone after the first.
A row in which the program ends otherwise than on libc's malloc is out, with the reason; where it does so on libc's own, no row can be judged.
Not here: intervals (sequential.py), what is made of them (advise/advice.py), how a program is started (launch.py).
"""

import itertools
import math
import os
import subprocess
import time
from collections import namedtuple

import bindings
import launch
import own
import pace
import peers
import preloaded
import sequential
import serving
import stops
import ui
from errors import EnvironmentLacks, QuireError
from lazily import random, statistics, tempfile
from measure import Estimate

LIBC, TODAY, STEERED = "libc", "today", "steered"
# Runs of another hour say something else: by so many points, and by so much of the saving, beyond the scatter of one hour's rounds.
# Assumed: doc/prediction.md has too few calm runs yet to tell them.
ELSEWHEN_POINTS, ELSEWHEN_SHARE = 0.5, 0.03
FEW_ROUNDS_POINTS = 20.0  # the reach of a single round of all rows, of which nothing else is known
NEVER_WAITS_SHARE = 0.9  # of a CPU, over the whole of a run
ROUNDS_ALL = sequential.ROUNDS_MIN  # as many rounds of all rows must fit, or the rows that decide go on alone
SECONDS_USUAL, SECONDS_MORE = 60, 30  # for a program of up to SHORT_S, or a load of SHORT_LOAD_S; for each second beyond that
SHORT_S, SHORT_LOAD_S = 0.5, 1.0
SECONDS_LOAD, SECONDS_LOAD_MAX = 175, 180  # for a server: who waits for whom makes its runs scatter more; the rounds have nine tenths: under three minutes with what comes after
SIGMAS = 1.4826  # standard deviations of a normal distribution in its median absolute one
RUNS_LOAD_MIN = 16  # where the load itself takes long: three rounds of all rows, or five of those that decide

# library: what is preloaded, None for libc's own malloc and for the allocator of today; dress: makes the run's environment of the
# plain one, where more than a preload is needed.
Row = namedtuple("Row", "name library dress", defaults=(None,))


def usual_limit_s(wall_s, is_load=False):
    """Seconds that all of `try` may take, by what one run takes, hooks and all; with a load, by that: of up to ten seconds no more than SECONDS_LOAD_MAX."""
    more_s = SECONDS_MORE * max(0.0, wall_s - (SHORT_LOAD_S if is_load else SHORT_S))
    return max(min(SECONDS_LOAD + more_s, SECONDS_LOAD_MAX), RUNS_LOAD_MIN * wall_s) if is_load else SECONDS_USUAL + more_s


def refuse_unlike(name, first, second, how):
    """A program that ends otherwise the second time cannot be compared with itself."""
    if first.status == second.status:
        return
    said = second.stderr.strip().splitlines()[-1:] or ["it said nothing"]
    raise EnvironmentLacks(
        f"{name} {launch.ended(first.status)} alone, and {launch.ended(second.status)} when it was run again, {how}: {ui.printable(said[0])}",
        "it changes what it works on, or ends now so and now so: its runs cannot be compared",
        "--prepare CMD, which puts everything back before each run; or --once",
    )


class Hooks:
    """--prepare and --cleanup: shell commands around each run, not timed."""

    def __init__(self, prepare=None, cleanup=None):
        self.prepare, self.cleanup = prepare, cleanup

    def around(self, run):
        """The run's result, its hooks carried out."""
        self._call("--prepare", self.prepare)
        try:
            return run()
        finally:
            self._call("--cleanup", self.cleanup)

    @staticmethod
    def _call(option, command):
        if not command:
            return
        with tempfile.TemporaryFile() as errors:  # no pipe: what it starts for the program would keep that open
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": errors}
            shell = None
            try:
                with stops.held():
                    shell = subprocess.Popen(["/bin/sh", "-c", command], start_new_session=True, **streams)
                status = shell.wait()
            except BaseException:
                if shell:
                    stops.end_group(shell)
                raise
            errors.seek(0)
            said = errors.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        if status:
            raise QuireError(f"{option} `{command}` failed", (said or [launch.describe(launch.exit_code(status))])[0], f"run it alone: sh -c {ui.word(command)}")


def rows(target, peers, mallocs):
    """What a round runs: libc, the allocator of today where that is another, each peer. The advice carried out comes later."""
    if target.inside:
        others = [(LIBC, own.libc())] + [(peer.name, peer.path) for peer in peers if not own.is_same(target.inside, peer.path)]
        return [Row(TODAY, None, own.dress(target.binary))] + [Row(name, path, own.dress(target.binary, path)) for name, path in others]
    chosen = [Row(LIBC, None)]
    if mallocs or target.linked or target.is_python and "PYTHONMALLOC" not in os.environ:
        chosen.append(Row(TODAY, None))
    return chosen + [Row(peer.name, peer.path) for peer in peers]


class Contest:
    """The program's runs by row. `today`: as it is started today, its own allocator or the preloaded one included."""

    def __init__(self, target, source, mallocs=(), hooks=None, load=None):
        self.target, self.source, self.mallocs = target, source, list(mallocs)
        self.hooks, self.load = hooks or Hooks(), load
        self.rows = [Row(LIBC, None)]
        self.runs = {LIBC: []}
        self.turns = {LIBC: []}  # of each run: which round it was in
        self.failed = {}
        self.stays = ""  # why the allocator inside cannot be taken out, where that was tried
        self.first = None  # the first run of all: its time plans the others, and warms the caches
        self.spent_s = 0.0
        self.first_s = 0.0  # what the first run took, hooks and a server's start with it
        self.chance = random.Random(1)
        self._evened = None
        self.pace = None  # pace.Pace, while somebody asks the CPU

    # running

    def environment(self, row):
        """What a row's run gets."""
        if row.name == TODAY and not row.dress:
            return launch.environment()
        env = self.plain()
        if row.dress:
            return row.dress(env)
        return preloaded.first(env, row.library) if row.library else env

    def plain(self, **more):
        """The environment of a run on libc's malloc, also of a program that is preloaded or linked with another. more: launch.environment's."""
        env = serving.without_passthrough(preloaded.without(launch.environment(malloc_python=self.target.is_python, **more), self.mallocs))
        if not self.target.linked:
            return env
        parts = preloaded.entries(env)
        # An allocator's library may have an operator new of its own, whose delete calls free by that name.
        return {**env, "LD_PRELOAD": ":".join(parts + [bindings.libc_path()] + [self.target.cxx] * bool(self.target.cxx))}

    def run_once(self, row):
        """One run of one row."""
        began_s = time.monotonic()
        ran = self.hooks.around(lambda: self._run_paced(row))
        self.spent_s += time.monotonic() - began_s
        return ran

    def _run_paced(self, row):
        before = self.pace.look() if self.pace else None
        if self.load:
            self.load.pace = self.pace
        ran = launch.hidden(self.target, self.source, self.environment(row), self.load, self.pace and self.pace.cpus)
        if not self.pace:
            return ran
        return ran._replace(slow=ran.served.slow if ran.served else self.pace.since(before))

    def begin(self):
        """The first run, on libc's malloc."""
        began_s = time.monotonic()
        self.first = self.run_once(self.rows[0])
        self.first_s = time.monotonic() - began_s
        return self.first

    def enter(self, chosen):
        """The rows of all rounds; those that would not serve the program are out before the first."""
        self.rows, self.runs, self.turns = [], {}, {}
        for row in chosen:
            self.add(row)

    def add(self, row):
        """One more row, before the first round."""
        self.rows.append(row)
        self.runs[row.name], self.turns[row.name] = [], []
        if row.library and not self.target.inside:
            owner = bindings.malloc_owner(self.target.binary, row.library, self.plain())
            if owner and not serving.same(owner, row.library):
                self.failed[row.name] = f"malloc would come from {owner}"

    def look_at(self, recording):
        """What allocates most is known: where a script of CPython only starts that, CPython has its own allocator in all runs, as when a shell starts it."""
        if self.target.is_python and recording.sites and not recording.has_python:
            self.target.only_starts = True
            self.enter([row for row in self.rows if row.name != TODAY or self.mallocs or self.target.linked])

    def take_out(self):
        """One run with libc's malloc in the place of the allocator inside; where it ends otherwise, `stays` says how."""
        try:
            ran = self.run_once(next(row for row in self.rows if row.name == LIBC))
        except EnvironmentLacks as error:  # under a load
            self.stays = f"with libc's malloc in its place {error.what}: {error.why}"
            return
        if ran.status != self.first.status:
            said = ran.stderr.strip().splitlines()[-1:]
            self.stays = f"with libc's malloc in its place it {launch.ends(ran.status)}" + "".join(f" ({line})" for line in said)

    def active(self, among=None):
        """Rows that still run."""
        return [r for r in self.rows if r.name not in self.failed and (among is None or r.name in among)]

    @property
    def few(self):
        """Names of rows that have too few rounds to be judged, where others have enough."""
        rows = [r.name for r in self.active() if len(self.runs[r.name]) < sequential.ROUNDS_MIN]
        return rows if self.rounds >= sequential.ROUNDS_MIN else []

    def behind(self, among):
        """Names of the rows that were left out and have few rounds; they run beside those that are compared with, which have as many once more."""
        rows = set(self.few) - among
        return rows | {LIBC, TODAY} if rows else set()

    def run_round(self, among=None):
        """Each row once."""
        order, turn = self.active(among), self.rounds
        self.chance.shuffle(order)
        for row in order:
            try:
                ran = self.run_once(row)
            except EnvironmentLacks as error:  # under a load: it ended before that did, or never was ready
                if row.name in (LIBC, TODAY):
                    raise
                self.failed[row.name] = ui.printable(f"{error.what} with it" + f": {error.why}" * bool(error.why))
                continue
            if row.name in (LIBC, TODAY):  # what the others are compared with
                refuse_unlike(self.target.name, self.first, ran, self._how(row.name))
            elif ran.status != self.first.status:
                self.failed[row.name] = f"with it the program {launch.ends(ran.status)}"
            self.runs[row.name].append(ran)
            self.turns[row.name].append(turn)

    def _how(self, name):
        """How one of the rows runs that the others are compared with, in words."""
        if name == TODAY:
            return "as it runs today"
        return "with libc's malloc in the place of its own" if self.target.inside else "on libc's malloc"

    # looking

    @property
    def rounds(self):
        """Rounds of the rows that ran in all."""
        return len(self.runs[LIBC])

    @property
    def never_waits(self):
        """Whether it was ended after a time that it used up: a faster allocator shows in no figure of ours."""
        return bool(self.load and self.load.command is None and self.first.cpu_s > NEVER_WAITS_SHARE * self.first.wall_s)

    def has(self, name):
        """Whether a row has figures."""
        return bool(self.runs.get(name)) and name not in self.failed

    def column(self, name, key):
        """One figure of one row over its rounds; times as at one pace of the CPU, but that of a load: how long one lasts hangs on other things."""
        runs, evened = self.runs[name], self.evened()
        if key == "cpu_s":
            return [evened.time(ran.cpu_s, ran.slow) for ran in runs]
        if key == "wall_s" and not self.load:  # who waited would have waited at any pace
            return [ran.wall_s + (evened.time(ran.cpu_s, ran.slow) - ran.cpu_s) * min(1.0, ran.wall_s / max(ran.cpu_s, 1e-6)) for ran in runs]
        return [getattr(ran, key) for ran in runs]

    def evened(self):
        """What brings times to one pace, by all runs so far; they share the program, so they share its sensitivity."""
        number = sum(len(runs) for runs in self.runs.values())
        if self._evened is None or self._evened[0] != number:
            rows = [[(ran.cpu_s, ran.slow) for ran in runs] for runs in self.runs.values()]
            self._evened = number, pace.Evened(rows)
        return self._evened[1]

    def pace_spread_percent(self):
        """How far the CPU's paces lay apart over all runs; None where nobody asked, or of too few runs."""
        return pace.spread_percent([ran.slow.spin_ns for runs in self.runs.values() for ran in runs if ran.slow])

    def stolen_percent(self):
        """Of the time in which the CPUs wanted to work, how much the host gave to others in the worst tenth of the runs; None as above."""
        return pace.stolen_percent([ran.slow.stretch for runs in self.runs.values() for ran in runs if ran.slow and ran.slow.stretch])

    def middle(self, name, key):
        """Its median."""
        return statistics.median(self.column(name, key))

    def saved_percent(self, name, before=LIBC, key="cpu_s", last=True):
        """What a row saves of another's CPU time (or `key`), an Estimate in percent; rounds that both were in."""
        found = self._saved(name, before, key, last)
        reach = self._apart(name, before, key) + ELSEWHEN_POINTS + ELSEWHEN_SHARE * abs(found.value)
        return Estimate(found.value, found.low - reach, min(100.0, found.high + reach))

    def peak_saved_percent(self, name, before=LIBC):
        """The same of peak memory, by these rounds alone: another hour changes no peak, but threads that wait for each other make one of each run."""
        return self._saved(name, before, "peak_rss_bytes", True)

    def _saved(self, name, before, key, last):
        logarithms = sequential.estimate([math.log(quotient) for quotient in self._quotients(name, before, key)], last)
        return Estimate(*(100 * (1 - math.exp(v)) for v in (logarithms.value, logarithms.high, logarithms.low)))

    def noise_points(self, name):
        """
        The standard error of a row's saving by how its rounds scatter; by their median distance, which a wild one hardly moves. Rounds of which there are
        few scatter as those of the other rows; None where no row has more.
        """
        enough = [name] if len(self.runs[name]) >= sequential.ROUNDS_MIN else [r.name for r in self.preloads() if len(self.runs[r.name]) >= sequential.ROUNDS_MIN]
        if not enough:
            return None
        return statistics.median(self._scatter_points(one) for one in enough) / len(self.runs[name]) ** 0.5

    def _scatter_points(self, name):
        logarithms = [math.log(quotient) for quotient in self._quotients(name, LIBC, "cpu_s")]
        middle = statistics.median(logarithms)
        return 100 * SIGMAS * statistics.median(abs(one - middle) for one in logarithms)

    def _quotients(self, name, before, key):
        base = dict(zip(self.turns[before], self.column(before, key)))
        pairs = [(base[turn], value) for turn, value in zip(self.turns[name], self.column(name, key)) if turn in base]
        return [max(b, 1e-6) / max(a, 1e-6) for a, b in pairs]

    def _apart(self, name, before, key):
        """How far the mean of a row of few rounds may lie from what more would tell: by how much those of the other rows lie apart."""
        number = len(self.runs[name])
        if number >= sequential.ROUNDS_MIN or name == before:
            return 0.0
        wholes = [[-100 * q for q in self._quotients(n, before, key)] for n in self.runs if n != before and self.has(n) and len(self.runs[n]) > 1]
        spread = max((max(w) - min(w) for w in wholes), default=FEW_ROUNDS_POINTS)
        return spread / number**0.5

    def scatter_percent(self):
        """By how much two runs of one row differ, the median of all such pairs; None where no row ran twice."""
        apart = [abs(math.log(a / b)) for name in self.runs for a, b in itertools.combinations([max(s, 1e-6) for s in self.column(name, "cpu_s")], 2)]
        return 100 * (math.exp(statistics.median(apart)) - 1) if apart else None

    def preloads(self):
        """Rows of a preloaded malloc, the drop-in with them."""
        return [r for r in self.rows if r.library and r.name != STEERED and self.has(r.name)]

    def best_preload(self, before=LIBC, promise=lambda name: None):
        """
        The preload that saves most, of those that ran often enough to be judged, else of all; None when there is none. promise: what else is known of
        a row's saving, or None; it counts as much as what was measured, and helps where that is a round or two.
        """

        def expected(row):
            saving, promised = self.saved_percent(row.name, before).value, promise(row.name)
            return saving if promised is None else (saving + promised) / 2

        rows = self.preloads()
        often = [r for r in rows if len(self.runs[r.name]) >= sequential.ROUNDS_MIN]
        return max(often or rows, key=expected, default=None)


def affordable(contest, among, left_s):
    """Whether another round of these rows ends within the time, going by the runs so far."""
    runs = sum(len(done) for done in contest.runs.values())
    return contest.spent_s / max(1, runs) * len(contest.active(among)) <= left_s


def first_rows(contest, limit_s, promise):
    """Who runs in the first round, where the limit is hard: None for all; else those that are compared with, and one preload."""
    if contest.first_s * len(contest.active()) <= limit_s:
        return None
    preloads = [r.name for r in contest.active() if r.library and r.name not in (STEERED, LIBC)]
    best = max(preloads, key=lambda name: (promise(name) or 0.0, name == peers.DROP_IN), default=None)
    return {LIBC, TODAY, best}


def compete(contest, limit_s, number, is_settled, promise=lambda name: None, is_hard=False):
    """
    `number` rounds; without that until the verdict is settled at a look, or no further round fits into `limit_s`, but up to twice
    that (is_hard: no more than that) for the first ROUNDS_MIN rounds of the rows that decide: both that are compared with, the advice carried
    out, the best preload as far as one round and the `promise` of each tell. The others get what time is left then.
    """
    progress = ui.Progress(number or sequential.LOOKS[-1])
    began_s, among = time.monotonic(), first_rows(contest, limit_s, promise) if is_hard and not number else None
    contest.spent_s = 0.0

    def run(names):
        progress.step(f"running {contest.target.name} with {', '.join(r.name for r in contest.active(names))}", quiet_repeat=True)
        contest.run_round(names)

    while contest.rounds < (number or sequential.LOOKS[-1]):
        spent_s = time.monotonic() - began_s
        if contest.rounds == 1 and not number and among is None and spent_s * ROUNDS_ALL > limit_s:
            best = contest.best_preload(promise=promise)
            among = {LIBC, TODAY, STEERED} | ({best.name} if best else set())
        if contest.rounds and not number:
            enough = contest.rounds >= sequential.ROUNDS_MIN
            if not affordable(contest, among, (1 if enough or is_hard else 2) * limit_s - spent_s):
                break
            if sequential.is_look(contest.rounds) and is_settled():
                break
        run(among)
    while among and (few := contest.behind(among)) and affordable(contest, few, limit_s - (time.monotonic() - began_s)):
        run(few)
    progress.done()
