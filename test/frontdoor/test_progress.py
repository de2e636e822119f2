# SPDX-License-Identifier: MIT
"""test_progress - the first ./quire in a checkout says what it does all the time: a moving line on a terminal, a line a
step elsewhere."""

import os
import pty
import re
import subprocess
import threading

import pytest
from frontdoor import progress, say
from minihouse import House

# Two steps; the second waits for the file `go`, so that a test sees the line between them.
SLOW = """# SPDX-License-Identifier: MIT
cmake_minimum_required(VERSION 3.25)
project(mini LANGUAGES NONE)
add_custom_command(OUTPUT quick COMMAND cmake -E touch quick)
add_custom_command(OUTPUT slow DEPENDS quick VERBATIM
  COMMAND timeout 120 sh -c "while [ ! -e ${CMAKE_CURRENT_SOURCE_DIR}/go ]; do sleep 0.05; done; @LAST@")
add_custom_target(mini ALL DEPENDS slow)
"""
APT = """Reading package lists...
The following NEW packages will be installed:
  cmake ninja-build
0 upgraded, 2 newly installed, 0 to remove and 3 not upgraded.
Get:1 http://deb.debian.org/debian bookworm/main amd64 ninja-build amd64 1.11 [1 B]
Get:2 http://deb.debian.org/debian bookworm/main amd64 cmake amd64 3.25 [1 B]
Fetched 2 B in 0s (2 B/s)
Unpacking ninja-build (1.11) ...
"""


@pytest.fixture
def slow(tmp_path):
    """slow(last) is a house whose build ends with the command `last` once there is a file `go`."""

    def made(last):
        house = House(tmp_path)
        house.write("CMakeLists.txt", SLOW.replace("@LAST@", last))
        return house

    return made


def watched(house, awaited, **told):
    """What ./quire says on a terminal and its status; when it has said `awaited` the build may go on."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        house.command("try"), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, cwd="/",
        env=house.environment(TERM="xterm", COLUMNS="80", **told),
    )  # fmt: skip
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 65536):
            said += piece
            if awaited in said.decode():
                house.write("go", "")
    except OSError:
        pass  # how a terminal says that nobody is left
    os.close(ours)
    return said.decode(), process.wait()


def test_a_build_on_a_terminal_says_how_far_it_is_and_in_the_end_how_long_it_took(slow):
    said, status = watched(slow("touch slow"), "building release  [##########..........]  1 of 2, about ")
    assert status == 0
    last = said[said.rindex("\033[K") :]
    assert re.fullmatch(r"\033\[Kquire: building release \.\.\. \d+\.\d s\r\ntool: try\r\n", last)


def test_a_build_that_fails_on_a_terminal_takes_the_line_away_and_shows_the_tools_own_words(slow):
    said, status = watched(slow("echo no such thing; exit 7"), "1 of 2")
    assert status == 1
    last = said[said.rindex("\033[K") :]
    assert last.startswith("\033[Kquire: building release ... failed\r\n")
    assert "no such thing" in last and "the whole log is build/log/build-release.txt" in last


@pytest.mark.parametrize("told", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_is_to_stay_plain_gets_a_line_a_step(slow, told):
    house = slow("touch slow")
    environment = house.environment
    house.environment = lambda **more: environment(**{**more, **told})
    said, status = watched(house, "building release ...")
    assert status == 0 and "\033" not in said
    assert re.search(r"^quire: building release \.\.\. \d+\.\d s\r$", said, re.MULTILINE)


def test_the_first_run_says_that_it_is_one_and_the_second_says_nothing(tmp_path):
    house = House(tmp_path)
    house.be_quiet()
    assert "quire: the first run here sets up and builds" in house.run("try").stderr
    assert house.run("try").stderr == ""


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("[0/2] Re-checking globbed directories...\n[3/17] Building C object a.o\n", (3, 17)),
        (APT, (3, 6)),
        (APT + "Setting up cmake (3.25) ...\n" * 9, (6, 6)),
        ("0 upgraded, 0 newly installed, 0 to remove\n", None),
        ("-- The C compiler identification is GNU 12.2.0\n see [1/2]\n", None),
        ("", None),
    ],
)
def test_steps_are_counted_as_the_command_itself_counts_them(text, steps):
    assert progress.counted(text) == steps


@pytest.mark.parametrize("columns", [30, 60, 80, 200])
def test_a_line_fits_its_terminal_and_says_what_is_left(columns):
    line = progress.text("installing cmake ninja-build gcc g++", (45, 130), 10, columns)
    assert len(line) < columns and line.startswith("quire: install")
    assert "45 of 130" in line if columns > 30 else line
    assert ("about 19 s left" in line) == (columns >= 60)
    assert ("[######....." in line) == (columns >= 80)
    assert progress.text("making .venv", None, 3.2, columns) == "quire: making .venv ... 3 s"


def test_no_step_done_is_no_estimate():
    assert progress.text("building", (0, 5), 1, 80) == "quire: building  [....................]  0 of 5"


@pytest.mark.parametrize("beside", [False, True])
def test_what_runs_beside_others_has_its_line_in_one_piece(tmp_path, monkeypatch, beside):
    pieces, command = [], ["sleep", str(say.QUIET_S + 0.3)]
    monkeypatch.setattr(say, "put", pieces.append)
    monkeypatch.setattr(say.progress, "is_live", lambda: beside)
    if beside:
        thread = threading.Thread(target=say.run, args=(command, "installing", tmp_path / "log"))
        thread.start()
        thread.join()
    else:
        say.run(command, "installing", tmp_path / "log")
    assert len(pieces) == (1 if beside else 2)
    assert re.fullmatch(r"quire: installing \.\.\. [0-9.]+ s\n", "".join(pieces))
