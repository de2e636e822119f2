# SPDX-License-Identifier: MIT
"""test_top_view - quire top in a terminal: the table in windows of any width, its keys, and how it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import live_kit
import pytest
import toolkit
from live_kit import Shown, wait_until

import live.view as live_view


@pytest.fixture(autouse=True)
def a_terminal_that_is_not_dumb(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")  # on a dumb one rich takes 80 columns, whatever it is told


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return live_kit.build(tmp_path_factory.mktemp("top"))


@pytest.fixture(scope="module")
def shown(program):
    with Shown([program]) as process:
        yield process.ready()


def test_the_live_table_takes_no_name_for_markup(shown):
    rich_console = pytest.importorskip("rich.console")
    page = wait_until(shown.page)
    console = rich_console.Console(width=120, force_terminal=True, color_system=None, file=open(os.devnull, "w"))
    with console.capture() as captured:
        console.print(live_view.rich_table(page, live_view.rows(page), 50, 120))
    assert "[red]query[/red] ?[31m" in captured.get()


@pytest.mark.parametrize(("width", "dropped"), [(200, []), (80, []), (60, ["id", "free", "count/s"]), (20, list(live_view.DROPPED_FIRST))])
def test_a_narrow_window_goes_without_columns_and_cuts_no_figure(shown, width, dropped):
    rich_console = pytest.importorskip("rich.console")
    page = wait_until(shown.page)
    found = [row._replace(name="a name of thirty-one letters " * 3, held_per_s=None, count_per_s=None) for row in live_view.rows(page)]
    assert [h for h in dropped if h in drawn(rich_console, page, found, width).splitlines()[1].split()] == []
    if width > 40:
        said = drawn(rich_console, page, found, width)
        for row in found:
            assert live_view.cells(row)[3] in said and live_view.cells(row)[6] in said, said
        assert all(len(line) <= width for line in said.splitlines())


def drawn(rich_console, page, found, width):
    """The live view's table as text."""
    console = rich_console.Console(width=width, force_terminal=True, color_system=None, file=open(os.devnull, "w"))
    with console.capture() as captured:
        console.print(live_view.rich_table(page, found, 50, width))
    return captured.get()


def drive(process, key):
    """`quire top PID` in a terminal until it ends by `key` ("" for the process's end): (status, output, terminal as before)."""
    import pty
    import select
    import termios

    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    env = {**os.environ, "QUIRE_BUILD_DIR": str(toolkit.BUILD), "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"}
    command = [sys.executable, str(toolkit.TOOL), "top", str(process.pid), "--interval", "0.1"]
    view = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
    seen, sent, end_s = b"", False, time.monotonic() + live_kit.PATIENCE_S
    while view.poll() is None and time.monotonic() < end_s:
        if select.select([ours], [], [], 0.05)[0]:
            seen += os.read(ours, 65536)
        if b"nodes" in seen and b"q ends" in seen and not sent:
            sent = True
            if key == "\x03":
                view.send_signal(signal.SIGINT)
            elif key:
                os.write(ours, key.encode())
            else:
                process.kill()
    view.kill()  # one that should have ended by now
    status, same = view.wait(), termios.tcgetattr(theirs) == before
    os.close(theirs)
    with contextlib.suppress(OSError):  # what a terminal reads as when nobody has it open and all has been read
        while more := os.read(ours, 65536):
            seen += more
    os.close(ours)
    return status, seen.decode(errors="replace"), same


@pytest.mark.parametrize(("key", "status", "said"), [("q", 0, ""), ("\x03", 130, "interrupted"), ("", 0, "has ended")])
def test_the_live_view_ends_and_leaves_the_terminal_as_it_was(program, key, status, said):
    pytest.importorskip("rich")
    with Shown([program]) as process:
        process.ready()
        ended, seen, same = drive(process, key)
        assert (ended, same) == (status, True), seen[-500:]
        assert "\x1b[?1049h" in seen and "\x1b[?1049l" in seen and said in seen.rpartition("\x1b[?1049l")[2]
