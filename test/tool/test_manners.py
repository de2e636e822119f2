# SPDX-License-Identifier: MIT
"""test_manners - streams, exit codes, terminals of any width and none, names of any bytes, files that are there already."""

import errno
import glob
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import pytest
from manners import COLOUR, Running, environment
from toolkit import HANGS_S, TOOL, build, quire

CHURN = """
#include <stdlib.h>
#include <string.h>
int main(void) {
    for (int i = 0; i < 4000; i++) { char *p = malloc(20 + i % 50); memset(p, 1, 20); free(p); }
    return 0;
}
"""


@pytest.fixture(scope="module")
def churn(tmp_path_factory):
    """A program that allocates a little, and a trace of it."""
    folder = tmp_path_factory.mktemp("churn")
    program = build(folder, CHURN, name="churn")
    done = quire(folder, "record", "-o", "churn.qtr", "--", program)
    assert done.returncode == 0, done.stderr
    return program, folder / "churn.qtr"


def raw(folder, *words, env=None, **streams):
    """`quire WORDS` with streams as given; the finished process."""
    argv = [sys.executable, str(TOOL), *words]
    return subprocess.run(argv, cwd=folder, env=environment(**(env or {})), timeout=HANGS_S, **streams)


# streams


@pytest.mark.by_turns
@pytest.mark.parametrize("command", ["try", "replay", "advise", "check", "env"])
def test_json_is_alone_on_standard_output(tmp_path, churn, command):
    program, trace = churn
    words = {
        "try": ["--rounds", 1, "--no-report", "--", program],
        "replay": ["--rounds", 1, "--allocator", "libc", trace],
        "advise": [trace],
        "check": ["--", program],
        "env": [],
    }
    done = quire(tmp_path, command, "--json", *words[command])
    document = json.loads(done.stdout)
    assert document["schema"].startswith("quire.") and "\033" not in done.stderr


