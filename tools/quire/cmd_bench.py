# SPDX-License-Identifier: MIT
"""
cmd_bench.py - the headline tables of the systems Quire replaces, beside this machine's figures.

    seeds: the headline tables (bench/seeds.py)                        ┐
    micro, apps: mallocs side by side (bench/micro.py, bench/apps.py)  ├ each in interleaved rounds of processes (bench/run.py)
    scale: all four over threads, objects and CPUs (bench/scale.py)    ┘ that end before --time-limit (bench/limit.py)
        -> medians and intervals, ratios within a round -> text, --json, --save, --baseline

Invariants: B1  a figure under a peer's name was measured in a process whose malloc is that peer's.
            B2  a ratio is taken between processes of one round, never between medians.
Not here: the workloads (bench/*.c), statistics of intervals (bench/figures.py).
"""

import argparse
import importlib.util
import json
import os
import shlex
import time

import bench.apps as bench_apps
import bench.document as bench_document
import bench.fold as bench_fold
import bench.limit as bench_limit
import bench.mallocs as bench_mallocs
import bench.micro as bench_micro
import bench.pictures as bench_pictures
import bench.run as bench_run
import bench.scale as bench_scale
import bench.scale_text as bench_scale_text
import bench.seeds as bench_seeds
import cmd_env
import outputs
import packages
import peers
import ui
from errors import EXIT_CONDITION_FALSE, EXIT_OK, EnvironmentLacks, UsageError
from measure import check_time_limit

HELP = "published figures of the systems Quire replaces, beside this machine's"
SCHEMA = "quire.bench/1"
# Tables of one module each; the others are "seeds".
SINGLE = {"micro": bench_micro, "apps": bench_apps, "scale": bench_scale}
TEXT = {"micro": bench_micro.text, "apps": bench_apps.text, "scale": bench_scale_text.text}
TABLES = ["seeds", *SINGLE]
SECURE_TABLES = ["micro", "apps"]
DOCUMENT = "document"
SAVED_ELSEWHERE = "another place: --save /tmp/run.json"
DAMAGES = (KeyError, TypeError, ValueError, AttributeError, IndexError)
# Of rounds; what stands around them has QUICK_LIMIT_S to end in, on two CPUs that nothing else uses.
QUICK_S = {"seeds": 38, "micro": 28, "apps": 42, "scale": 45}
QUICK_LIMIT_S, FULL_S, FULL_LIMIT_S = 60, 420, 600


