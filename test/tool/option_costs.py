#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
option_costs.py - what options of QUIRE_CONF cost on real programs: CPU time and peak memory beside another run of the same program.

    python3 test/tool/option_costs.py secure:1                         the drop-in with it, beside libc's malloc
    python3 test/tool/option_costs.py prof --over drop-in --rounds 101  beside the drop-in without it
    python3 test/tool/option_costs.py prof --over drop-in --long --rounds 5   of programs that take five seconds and more
    python3 test/tool/option_costs.py secure:1 --peer PATH.so           a malloc beside them, in the same rounds
    python3 test/tool/option_costs.py prof --over drop-in --count       instructions, not time: valgrind counts them
    python3 test/tool/option_costs.py secure:1 -o FILE                  rounds are kept: another run with FILE goes on where this one stopped

The programs are those of prediction_programs.py that are installed, chosen by its rule before anything was measured. One round runs each
program once with and once without, in an order drawn anew, all on one CPU (but for --long); times are as at one pace of that CPU (pace.py), and a ratio is taken within a round.
One command, one table in Markdown. The interval of the geometric mean is drawn from the rounds again and again (bootstrap); all others are of the median.

Instructions are those of user code, of a copy of the drop-in that does not see that valgrind watches: it would go longer ways. Hash seeds are fixed.
Not a test: it takes minutes. Not here: the table of `./quire bench apps --secure`, which has other mallocs beside (bench/apps.py).
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import namedtuple
from math import exp, log
from statistics import mean, median

import prediction_programs as programs
from toolkit import BUILD, ROOT

import measure  # of the tool, whose folder toolkit puts on the path
import pace

# Five seconds of CPU time and more, which is what a server is measured by: four of the programs on more of the same, and git, four of whose threads allocate.
AGAIN = "import sys\nfor _ in range(130): exec(open(sys.argv[1]).read())"
LONG = {
    "perl": ["perl", "-e", "for my $n (1 .. 22) { do $ARGV[0] }", "{folder}/hashes.pl"],
    "python3": ["/usr/bin/python3", "-c", AGAIN, "{folder}/objects.py"],
    "gawk": ["gawk", "-f", "{folder}/sums.awk"] + ["{folder}/server.log"] * 32,
    "map_server": ["{folder}/map_server", "3600000"],
    "git": ["sh", "-c", "for n in 1 2 3 4; do git -C {root} pack-objects --all --threads=4 --no-reuse-delta --no-reuse-object --stdout -q; done"],
}

DROP_IN = BUILD / "libquire-malloc.so"
MIB = 1 << 20
DRAWS = 2000
COUNTING = ["--tool=cachegrind", "--cache-sim=no", "--branch-sim=no", "--trace-children=yes"]
ASKS_VALGRIND = bytes.fromhex("48c1c703 48c1c70d 48c1c73d 48c1c733")  # x86-64: rdi turned by 3, 13, 61 and 51

Side = namedtuple("Side", "library conf")  # of a round; library None: libc's malloc


def installed(only):
    """The programs by name, those that are here."""
    found = {programs.name_of(p): p for p in programs.PROGRAMS}
    chosen = {name: p for name, p in found.items() if not only or name in only}
    return {name: p for name, p in chosen.items() if p.section == "ours" or shutil.which(p.command.split()[0])}


def jobs_of(args):
    """{name: (words, file of standard input, what is run first)} of those that are asked for."""
    jobs = {name: programs.ready(p, programs.FOLDER) for name, p in installed(() if args.long else args.only).items() if not args.long or name in LONG}
    if not args.long:
        return jobs
    places = {"{folder}": str(programs.FOLDER), "{root}": str(ROOT)}
    known = {name: [functools.reduce(lambda text, place: text.replace(*place), places.items(), word) for word in words] for name, words in LONG.items()}
    return {name: (words, None, None) for name, words in known.items() if name in jobs and (not args.only or name in args.only)}


def environment(conf, folder):
    """
    Of one run: nothing of it comes to a file that stays, and what programs draw for their hashes is the same each time. Each process has a file
    of its own, as it has by default: one that is written over is put to the disk at once by ext4.
    """
    seeds = {"PYTHONMALLOC": "malloc", "PYTHONHASHSEED": "0", "PERL_HASH_SEED": "0"}
    return {**os.environ, **seeds, "QUIRE_CONF": ",".join([conf or "", f"prof_file:{folder}/profile.%p"]).strip(",")}