def test_a_programs_own_output_is_left_alone_by_record_and_run(tmp_path):
    for command in ("record", "run"):
        done = quire(tmp_path, command, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
        assert (done.returncode, done.stdout) == (7, "out\n") and "err" in done.stderr


def test_a_result_that_cannot_be_written_is_an_error(tmp_path, churn):
    with open("/dev/full", "w", encoding="ascii") as full:
        done = raw(tmp_path, "advise", str(churn[1]), stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 3 and b"No space left" in done.stderr and b"fix: " in done.stderr
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    "words, status",
    [
        (["run", "--", "sh", "-c", "exit 44"], 44),
        (["record", "--", "sh", "-c", "exit 44"], 44),
        (["try", "--rounds", "1", "--no-report", "--", "sh", "-c", "exit 44"], 44),
        (["run", "--", "sh", "-c", "kill -9 $$"], 137),
        (["bogus"], 2),
    ],
)
@pytest.mark.parametrize("closed", [False, True])
def test_the_exit_status_is_the_same_where_diagnostics_cannot_be_written(tmp_path, words, status, closed):
    command = [sys.executable, str(TOOL), *words]
    with open("/dev/full", "w", encoding="ascii") as full:
        shut = (lambda: os.close(2)) if closed else None
        done = subprocess.run(command, cwd=tmp_path, env=environment(), stderr=full, stdout=subprocess.DEVNULL, preexec_fn=shut, timeout=HANGS_S)
    assert done.returncode == status


@pytest.mark.parametrize("command, status", [("advise", 3), ("report", 3), ("bench", 3), ("run", 125), ("try", 125)])
def test_what_the_system_refuses_is_said_with_what_to_do(command, status):
    import cli

    error = cli.of_system(PermissionError(errno.EACCES, "Permission denied", "x.qtr"), command)
    assert error.exit_code == status
    assert error.text().splitlines() == [f"quire: {command} cannot use x.qtr", "  why: Permission denied", "  fix: ls -ld x.qtr   (who may?)"]


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path, churn):
    reader, writer = os.pipe()
    os.close(reader)
    done = raw(tmp_path, "advise", str(churn[1]), stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.returncode == 141 and b"Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_hindrance(tmp_path, churn, closed):
    command = f"exec {sys.executable} {TOOL} record -o {tmp_path}/t.qtr -- {churn[0]} {closed}"
    done = subprocess.run(["sh", "-c", command], env=environment(), capture_output=True, timeout=HANGS_S)
    assert done.returncode == 0 and b"Traceback" not in done.stderr
    assert (tmp_path / "t.qtr").exists()


# exit codes


@pytest.mark.parametrize(
    "words, code",
    [
        (["try", "--rounds", "0"], 2),
        (["replay", "--time-limit", "-1", "x.qtr"], 2),
        (["replay", "no-such.qtr"], 2),
        (["record", "--", "no-such-program"], 127),
        (["try", "--", "no-such-program"], 127),
        (["run", "--", "/etc/passwd"], 126),
        (["record", "--", "/tmp"], 126),
        (["record", "--ready-port", "99999", "--load", "true", "--", "true"], 2),
        (["check", "--", "true", "--pid"], 0),
        (["record", "--", "sh", "-c", "kill -9 $$"], 137),
        (["run", "--", "sh", "-c", "exit 44"], 44),
        (["record", "-o", "/nowhere/x.qtr", "--", "true"], 3),
    ],
)
def test_each_end_has_its_exit_code_and_every_error_a_reason(tmp_path, words, code):
    done = quire(tmp_path, *words)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code in (2, 3, 126, 127):
        assert done.stdout == "" and done.stderr.startswith("quire: ")
        assert len(done.stderr.splitlines()) >= 2 or "at least" in done.stderr or "above" in done.stderr


# terminals


def lines_on(folder, columns, *words, env=None):
    """What a terminal of that width was sent, as lines; colours taken out."""
    running = Running(folder, *words, columns=columns, env=env)
    assert running.end() == 0, running.said
    return running.said.replace("\r\n", "\n").split("\n"), running.said


def too_wide(lines, columns):
    """Lines that stick out, but for words (a path, a command) that are never broken."""
    shown = [COLOUR.sub("", line.split("\033[K")[-1]) for line in lines]
    wide = [line for line in shown if len(line) > columns]
    return [line for line in wide if len(max(line.split(), key=len)) <= columns - 8]


@pytest.mark.by_turns
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_nothing_is_wider_than_the_terminal(tmp_path, churn, columns):
    words = ["try", "--rounds", "1", "--time-limit", "1", "--no-report", "--", churn[0]]
    lines, said = lines_on(tmp_path, columns, *words)
    assert "\033[" in said and not too_wide(lines, columns)


@pytest.mark.parametrize(
    "words", [["--help"], ["env"], ["check", "--", "ls"], ["run", "--", "true"]]
)
def test_short_answers_fit_a_narrow_terminal_too(tmp_path, words):
    lines, _ = lines_on(tmp_path, 40, *words)
    assert len(lines) > 2 and not too_wide(lines, 40)


def test_on_a_terminal_progress_is_one_line_that_goes_away(tmp_path, churn):
    words = ["replay", "--rounds", "2", "--allocator", "libc", churn[1]]
    _, said = lines_on(tmp_path, 80, *words)
    assert "\r\033[K[" in said and " s left" in said
    assert said.rindex("\r\033[K") > said.rindex("replaying")


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_wants_no_colour_gets_neither_colour_nor_movement(tmp_path, churn, env):
    words = ["replay", "--rounds", "1", "--allocator", "libc", churn[1]]
    _, said = lines_on(tmp_path, 80, *words, env=env)
    assert "\033" not in said and "quire: replaying" in said


def test_columns_wins_over_the_terminal_and_holds_without_one(tmp_path, churn):
    words = ["replay", "--rounds", "1", "--allocator", "libc", churn[1]]
    lines, _ = lines_on(tmp_path, 200, *words, env={"COLUMNS": "40"})
    assert not too_wide(lines, 40)
    done = quire(tmp_path, *words, environment={"COLUMNS": "40"})
    assert "ns per operation" in done.stdout
    assert max(map(len, done.stdout.splitlines()[1:])) <= 40


# files


@pytest.mark.parametrize(
    "words",
    [
        ["record", "-o", "FILE", "--", "true"],
        ["try", "-o", "FILE", "--", "true"],
        ["run", "--stats=json:FILE", "--", "true"],
        ["bench", "micro", "--save", "FILE"],
    ],
)
def test_no_file_is_overwritten_unasked(tmp_path, words):
    (tmp_path / "FILE").write_text("mine")
    done = quire(tmp_path, *words)
    assert done.returncode == 2 and "FILE" in done.stderr and "-f" in done.stderr
    assert (tmp_path / "FILE").read_text() == "mine" and os.listdir(tmp_path) == ["FILE"]


@pytest.mark.by_turns
def test_of_several_processes_one_is_looked_at_and_the_way_to_the_others_is_told(tmp_path, churn):
    line = f"{churn[0]}; {churn[0]}; exit 0"
    done = quire(tmp_path, "try", "--rounds", 1, "--no-report", "--", "sh", "-c", line)
    assert "looked at: churn, which allocates most" in done.stdout
    assert f"record -- sh -c '{line}' keeps a trace of each" in done.stdout
    assert "  4,000 allocations, 1 thread, at most " in done.stdout and ", in the one of 3 processes that allocates most; all of them take " in done.stdout


@pytest.mark.by_turns
def test_allocations_of_one_process_are_not_said_to_be_those_of_all_where_there_is_no_time_for_more(tmp_path, churn):
    line = f"{churn[0]}; {churn[0]}; exit 0"
    for words in (["--time-limit", 0.05, "--", "sh", "-c", line], ["--", "sh", "-c", "true; ls; exit 0"]):
        done = quire(tmp_path, "try", "--no-report", *words)
        makes = next(text for text in done.stdout.splitlines() if " allocations" in text)
        assert "no time for replays" in makes or "Nothing worth looking at" in makes
        assert "sh makes" not in makes and " processes that allocates most; all of them take " in makes, done.stdout


def test_traces_of_further_processes_are_not_overwritten_either(tmp_path):
    mine = b"QTRACE\r\nof another process"
    (tmp_path / "t.qtr.123").write_bytes(mine)
    done = quire(tmp_path, "try", "-o", "t.qtr", "--", "true")
    assert done.returncode == 2 and "t.qtr.123" in done.stderr
    (tmp_path / "true.qtr.5").write_bytes(mine)
    assert quire(tmp_path, "try", "--no-report", "--", "true").returncode == 0
    assert (tmp_path / "true.qtr.5").read_bytes() == mine and (tmp_path / "true.1.qtr").exists()


def test_two_that_record_at_once_have_a_trace_each(tmp_path, monkeypatch):
    import tracefile

    monkeypatch.setattr(tracefile, "held", [])
    assert tracefile.hold(str(tmp_path / "sh.qtr"))  # another command, which has not begun to record yet
    words = ["record", "--", "sh", "-c", "exit 0"]
    done = quire(tmp_path, *words)
    assert done.returncode == 0 and [p.name for p in tmp_path.iterdir()] == ["sh.1.qtr"], done.stderr
    for force in ([], ["-f"]):
        done = quire(tmp_path, "record", "-o", "sh.qtr", *force, "--", "sh", "-c", "exit 0")
        assert done.returncode == 2 and "is being recorded by another command" in done.stderr
    tracefile.held.pop().close()
    assert quire(tmp_path, *words).returncode == 0 and (tmp_path / "sh.qtr").exists()


def test_a_trace_that_has_appeared_since_is_left_alone(tmp_path):
    import tracefile

    path = tmp_path / "x.qtr"
    path.write_bytes(b"other's")
    with pytest.raises(tracefile.UsageError):
        tracefile.set_aside(str(path), False)
    assert path.exists()
    [(aside, old)] = tracefile.set_aside(str(path), True)
    assert not path.exists() and old == str(path)
    with open(aside, "rb") as file:
        assert file.read() == b"other's"


def test_what_force_replaces_stays_until_there_is_something_new(tmp_path):
    (tmp_path / "t.qtr").write_text("mine")
    assert quire(tmp_path, "record", "-f", "-o", "t.qtr", "--", "/etc/passwd").returncode == 126
    assert (tmp_path / "t.qtr").read_text() == "mine"
    assert quire(tmp_path, "record", "-f", "-o", "t.qtr", "--", "true").returncode == 0
    assert (tmp_path / "t.qtr").read_bytes()[:6] == b"QTRACE"


def test_what_a_killed_recording_had_set_aside_is_brought_back_or_named(tmp_path):
    with subprocess.Popen(["true"]) as gone:
        pass
    aside = tmp_path / f".t.qtr.before-{gone.pid}"
    aside.write_text("mine")
    assert quire(tmp_path, "record", "-f", "-o", "t.qtr", "--", "/etc/passwd").returncode == 126
    done = quire(tmp_path, "record", "-o", "t.qtr", "--", "true")
    assert done.returncode == 0 and f"{aside.name} is the trace that t.qtr was before" in done.stderr and aside.read_text() == "mine"
    (tmp_path / "t.qtr").unlink()
    done = quire(tmp_path, "record", "-f", "-o", "t.qtr", "--load", "false", "--", "sleep", 9)
    assert done.returncode == 3 and (tmp_path / "t.qtr").read_text() == "mine" and not aside.exists(), done.stderr


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root to mount a small disk"
)
@pytest.mark.parametrize("command", ["advise", "replay"])
def test_a_full_folder_for_temporary_files_is_said(tmp_path, churn, command):
    (tmp_path / "small").mkdir()
    script = (
        f"mount -t tmpfs -o size=16k none small && exec env TMPDIR=small {sys.executable} {TOOL} "
        f"{command} {churn[1]}"
    )
    argv = ["unshare", "-m", "sh", "-c", script]
    done = subprocess.run(argv, cwd=tmp_path, env=environment(), capture_output=True, timeout=HANGS_S)
    if b"mount:" in done.stderr or b"unshare:" in done.stderr:  # in a chroot there is no namespace of mounts to be had
        pytest.skip("no small disk can be mounted here")
    assert done.returncode == 3 and b"TMPDIR=/var/tmp" in done.stderr, done.stderr
    assert b"Traceback" not in done.stderr


