# SPDX-License-Identifier: MIT
"""test_record - `quire record`: the program is as it was, the trace is kept and never overwritten; and traces that are none."""

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys

import pytest
from toolkit import ROOT, TOOL, build, native_json, quire

import options

CRASH = """
#include <stdlib.h>
int main(void) {
    for (int i = 0; i < 5000; i++) { char *p = malloc(i + 1); p[0] = 1; if (i % 2) free(p); }
    abort();
}
"""


@pytest.fixture(scope="module")
def a_trace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    done = quire(
        folder, "record", "-o", "jq.qtr", "--", "jq", "-n", "[range(5000)|tostring]|length"
    )
    assert done.returncode == 0, done.stderr
    return folder / "jq.qtr"


def test_the_program_keeps_its_streams_and_its_status(tmp_path):
    done = quire(
        tmp_path, "record", "--", "sh", "-c", "cat; echo oops >&2; exit 7", input="hello\n"
    )
    assert done.returncode == 7
    assert done.stdout == "hello\n" and "oops\n" in done.stderr
    assert (tmp_path / "sh.qtr").exists() and "sh.qtr" in done.stderr


def test_a_program_ended_by_a_signal_gives_128_and_its_number(tmp_path):
    done = quire(tmp_path, "record", "--", build(tmp_path, CRASH, name="crash"))
    assert done.returncode == 134 and "SIGABRT" in done.stderr
    facts = json.loads(quire(tmp_path, "advise", "--json", "crash.qtr").stdout)["traces"][0][
        "facts"
    ]
    assert facts["allocations"] == 5000 and facts["complete"] is False