def add_arguments(parser):
    parser.add_argument(
        "table",
        nargs="?",
        default="seeds",
        metavar="TABLE",
        help="seeds (default): the headline tables of arena, slab, per-CPU and heap; micro, apps: small"
        " programs, real ones under each malloc; scale: over threads, objects and CPUs; document: saved"
        " runs as doc/performance.md",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="under a minute (default)")
    length.add_argument("--full", action="store_true", help="about 7 minutes, narrower intervals")
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="S",
        help="end within S seconds: fewer rounds than planned, and what has no time for one is named",
    )
    parser.add_argument(
        "--lines", metavar="A,B", help="not of seeds: only these lines (an empty name lists them)"
    )
    parser.add_argument(
        "--secure", action="store_true", help="micro and apps: also the drop-in with secure:1"
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of the tables")
    parser.add_argument(
        "--save", metavar="FILE", help="also write the JSON to FILE, for a later --baseline"
    )
    parser.add_argument(
        "--baseline",
        metavar="FILE",
        help="compare with a saved run; exit 1 when one of ours has become slower",
    )
    parser.add_argument("--svg", metavar="DIR", help="also draw the figures, an SVG file each, into DIR")
    parser.add_argument(
        "--data", metavar="DIR", help="document: the saved runs (default: the checkout's doc/performance)"
    )
    parser.add_argument(
        "--measure", action="store_true", help="document: first measure and save every run it is made of"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="document: where to (default: doc/performance.md)"
    )
    parser.add_argument(
        "-f", "--force", action="store_true", help="let --save, --svg and document overwrite"
    )


def run(args):
    if args.time_limit is not None:
        check_time_limit(args.time_limit)
    if args.table == DOCUMENT:
        refuse_limited_document(args)
        if args.measure:
            bench_document.check_before_measuring(args)
            measure_document(args)
        return bench_document.run(args)
    if args.measure:
        raise UsageError("--measure belongs to document", fix="quire bench document --measure -f")
    refuse_nonsense(args)
    lines = chosen_lines(args)
    baseline = load_baseline(args.baseline, args.table) if args.baseline else None
    end_s = bench_limit.END_S + (bench_limit.PICTURES_S if args.svg else 0)
    limit = bench_limit.Limit(args.time_limit, end_s)
    result = measure_single(args, lines, limit) if args.table in SINGLE else measure(args, limit)
    refuse_nothing(result)
    result = bench_document.rounded(result)  # as it is saved: what is equal stays equal
    if result["seconds"] > (FULL_LIMIT_S if args.full else QUICK_LIMIT_S):
        ui.note(f"that took {result['seconds']:.0f} s: something else keeps the CPUs busy, figures swing")
    slower = regressions(result, baseline) if baseline else []
    if result["not_measured"]:
        ui.note(not_measured_text(result))
    if args.json:
        print(json.dumps({**result, "regressions": slower} if baseline else result, indent=1))
    else:
        print(bench_fold.folded(text(result)))
        if baseline:
            print(bench_fold.folded(comparison_text(result, baseline, slower)))
    keep(args, result)  # last: what cannot be written costs nobody the figures
    return EXIT_CONDITION_FALSE if slower else EXIT_OK


def refuse_nonsense(args):
    """What cannot be done, before a minute is spent."""
    if args.table not in TABLES:
        raise UsageError(
            f"quire bench: there is no table `{args.table}`",
            why=f"there are: {', '.join([*TABLES, DOCUMENT])}",
            fix="quire bench --help",
        )
    if args.data or args.output:
        raise UsageError(
            "--data and -o belong to document", fix=f"quire bench {args.table} --save FILE   or: quire bench document"
        )
    if args.secure and args.table not in SECURE_TABLES:
        raise UsageError(
            f"--secure: {args.table} has no secure heap in it", fix=f"quire bench {' | '.join(SECURE_TABLES)}"
        )
    if args.svg:
        require_pictures()
        outputs.check_folder(args.svg, bench_pictures.files(args.table), args.force)
    if args.save:
        outputs.check_file(args.save, args.force, SAVED_ELSEWHERE)


def refuse_limited_document(args):
    """A document is made of whole runs."""
    if args.time_limit is not None:
        raise UsageError(
            "--time-limit: document is made of whole runs", fix=f"quire bench {' | '.join(TABLES)} --time-limit S"
        )


def refuse_nothing(result):
    """A time limit that leaves nothing to print."""
    found = result.get(result["table"], result)
    if not found["rows"] and not found.get("memory"):
        raise nothing_measured(result["table"], result["time_limit_s"])


def nothing_measured(table, limit_s):
    """The answer to a limit that is too small."""
    return UsageError(
        f"nothing could be measured within --time-limit {limit_s:g}",
        why="the first round alone takes longer",
        fix=f"quire bench {table} --time-limit {QUICK_LIMIT_S}",
    )


def keep(args, result):
    """The saved run and the pictures, where they were asked for."""
    if args.save:
        outputs.write(args.save, bench_document.saved_text(result), args.force, SAVED_ELSEWHERE)
    if args.svg:
        import bench.plots as bench_plots  # and matplotlib with it

        for path in bench_plots.write(result, args.svg, args.force):
            ui.note(f"drawn: {path}")


def measure_document(args):
    """Every run of the document, saved beside its template; five minutes on a machine with nothing else to do."""
    data = args.data or bench_document.DATA
    for name in bench_document.RUNS:
        words = bench_document.SECURE if name == "secure" else {"table": name}
        path = os.path.join(data, f"{name}.json")
        ui.note(f"measuring {name} for {path}")
        words = {**words, "measure": False, "data": None, "output": None, "save": path}
        run(argparse.Namespace(**{**vars(args), **words}))


def require_pictures():
    """Before a minute is spent."""
    if importlib.util.find_spec("matplotlib") is None:
        raise EnvironmentLacks(
            "--svg needs matplotlib", why="it draws the pictures", fix=packages.install_line(["matplotlib"])
        )


def chosen_lines(args):
    """The lines that --lines names, or None for all."""
    if args.lines is None:
        return None
    if args.table not in SINGLE:
        raise UsageError(f"--lines: {args.table} has none", fix=f"quire bench {' | '.join(SINGLE)}")
    known, wanted = SINGLE[args.table].lines(), [w.strip() for w in args.lines.split(",")]
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"quire bench {args.table}: there is no line `{name}`", f"there are: {', '.join(known)}"
            )
    return set(wanted)


def load_baseline(path, table="seeds"):
    """A run of that table that --save wrote."""
    fix = f"quire bench {table} --save before.json   then: --baseline before.json"
    try:
        with open(path, encoding="utf-8") as file:
            saved = json.load(file)
    except (OSError, ValueError, RecursionError) as problem:
        why = getattr(problem, "strerror", None) or f"it is no JSON: {problem}"
        raise UsageError(f"cannot read the baseline {path}", why, fix) from None
    if not isinstance(saved, dict) or saved.get("schema") != SCHEMA:
        raise UsageError(f"{path} is no saved benchmark", f"its schema is not {SCHEMA}", fix)
    if saved.get("table", "seeds") != table:
        raise UsageError(
            f"{path} is of another table",
            why=f"it was saved by `quire bench {saved['table']}`",
            fix=f"quire bench {saved['table']} --baseline {path}",
        )
    try:  # before a minute is spent: whatever will be asked of it
        itself = {"not_measured": [], **saved, "table": table}
        comparison_text(itself, saved, regressions(itself, saved))
    except DAMAGES as problem:
        raise UsageError(f"{path} is damaged", f"a part of it is missing or another ({problem!r})", fix) from None
    return saved


