# SPDX-License-Identifier: MIT
"""test_top_view - quire top in a terminal: the table in windows of any width, its keys, and how it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import types

import live_kit
import pytest
import toolkit
from live_kit import Shown, wait_until

import heapprofile
import live.profile as live_profile
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


def drive(process, key, folder=None, shows=None):
    """
    `quire top PID` in a terminal until it ends by `key` ("" for the process's end): (status, output, terminal as before). Of two keys the second is pressed
    when the output has `shows`.
    """
    import pty
    import select
    import termios

    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    env = {**os.environ, "QUIRE_BUILD_DIR": str(toolkit.BUILD), "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"}
    command = [sys.executable, str(toolkit.TOOL), "top", str(process.pid), "--interval", "0.1"]
    view = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=folder, start_new_session=True)
    seen, sent, end_s = b"", False, time.monotonic() + live_kit.PATIENCE_S
    while view.poll() is None and time.monotonic() < end_s:
        if select.select([ours], [], [], 0.05)[0]:
            seen += os.read(ours, 65536)
        if b"nodes" in seen and b"q ends" in seen and not sent:
            sent = True
            if key == "\x03":
                view.send_signal(signal.SIGINT)
            elif key:
                os.write(ours, key[0].encode())
            else:
                process.kill()
        if key[1:] and shows in seen:
            os.write(ours, key[1].encode())
            key = key[0]
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


KINDS = (("arena", "arenas", ""), ("slab", "slabs", "live_elements"), ("percpu", "percpu", "live_objects"), ("heap", "heaps", "live_blocks"))


@pytest.mark.parametrize("conf", ["top:20ms,prof:1K,prof_exit:0", "top:20ms"])
def test_a_key_asks_for_a_profile_and_the_view_says_where_it_is(program, tmp_path, conf):
    pytest.importorskip("rich")
    with Shown([program], conf, environment={"LD_PRELOAD": str(toolkit.BUILD / "libquire-malloc.so")}, cwd=tmp_path) as process:
        process.ready()
        ended, seen, same = drive(process, "pq", tmp_path, b"no profile: " if "prof" not in conf else b".heap")
        assert (ended, same) == (0, True), seen[-500:]
        last, path = seen.rpartition("\x1b[?1049l")[2], tmp_path / f"quire.{process.pid}.0.heap"
        if "prof" not in conf:
            assert f"no profile: process {process.pid} has no profile (it was not started with QUIRE_CONF=prof)" in last and not path.exists()
            return
        assert f"profile written to {path}" in last
        assert f"quire.{process.pid}.0.heap" in seen.rpartition("\x1b[?1049l")[0], "in the view, too"
        raw = heapprofile.read(path.read_text(), str(path))
        stats = live_kit.page_of(process.pid).stats
    assert raw.facts["pid"] == process.pid and raw.stacks
    exact = {f"[{one} {o['name'] or o['id']}]": [o.get(count, 0), o["live_bytes"], 0, 0] for one, many, count in KINDS for o in stats[many]}
    shown = {label.replace("?", "\x1b"): figures for label, figures in raw.objects}
    assert shown == {label: figures for label, figures in exact.items() if label != "[heap default]"} and len(shown) >= 4
    assert shown["[slab nodes]"][:2] == [2000, 2000 * 80]


def test_a_profile_overwrites_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(live_profile, "text_of", lambda page, patience_s: f"of {page.pid}")
    page = types.SimpleNamespace(pid=7)
    assert [live_profile.save(page), live_profile.save(page)] == [str(tmp_path / "quire.7.0.heap"), str(tmp_path / "quire.7.1.heap")]
    assert (tmp_path / "quire.7.0.heap").read_text() == "of 7"