# names


ODD_NAME = b"a<b>&amp;\x1b[31mred\ntwo\xfflines\"and\\"


@pytest.mark.by_turns
def test_a_name_of_any_bytes_is_shown_escaped_and_never_obeyed(tmp_path, churn):
    program = os.fsencode(tmp_path) + b"/" + ODD_NAME
    shutil.copy(churn[0], program)
    words = [b"try", b"--rounds", b"1", b"--time-limit", b"1", b"--no-report", b"--", program, b"\x1b[2J\xff"]
    done = raw(tmp_path, *words, capture_output=True)
    assert done.returncode == 0, done.stderr
    for text in (done.stdout, done.stderr):
        assert b"\x1b" not in text and b"Traceback" not in text
        text.decode("utf-8")
    assert rb"\x1b[2J\xff" in done.stdout
    for command in (b"run", b"check"):
        done = raw(tmp_path, command, b"--", program, capture_output=True)
        assert done.returncode == 0 and b"\x1b" not in done.stdout + done.stderr, command
    (trace,) = tmp_path.glob("*.qtr")
    document = json.loads(quire(tmp_path, "advise", "--json", trace).stdout)
    json.dumps(document, ensure_ascii=False).encode()  # no half characters
    assert document["traces"][0]["facts"]["allocations"] == 4000
    words = ["replay", "--rounds", "1", "--allocator", "libc", trace]
    replayed = raw(tmp_path, *words, capture_output=True)
    assert replayed.returncode == 0 and b"\x1b" not in replayed.stdout + replayed.stderr