def measure_single(args, lines, limit):
    """One of SINGLE; the result is what --json prints."""
    table, full, cast = args.table, args.full, bench_mallocs.cast(args.secure, limit)
    load_before, began = os.getloadavg()[0], time.monotonic()
    try:
        found = SINGLE[table].measure(cast, FULL_S if full else QUICK_S[table], full, lines)
    except bench_limit.OutOfTime:
        raise nothing_measured(table, limit.seconds) from None
    return {
        "schema": SCHEMA,
        "table": table,
        "machine": machine(load_before),
        "rounds": found["rounds"],
        **circumstances(args),
        "seconds": round(time.monotonic() - began, 1),
        "refused": cast.refused,
        "not_measured": found.pop("not_measured", []),
        "allocators": cast.names(),
        table: found,
    }


def circumstances(args):
    """When, and by which command."""
    words = ["./quire", "bench", args.table, "--full" if args.full else "--quick"]
    words += ["--lines", shlex.quote(args.lines)] if args.lines else []
    words += ["--secure"] if args.secure else []
    words += ["--time-limit", f"{args.time_limit:g}"] if args.time_limit else []
    return {
        "time_limit_s": args.time_limit,
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(words),
        "missing_packages": peers.missing_packages(),
    }


def measure(args, limit):
    """The seeds; the result is what --json prints.  The arena's stand at its top level."""
    load_before = os.getloadavg()[0]
    found = bench_seeds.measure(FULL_S if args.full else QUICK_S["seeds"], args.full, limit)
    return {
        "schema": SCHEMA,
        "table": "seeds",
        "machine": machine(load_before),
        **circumstances(args),
        **found,
    }


def machine(load_before):
    """What a figure depends on, for the reader of the table and of a saved run."""
    facts = {key: value for key, _, value in cmd_env.facts()}
    wanted = (
        "system",
        "kernel",
        "libc",
        "cpu_model",
        "cpus_usable",
        "os_page_bytes",
        "thp_enabled",
        "memory_bytes",
        "peers",
    )
    return {**{key: facts[key] for key in wanted}, "load_average_before": round(load_before, 2)}


def missing_text(result):
    """The line that would bring more peers, if there are more."""
    packages = " ".join(result.get("missing_packages", []))
    return [f"peers that are not here: apt-get install -y {packages}"] if packages else []


def text(result):
    """Everything, for people."""
    m = result["machine"]
    lines = [
        f"{m['cpu_model']}, {m['cpus_usable']} CPUs, {m['kernel']}, {m['libc']}, load"
        f" {m['load_average_before']} before; {result['seconds']:.0f} s"
    ] + [f"left out: {name}: {why}" for name, why in result["refused"].items()]
    lines += missing_text(result)
    lines += [not_measured_text(result)] if result.get("not_measured") else []
    if result["table"] in SINGLE:
        found = TEXT[result["table"]](result[result["table"]], result["allocators"])
        return "\n\n".join(["\n".join(lines), found])
    return "\n\n".join(["\n".join(lines), *bench_seeds.texts(result)])


def not_measured_text(result):
    """What there was no time for."""
    return f"no time within --time-limit {result['time_limit_s']:g} for: {', '.join(result['not_measured'])}"


def regressions(result, baseline):
    """[sentence]: what lies wholly on the worse side of the baseline's intervals; of too few rounds nothing does."""
    if result["table"] not in SINGLE:
        return bench_seeds.regressions(result, baseline)
    return [] if too_few(result, baseline) else SINGLE[result["table"]].regressions(result, baseline)


def too_few(result, baseline):
    """Whether one of them was cut so short that its intervals say nothing."""
    return 0 < min(result["rounds"], baseline["rounds"]) < bench_run.ROUNDS_MIN  # 0: of memory alone


def comparison_text(result, baseline, slower):
    """The lines below the tables when there is a baseline."""
    where = baseline["machine"]
    lines = [
        f"baseline: {where['cpu_model']}, {where['cpus_usable']} CPUs, {baseline['rounds']} rounds"
    ]
    if where["cpu_model"] != result["machine"]["cpu_model"]:
        lines.append("          another machine: only the ratios compare")
    lines += [f"          {one}" for one in not_compared(result, baseline)]
    return "\n".join(
        lines + ([f"SLOWER    {line}" for line in slower] or ["no slower than the baseline"])
    )


def not_compared(result, baseline):
    """[sentence]: what cannot be called slower, and why."""
    if result["table"] not in SINGLE:
        return bench_seeds.compared(result, baseline)[1]
    if too_few(result, baseline):
        return [f"fewer than {bench_run.ROUNDS_MIN} rounds: nothing is compared"]
    left_out = [*result["not_measured"], *baseline.get("not_measured", [])]
    return [f"one of the runs had no time for {', '.join(left_out)}: not compared"] if left_out else []
