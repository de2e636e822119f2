# SPDX-License-Identifier: MIT
"""
cmd_replay.py - `quire replay TRACE`: the recorded operations through libc, the installed peers, the drop-in and the advice in the code.

Not here: the program's own run time, so no share of it and no verdict (cmd_try.py has both).
"""


import advise.advice as advice
import measure
import advise.mix as mix
import native
import peers
import render
import tracefile
import ui
from cli import nearest
from errors import EnvironmentLacks, UsageError
from lazily import tempfile

HELP = f"replay a trace through libc, every installed peer, the drop-in and the {render.CODE}"
SECONDS_DEFAULT = 30


def add_arguments(parser):
    """Options of `replay`."""
    parser.add_argument("trace", metavar="TRACE", help="a .qtr file")
    parser.add_argument(
        "--allocator", metavar="A,B", help="only these besides libc: peers by name, drop-in, mix"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="exactly so many rounds")
    parser.add_argument(
        "--time-limit",
        type=float,
        default=SECONDS_DEFAULT,
        metavar="S",
        help="replay for S seconds at most (30)",
    )
    parser.add_argument(
        "--json", action="store_true", help='JSON alone on stdout, "schema":"quire.replay/1"'
    )
    tracefile.add_wrapper_option(parser)


def choose(names, plan_path):
    """Peers and plan from --allocator; everything there is without it."""
    if names is None:
        return peers.with_drop_in(), plan_path
    have = {p.name: p for p in peers.with_drop_in()}
    wanted = [n for n in names.split(",") if n]
    for name in wanted:
        if name not in have and name not in ("libc", "mix"):
            known = sorted(have) + ["libc", "mix"]
            raise UsageError(
                f"unknown allocator `{name}`",
                nearest(name, known) or f"here there are: {', '.join(known)}",
                "quire env",
            )
    return [have[n] for n in wanted if n in have], plan_path if "mix" in wanted else None


def run(args):
    """Replays one trace."""
    measure.check_limits(args)
    native.helper("quire-replay")
    chosen, _ = choose(args.allocator, "")
    with tempfile.TemporaryDirectory(prefix="quire-") as folder:
        recording = tracefile.analyse(args.trace, folder, args.wrapper)
        if not recording.events:
            raise EnvironmentLacks(
                f"nothing to replay in {tracefile.shown(args.trace)}",
                recording.facts.get("note") or "the program never called malloc",
                f"{render.command()} record -- PROGRAM ARGS",
            )
        wanted = args.allocator is None or "mix" in args.allocator.split(",")
        advised = mix.choose(recording, folder, args.rounds).path if wanted else None
        if args.allocator is not None and wanted and advised is None:
            ui.note("mix: none is advised, no arena and no slab gains; it is not in the table")
        chosen, plan_path = choose(args.allocator, advised)
        series = measure.replay(
            recording.program,
            measure.backends(chosen, plan_path),
            measure.Limits(args.rounds, args.time_limit),
        )
    outcome = advice.Outcome(series, [recording.facts.get("cpu_s") or 1.0])
    if args.json:
        rows = render.allocators_json(outcome)
        for row in rows:
            row.pop("program_cpu_s", None)
            row.pop("saving_percent", None)
        head = {"schema": "quire.replay/1", "trace": args.trace, "rounds": series.rounds, "ops": series.ops()}
        print(ui.json_text({**head, "allocators": rows}))
        return 0
    what = ui.printable(recording.command)
    plural = "s" * (series.rounds != 1)
    head = f"{what}: {ui.count(series.ops())} operations, {series.rounds} round{plural}; {measure.interval_kind(series.rounds)}"
    notes = [f"  note: {ui.printable(note)}" for note in [recording.begun_late, recording.facts.get("note")] if note]
    rows = [[r[0], r[1], r[4]] for r in render.allocator_rows(outcome)]
    table = ui.table(["allocator", "ns per operation", "peak memory"], rows)
    print("\n".join(ui.fit([ui.bold(head)] + notes) + table))
    return 0
