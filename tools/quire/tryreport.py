# SPDX-License-Identifier: MIT
"""
tryreport.py - everything that one `try` found out, as text and as JSON ("quire.try/1").

    Report: target, runs, recorded run, recording  ->  crashed? | too small? | finding and verdict

Not here: finding it out (cmd_try.py, finding.py), the table of allocators (trytable.py), the tables that other commands print too (render.py).
"""

import os

import advise.advice as advice
import advise.wrappers as advise_wrappers
import deepbind
import launch
import own
import peers
import render
import rounds
import sequential
import statics
import steering
import tracefile
import trynoise
import trysmall
import trystatic
import trytable
import ui
import workers

from lazily import statistics
from measure import Estimate
from version import VERSION

NEEDLESS_PERCENT_MIN = 0.1  # frees that cost less are not worth a line


def carried_out(written):
    """What a plan does in the program, in words."""
    parts = [f"{written.sites} call site{'s' * (written.sites != 1)} on arenas"] * bool(written.sites)
    parts += [f"{ui.size(written.memory_bytes)} expected, in huge pages"] * bool(written.memory_bytes)
    return f"{', '.join(parts)}; the rest as the drop-in"


class Report:
    """Filled step by step; `text` and `document` say what is there."""

    def __init__(self, target):
        self.target = target
        self.contest = None
        self.limit_s, self.budget = 0.0, None
        self.load_before = trynoise.load_before()
        self.hurried, self.unreplayed = False, ""  # there was no time for a plan and replays; why nothing of it can be replayed, as with more than 512 threads at once
        self.is_cut = False  # the trace is only a part of the run, which neither was made of
        self.recorded = None
        self.recording = None
        self.processes = []
        self.process_count, self.group = 1, workers.ALONE
        self.seen_cpu_s, self.stopped = 0.0, False  # of the recorded processes; whether one's trace ends before it did
        self.planned = None
        self.mix = None
        self.rows = []
        self.steered = None  # finding.Steered: the advice carried out in the program
        self.steers_small = False  # it has only arenas that `advise -o` leaves to the heap unasked
        self.finding = None
        self.verdict = None
        self.trace_path, self.came = None, []  # since recording began; traces that came, when it had ended
        self.page = None  # path of the HTML page, once it is written

    @property
    def crashed(self):
        """Whether the recorded run ended by a fault."""
        return launch.crashed(self.recorded.status)

    @property
    def is_predicted(self):
        """Whether no other malloc can be put in the place of its own, whatever is tried."""
        return self.contest is not None and self.contest.stays in (statics.STAYS, deepbind.STAYS)

    @property
    def too_small(self):
        """Whether there is too little allocation to say anything about."""
        return self.recording.events < advice.EVENTS_MIN

    @property
    def inconclusive(self):
        """Whether no verdict could be given."""
        return self.crashed or (
            self.verdict is not None and self.verdict.word == advice.INCONCLUSIVE
        )

    @property
    def runs(self):
        """The runs on libc's malloc without the tracer; with --once the recorded one."""
        contest = self.contest
        return contest.runs[rounds.LIBC] or [contest.first or self.recorded]

    @property
    def outcome(self):
        """What the replays said, or None."""
        return self.finding.outcome if self.finding else None

    def settle(self, args):
        """The verdict, from what was found."""
        judged = self.finding.verdict
        self.verdict = judged.verdict
        if self.target.inside and not self.finding.measured and not self.finding.by_replays:
            self.verdict = advice.Verdict(advice.INCONCLUSIVE, own.not_compared(self))
            return
        if self.finding.by_replays and self.verdict.word == advice.INCONCLUSIVE:
            self.verdict = self.verdict._replace(reason=trystatic.open_reason(self, judged))
        elif not judged.name and self.finding.measured and self.contest.failed:
            self.verdict = advice.Verdict(advice.INCONCLUSIVE, "nothing could be compared: the rows left out say why")
        elif judged.name and self.verdict.word != advice.INCONCLUSIVE:
            reason = self._reason(judged)
            self.verdict = self.verdict._replace(reason=trystatic.predicted(self, reason) if self.finding.by_replays else reason)
        if self.verdict.word == advice.NO and self.recording.facts.get("lost_events", 0) and not self.finding.measured:
            reason = "the trace holds only a part of the run, and that part would not gain"
            self.verdict = advice.Verdict(advice.INCONCLUSIVE, reason)
        if self.finding.measured and self.contest.rounds < sequential.ROUNDS_MIN:
            self.verdict = advice.Verdict(advice.INCONCLUSIVE, trynoise.too_few(self.contest.rounds, self.limit_s, args))
        elif self.verdict.word == advice.INCONCLUSIVE and self.finding.measured and judged.name:
            self.verdict = self.verdict._replace(reason=self._open())
        if self.verdict.word != advice.YES and self.finding.measured and self.contest.never_waits:
            self.verdict = advice.Verdict(advice.INCONCLUSIVE, "it works all the time that it has, and nobody counts what it did: --load CMD that says how many requests")

    def _open(self):
        """Why the verdict is open, and what would settle it."""
        saving, least = self.finding.verdict.saving, f"{advice.SAVING_PERCENT_MIN:.0f} %"
        wanted_s = self.finding.seconds_wanted(self.limit_s)
        if wanted_s:
            return f"{trytable.percent(saving)} saved, {least} or not: --time-limit {wanted_s:.0f} should settle it"
        if saving.high - saving.low <= advice.SAVING_PERCENT_MIN:
            return f"{trytable.percent(saving)} saved: it lies at the threshold of {least}"
        return trynoise.open_reason(trytable.percent(saving), self.contest.scatter_percent(), self.load_before)

    # text

    def text(self):
        """The report as lines."""
        lines = [ui.bold("quire try: " + ui.words(self.target.argv)), ""]
        if self.crashed:
            lines += self._crash_text()
        else:
            lines += trysmall.text(self) if self.too_small or self.hurried or self.unreplayed or self.is_cut else self._facts_text() + self.verdict_text() + self._detail_text()
        return lines + self._page_text()

    def _page_text(self):
        return ["", f"report: {tracefile.shown(self.page)}"] if self.page else []

    @property
    def today_allocator(self):
        """What serves the program as it is started today, in words; None: libc's malloc, as in every other run."""
        if self.target.inside and (self.target.static or self.contest.has(rounds.TODAY)):
            return own.shown(self.target.inside)
        if not self.contest.has(rounds.TODAY):
            return None
        names = [ui.printable(os.path.basename(path)) for path in self.contest.mallocs + [self.target.linked] if path]
        return names[0] if names else "CPython's own allocator"

    def today_text(self):
        """What serves it as it is started today, where that is not libc."""
        if self.is_predicted:
            return trystatic.today_text(self)
        if not self.today_allocator:
            return []
        lines = []
        if self.target.is_python:
            lines.append(
                "  PYTHONMALLOC=malloc was set for all other runs: CPython's own allocator would hide what the program does."
            )
        if self.contest.mallocs:
            lines.append(f"  LD_PRELOAD gives it {self.today_allocator}: all other runs were without that.")
        if self.target.linked:
            lines.append(f"  It is linked with {self.today_allocator}: libc's malloc was preloaded for the row `libc`.")
        today_s = self.contest.middle(rounds.TODAY, "cpu_s")
        if self.target.inside:
            return lines + own.text(self, today_s)
        return lines + [
            f"  With {self.today_allocator}, as it runs today, it takes {ui.seconds(today_s)}: the verdict compares with that."
        ]

    def _process_text(self):
        if self.process_count < 2:
            return workers.python_text(self)
        driven = self.contest.load.options() if self.contest and self.contest.load else []
        return [
            workers.text(self),
            *workers.python_text(self),
            f"  The others: {render.command()} {ui.words(['record', *driven])} -- {ui.words(self.target.argv)} keeps a trace of each, {render.command()} report TRACE looks into one.",
        ]

    def status_text(self):
        """How the program ended, where not well."""
        if self.recorded.status == 0:
            return []
        lines = [
            f"  {self.target.name} {launch.ended(self.recorded.status)}; this command ends with it too."
        ]
        said = self.runs[0].stderr.strip().splitlines()
        return lines + [f"    it said: {ui.printable(line)}" for line in said[-3:]]

    def _share_text(self):
        found = self.finding
        share, model = render.interval(found.share_percent, ui.percent), ui.percent(found.modelled_share.value)
        if found.sampled is None:
            return [f"  Allocation is about {share} of that, by the model: the program was not looked at."]
        seen = ui.percent(found.sampled.value)
        if found.refuting:
            return [
                f"  Allocation is {share} of that or more: so much {found.refuting} saves by its runs. (Looking at the program says {seen}: it does not see, for instance, "
                f"first touches of memory that malloc gave back and took again. The replay says {model}.)"
            ]
        looked = f"  Allocation is {share} of that, by looking at the program while it ran."
        if found.refuting_replay:
            return [f"{looked} (The replay says {model}, and {found.refuting_replay} saves more than that by its runs.)"]
        apart = f"  Allocation is {share} of that. (Looking at the program says {seen}, the replay {model}: they differ by more than a third, so the lower one counts.)"
        more = " More can be saved than that: by where blocks lie, which the rest of the program waits for." if found.saves_beyond_share else ""
        return [(apart if found.disagree else looked) + more]

    def _facts_text(self):
        facts, found = self.recording.facts, self.finding
        threads = facts.get("threads", 1)
        lines = [
            "  " + workers.makes(self, found.program_s.value, f", {threads} thread{'s' * (threads != 1)}, at most {ui.size(facts['peak_live_bytes'])} live at once") + ".",
        ] + self._share_text()
        if self.recording.begun_late:
            lines.append(f"  The trace holds {self.recording.begun_late}.")
        lines += workers.outside_text(self)
        return lines + self._process_text() + self.whole_text() + self.today_text() + self.status_text() + [""]

    def whole_text(self):
        """What is not in the trace, and in no figure."""
        missing = self.recording.missing(self.contest is not None and self.contest.load is not None)
        return [f"  The trace is not whole: {missing}."] * bool(missing) + workers.unseen_text(self) + workers.left_text(self)

    def verdict_text(self):
        """The verdict, and how to have what it promises."""
        lines = [ui.bold(f"  {self.verdict.word}") + f": {self.verdict.reason}."]
        if self.finding.measured and self.verdict.word == advice.YES:
            rows = sorted(self.finding.judged(), key=lambda row: row.verdict.word != advice.YES or -row.saving.value)
            for row in rows:
                lines += self._way_text(row)
        return lines + [""]

    def _reason(self, judged):
        """The verdict in one clause, the number first."""
        saved = f"{trytable.percent(judged.saving)} of the CPU time"
        who = "the advice in the code, by the model" if judged.name == "mix" else self._who(judged.name)
        against = f", against {self.today_allocator}" if self.today_allocator else ""
        if judged.verdict.word == advice.YES and judged.saving.low >= advice.SAVING_PERCENT_MIN:
            return f"{saved} is saved by {who}{against}"
        if judged.verdict.word == advice.YES:
            return f"{judged.verdict.reason} with {who}{against}"
        return trytable.best_text(who + against, judged.saving)

    def _who(self, name):
        """A row as the cause of a saving."""
        if name == rounds.STEERED:
            return f"the advice carried out ({carried_out(self.steered.written)}), the program as it is"
        if self.target.inside:
            return f"{trytable.shown(name)} in the place of {self.today_allocator}"
        return f"{trytable.shown(name)} in the place of malloc, {'by the model' if self.finding.preloads else 'the program as it is'}"

    def _way_text(self, row):
        """How to have what a row saves."""
        if row.saving.low <= 0 and row.verdict.word != advice.YES:
            return []
        lines = [f"  {trytable.shown(row.name)}, {ui.percent(row.saving.value)}: {self.how(row.name)}"]
        needless = self.finding.needless_percent
        if row.name == rounds.STEERED and needless is not None and needless >= NEEDLESS_PERCENT_MIN:
            frees = ui.count(self.steered.counted.needless_frees)
            lines.append(
                f"    its {frees} frees of what lies in arenas are still called, for {ui.percent(needless)}: "
                f"code without them would save {ui.percent(row.saving.value + needless)}"
            )
        return lines

    def how(self, name):
        """The command that has a row's saving without a change of the program."""
        words, setting = ui.words(self.target.argv), "PYTHONMALLOC=malloc " * bool(self.target.is_python and self.today_allocator)
        if self.target.inside:
            return own.how(self.target, trytable.shown(name))
        if name == peers.DROP_IN:
            return f"{setting}{render.command()} run -- {words}"
        if name == rounds.STEERED:
            return steering.as_typed(self.recording, self.target, words, self.steers_small, setting)
        row = next(r for r in self.contest.rows if r.name == name)
        return f"{setting}LD_PRELOAD={row.library} {words}"

    def rounds_text(self):
        """How the figures came about."""
        if self.finding.by_replays:
            return trystatic.model_text(self)
        if not self.finding.measured:
            return [
                "  The program ran once, recorded: its CPU time is that of the recorded run less what recording costs, all other figures "
                "are modelled by replays, and their intervals hold the error that the model usually has.",
            ]
        number = self.contest.rounds
        lines = [
            f"  {number} round{'s' * (number != 1)} of the program itself, each allocator once a round, in random order; times are medians, savings the middle of what each round saved; "
            f"{sequential.kind(number)}."
        ]
        lines += trytable.few_text(self.finding)
        lines += trynoise.text(self.contest.scatter_percent(), self.load_before)
        lines += trynoise.drawn_text(self.finding) + trynoise.pace_text(self.contest)
        error = self.finding.model_error_max
        if error is not None:
            lines.append(
                f"  The model (a replay of the recorded operations) was wrong by up to {error:.1f} points here; intervals of what is modelled hold that."
            )
        return lines

    def _detail_text(self):
        today = own.in_table(self)
        lines = trytable.text(self.finding, today) + trytable.served_text(self.finding, today)
        lines += self.rounds_text() + [""]
        leave = self.verdict.word == advice.NO
        heading = "Where it allocates, and what would fit: not worth a change" if leave else "Where"
        lines += (
            [ui.bold(heading)]
            + render.sites_text(
                self.rows,
                render.saves_percent(self.mix, self.site_total_s, self.finding.program_s.value),
                matters=render.saves_much(self.mix),
            )
            + self._nameless_text()
            + advise_wrappers.text(self.rows)
            + render.classes_text(self.rows, self.mix)
            + render.arenas_text(self.planned, self.rows)
            + render.slabs_text(self.planned, self.rows, self.mix)
        )
        lines += ["", ui.bold("What this cannot show")] + [
            f"  - {spot}" for spot in render.blind_spots()
        ]
        return lines + self._next_text()

    def _steered_json(self):
        """The advice carried out: the row, and what it did."""
        if not self.steered:
            return None
        written, counted, found = self.steered.written, self.steered.counted, self.finding
        needless = found.needless_percent
        ran = found.has(rounds.STEERED)
        return {
            "saving_percent": render.estimate_json(found.saving(rounds.STEERED)) if ran else None,
            "saving_without_frees_percent": (
                render.estimate_json(Estimate(*(v + needless for v in found.saving(rounds.STEERED)))) if ran and needless is not None else None
            ),
            "sites": written.sites,
            "expected_bytes": written.memory_bytes,
            "steered_allocations": written.steered_allocs,
            "allocations": written.allocs,
            "needless_frees": counted and counted.needless_frees,
            "fallbacks": counted and counted.fallbacks,
            "refused": counted and counted.refused,
        }

    @property
    def site_total_s(self):
        """What all call sites of the plan save together, in seconds: measured where the advice was carried out."""
        found = self.finding
        if found.has(rounds.STEERED):
            saving = found.saving(rounds.STEERED)
        else:
            saving = found.mix_saving
        return saving.value / 100 * found.program_s.value if saving else 0.0

    def _nameless_text(self):
        files = self.recording.nameless()
        if not files:
            return []
        named = ui.printable(", ".join(files[:3]))
        have = "has no names for its code (it is" if len(files) == 1 else "have no names for their code (they are"
        return [
            f"  {named} {have} stripped): places are shown as file + offset. "
            "For names build with -g and without stripping, or install the debug package (PACKAGE-dbgsym, PACKAGE-debuginfo)."
        ]

    def _next_text(self):
        commands = render.next_commands(tracefile.typed(self.recording.path))
        room = max(len(c) for c, _ in commands)
        return ["", ui.bold("Next")] + [f"  {c.ljust(room)}   {why}" for c, why in commands]

    def _crash_text(self):
        facts = self.recording.facts
        lines = [
            f"  {self.target.name} {launch.describe(self.recorded.status)} after {ui.seconds(self.recorded.wall_s)}. "
            "No verdict on a run that was cut short."
        ]
        said = self.recorded.stderr.strip().splitlines()
        lines += [f"    it said: {ui.printable(line)}" for line in said[-3:]]
        lines.append(
            f"  The trace so far: {ui.count(facts['allocations'])} allocations, {ui.count(facts['frees'])} frees, "
            f"at most {ui.size(facts['peak_live_bytes'])} live, in {tracefile.shown(self.recording.path)}."
        )
        if self.rows:
            lines += [""] + render.sites_text(self.rows, limit=5)
        return lines + [
            "",
            f"  {render.command()} advise {tracefile.typed(self.recording.path)}   every call site so far",
        ]

    # JSON

    def _program_json(self):
        runs, has_today = self.runs, self.contest.has(rounds.TODAY)
        return {
            "argv": self.target.argv,
            "status": launch.exit_code(self.recorded.status),
            "status_text": launch.describe(self.recorded.status),
            "runs": len(runs),
            "cpu_s": round(self.finding.program_s.value if self.finding else statistics.median(r.cpu_s for r in runs), 6),
            "cpu_interval_s": render.estimate_json(self.finding.program_s) if self.finding and self.finding.measured else None,
            "wall_s": round(statistics.median(r.wall_s for r in runs), 6),
            "peak_rss_bytes": max(r.peak_rss_bytes for r in runs),
            "traced_cpu_s": round(self.recorded.cpu_s, 6),
            "traced_wall_s": round(self.recorded.wall_s, 6),
            "python_malloc_set": self.target.is_python,
            "today_allocator": self.today_allocator, "today_static": self.target.static, "today_inside": bool(self.target.inside),
            "own_allocator_cpu_s": round(self.contest.middle(rounds.TODAY, "cpu_s"), 6) if has_today else None,
        }

    def _trace_json(self):
        facts = self.recording.facts
        return {
            "path": self.recording.path, "span_ns": self.recording.span_ns, "cut": self.stopped,
            "process_count": self.process_count, "alike": self.group.number, "alike_events": self.group.events,
            "processes": [{"command": p.command, "events": p.events} for p in self.processes],
            **{
                k: facts.get(k)
                for k in ("events", "allocations", "frees", "reallocs", "threads", "peak_live_bytes", "events_outside", "attached", "complete", "note")
            },
        }

    def runs_json(self):
        """What the runs alone say."""
        found, judged = self.finding, self.finding.verdict
        name, saving = judged.name or rounds.LIBC, judged.saving
        if found.measured and judged.name:
            against_libc = found.saving(name)
            memory_bytes = found.memory_percent(name) / 100 * self.contest.middle(found.base, "peak_rss_bytes")
        else:
            against_libc, memory_bytes = saving, 0
        seconds = (v / 100 * found.program_s.value for v in against_libc)
        return {
            "saving_percent": render.estimate_json(against_libc),
            "saving_of": judged.name, "saving_today_percent": render.estimate_json(saving),
            "saving_cpu_s": render.estimate_json(Estimate(*seconds)),
            "measured": found.measured, "peak_memory_saved_bytes": int(memory_bytes),
            "rounds": self.contest.rounds, "scatter_percent": self._scatter_json(),
            "pace": trynoise.pace_json(self.contest), "time_limit_s": self.limit_s,
            "allocators": trytable.json_rows(found),
        }

    def _finding_json(self):
        found = self.finding
        return {
            "allocation_share_percent": render.estimate_json(found.share_percent),
            "allocation_share_sampled_percent": found.sampled and render.estimate_json(found.sampled),
            "allocation_share_modelled_percent": render.estimate_json(found.modelled_share),
            "most_saving_percent": round(found.most_percent, 3),
            "model_error_percent": found.model_error_max and round(found.model_error_max, 3),
            "replay_rounds": self.outcome.series.rounds,
            **self.runs_json(),
            "steered": self._steered_json(),
        }

    def _scatter_json(self):
        """By how much two runs of one row differ; None where none ran twice."""
        scatter = self.contest.scatter_percent() if self.finding.measured else None
        return scatter and round(scatter, 3)

    def document(self):
        """The report as one JSON document."""
        result = {
            "schema": "quire.try/1",
            "version": VERSION,
            "program": self._program_json(),
            "trace": self._trace_json(),
            "report": self.page,
            **trysmall.unsaid(),
        }
        if self.crashed:
            result["verdict"] = {"word": None, "reason": "the program " + launch.describe(self.recorded.status)}
        elif self.too_small or self.hurried or self.unreplayed or self.is_cut:
            result.update(trysmall.document(self))
        else:
            result["verdict"] = {"word": self.verdict.word, "reason": self.verdict.reason}
            result.update(self._finding_json())
        if self.planned:
            result.update(arenas=self.planned["arenas"], slabs=self.planned["slabs"], classes=render.classes_json(self.rows))
            result["sites"] = render.sites_json(self.rows, self.mix, self.finding and (self.site_total_s, self.finding.program_s.value))
        if self.mix:
            result["parts"] = render.parts_json(self.mix)
        result["cannot_show"] = render.blind_spots()
        result["next"] = [c for c, _ in render.next_commands(tracefile.typed(self.recording.path))]
        return result
