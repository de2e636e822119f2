# SPDX-License-Identifier: MIT
"""
cmd_profile.py - `quire profile FILE | --pid PID`: where live and allocated bytes come from, of a program that runs with QUIRE_CONF=prof.

    FILE, or what a process answers -> heapprofile.py -> a table of stacks, or -o: pprof, folded stacks, speedscope
    two files                       -> what has changed from the first to the second

Not here: reading profiles (heapprofile.py), asking (live/profile.py), formats (report/exports_*.py).
"""

import os

import heapprofile
import live.page as live_page
import live.profile as live_profile
import options
import outputs
import report.exports_pprof as exports_pprof
import report.exports_text as exports_text
import ui
from cxxnames import brief
from errors import EXIT_OK, UsageError

HELP = "which call stacks the bytes come from: of a running program, or of a profile that it wrote"
EPILOG = f"""The program runs with a profile when it was started so (measured: 0.8 % of the CPU time, 3.1 % at the worst):
  {live_profile.HOW_TO_START}
It then writes quire.PID.N.heap at its end, whenever so many more bytes are live (prof_at:1G), at a signal (prof_signal:USR2),
and answers `quire profile --pid PID`. `pprof` reads these files as they are; what -o writes has the names in it."""
KINDS = ("pprof", "folded", "speedscope")
ROWS_DEFAULT = 20
STACK_SHOWN = 6
ELSEWHERE = "another place: -o /tmp/heap.pb.gz"
COMMENT = "estimates from a sample of one in {period} bytes; inuse_*: live when it was written"


def add_arguments(parser):
    """Options of `profile`."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="a profile; two: what has changed from the first to the second")
    parser.add_argument("--pid", metavar="PID|NAME", help="ask a running process instead of reading a file")
    parser.add_argument("-o", "--output", metavar="FILE", help="write a file for another tool there, - for stdout")
    parser.add_argument("-f", "--force", action="store_true", help="replace FILE when it exists")
    parser.add_argument("--export", choices=KINDS, default="pprof", help="what -o writes (default: pprof, gzipped)")
    parser.add_argument("--raw", action="store_true", help="-o writes what the process said, without names")
    parser.add_argument("--allocated", action="store_true", help="in the table: all bytes since the start, not the live ones")
    parser.add_argument("--rows", type=options.at_least(1), default=ROWS_DEFAULT, metavar="N", help=f"stacks in the table ({ROWS_DEFAULT})")


def of_file(path):
    """(text, name)"""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def of_process(word):
    """(text, root of its files, name) of a process that answers."""
    page = live_page.find(word, live_profile.HOW_TO_START)
    return live_profile.text_of(page), f"/proc/{page.pid}/root", page.program


def inputs(args):
    """(text, Raw, the Raw to subtract or None, root, what it is of)"""
    if bool(args.pid) == bool(args.files) or len(args.files) > 2:
        raise UsageError("one profile, two of them, or --pid PID", fix="quire profile quire.4711.0.heap   or   quire profile --pid 4711")
    if args.pid:
        text, root, program = of_process(args.pid)
        return text, heapprofile.read(text, f"the answer of {args.pid}"), None, root, program
    texts = [of_file(path) for path in args.files]
    raws = [heapprofile.read(text, path) for text, path in zip(texts, args.files)]
    program = next((m[3] for m in raws[-1].mappings if m[3].startswith("/")), "")
    return texts[-1], raws[-1], raws[0] if len(raws) == 2 else None, "", heapprofile.shown(program)


def made(kind, document, raw, program):
    """A file's bytes."""
    period = raw.facts.get("period", 1)
    exported = {
        "profile": document, "command": program or "program", "sites": [], "facts": {}, "period": period,
        "comment": COMMENT.format(period=period), "moment": "when the profile was written",
    }  # fmt: skip
    if kind == "pprof":
        return exports_pprof.export(kind, exported)
    return exports_text.export(kind, exported).encode()


def signed(number, is_difference):
    """Bytes, with their sign where they are a difference."""
    text = ui.size(abs(number))
    return ("-" if number < 0 else "+" if number > 0 else "") + text if is_difference else text


def stack_text(document, stack):
    """A stack's innermost functions."""
    names = [brief(document["functions"][f][0]) for location in stack[0] for f in document["locations"][location]]
    more = " < ..." if len(names) > STACK_SHOWN else ""
    return ui.masked(" < ".join(names[:STACK_SHOWN])) + more if names else "(unknown)"


def table(document, args, is_difference):
    """Stacks with most bytes first, as lines."""
    column, blocks = (2, 1) if args.allocated else (5, 4)
    rows = sorted((s for s in document["stacks"] if s[column]), key=lambda s: -abs(s[column]))
    whole = sum(s[column] for s in document["stacks"])
    shown = [
        [signed(s[column], is_difference), ui.percent(100 * s[column] / whole) if whole and not is_difference else "", f"{s[blocks]}", stack_text(document, s)]
        for s in rows[: max(args.rows, 0)]
    ]
    lines = ui.table(["bytes", "of all", "blocks", "allocated by"], shown, flexible=3, align="rrrl")
    left = len(rows) - len(shown)
    return lines + ([f"{left} more stacks: --rows {len(rows)}"] if left > 0 else [])


def head(document, raw, program, is_difference):
    """What the table is of."""
    sums = heapprofile.sums(document)
    name = os.path.basename(program) or "program"
    lost = raw.facts.get("lost", 0)
    return [
        f"{name}: live {signed(sums['live_bytes'], is_difference)} in {sums['live_blocks']} blocks, allocated "
        f"{signed(sums['all_bytes'], is_difference)} in {sums['all_blocks']}; estimated from {raw.facts.get('samples', 0)} samples, "
        f"one in {ui.size(raw.facts.get('period', 1))}" + (f"; {lost} samples have no stack" if lost else "")
        + (f"; with {len(raw.objects)} object{'s' * (len(raw.objects) > 1)}, exact" if raw.objects else ""),
        "",
    ]


def run(args):
    """Reads, names, shows or writes."""
    if args.output:
        outputs.check_file(args.output, args.force, ELSEWHERE)
    text, raw, less, root, program = inputs(args)
    if args.raw and not args.output:
        raise UsageError("--raw says what -o writes", fix="quire profile --pid PID --raw -o FILE")
    if args.raw:
        outputs.write(args.output, text.encode("utf-8", "surrogateescape"), args.force, ELSEWHERE)
        return EXIT_OK
    document = heapprofile.named(raw, less, root)
    if args.output:
        outputs.write(args.output, made(args.export, document, raw, program), args.force, ELSEWHERE)
    else:
        ui.say(head(document, raw, program, less is not None) + table(document, args, less is not None))
    return EXIT_OK
