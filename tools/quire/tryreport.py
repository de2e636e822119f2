# SPDX-License-Identifier: MIT
"""
tryreport.py - everything that one `try` found out, as text and as JSON ("quire.try/1").

    Report: target, timing, recorded run, recording  ->  crashed? | too small? | outcome and verdict

Not here: finding it out (cmd_try.py), the tables that other commands print too (render.py).
"""

import os
import shlex

import advise.advice as advice
import advise.wrappers as advise_wrappers
import launch
import measure
import peers
import render
import tracefile
import ui
from statistics import median
from version import VERSION

# Beyond that the replay is dearer than what it models: figures are ratios between allocators, no more.
SHARE_PERCENT_SANE = 95
NOTHING = "nothing worth looking at"


class Report:
    """Filled step by step; `text` and `document` say what is there."""

    def __init__(self, target):
        self.target = target
        self.timing = None
        self.recorded = None
        self.recording = None
        self.processes = []
        self.process_count = 1
        self.planned = None
        self.mix = None
        self.rows = []
        self.outcome = None
        self.verdict = None
        self.trace_path = None  # since recording began
        self.page = None  # path of the HTML page, once it is written

    @property
    def crashed(self):
        """Whether the recorded run ended by a fault."""
        return launch.crashed(self.recorded.status)

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
    def program_cpu_s(self):
        """CPU time of the untraced runs."""
        return [run.cpu_s for run in self.timing.runs]

    def settle(self, series):
        """The verdict, from the replays; whether it is one that more rounds would not change."""
        self.outcome = advice.Outcome(
            series, self.program_cpu_s, [run.cpu_s for run in self.timing.today]
        )
        peak_bytes = max(run.peak_rss_bytes for run in self.timing.runs)
        self.verdict = advice.judge(self.outcome, peak_bytes)
        if self.verdict.word == advice.NO and self.recording.facts.get("lost_events", 0):
            reason = "the trace holds only a part of the run, and that part would not gain"
            self.verdict = advice.Verdict(advice.INCONCLUSIVE, reason)
        return self.verdict.word != advice.INCONCLUSIVE

    # text

    def text(self):
        """The report as lines."""
        lines = [ui.bold("quire try: " + ui.printable(" ".join(self.target.argv))), ""]
        if self.crashed:
            lines += self._crash_text()
        elif self.too_small:
            lines += self._small_text()
        else:
            lines += self._facts_text() + self._verdict_text() + self._detail_text()
        return lines + self._page_text()

    def _page_text(self):
        return ["", f"report: {tracefile.shown(self.page)}"] if self.page else []

    @property
    def today_allocator(self):
        """What serves the program as it is started today, in words; None: libc's malloc, as in every other run."""
        if not self.timing.today:
            return None
        names = [ui.printable(os.path.basename(path)) for path in self.timing.mallocs]
        return names[0] if names else "CPython's own allocator"

    def _today_text(self):
        if not self.timing.today:
            return []
        lines = []
        if self.target.is_python:
            lines.append(
                "  PYTHONMALLOC=malloc was set for all these runs: CPython's own allocator would hide what the program does."
            )
        if self.timing.mallocs:
            lines.append(
                f"  LD_PRELOAD gives it {self.today_allocator}: all these runs were without that, on libc's malloc."
            )
        return lines + [
            f"  With {self.today_allocator}, as it runs today, it takes {ui.seconds(self.outcome.today_s.value)}: "
            "the verdict compares with that.",
        ]

    def _process_text(self):
        if self.process_count < 2:
            return []
        return [
            f"  It ran {self.process_count} processes; looked at: {self.recording.executable}, "
            "which allocates most. Times are of all of them.",
            f"  The others: {render.command()} record -- {ui.printable(shlex.join(self.target.argv))} keeps a trace of each, "
            f"{render.command()} report TRACE looks into one.",
        ]

    def _status_text(self):
        if self.recorded.status == 0:
            return []
        lines = [
            f"  {self.target.name} ended with {launch.describe(self.recorded.status)}; this command ends with it too."
        ]
        said = self.timing.runs[0].stderr.strip().splitlines()
        return lines + [f"    it said: {ui.printable(line)}" for line in said[-3:]]

    def _share_text(self):
        share = self.outcome.share_percent
        if share.value > SHARE_PERCENT_SANE:
            return (
                "  Allocation is nearly all of the run time. (The replay even takes "
                f"{ui.percent(share.value)} of it: it runs with colder caches than the program.)"
            )
        return (
            f"  Allocation is {render.interval(share, ui.percent)} of the run time: "
            "the most that another malloc could save."
        )

    def _facts_text(self):
        facts, outcome = self.recording.facts, self.outcome
        threads = facts.get("threads", 1)
        lines = [
            f"  {ui.count(facts['allocations'])} allocations in {ui.seconds(outcome.program_s.value)} of CPU time, "
            f"{threads} thread{'s' * (threads != 1)}, at most {ui.size(facts['peak_live_bytes'])} live at once.",
            self._share_text(),
        ]
        if facts.get("note"):
            lines.append(f"  The trace is not whole: {facts['note']}.")
        return lines + self._process_text() + self._today_text() + self._status_text() + [""]

    def _verdict_text(self):
        outcome = self.outcome
        lines = [ui.bold(f"  {self.verdict.word}") + f": {self.verdict.reason}."]
        if outcome.series.has("mix"):
            before, after = (outcome.series.peak_bytes(name) for name in ("libc", "mix"))
            gains = outcome.saving_percent.value > 0
            lines.append(
                f"  The advised mix {'saves' if gains else 'saves nothing:'} {render.interval(outcome.saving_percent, ui.percent)} "
                f"of the run time, {ui.seconds(outcome.saving_s.value)} of "
                f"{ui.seconds(outcome.program_s.value)}; peak heap {ui.size(after)} instead of "
                f"{ui.size(before)}."
            )
            if outcome.today_s is not None:
                against = render.interval(outcome.saving_today_percent, ui.percent)
                lines.append(f"  Against {self.today_allocator} that is {against}.")
        return lines + self._peer_text() + [""]

    def _peer_text(self):
        """What a peer would save without any change, where that is worth saying."""
        peer, saving = self.outcome.best_peer()
        if peer is None or saving.low < advice.SAVING_PERCENT_MIN:
            return []
        if saving.value <= self.outcome.saving_percent.value:
            return []
        if self.outcome.today_s is not None:
            saving = self.outcome.saving_today_with(peer.name)
            if saving.low < advice.SAVING_PERCENT_MIN:
                return []
        saved = render.interval(saving, ui.percent)
        how = f"LD_PRELOAD={peer.library}"
        if peer.name == peers.DROP_IN:
            how = f"{render.command()} run -- {ui.printable(shlex.join(self.target.argv))}"
        if self.outcome.today_s is not None and self.target.is_python:
            how = f"PYTHONMALLOC=malloc {how}"
        return [f"  Without changing the program: {peer.name} saves {saved}. {how}"]

    def _detail_text(self):
        lines = render.allocators_text(self.outcome)
        rounds = self.outcome.series.rounds
        lines += [
            f"  {rounds} interleaved round{'s' * (rounds != 1)}; medians, {measure.interval_kind(rounds)}; "
            "`program` is its CPU time if that allocator served it.",
            "",
        ]
        leave = self.verdict.word == advice.NO
        heading = "Where it allocates, and what would fit: not worth a change" if leave else "Where"
        lines += (
            [ui.bold(heading)]
            + render.sites_text(
                self.rows,
                render.saves_percent(self.mix, self.outcome),
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

    def _small_text(self):
        facts = self.recording.facts
        lines = [
            f"  Nothing worth looking at: {self.target.name} makes {ui.count(facts['allocations'])} allocations "
            f"in {ui.seconds(median(self.program_cpu_s))} of CPU time."
        ]
        return (
            lines
            + self._status_text()
            + [f"  The trace is {tracefile.shown(self.recording.path)}."]
        )

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
        runs = self.timing.runs
        return {
            "argv": self.target.argv,
            "status": launch.exit_code(self.recorded.status),
            "status_text": launch.describe(self.recorded.status),
            "runs": len(runs),
            "cpu_s": round(median(self.program_cpu_s), 6),
            "wall_s": round(median(r.wall_s for r in runs), 6),
            "peak_rss_bytes": max(r.peak_rss_bytes for r in runs),
            "traced_cpu_s": round(self.recorded.cpu_s, 6),
            "traced_wall_s": round(self.recorded.wall_s, 6),
            "python_malloc_set": self.target.is_python,
            "today_allocator": self.today_allocator,
            "own_allocator_cpu_s": (
                round(median(r.cpu_s for r in self.timing.today), 6) if self.timing.today else None
            ),
        }

    def _trace_json(self):
        facts = self.recording.facts
        return {
            "path": self.recording.path,
            "process_count": self.process_count,
            "processes": [{"command": p.command, "events": p.events} for p in self.processes],
            **{
                k: facts.get(k)
                for k in (
                    "events",
                    "allocations",
                    "frees",
                    "reallocs",
                    "threads",
                    "peak_live_bytes",
                    "complete",
                    "note",
                )
            },
        }

    def _outcome_json(self):
        outcome = self.outcome
        return {
            "allocation_share_percent": render.estimate_json(outcome.share_percent),
            "saving_percent": render.estimate_json(outcome.saving_percent),
            "saving_today_percent": render.estimate_json(outcome.saving_today_percent),
            "saving_cpu_s": render.estimate_json(outcome.saving_s),
            "peak_memory_saved_bytes": int(outcome.memory_saved_bytes),
            "rounds": outcome.series.rounds,
            "allocators": render.allocators_json(outcome),
        }

    def document(self):
        """The report as one JSON document."""
        result = {
            "schema": "quire.try/1",
            "version": VERSION,
            "program": self._program_json(),
            "trace": self._trace_json(),
            "report": self.page,
        }
        if self.crashed:
            result["verdict"] = {
                "word": None,
                "reason": "the program " + launch.describe(self.recorded.status),
            }
        elif self.too_small:
            result["verdict"] = {"word": advice.NO, "reason": NOTHING}
        else:
            result["verdict"] = {"word": self.verdict.word, "reason": self.verdict.reason}
            result.update(self._outcome_json())
        if self.planned:
            result["arenas"] = self.planned["arenas"]
            result["slabs"] = self.planned["slabs"]
            result["sites"] = render.sites_json(self.rows, self.mix, self.outcome)
        if self.mix:
            result["parts"] = render.parts_json(self.mix)
        result["cannot_show"] = render.blind_spots()
        result["next"] = [c for c, _ in render.next_commands(tracefile.typed(self.recording.path))]
        return result
