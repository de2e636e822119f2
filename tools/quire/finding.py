# SPDX-License-Identifier: MIT
"""
finding.py - what one `try` found: what the runs measured, what the replay modelled, how wrong the model is here, the verdict.

    rounds.Contest  (the program itself)   ->  saved by each malloc, and by the advice carried out         measured
    advice.Outcome  (replays of its trace) ->  saved by the advice put into the code                       modelled
    sampling.Looks  (the program itself)   ->  share of allocation; checks the replay's

    error of the model = what it says of a row that was run, less what the run says; in points of the program's CPU time
    interval of a modelled figure = its own, wider on both sides by the largest such error; by ERROR_USUAL of the figure
    where nothing was run

The verdict stands on what was run.  Only where nothing could be run (--once, a static program) it stands on the model.
Not here: statistics (sequential.py), the rule for one row (advise/advice.py), words (tryreport.py).
"""

from collections import namedtuple
from functools import cached_property

import advise.advice as advice
import sequential
import shrinkage
from measure import Estimate, estimate
from rounds import LIBC, STEERED, TODAY

# How wrong a modelled saving may be where no run of the program tells: a part of it, and never less than some points: so wide,
# 101 of the 112 modelled rows of doc/prediction.md hold what the program did.
ERROR_USUAL, ERROR_POINTS = 0.6, 8.0
SHARE_TOLERANCE = 1 / 3
SITELESS_POINTS = 2

# The advice carried out: the plan as it was written (steering.Written), what one run counted (steering.Counters, or None).
Steered = namedtuple("Steered", "written counted")
Judged = namedtuple("Judged", "name saving memory_percent verdict")