def started(words, source, env):
    """Runs it to its end, with what it says thrown away."""
    with open(source or os.devnull, "rb") as stdin:
        subprocess.run(words, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, check=True)


def unseeing(folder):
    """A copy of the drop-in in which the question for valgrind (os/sanitize.c) has become instructions that do nothing."""
    code = DROP_IN.read_bytes()
    if code.count(ASKS_VALGRIND) == 0:
        raise SystemExit(f"{DROP_IN} does not ask for valgrind as this script knows it")
    copy = folder / DROP_IN.name
    copy.write_bytes(code.replace(ASKS_VALGRIND, b"\x90" * len(ASKS_VALGRIND)))
    return copy


def count(job, side, folder, _):
    """(10^9 instructions of all its processes, 0, nothing of the CPU) of one run."""
    words, source, prepare = job
    if prepare:
        subprocess.run(["/bin/sh", "-c", prepare], check=True)
    library = unseeing(folder) if side.library == DROP_IN else side.library
    for file in folder.glob("counts.*"):
        file.unlink()
    env = environment(side.conf, folder) | ({"LD_PRELOAD": str(library)} if library else {})
    started(["valgrind", "-q", *COUNTING, f"--cachegrind-out-file={folder}/counts.%p", *words], source, env)
    sums = [int(re.search(r"^summary: (\d+)", file.read_text(errors="replace"), re.MULTILINE).group(1)) for file in folder.glob("counts.*")]
    return sum(sums) / 1e9, 0, None


@contextlib.contextmanager
def kept_to(cpus):
    """What is started within runs there; None: anywhere."""
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus or ours)
    try:
        yield
    finally:
        os.sched_setaffinity(0, ours)


def run(job, side, folder, asked):
    """(CPU seconds, peak MiB, how slow the CPU was) of one run."""
    words, source, prepare = job
    if prepare:
        subprocess.run(["/bin/sh", "-c", prepare], check=True)
    preload = ["--preload", side.library] if side.library else []
    for file in folder.glob("profile.*"):
        file.unlink()
    before = asked.look()
    with kept_to(asked.cpus):
        started([BUILD / "bench" / "timed", *preload, "--out", folder / "figures", "--", *words], source, environment(side.conf, folder))
    slow = asked.since(before)
    figure = json.loads((folder / "figures").read_text(encoding="ascii"))
    if figure["status"]:
        raise SystemExit(f"{words[0]} failed with {side}: status {figure['status']}")
    return figure["cpu_ns"] / 1e9, figure["peak_rss_bytes"] / MIB, slow


def one_round(job, sides, take, folder, asked):
    """{name of the side: (s, MiB, how slow the CPU was)}, in an order drawn anew."""
    order = list(sides.items())
    random.shuffle(order)
    return {name: take(job, side, folder, asked) for name, side in order}


def at_one_pace(rounds):
    """The same rounds, (s, MiB), with times as at one pace of the CPU."""
    told = {name: [(r[name][0], r[name][2] and pace.Slow(*r[name][2])) for r in rounds] for name in rounds[0]}
    evened = pace.Evened(list(told.values()))
    return [{name: (evened.time(*told[name][number]), r[name][1]) for name in r} for number, r in enumerate(rounds)]


def ratios_of(rounds, name):
    """CPU time, or instructions, over those without, in each round."""
    return [r[name][0] / r["without"][0] for r in rounds]


def row(program, rounds, names):
    """The table's line."""
    cells = []
    for name in names:
        found = measure.estimate(ratios_of(rounds, name))
        cells += [f"{found.value:.3f}", f"{found.low:.3f} to {found.high:.3f}"]
    more = [f"{median(r[name][1] - r['without'][1] for r in rounds):+.1f}" for name in names]
    without = [median(r["without"][k] for r in rounds) for k in (0, 1)]
    return " | ".join([f"| {program}", str(len(rounds)), f"{without[0] * 1000:.0f}", *cells, f"{without[1]:.1f}", *more]) + " |"


