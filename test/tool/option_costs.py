#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
option_costs.py - what options of QUIRE_CONF cost on real programs: CPU time and peak memory beside another run of the same program.

    python3 test/tool/option_costs.py secure:1                         the drop-in with it, beside libc's malloc
    python3 test/tool/option_costs.py prof --over drop-in --rounds 101  beside the drop-in without it
    python3 test/tool/option_costs.py prof --over drop-in --long --rounds 5   of programs that take five seconds and more
    python3 test/tool/option_costs.py secure:1 -o FILE                  rounds are kept: another run with FILE goes on where this one stopped

The programs are those of prediction_programs.py that are installed, chosen by its rule before anything was measured. One round runs each
program once with and once without, in an order drawn anew; a ratio is taken within a round. One command, one table in Markdown.
Not a test: it takes minutes. Not here: the table of `./quire bench apps --secure`, which has other mallocs beside (bench/apps.py).
"""

import argparse
import functools
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
from math import exp, log
from statistics import mean, median

import prediction_programs as programs
from toolkit import BUILD, ROOT

import measure  # of the tool, whose folder toolkit puts on the path

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


def run(job, conf, folder):
    """(CPU seconds, peak MiB) of one run; conf None: on libc's malloc."""
    words, source, prepare = job
    if prepare:
        subprocess.run(["/bin/sh", "-c", prepare], check=True)
    env = {**os.environ, "PYTHONMALLOC": "malloc", "QUIRE_CONF": ",".join([conf or "", f"prof_file:{folder}/profile"]).strip(",")}
    preload = [] if conf is None else ["--preload", DROP_IN]
    timed = [BUILD / "bench" / "timed", *preload, "--out", folder / "figures", "--", *words]
    with open(source or os.devnull, "rb") as stdin:
        subprocess.run(timed, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, check=True)
    figure = json.loads((folder / "figures").read_text(encoding="ascii"))
    if figure["status"]:
        raise SystemExit(f"{words[0]} failed with {conf}: status {figure['status']}")
    return figure["cpu_ns"] / 1e9, figure["peak_rss_bytes"] / MIB


def one_round(job, base, conf, folder):
    """{"with": (s, MiB), "without": (s, MiB)}, in an order drawn anew."""
    order = [("with", conf), ("without", base)]
    random.shuffle(order)
    return {name: run(job, what, folder) for name, what in order}


def row(name, rounds):
    """The table's line, and the ratio of CPU times."""
    ratios = [r["with"][0] / r["without"][0] for r in rounds]
    found = measure.estimate(ratios)
    more = median(r["with"][1] - r["without"][1] for r in rounds)
    without = [median(r["without"][k] for r in rounds) for k in (0, 1)]
    cells = f"{without[0] * 1000:.0f} | {found.value:.3f} | {found.low:.3f} to {found.high:.3f} | {without[1]:.1f} | {more:+.1f}"
    return f"| {name} | {len(rounds)} | {cells} |", found.value


def table(kept, base, conf):
    """All of it, as Markdown."""
    rows = {name: row(name, rounds) for name, rounds in kept.items() if rounds}
    ratios = {name: ratio for name, (_, ratio) in rows.items()}
    worst = max(ratios, key=ratios.get)
    beside = "libc's malloc" if base is None else "the drop-in"
    lines = [f"| program | rounds | {beside}, ms | `{conf}` × | 95 % interval | peak, MiB | more, MiB |", "|---|---|---|---|---|---|---|"]
    lines += [text for text, _ in rows.values()]
    middle = exp(mean(log(r) for r in ratios.values()))
    return "\n".join([*lines, "", f"{len(ratios)} programs: geometric mean {middle:.3f}, worst {ratios[worst]:.3f} ({worst})."])


def measured(args, kept, folder):
    """Rounds until there are enough of each; a program after the other would let the machine change between them."""
    base = None if args.over == "libc" else ""
    jobs = jobs_of(args)
    for number in range(args.rounds):
        for name, job in jobs.items():
            if len(kept.setdefault(name, [])) <= number:
                kept[name].append(one_round(job, base, args.option, folder))
        if args.output:
            args.output.write_text(json.dumps(kept), encoding="ascii")
    return base


def main():
    parser = argparse.ArgumentParser(description="what an option of QUIRE_CONF costs on real programs")
    parser.add_argument("option", help="of QUIRE_CONF, as secure:1")
    parser.add_argument("--over", choices=["libc", "drop-in"], default="libc", help="what it is measured beside")
    parser.add_argument("--long", action="store_true", help="programs of five seconds and more in place of a tenth of a second and more")
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("-o", "--output", type=pathlib.Path, help="where the rounds are kept")
    args = parser.parse_args()
    kept = json.loads(args.output.read_text(encoding="ascii")) if args.output and args.output.exists() else {}
    print(f"load at the start: {os.getloadavg()[0]:.1f}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as place:
        base = measured(args, kept, pathlib.Path(place))
    print(table(kept, base, args.option))


if __name__ == "__main__":
    main()
