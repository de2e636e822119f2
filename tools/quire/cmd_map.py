# SPDX-License-Identifier: MIT
"""
cmd_map.py - `quire map PID|CORE`: a picture of which slots live.

    PID     a process that shows itself (QUIRE_CONF=top:1) is asked: no debugger, no right to trace it is needed
    CORE    gdb reads a core file, with tools/gdb/quire_gdb.py
    both    quire.map/1 -> text, or --json

Not here: asking (live/page.py), core files (live/corefile.py), pictures (live/map.py).
"""

import json
import os

import live.corefile as corefile
import live.map as live_map
import live.page as live_page
import ui
from errors import EXIT_OK, UsageError

HELP = "a picture of which slots live, of a running process or a core file"
EPILOG = f"""The process shows itself when it was started so:
  {live_page.HOW_TO_START}
A core file is read by gdb (apt-get install -y gdb). In gdb itself: source tools/gdb/quire_gdb.py (LLDB:
command script import ...), then `quire map`, `quire objects`, `quire owner ADDRESS`."""


def add_arguments(parser):
    """Options of `map`."""
    parser.add_argument("process", metavar="PID|NAME|CORE", help="a process, or a core file")
    parser.add_argument("--object", metavar="NAME|ID", help="one object: its name or id, or heap:default, slab:3")
    parser.add_argument("--all", action="store_true", help="a line for each page, also where there are many")
    parser.add_argument("--exe", metavar="PROG", help="the program of the core file (default: as the core says)")
    parser.add_argument("--json", action="store_true", help='JSON alone on stdout, "schema":"quire.map/1"')


def document_of(args):
    """quire.map/1 of what was named, with the program's name."""
    if not args.process.isdigit() and os.path.isfile(args.process):
        return corefile.map_of(args.process, args.exe)
    if "/" in args.process:
        raise UsageError(f"there is no core file {args.process}", fix="coredumpctl list   or   ls -t core*")
    if args.exe:
        raise UsageError("--exe is for core files")
    page = live_page.find(args.process)
    return {**json.loads(live_page.must_answer(page, "map")), "program": page.program}


def run(args):
    """Asks, picks, shows."""
    document = document_of(args)
    pages = [p for p in document["pages"] if live_map.matches(p, args.object)]
    if args.object and not pages:
        names = sorted({f"{p['kind']}:{ui.masked(p['name']) or p['id']}" for p in document["pages"]})
        raise UsageError(f"no object `{args.object}` has a page", why=f"there are: {', '.join(names[:20]) or 'none'}")
    document["pages"] = pages
    if args.json:
        print(json.dumps(document, ensure_ascii=False))
    else:
        print("\n".join(live_map.text(document, args.all)))
    return EXIT_OK