@pytest.mark.parametrize("text", [b"plain", b"two words", b"it's", b"a\nb", b"\t'\\n", b"\xff9", b"\x1b[2J\xc2\x80", b"", b"\xc3\xbc"])
def test_a_word_of_a_command_that_is_advised_means_to_a_shell_what_it_was(text):
    import ui

    word = ui.word(os.fsdecode(text))
    assert word.isprintable()
    assert subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True).stdout == text


@pytest.mark.by_turns
def test_the_way_to_what_is_saved_can_be_copied_where_an_argument_has_lines(tmp_path, churn):
    line = f"{churn[0]}\n{churn[0]}\nexit 0"
    done = quire(tmp_path, "try", "--rounds", 1, "--no-report", "--", "sh", "-c", line)
    said = next(text for text in done.stdout.splitlines() if "keeps a trace of each" in text)
    command = said.split(" record -- ")[1].split(" keeps a trace")[0]
    words = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, text=True, check=True).stdout.split("\0")
    assert words == ["sh", "-c", line, ""]


@pytest.mark.by_turns
def test_a_trace_whose_name_begins_like_an_option_can_be_named_as_it_is_said(tmp_path, churn):
    shutil.copy(churn[0], tmp_path / "-c")
    done = quire(tmp_path, "try", "--rounds", 1, "--no-report", "--", "-c", environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert (tmp_path / "-c.qtr").exists(), done.stderr
    command = next(line for line in done.stdout.splitlines() if " advise " in line).split("   ")[0].split()
    assert quire(tmp_path, "advise", command[-1]).returncode == 0, command


def test_a_byte_that_is_no_text_looks_the_same_wherever_it_is_said(tmp_path):
    program = os.fsencode(tmp_path) + b"/p\xff"
    shutil.copy("/bin/true", program)
    done = raw(tmp_path, b"try", b"--no-report", b"--", program, capture_output=True)
    assert rb"p\xff makes" in done.stdout and b"udcff" not in done.stdout + done.stderr, done.stdout


@pytest.mark.parametrize("command", ["try", "record", "run", "check", "replay", "advise"])
def test_errors_about_odd_names_are_escaped_too(tmp_path, command):
    words = [command.encode()] + ([] if command in ("replay", "advise") else [b"--"]) + [ODD_NAME]
    done = raw(tmp_path, *words, capture_output=True)
    assert done.returncode in (2, 127), done.stderr
    assert b"\x1b" not in done.stderr and b"Traceback" not in done.stderr
    assert done.stderr.startswith(b"quire: ")


# symbols


@pytest.mark.by_turns
def test_a_stripped_program_is_told_by_module_and_offset_and_how_to_get_names(tmp_path, churn):
    program = tmp_path / "bare"
    subprocess.run(["strip", "-o", program, churn[0]], check=True)
    done = quire(tmp_path, "try", "--rounds", 1, "--no-report", "--", program)
    assert done.returncode == 0 and "bare+0x" in done.stdout
    assert "debug" in done.stdout and "-g" in done.stdout


def debuginfo_server(folder):
    """A server of `debuginfo` files by build id, and the list of what it was asked for."""
    asked = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            file = folder / self.path.strip("/").replace("/", "-")
            self.send_response(200 if file.exists() else 404)
            body = file.read_bytes() if file.exists() else b""
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, asked


@pytest.mark.by_turns
@pytest.mark.skipif(not glob.glob("/usr/lib/*/libdebuginfod.so.1"), reason="needs libdebuginfod1")
def test_a_debuginfo_server_is_asked_where_the_variable_names_one_and_only_there(tmp_path, churn):
    program = tmp_path / "bare"
    subprocess.run(["strip", "-o", program, churn[0]], check=True)
    quire(tmp_path, "record", "-o", "bare.qtr", "--", program)
    notes = subprocess.run(["readelf", "-n", program], capture_output=True, text=True, check=True).stdout
    build_id = notes.split("Build ID: ")[1].split()[0]
    (tmp_path / f"buildid-{build_id}-debuginfo").write_bytes(pathlib.Path(churn[0]).read_bytes())
    server, asked = debuginfo_server(tmp_path)
    url = f"http://127.0.0.1:{server.server_port}/"
    try:
        plain = quire(tmp_path, "advise", "bare.qtr", environment={"HOME": str(tmp_path), "DEBUGINFOD_URLS": ""})
        assert plain.returncode == 0 and asked == [] and "bare+0x" in plain.stdout
        named = quire(tmp_path, "advise", "bare.qtr", environment={"HOME": str(tmp_path), "DEBUGINFOD_URLS": url})
        assert named.returncode == 0 and any(build_id in path for path in asked) and "bare+0x" not in named.stdout
    finally:
        server.shutdown()


@pytest.mark.by_turns
@pytest.mark.parametrize(("apart_bytes", "where"), [(0, "(after exported_one)"), (100_000, "")], ids=["near", "far"])
def test_a_place_without_a_name_is_told_by_the_exported_name_shortly_before_it(tmp_path, apart_bytes, where):
    source = "#include <stdlib.h>\nvoid *keep[5000];\n__attribute__((noinline)) void exported_one(void) { keep[0] = malloc(9); }\n"
    source += f'__asm__(".text\\n.zero {apart_bytes}");\n'
    source += "static __attribute__((noinline)) void *hidden(int i) { return keep[i] = malloc(20); }\n"
    source += "int main(void) { exported_one(); for (int i = 1; i < 5000; i++) hidden(i); return 0; }\n"
    program = build(tmp_path, source, flags=["-rdynamic", "-fno-inline", "-fno-toplevel-reorder"])
    subprocess.run(["strip", program], check=True)
    quire(tmp_path, "record", "-o", "x.qtr", "--", program)
    done = quire(tmp_path, "advise", "--json", "x.qtr")
    site = json.loads(done.stdout)["traces"][0]["sites"][0]
    assert site["function"].startswith("program+0x") and site["where"] == where
    assert any("(after exported_one)" in frame for frame in site["stack"]) == bool(where)


# time


@pytest.mark.by_turns
def test_a_time_limit_bounds_the_replays_of_a_slow_program(tmp_path):
    # So many operations that a round of replays takes longer than the limit.
    program = build(tmp_path, CHURN.replace("4000", "300000"), name="slow")
    words = ["try", "--time-limit", 0.05, "--no-report", "--json", "--", program]
    done = quire(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["rounds"] <= 2
    assert document["verdict"]["word"] == "INCONCLUSIVE"
    assert "--time-limit" in document["verdict"]["reason"]