def mean_of(kept, name, draw=lambda ratios: ratios):
    """The geometric mean over programs of the medians."""
    return exp(mean(log(median(draw(ratios_of(rounds, name)))) for rounds in kept.values()))


def said_of(kept, name, label):
    """One side's sum: mean with its interval, and the worst."""
    drawn = random.Random(0)
    again = sorted(mean_of(kept, name, lambda ratios: drawn.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    middle = {program: median(ratios_of(rounds, name)) for program, rounds in kept.items()}
    worst = max(middle, key=middle.get)
    low, high = again[DRAWS // 40], again[-1 - DRAWS // 40]
    return f"{label}: geometric mean {mean_of(kept, name):.4f} (95 % interval {low:.4f} to {high:.4f}), worst {middle[worst]:.3f} ({worst})."


def table(kept, args):
    """All of it, as Markdown."""
    kept = {program: at_one_pace(rounds) for program, rounds in kept.items() if rounds}
    names = ["with", "peer"] if args.peer else ["with"]
    labels = {"with": f"`{args.option}`", "peer": args.peer and args.peer.stem.removeprefix("lib")}
    beside, unit = "libc's malloc" if args.over == "libc" else "the drop-in", "10^6 instructions" if args.count else "ms"
    heads = [cell for name in names for cell in (f"{labels[name]} ×", "95 % interval")]
    columns = ["program", "rounds", f"{beside}, {unit}", *heads, "peak, MiB", *("more, MiB" if name == "with" else f"{labels[name]}: more" for name in names)]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|", *(row(program, rounds, names) for program, rounds in kept.items()), ""]
    lines += [f"{len(kept)} programs. " + " ".join(said_of(kept, name, labels[name]) for name in names)]
    if args.peer:
        part = (mean_of(kept, "with") - 1) / (mean_of(kept, "peer") - 1)
        lines.append(f"What {labels['with']} takes more than {beside} is {part:.2f} of what {labels['peer']} does, by the means.")
    return "\n".join(lines)


def measured(args, kept, folder):
    """Rounds until there are enough of each; a program after the other would let the machine change between them."""
    sides = {"with": Side(DROP_IN, args.option), "without": Side(None, "") if args.over == "libc" else Side(DROP_IN, "")}
    if args.peer:
        sides["peer"] = Side(args.peer, "")
    jobs = jobs_of(args)
    with pace.Pace(0.1, not args.long) as asked:
        for number in range(args.rounds):
            for name, job in jobs.items():
                if len(kept.setdefault(name, [])) <= number:
                    kept[name].append(one_round(job, sides, count if args.count else run, folder, asked))
            if args.output:
                args.output.write_text(json.dumps(kept), encoding="ascii")


def preloadable(name):
    """A malloc by its path, or by a name that the loader knows.  What is not there the loader passes over, and the figures would be libc's."""
    path = pathlib.Path(name)
    path = path.resolve() if path.exists() else path
    seen = subprocess.run(["cat", "/proc/self/maps"], env={**os.environ, "LD_PRELOAD": str(path)}, capture_output=True, text=True, check=True).stdout
    if path.name not in seen:
        raise argparse.ArgumentTypeError(f"{name} cannot be preloaded")
    return path


def main():
    parser = argparse.ArgumentParser(description="what an option of QUIRE_CONF costs on real programs")
    parser.add_argument("option", help="of QUIRE_CONF, as secure:1")
    parser.add_argument("--over", choices=["libc", "drop-in"], default="libc", help="what it is measured beside")
    parser.add_argument("--long", action="store_true", help="programs of five seconds and more in place of a tenth of a second and more")
    parser.add_argument("--peer", type=preloadable, metavar="PATH.so", help="another malloc to preload, beside")
    parser.add_argument("--count", action="store_true", help="instructions in place of CPU time")
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("-o", "--output", type=pathlib.Path, help="where the rounds are kept")
    args = parser.parse_args()
    kept = json.loads(args.output.read_text(encoding="ascii")) if args.output and args.output.exists() else {}
    print(f"load at the start: {os.getloadavg()[0]:.1f}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as place:
        measured(args, kept, pathlib.Path(place))
    print(table(kept, args))


if __name__ == "__main__":
    main()