# It has a file under each small number before a call comes whose caller has no unwind tables, so that the recorder's unwinder tries addresses.
OWN_NUMBERS = """
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
void *bare_malloc(size_t bytes);
__asm__(".text\\nbare_malloc:\\n sub $8, %rsp\\n call malloc@PLT\\n add $8, %rsp\\n ret\\n");
int main(void) {
    void *volatile first = malloc(10);
    free(first);
    int fd = open("own", O_RDWR | O_CREAT | O_TRUNC, 0600);
    printf("first %d\\n", fd);
    if (write(fd, "mine", 4) != 4 || lseek(fd, 0, SEEK_SET) != 0) return 1;
    for (int other = 3; other < 20; other++) if (other != fd && dup2(fd, other) != other) return 2;
    for (int i = 0; i < 100; i++) free(bare_malloc(20 + i));
    for (int other = 3; other < 20; other++) if (fcntl(other, F_GETFD) < 0) return 3;
    char text[20] = "";
    return lseek(fd, 0, SEEK_CUR) != 0 ? 4 : read(fd, text, 19) == 4 && strcmp(text, "mine") == 0 ? 0 : 5;
}
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere stacks are walked without libunwind")
@pytest.mark.parametrize("bind", [{}, {"LD_BIND_NOW": "1"}])
def test_a_file_of_the_programs_is_neither_read_nor_closed_whatever_its_number(tmp_path, bind):
    program = build(tmp_path, OWN_NUMBERS, name="own_numbers")
    alone = subprocess.run([program], cwd=tmp_path, capture_output=True, text=True, check=True)
    done = quire(tmp_path, "record", "--", program, environment=bind)
    assert (done.returncode, done.stdout) == (0, alone.stdout), done.stderr


def test_default_names_are_made_unique(tmp_path):
    for _ in range(3):
        assert quire(tmp_path, "record", "--", "jq", "-n", "1").returncode == 0
    assert sorted(p.name for p in tmp_path.glob("*.qtr")) == ["jq.1.qtr", "jq.2.qtr", "jq.qtr"]


@pytest.mark.by_turns
@pytest.mark.parametrize("words", [["record"], ["try", "--rounds", 1, "--time-limit", 0.2]], ids=["record", "try"])
def test_a_file_is_overwritten_only_with_force(tmp_path, words):
    (tmp_path / "precious").write_text("keep me")
    done = quire(tmp_path, *words, "-o", "precious", "--", "jq", "-n", "1")
    assert done.returncode == 2 and "add -f" in done.stderr
    assert (tmp_path / "precious").read_text() == "keep me"
    assert quire(tmp_path, *words, "-f", "-o", "precious", "--", "jq", "-n", "1").returncode == 0
    assert (tmp_path / "precious").read_bytes() != b"keep me"


def test_what_force_replaces_stays_where_no_recording_begins(tmp_path):
    (tmp_path / "precious").write_text("keep me")
    done = quire(tmp_path, "record", "--after", "5s", "-f", "-o", "precious", "--", "true")
    assert done.returncode == 3 and (tmp_path / "precious").read_text() == "keep me"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["precious"]


@pytest.mark.parametrize("words", [["record"], ["try", "--no-report", "--rounds", 1, "--time-limit", 0.2]], ids=["record", "try"])
def test_an_earlier_trace_is_not_taken_for_the_one_that_could_not_be_written(tmp_path, a_trace, words):
    shutil.copy(a_trace, tmp_path / "old.qtr")
    words = [str(word) for word in [*words, "-f", "-o", "old.qtr", "--", "jq", "-n", "[range(9000)|tostring]|length"]]
    done = subprocess.run(["sh", "-c", 'ulimit -f 50; exec "$@"', "sh", sys.executable, TOOL, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 3 and "old.qtr: File too large" in done.stderr
    assert "trace: " not in done.stderr and "is kept" not in done.stderr
    assert (tmp_path / "old.qtr").read_bytes() == a_trace.read_bytes()


def test_force_takes_no_file_that_only_has_a_number_behind_the_same_name(tmp_path):
    (tmp_path / "log.20251127").write_text("somebody's")
    (tmp_path / "log.5").mkdir()
    assert quire(tmp_path, "record", "-f", "-o", "log", "--", "jq", "-n", "1").returncode == 0
    assert (tmp_path / "log.20251127").read_text() == "somebody's" and (tmp_path / "log.5").is_dir() and (tmp_path / "log").stat().st_size > 100


@pytest.mark.parametrize("command", ["record", "try"])
def test_a_recorder_that_lacks_a_library_is_named_with_what_it_lacks(tmp_path, command):
    """As where a build was copied to another machine."""
    tools = tmp_path / "build/tools"
    tools.mkdir(parents=True)
    (tmp_path / "empty.c").write_text("")
    for name, more in (("libgone.so", []), ("libquire-record.so", ["-Wl,--no-as-needed", "-L", tools, "-lgone"])):
        subprocess.run(["gcc", "-shared", "-o", tools / name, tmp_path / "empty.c", *more], check=True)
    (tools / "libgone.so").unlink()
    done = quire(tmp_path, command, "--", "ls", environment={"QUIRE_BUILD_DIR": str(tmp_path / "build")})
    assert done.returncode == 3 and "libquire-record.so cannot be loaded" in done.stderr
    assert "libgone.so: cannot open shared object file" in done.stderr and "is libc there" not in done.stderr


def test_a_place_where_nothing_can_be_written_is_an_error_before_the_program_runs(tmp_path):
    done = quire(tmp_path, "record", "-o", "nowhere/t.qtr", "--", "touch", "ran")
    assert done.returncode == 3 and "nowhere" in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["", "-", ".", "/dev/null"])
def test_a_trace_needs_the_name_of_a_file_and_no_advice_that_cannot_work(tmp_path, name):
    done = quire(tmp_path, "record", "-o", name, "--", "sh", "-c", "echo ran")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "-f" not in done.stderr and list(tmp_path.iterdir()) == []


def test_the_largest_size_of_a_trace_has_units_and_a_least(tmp_path):
    assert options.size(1)("512M") == 512 << 20 and options.size(1)("9") == 9
    for text in ("131K", "1.5M", "-1M", "M"):
        with pytest.raises(argparse.ArgumentTypeError):
            options.size(132 << 10)(text)
    assert quire(tmp_path, "record", "--limit-bytes", "10", "--", "true").returncode == 2
    done = quire(tmp_path, "record", "--limit-bytes", "132K", "-o", "t.qtr", "--", "true")
    assert done.returncode == 0 and "trace: t.qtr" in done.stderr, done.stderr


@pytest.mark.by_turns
def test_a_file_size_limit_neither_kills_the_program_nor_loses_the_trace(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))

    done = quire(
        tmp_path,
        "record",
        "-o",
        "t.qtr",
        "--",
        "jq",
        "-n",
        "[range(200000)|tostring]|length",
        preexec_fn=limit,
    )
    assert done.returncode == 0 and done.stdout == "200000\n"
    advice = quire(tmp_path, "advise", "t.qtr")
    assert advice.returncode == 0 and "note:" in advice.stdout


@pytest.mark.parametrize("command", ["replay", "advise"])
@pytest.mark.parametrize("content", [b"", b"hello, I am no trace\n" * 99, os.urandom(5000)], ids=["empty", "text", "bytes"])
def test_a_foreign_file_gets_one_clear_line(tmp_path, command, content):
    (tmp_path / "x.qtr").write_bytes(content)
    done = quire(tmp_path, command, "x.qtr")
    assert done.returncode == 2 and done.stdout == ""
    assert "x.qtr cannot be used as a trace" in done.stderr and "quire record" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_trace_cut_within_its_header_gets_one_clear_line(tmp_path, a_trace):
    (tmp_path / "cut.qtr").write_bytes(a_trace.read_bytes()[:700])
    done = quire(tmp_path, "advise", "cut.qtr")
    assert done.returncode == 2 and "cannot be used as a trace" in done.stderr


def test_a_trace_that_does_not_exist_is_a_usage_error(tmp_path):
    done = quire(tmp_path, "replay", "none.qtr")
    assert done.returncode == 2 and "no such trace" in done.stderr


@pytest.mark.by_turns
def test_replay_measures_libc_every_peer_the_drop_in_and_the_mix(a_trace):
    import peers

    done = quire(a_trace.parent, "replay", "--rounds", 2, "--json", a_trace)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "quire.replay/1" and document["rounds"] == 2
    names = [row["name"] for row in document["allocators"]]
    assert names == ["libc"] + [p.name for p in peers.with_drop_in()] + ["mix"]
    for row, peer in zip(document["allocators"][1:], peers.installed()):
        assert os.path.realpath(peer.path) == row["library"]
        assert (
            row["cpu_ns_per_op"]["low"]
            <= row["cpu_ns_per_op"]["value"]
            <= row["cpu_ns_per_op"]["high"]
        )


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    done = quire(tmp_path, "advise", "pipe")
    assert done.returncode == 2 and "not a regular file" in done.stderr
    done = quire(tmp_path, "run", "--plan", "pipe", "--", "true")
    assert done.returncode == 3 and "pipe" in done.stderr


def test_replay_takes_the_allocators_it_is_told(a_trace):
    done = quire(a_trace.parent, "replay", "--rounds", 1, "--allocator", "mimalloc", a_trace)
    assert done.returncode == 0 and "mimalloc" in done.stdout and "jemalloc" not in done.stdout


def test_replay_refuses_an_unknown_allocator_with_a_suggestion(a_trace):
    done = quire(a_trace.parent, "replay", "--allocator", "mimaloc", a_trace)
    assert done.returncode == 2 and "did you mean `mimalloc`?" in done.stderr


def test_advise_names_sites_classes_and_arenas(tmp_path):
    subprocess.run(["gcc", "-O2", "-g", ROOT / "examples/tree/tree_malloc.c", "-o", "tree"], cwd=tmp_path, check=True)
    assert quire(tmp_path, "record", "-o", "tree.qtr", "--", "./tree", 400).returncode == 0
    done = quire(tmp_path, "advise", "tree.qtr")  # a third of its time: no noise takes that for nothing
    assert done.returncode == 0
    assert "arena 0" in done.stdout and "new_node" in done.stdout and "Call sites" in done.stdout, done.stdout


@pytest.mark.by_turns
def test_advise_takes_several_traces(a_trace):
    document = json.loads(quire(a_trace.parent, "advise", "--json", a_trace, a_trace).stdout)
    assert document["schema"] == "quire.advise/1" and len(document["traces"]) == 2


@pytest.mark.by_turns
@pytest.mark.skipif(not shutil.which("fakeroot"), reason="needs fakeroot")
def test_what_fakeroot_starts_is_recorded_beside_its_own_preloaded_library(tmp_path):
    script = "my %h; $h{$_} = 'x' x 50 for 1 .. 3000; print scalar(keys %h)"
    done = quire(tmp_path, "record", "-o", "t.qtr", "--", "fakeroot", "perl", "-e", script)
    assert done.returncode == 0 and done.stdout == "3000", done.stderr
    found = [native_json("quire-analyse", path, "--sites", "-")["trace"] for path in tmp_path.glob("t.qtr*")]
    busiest = max(found, key=lambda about: about["allocations"])
    assert os.path.basename(busiest["command"][0]) == "perl" and busiest["allocations"] > 5000