class Finding:
    """
    One program's figures. contest: None where the program was run with no other malloc; cpu_s then stands for its own time. by_replays: the
    verdict hangs on what replays say of other mallocs, not of the advice alone; preloads: so it does, where others could be preloaded and were not. idle: without replays because it hardly allocates.
    """

    def __init__(self, contest, outcome, sampled=None, cpu_s=None, steered=None, by_replays=False, idle=False, preloads=False):
        self.by_replays, self.idle, self.preloads = by_replays, idle, preloads
        self.contest, self.outcome = contest, outcome
        self.sampled, self.steered = sampled, steered
        self.measured = contest is not None and contest.rounds > 0
        self.program_s = estimate(contest.column(LIBC, "cpu_s") if self.measured else [cpu_s])

    # what was run

    @property
    def base(self):
        """The row that the verdict compares with: the allocator of today."""
        return TODAY if self.measured and self.contest.has(TODAY) else LIBC

    def measured_saving(self, name, before=LIBC, last=True):
        """What the runs alone say that a row saves, percent."""
        return self.contest.saved_percent(name, before, last=last)

    def saving(self, name, before=LIBC, last=True):
        """What a row saves, percent; under a load as far as its runs can be told from noise."""
        found = self.measured_saving(name, before, last)
        value = self.drawn.get(name, found.value) if before == LIBC else found.value
        return Estimate(value, min(value, found.low), max(value, found.high))

    @cached_property
    def drawn(self):
        """Savings of mallocs under a load, where there is a model beside the runs, by their names."""
        if not self.measured or not self.contest.load:
            return {}
        noises = {r.name: self.contest.noise_points(r.name) for r in self.contest.preloads() if self.expected(r.name) is not None}
        names = [name for name, noise in noises.items() if noise is not None]
        if len(names) < 2:
            return {}
        rows = [shrinkage.Row(self.measured_saving(n).value, noises[n], self.scale * self.expected(n), len(self.contest.runs[n])) for n in names]
        return dict(zip(names, shrinkage.drawn(rows)))

    def expected(self, name):
        """What a malloc saves by the model: who hardly allocates cannot gain by one. None: nothing is known."""
        if self.has_model and self.outcome.series.has(name):
            return self.outcome.saving_with(name).value
        return 0.0 if self.idle else None

    def has(self, name):
        """Whether a row was run."""
        return self.measured and self.contest.has(name)

    def memory_percent(self, name):
        """Peak memory that a row saves."""
        before, after = (self.contest.middle(n, "peak_rss_bytes") for n in (self.base, name))
        return 100 * (before - after) / max(1, before)

    def sure_memory_percent(self, name):
        """The same where it is no noise: the lower end of its interval suffices for a verdict. Else 0."""
        sure = self.contest.peak_saved_percent(name, self.base).low >= advice.MEMORY_PERCENT_MIN
        return self.memory_percent(name) if sure else 0

    def best_preload(self):
        """The row of the best malloc that can be preloaded, or None."""
        return self.contest.best_preload(self.base) if self.measured else None

    @property
    def needless_percent(self):
        """
        What the frees cost that changed code would not make, in percent of the CPU time; None where they were not timed. One alone takes longer than many
        side by side; with them the plan cannot save more than all that allocation was seen to take.
        """
        counted = self.steered.counted if self.steered else None
        if counted is None or counted.needless_free_ns is None:
            return None
        timed = 100 * counted.needless_free_ns / 1e9 / max(self.program_s.value, 1e-6)
        if self.seen is None or not self.has(STEERED):
            return timed
        return max(0.0, min(timed, self.seen.value - self.saving(STEERED).value))

    # what was modelled

    @property
    def has_model(self):
        """Whether there are replays."""
        return self.outcome is not None

    @property
    def modelled_share(self):
        """The replay's share of allocation."""
        return self.outcome.share_percent

    def model_error(self, name):
        """Points by which the replay's saving of a row differs from the measured one; None where one of them is missing."""
        if not self.has_model or not self.has(name) or not self.outcome.series.has(name) or name == LIBC:
            return None
        return self.outcome.saving_with(name).value - self.measured_saving(name).value

    @property
    def model_error_max(self):
        """The largest of them; None where nothing was run."""
        errors = [self.model_error(r.name) for r in self.contest.rows] if self.measured else []
        return max((abs(e) for e in errors if e is not None), default=None)

    def saves_more_than(self, percent):
        """The malloc that surely saves more than so much, the one that surely saves most: its name; None where none does."""
        savings = {row.name: self.measured_saving(row.name) for row in self.contest.preloads()} if self.measured else {}
        sure = [name for name, saving in savings.items() if saving.low > percent]
        return max(sure, key=lambda name: savings[name].low, default=None)

    @cached_property
    def refuting(self):
        """The malloc that surely saves more than the looks saw: its name; None where none does."""
        return None if self.sampled is None else self.saves_more_than(self.sampled.high)

    @cached_property
    def refuting_replay(self):
        """Where the replay's share is the lower one: the malloc that surely saves more than that."""
        return self.saves_more_than(self.modelled_share.value) if self.disagree and self.modelled_share.value < self.seen.value else None

    @property
    def seen(self):
        """
        The share of allocation by what was run: by looks, None without them; where a malloc surely saves more, what it saves. Looks count what is inside
        malloc's code; the first touch of memory that it gave back and took again is in the program's own.
        """
        return self.measured_saving(self.refuting) if self.refuting else self.sampled

    @property
    def disagree(self):
        """Whether the program and the replay differ in the share of allocation by more than a third."""
        if self.seen is None or not self.has_model:
            return False
        one, other = self.seen.value, self.modelled_share.value
        apart = self.seen.low > self.modelled_share.high or self.seen.high < self.modelled_share.low
        return apart and abs(one - other) > SHARE_TOLERANCE * max(one, other)

    @property
    def share_percent(self):
        """The share of allocation: seen, where possible; the lower where the program and the replay disagree, unless a malloc saves more than that."""
        if self.seen is None:
            return self.modelled_share
        if self.disagree and not self.refuting and not self.refuting_replay and self.modelled_share.value < self.seen.value:
            return self.modelled_share
        return self.seen

    @property
    def saves_beyond_share(self):
        """Whether a malloc, or the advice carried out, seems to save more than allocation takes, if not surely (refuting)."""
        best = self.best_preload()
        names = [name for name in (best and best.name, STEERED) if name and self.has(name)]
        return not self.refuting and any(self.saving(name).value > self.share_percent.high for name in names)

    @property
    def scale(self):
        """What a modelled saving is multiplied by: the replay's share is larger than what was seen, or what it says of the malloc that refutes the looks, than what that saves."""
        if self.refuting:
            return min(1.0, self.seen.value / max(self.expected(self.refuting) or 0.0, self.seen.value))
        if not self.disagree or self.seen.value >= self.modelled_share.value:
            return 1.0
        return self.seen.value / self.modelled_share.value

    def modelled(self, found):
        """A replay's saving as it may be said: scaled, with the model's error in its interval."""
        value = self.scale * found.value
        error = self.model_error_max
        if error is None:
            error = max(ERROR_POINTS, ERROR_USUAL * abs(value))
        reach = [self.scale * abs(v - found.value) for v in (found.low, found.high)]
        return Estimate(value, value - reach[0] - error, min(100.0, value + reach[1] + error))

    def within_share(self, saving):
        """A modelled saving, where verdicts hang on replays: at most what allocation takes, that model's usual error included."""
        most = (1 + ERROR_USUAL) * self.modelled_share.high
        return Estimate(*(min(v, most) for v in saving)) if self.by_replays else saving

    @property
    def mix_saving(self):
        """What the advice saves when it is put into the code; None when there is none."""
        return self.modelled(self.outcome.saving_percent) if self.has_model and self.outcome.series.has("mix") else None

    # both

    @property
    def most_percent(self):
        """The most that another malloc could save: the share, and never less than what a row does save."""
        saved = [self.saving(r.name).value for r in self.contest.preloads()] if self.measured else []
        if self.has(STEERED):
            saved.append(self.saving(STEERED).value)
        return max([self.share_percent.value] + saved)

    def judged(self):
        """The rows that the verdict hangs on."""
        if not self.measured:
            found = {"mix": self.mix_saving} if self.mix_saving else {}
            best, saving = self.outcome.best_peer() if self.by_replays or self.preloads else (None, None)
            if best:
                found[best.name] = self.modelled(saving)
            return [Judged(name, self.within_share(s), 0, advice.verdict(self.within_share(s), 0)) for name, s in found.items()]
        names = [STEERED] if self.has(STEERED) else []
        best = self.best_preload()
        rows = []
        for name in names + ([best.name] if best else []):
            saving, memory = self.saving(name, self.base), self.sure_memory_percent(name)
            rows.append(Judged(name, saving, memory, advice.verdict(saving, memory)))
        return rows

    @property
    def verdict(self):
        """YES as soon as one row gains; else INCONCLUSIVE as long as one may; else NO; of the row that saves most. A Judged."""
        rows = self.judged()
        if not rows:
            nothing = advice.Verdict(advice.NO, "no call site gains by an arena, a slab or a heap")
            return Judged(None, Estimate(0.0, 0.0, 0.0), 0, nothing)
        order = [advice.YES, advice.INCONCLUSIVE, advice.NO]
        return min(rows, key=lambda row: (order.index(row.verdict.word), self._dearer(row.name) - row.saving.value))

    def _dearer(self, name):
        """Points by which a row must be better than a malloc that one line preloads: a plan that moves no call site is hardly another than the drop-in."""
        return SITELESS_POINTS if name == STEERED and self.steered and self.steered.written and not self.steered.written.sites else 0

    def settled(self):
        """Whether more rounds would neither change the verdict nor tell much more."""
        if not self.measured or self.contest.rounds < sequential.ROUNDS_MIN:
            return False
        best = self.best_preload()
        names = {STEERED} & set(self.contest.runs) | ({best.name} if best else set())
        savings = [self.saving(n, self.base, last=False) for n in names if self.has(n)]
        words = [advice.verdict(s, 0).word for s in savings]
        narrow = all(s.high - s.low <= max(3.0, 0.3 * abs(s.value)) for s in savings)
        return narrow and advice.INCONCLUSIVE not in words

    def seconds_wanted(self, limit_s):
        """The time limit that would settle an INCONCLUSIVE verdict, if the scatter stays; None when none in reach would."""
        found = self.verdict.saving
        number = sequential.more_rounds(found, advice.SAVING_PERCENT_MIN, self.contest.rounds)
        wanted_s = limit_s * (number or 0) / max(1, self.contest.rounds)
        return wanted_s if number and number <= sequential.LOOKS[-1] and wanted_s <= 20 * limit_s else None
