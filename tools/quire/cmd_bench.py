# SPDX-License-Identifier: MIT
"""
cmd_bench.py - the headline tables of the systems Quire replaces, beside this machine's figures.

    the arena's table     (bench/arena.py)   ┐
    the slab's tables     (bench/slab.py)    ├ each in interleaved rounds of processes (bench/run.py)
    the per-CPU tables    (bench/percpu.py)  │
    the heap's table      (bench/heap.py)    │
    the smaller tables    (bench/more.py)    ┘
    micro, apps: mallocs side by side (bench/micro.py, bench/apps.py); scale: all four over threads,
    objects and CPUs (bench/scale.py)
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
import bench.arena as bench_arena
import bench.document as bench_document
import bench.heap as bench_heap
import bench.mallocs as bench_mallocs
import bench.micro as bench_micro
import bench.more as bench_more
import bench.more_text as bench_more_text
import bench.percpu as bench_percpu
import bench.percpu_text as bench_percpu_text
import bench.run as bench_run
import bench.scale as bench_scale
import bench.scale_text as bench_scale_text
import bench.slab as bench_slab
import bench.slab_text as bench_slab_text
import cmd_env
import peers
import ui
from errors import EXIT_CONDITION_FALSE, EXIT_OK, EnvironmentLacks, UsageError

HELP = "published figures of the systems Quire replaces, beside this machine's"
SCHEMA = "quire.bench/1"
# Tables of one module each; the others are "seeds".
SINGLE = {"micro": bench_micro, "apps": bench_apps, "scale": bench_scale}
TEXT = {"micro": bench_micro.text, "apps": bench_apps.text, "scale": bench_scale_text.text}
TABLES = ["seeds", *SINGLE]
SECURE_TABLES = ["micro", "apps"]
DOCUMENT = "document"
# Of rounds; what stands around them has QUICK_LIMIT_S to end in, on two CPUs that nothing else uses.
QUICK_S = {"seeds": 38, "micro": 28, "apps": 42, "scale": 45}
QUICK_LIMIT_S, FULL_S = 60, 420
# Of the time.
ARENA_PART, SLAB_PART, PERCPU_PART, HEAP_PART, MORE_PART = 0.16, 0.3, 0.25, 0.15, 0.14


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
    if args.table == DOCUMENT:
        if args.measure:
            measure_document(args)
        return bench_document.run(args)
    if args.measure:
        raise UsageError("--measure belongs to document", fix="quire bench document --measure -f")
    refuse_nonsense(args)
    lines = chosen_lines(args)
    baseline = load_baseline(args.baseline, args.table) if args.baseline else None
    if args.table in SINGLE:
        result = measure_single(args, lines)
    else:
        result = measure(budget_s=FULL_S if args.full else QUICK_S["seeds"], full=args.full)
        result.update(circumstances(args))
    result = bench_document.rounded(result)  # as it is saved: what is equal stays equal
    if not args.full and result["seconds"] > QUICK_LIMIT_S:
        ui.note(f"that took {result['seconds']:.0f} s: something else keeps the CPUs busy, figures swing")
    keep(args, result)
    slower = regressions(result, baseline) if baseline else []
    if args.json:
        print(json.dumps({**result, "regressions": slower} if baseline else result, indent=1))
    else:
        print(text(result))
        if baseline:
            print(comparison_text(result, baseline, slower))
    return EXIT_CONDITION_FALSE if slower else EXIT_OK


def refuse_nonsense(args):
    """What cannot be done, before a minute is spent."""
    if args.table not in TABLES:
        raise UsageError(
            f"quire bench: there is no table `{args.table}`",
            why=f"there are: {', '.join([*TABLES, DOCUMENT])}",
            fix="quire bench --help",
        )
    if args.secure and args.table not in SECURE_TABLES:
        raise UsageError(
            f"--secure: {args.table} has no secure heap in it", fix=f"quire bench {' | '.join(SECURE_TABLES)}"
        )
    if args.svg:
        require_pictures()
    if args.save and os.path.exists(args.save) and not args.force:
        raise UsageError(
            f"{args.save} exists",
            why="nothing is overwritten unasked",
            fix=f"quire bench --save {args.save} -f",
        )
    if args.save and not os.access(os.path.dirname(os.path.abspath(args.save)), os.W_OK):
        raise EnvironmentLacks(
            f"cannot write {args.save}", "no such directory, or no permission", "another place: --save /tmp/run.json"
        )


def keep(args, result):
    """The saved run and the pictures, where they were asked for."""
    if args.save:
        with open(args.save, "w", encoding="utf-8") as file:
            file.write(bench_document.saved_text(result))
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
        run(argparse.Namespace(**{**vars(args), "measure": False, "save": path, **words}))


def require_pictures():
    """Before a minute is spent."""
    if importlib.util.find_spec("matplotlib") is None:
        raise EnvironmentLacks(
            "--svg needs matplotlib", why="it draws the pictures", fix="apt-get install -y python3-matplotlib"
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
    try:
        with open(path, encoding="utf-8") as file:
            saved = json.load(file)
    except (OSError, ValueError) as problem:
        raise UsageError(
            f"cannot read the baseline {path}", why=str(problem), fix=f"quire bench --save {path}"
        ) from None
    if not isinstance(saved, dict) or saved.get("schema") != SCHEMA:
        raise UsageError(
            f"{path} is no saved benchmark",
            why=f"its schema is not {SCHEMA}",
            fix=f"quire bench --save {path} -f",
        )
    if saved.get("table", "seeds") != table:
        raise UsageError(
            f"{path} is of another table",
            why=f"it was saved by `quire bench {saved['table']}`",
            fix=f"quire bench {saved['table']} --baseline {path}",
        )
    return saved


def measure_single(args, lines):
    """One of SINGLE; the result is what --json prints."""
    table, full, cast = args.table, args.full, bench_mallocs.cast(args.secure)
    load_before, began = os.getloadavg()[0], time.monotonic()
    found = SINGLE[table].measure(cast, FULL_S if full else QUICK_S[table], full, lines)
    return {
        "schema": SCHEMA,
        "table": table,
        "machine": machine(load_before),
        "rounds": found["rounds"],
        **circumstances(args),
        "seconds": round(time.monotonic() - began, 1),
        "refused": cast.refused,
        "allocators": cast.names(),
        table: found,
    }


def circumstances(args):
    """When, and by which command."""
    words = ["./quire", "bench", args.table, "--full" if args.full else "--quick"]
    words += ["--lines", shlex.quote(args.lines)] if args.lines else []
    words += ["--secure"] if args.secure else []
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(words),
        "missing_packages": peers.missing_packages(),
    }


def measure(budget_s, full):
    """All tables; the result is what --json prints.  The arena's stand at its top level."""
    for driver in ("query", "slab", "percpu", "micro", "arena"):
        bench_run.find_driver(driver)  # before a minute is spent
    cast = bench_run.Cast(peers.installed())
    load_before, began = os.getloadavg()[0], time.monotonic()
    arena = bench_arena.measure(cast, budget_s * ARENA_PART, full)
    slab = bench_slab.measure(cast, budget_s * SLAB_PART, full)
    percpu = bench_percpu.measure(cast, budget_s * PERCPU_PART, full)
    heap = bench_heap.measure(budget_s * HEAP_PART, cast.refused, full)
    more = bench_more.measure(cast, budget_s * MORE_PART, full)
    return {
        "schema": SCHEMA,
        "table": "seeds",
        "published": bench_arena.PUBLISHED,
        "machine": machine(load_before),
        "rounds": arena["rounds"],
        "seconds": round(time.monotonic() - began, 1),
        "refused": cast.refused,
        "rows": arena["rows"],
        "array_allocator": slab,
        "percpu": percpu,
        "heap": heap,
        "more": more,
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
    if result["table"] in SINGLE:
        found = TEXT[result["table"]](result[result["table"]], result["allocators"])
        return "\n\n".join(["\n".join(lines), found])
    parts = [
        bench_arena.text(result),
        bench_slab_text.text(result["array_allocator"]),
        bench_percpu_text.text(result["percpu"]),
        bench_heap.text(result["heap"]),
        "The smaller tables: " + bench_more_text.text(result["more"]),
    ]
    return "\n\n".join(["\n".join(lines), *parts])


def regressions(result, baseline):
    """[sentence]: what lies wholly on the worse side of the baseline's intervals."""
    if result["table"] in SINGLE:
        return SINGLE[result["table"]].regressions(result, baseline)
    return [
        sentence
        for part in (bench_arena, bench_slab, bench_percpu, bench_heap, bench_more)
        for sentence in part.regressions(result, baseline)
    ]


def comparison_text(result, baseline, slower):
    """The lines below the tables when there is a baseline."""
    where = baseline["machine"]
    lines = [
        f"baseline: {where['cpu_model']}, {where['cpus_usable']} CPUs, {baseline['rounds']} rounds"
    ]
    if where["cpu_model"] != result["machine"]["cpu_model"]:
        lines.append("          another machine: only the ratios compare")
    for part, name in (("array_allocator", "slab"), ("percpu", "per-CPU allocator"), ("heap", "heap"), ("more", "table of the smaller ones")):
        if part in result and part not in baseline:
            lines.append(f"          it is from before there was a {name}: that is not compared")
    return "\n".join(
        lines + ([f"SLOWER    {line}" for line in slower] or ["no slower than the baseline"])
    )
