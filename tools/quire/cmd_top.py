# SPDX-License-Identifier: MIT
"""
cmd_top.py - `quire top [PID|NAME]`: what the objects of a running process hold.

    no PID: the processes that show themselves      PID: its sources, arenas, slabs, pools and heaps, as they change
    --once: one look    --json: quire.top/1    --prom: what quire_stats_write() writes for Prometheus

The terminal is put back as it was, whichever way it ends.
Not here: pages (live/page.py), rows (live/view.py).
"""

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty

import live.page as live_page
import live.profile as live_profile
import live.view as live_view
import packages
import ui
from errors import EXIT_OK, EXIT_SIGNAL_BASE, EnvironmentLacks, QuireError, UsageError

HELP = "live named arenas, slabs, per-CPU pools and heaps of a running process"
EPILOG = f"""The process shows itself when it was started so:
  {live_page.HOW_TO_START}
Without PID: which processes do. Keys: q ends, as Ctrl-C does; c shows the sizes of heaps; s sorts by the next key;
p asks for a heap profile (QUIRE_CONF=prof) and says which file it is in.
Of arenas those with a name are shown (.name in struct quire_arena_opts), of all other kinds those without one too."""
INTERVAL_S_MIN, INTERVAL_S_MAX = 0.05, 3600.0
LINES_AROUND = 5  # the headline, the table's head, what was said, the last line, one for the cursor
PROFILE_S = 2.0  # how long the view stands still for a profile


def add_arguments(parser):
    """Options of `top`."""
    parser.add_argument("process", nargs="?", metavar="PID|NAME", help="which process (default: list them)")
    parser.add_argument("--pid", metavar="PID", help="the same as PID; a process in a container by its number outside of it")
    parser.add_argument("--once", action="store_true", help="one look, then end (default without a terminal)")
    parser.add_argument("--json", action="store_true", help='JSON alone on stdout, "schema":"quire.top/1"; once')
    parser.add_argument("--prom", action="store_true", help="Prometheus' text on stdout; once")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between looks (1)")
    parser.add_argument("--sort", default="kind", metavar="KEY", help=f"{', '.join(live_view.SORT_KEYS)} (kind)")
    parser.add_argument("--classes", action="store_true", help="the sizes of heaps too")


def check(args):
    """Ends with a usage error where the options make no sense."""
    if args.pid is not None and (args.process or not args.pid.isdecimal()):
        raise UsageError("--pid takes one process's number, and no other is named beside it", fix="quire top --pid 4711")
    args.process = args.process or args.pid
    if args.sort not in live_view.SORT_KEYS:
        raise UsageError(f"there is no key `{args.sort}`", why=f"keys: {', '.join(live_view.SORT_KEYS)}")
    if not INTERVAL_S_MIN <= args.interval <= INTERVAL_S_MAX:
        raise UsageError(f"--interval can be {INTERVAL_S_MIN} to {INTERVAL_S_MAX:.0f} seconds")
    if args.json and args.prom:
        raise UsageError("--json or --prom, not both")
    if args.prom and not args.process:
        raise UsageError("--prom needs a process", fix="quire top   (lists those that show themselves)")


def as_json(pages):
    """quire.top/1."""
    processes = [
        {
            "process": p.pid,
            "program": p.program,
            "started_ticks": p.started_ticks,
            "interval_ns": p.document.get("interval_ns"),
            "age_ms": round(p.age_s * 1e3),
            "stats": p.stats,
        }
        for p in pages
    ]
    return json.dumps({"schema": "quire.top/1", "processes": processes}, indent=1, ensure_ascii=False)


def run_list(args):
    """Which processes there are."""
    pages = live_page.all_pages()
    if args.json:
        print(as_json(pages))
    elif pages:
        print("\n".join(live_view.list_text(pages)))
        ui.note(f"one of them as it changes: quire top {pages[0].pid}")
    else:
        print("no process shows itself")
        ui.note(f"one that does: {live_page.HOW_TO_START}")
    return EXIT_OK


def ended(page):
    """The process went away."""
    live_page.all_pages()  # tidies what it may have left
    ui.note(f"process {page.pid} has ended")
    return EXIT_OK


def run_once(args, page):
    """One look."""
    if args.prom:
        sys.stdout.write(live_page.must_answer(page, "prom"))
        return EXIT_OK
    fresh = live_page.refresh(page)
    if fresh is None:
        return ended(page)
    if args.json:
        print(as_json([fresh]))
    else:
        found = live_view.ordered(live_view.rows(fresh, None, args.classes), args.sort)
        print("\n".join(live_view.text(fresh, found)))
    return EXIT_OK


@contextlib.contextmanager
def keys_at_once():
    """Keys come without Enter and are not echoed; afterwards all is as it was."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    ended_by = signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_SIGNAL_BASE + signal.SIGTERM))
    try:
        tty.setcbreak(fd)
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, ended_by)


def key_within(fd, seconds):
    """The key that is pressed in that time, or an empty string; q when there is nobody any more."""
    ready, _, _ = select.select([fd], [], [], max(0.0, seconds))
    return (os.read(fd, 1).decode("ascii", "replace") or "q") if ready else ""


def obey(args, key):
    """What a key changes; False: it ends."""
    if key == "c":
        args.classes = not args.classes
    elif key == "s":
        place = live_view.SORT_KEYS.index(args.sort) + 1
        args.sort = live_view.SORT_KEYS[place % len(live_view.SORT_KEYS)]
    return key not in ("q", "Q")


def profiled(page):
    """A line about the profile that the process was asked for."""
    try:
        return f"profile written to {live_profile.save(page, PROFILE_S)}"
    except QuireError as error:
        return f"no profile: {error.what}" + f" ({error.why})" * bool(error.why)


def run_live(args, page):
    """Looks until the process or the user ends it."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        raise EnvironmentLacks(
            "the live view needs rich", fix=f"{packages.install_line(['rich'])}   or: quire top {page.pid} --once"
        ) from None
    now, before, said = live_page.refresh(page), None, []
    with keys_at_once() as keys, Live(console=Console(), screen=True, auto_refresh=False) as live:
        while now is not None:
            window = shutil.get_terminal_size()
            room = max(1, window.lines - LINES_AROUND)
            found = live_view.ordered(live_view.rows(now, before, args.classes), args.sort)
            live.update(live_view.rich_table(now, found, room, window.columns, "".join(said[-1:])), refresh=True)
            due_s = time.monotonic() + args.interval
            key = key_within(keys, args.interval)
            if not obey(args, key):
                break
            if key == "p":
                said.append(profiled(now))
            if key and time.monotonic() < due_s:
                continue  # shown anew at once; the next look comes in its time
            before, now = now, live_page.refresh(page)
    for line in said:  # the screen that it stood on is gone
        ui.note(line)
    return EXIT_OK if now else ended(page)


def run(args):
    """The list, a look, or the view."""
    check(args)
    if not args.process:
        return run_list(args)
    page = live_page.find(args.process)
    if args.once or args.json or args.prom:
        return run_once(args, page)
    if not (sys.stdout.isatty() and sys.stdin.isatty()) or os.environ.get("TERM", "dumb") in ("", "dumb"):
        ui.note("no terminal to show it in: one look (--once)")
        return run_once(args, page)
    return run_live(args, page)
