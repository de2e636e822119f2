# SPDX-License-Identifier: MIT
"""
mix.py - the advised mix: which parts of a plan go into it, and what each part saves.

    plan:   arenas | recycling slots | slabs | heap          each part a few lines of the plan file
    pilot:  libc   arenas   arenas + slots   arenas + slabs   arenas + heap      a few replays of each
    mix:    arenas, and those of the other parts that gain          measured anew, by more rounds (measure.py)

Where arenas fit but lose time, a plan without them is looked at too.
The pilot chooses, the rounds that follow judge: a part that was lucky in the pilot is not lucky twice.
Not here: which site belongs to which part (the C helper quire-plan), the verdict (advise/advice.py).
"""

import time
from collections import namedtuple

import advise.advice as advice
import measure

ROUNDS_MIN, ROUNDS_MAX = 3, 7
SECONDS_MAX = 5.0
GAINS_SHARE_MIN = 2 / 3
CLASSES = {"arena": "arena", "slot": "recycling slot", "slab": "slab", "heap": "heap"}

# saved_ns: an Estimate, CPU time of one run that this part saves; gains: whether it is in the mix.
Part = namedtuple("Part", "ops saved_ns gains")


class Mix:
    """The plan that is advised: its document, its file (None: nothing to do), its parts by class."""

    def __init__(self, planned, path, parts):
        self.planned = planned
        self.path = path
        self.parts = parts

    def serves(self, klass):
        """Whether sites of this class are served by the mix."""
        return klass in self.parts and self.parts[klass].gains

    def lost(self, klass):
        """Whether this part of the plan saved nothing in the pilot."""
        return klass in self.parts and self.parts[klass].saved_ns.value <= 0

    def saved_ns(self):
        """What all parts in the mix saved in the pilot."""
        return sum(part.saved_ns.value for part in self.parts.values() if part.gains)

    def saving_ns(self, site, total_ns=None):
        """A site's part of what the mix saves, by its operations: no gain where its class lost; None when the mix leaves it alone."""
        if not self.serves(site.klass):
            return None
        part_ns = self._part_ns(site, total_ns)
        return min(part_ns, 0.0) if self.lost(site.klass) else part_ns

    def _part_ns(self, site, total_ns):
        """The part, be it a gain or a loss."""
        saved_ns, own = self.saved_ns(), self.parts[site.klass]
        if saved_ns <= 0:  # the pilot cannot tell how a loss divides
            saved_ns = total_ns if total_ns is not None else saved_ns
            return saved_ns * site.ops / max(1, sum(p.ops for p in self.parts.values() if p.gains))
        scale = 1.0 if total_ns is None else total_ns / saved_ns
        return scale * own.saved_ns.value * site.ops / max(1, own.ops)


def class_ops(planned):
    """Operations by class."""
    ops = {}
    for facts in planned["sites"]:
        moved = facts["allocs"] + facts["frees"] + facts["resizes"]
        ops[facts["class"]] = ops.get(facts["class"], 0) + moved
    return ops


def write_part(text, words, path):
    """The lines of a plan that place sites on `words` (arena, slab, slot), as a plan of its own; its path."""
    lines = text.splitlines()
    kept = [line for line in lines if not line.startswith("site ") or line.split()[2] in words]
    with open(path, "w", encoding="ascii") as file:
        file.write("\n".join(kept) + "\n")
    return path


def variants(text, words, folder):
    """
    A Series without runs yet: libc, the arenas, and the arenas with each other part. No empty runs: only differences
    are asked for.
    """
    base = {"arena"} & words
    named = {"base": base} if base else {}
    named.update({word: base | {word} for word in ("slot", "slab", "heap") if word in words})
    paths = {name: write_part(text, part, f"{folder}/plan.{name}") for name, part in named.items()}
    chosen = [b for b in measure.backends([], None) if not b.null]
    return measure.Series(chosen + [measure.Backend(name, None, path, False) for name, path in paths.items()])


def pilot(program, series, rounds, seconds):
    """A few rounds of the variants, into the Series; of a program whose replays take long perhaps one."""
    began_s, most = time.monotonic(), min(ROUNDS_MAX, max(ROUNDS_MIN, rounds or ROUNDS_MAX))
    while series.rounds < most:
        patience = 1 if series.rounds >= ROUNDS_MIN else measure.PATIENCE
        if series.rounds and time.monotonic() - began_s > patience * seconds:
            break
        measure.run_round(program, series.backends, series)
    return series


def weigh(series, words, ops):
    """The parts by class: each saves what it takes less than the pilot without it."""
    parts = {}
    without = "base" if series.has("base") else "libc"
    for word in words:
        saved = series.saved_ns("base") if word == "arena" else series.saved_ns(word, without)
        steady = sum(s > 0 for s in saved) >= GAINS_SHARE_MIN * len(saved)
        parts[CLASSES[word]] = Part(ops.get(CLASSES[word], 0), measure.estimate(saved), steady)
    return parts


def judge_parts(recording, folder, rounds, seconds, options):
    """Plans, and tries the parts of the plan; a Mix with the plan's text still whole."""
    path = f"{folder}/plan"
    planned = advice.plan(recording, path, **options)
    with open(path, encoding="ascii") as file:
        text = file.read()
    words = {line.split()[2] for line in text.splitlines() if line.startswith("site ")}
    if not words:
        return Mix(planned, None, {}), text
    series = pilot(recording.program, variants(text, words, folder), rounds, seconds)
    return Mix(planned, path, weigh(series, sorted(words), class_ops(planned))), text


def choose(recording, folder, rounds=None, waste_percent=None, seconds=SECONDS_MAX):
    """The advised mix of one recorded program. Its files lie in `folder`; `rounds`: at most so many in a pilot, which takes about so many `seconds`."""
    mix, text = judge_parts(recording, folder, rounds, seconds, {"waste_percent": waste_percent})
    arenas = mix.parts.get("arena")
    if arenas and not arenas.gains:
        other, other_text = judge_parts(recording, folder, rounds, seconds, {"no_arenas": True})
        if any(part.gains for part in other.parts.values()):
            mix, text = other, other_text
        else:
            mix.parts["arena"] = arenas._replace(gains=True)  # shown with what it loses
    words = {word for word, klass in CLASSES.items() if mix.serves(klass)}
    mix.path = write_part(text, words, f"{folder}/plan.mix") if words else None
    return mix
