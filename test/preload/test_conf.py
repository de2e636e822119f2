# SPDX-License-Identifier: MIT
"""QUIRE_CONF: what is understood, what is said about the rest, and the reports that it asks for."""

import json
import os
import re
import shutil
import stat
import subprocess

import pytest
from preload_kit import LIBRARY, PYTHON, ROOT, environment, run


def report(*command, conf, tmp_path):
    file = tmp_path / "report.json"
    done = run(*command, conf=f"{conf},stats:exit={file},stats_format:json")
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())


@pytest.mark.parametrize("conf", ["", "limit:2G", "limit:64MiB,decay:100ms", "decay:0", "secure:off", "leaks:0,,check:0,", " limit : 1g ", "top:0", "top:off,limit:1G"])
def test_what_is_understood_is_not_spoken_of(conf):
    done = run("/bin/true", conf=conf)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ("limt:2G", 'there is no key "limt"; did you mean "limit"?'),
        ("stat:exit", 'there is no key "stat"; did you mean "stats"?'),
        ("pasthrough", 'there is no key "pasthrough"; did you mean "passthrough"?'),
        ("prof:512", 'prof cannot be "512"; write prof:0|1|SIZE, from 1K to 1T'),
        ("prof_signal:11", 'prof_signal cannot be "11"; write prof_signal:USR1|USR2|N'),
        ("record_signal:4", 'record_signal cannot be "4"'),
        ("zebra:1", 'there is no key "zebra"; QUIRE_CONF=help prints all keys'),
        ("limit:2X", 'limit cannot be "2X"; write limit:SIZE|N%, such as 64K, 2G or 80%'),
        ("limit:", 'limit cannot be ""; write limit:SIZE'),
        ("limit", 'limit cannot be ""; write limit:SIZE'),
        ("limit:-1", 'limit cannot be "-1"'),
        ("limit:99999999999999999999", 'limit cannot be "99999999999999999999"'),
        ("limit:17000000T", 'limit cannot be "17000000T"'),
        ("decay:5", 'decay cannot be "5"; write decay:TIME, such as 100ms or 2s'),
        ("decay:2h", 'decay cannot be "2h"'),
        ("secure:maybe", 'secure cannot be "maybe"; write secure:0|1'),
        ("stats:later", 'stats cannot be "later"; write stats:exit[=FILE]'),
        ("stats_format:xml", 'stats_format cannot be "xml"; write stats_format:text|json|prom'),
        ("a\x07b:1", 'there is no key "a?b"'),
        ("x" * 5000, 'there is no key "' + "x" * 64 + '..."'),
    ],
)
def test_what_is_not_understood_is_one_line_and_the_program_runs_on(conf, said):
    done = run("/bin/echo", "on", conf=conf)
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("quire: QUIRE_CONF: " + said), done.stderr


def test_one_mistake_costs_only_its_own_key(tmp_path):
    file = tmp_path / "r.json"
    done = run("/bin/true", conf=f"limt:1,limit:64M,secure:2,stats:exit={file},stats_format:json")
    assert len(done.stderr.splitlines()) == 2
    assert json.loads(file.read_text())["heap"]["limit_bytes"] == 64 << 20


def test_a_decay_of_more_than_an_hour_is_refused_with_a_line():
    done = run("/bin/true", conf="decay:7200s")
    assert "decay can be an hour at most" in done.stderr


def test_help_prints_every_key_with_its_default():
    done = run("/bin/true", conf="help")
    assert done.returncode == 0
    rows = done.stderr.splitlines()[1:]
    keys = {row.split(":")[0].strip() for row in rows}
    assert keys == {"stats", "stats_file", "stats_format", "leaks", "limit", "pressure", "decay", "secure", "tags", "check", "passthrough", "plan", "plan_control", "plan_timed", "top", "prof", "prof_file", "prof_at", "prof_signal", "prof_exit", "record", "record_signal", "record_limit", "guard", "help"}
    assert all("(default: " in row for row in rows)
    document = (ROOT / "doc" / "malloc.md").read_text()
    assert [key for key in keys if f"| `{key}` |" not in document] == []


def test_the_language_of_the_user_changes_nothing():
    done = run("/bin/true", conf="LIMIT:1M,limit:1,5M", env={"LC_ALL": "de_DE.UTF-8"})
    assert done.stderr.startswith('quire: QUIRE_CONF: there is no key "5M"')


def test_a_first_call_before_libc_knows_the_environment_reads_it_all_the_same(build):
    first = build("first.c", "-shared", "-fPIC", "-Wl,-z,initfirst")
    done = run("/bin/true", conf="limt:1", env={"LD_PRELOAD": f"{LIBRARY} {first}"})
    assert done.returncode == 0
    assert done.stderr.startswith('quire: QUIRE_CONF: there is no key "limt"'), done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a program with more rights than its user")
def test_a_privileged_program_is_not_told_by_its_user(build, tmp_path):
    """Linked rather than preloaded: the loader drops LD_PRELOAD there by itself."""
    program, library = tmp_path / "edges", tmp_path / os.readlink(LIBRARY)  # by the name that programs ask for
    shutil.copy(LIBRARY, library)
    shutil.copy(build("edges.c", "-Wl,--no-as-needed", str(LIBRARY), f"-Wl,-rpath,{tmp_path}"), program)
    tmp_path.chmod(0o755)
    for parent in list(tmp_path.parents)[:3]:
        parent.chmod(parent.stat().st_mode | stat.S_IXGRP | stat.S_IXOTH)
    os.chown(program, 65534, -1)
    program.chmod(0o4755)
    done = run(program, "zero", conf="help", env={"LD_PRELOAD": ""})
    assert (done.returncode, done.stdout, done.stderr) == (0, "sound\n", "")


# ---- reports ----


def test_the_json_report_adds_up(tmp_path):
    got = report("perl", "-e", "my %h; $h{$_} = 'x' x 50 for 1 .. 20000", conf="leaks:1", tmp_path=tmp_path)
    assert got["schema"] == "quire.exit/1"
    assert got["program"].endswith("perl")
    heap, rss = got["heap"], got["rss_explained"]
    assert heap["mapped_bytes"] == heap["live_bytes"] + heap["free_bytes"] + heap["meta_bytes"]
    assert 0 < heap["live_blocks"] and heap["mapped_bytes"] <= heap["peak_bytes"]
    plus = ["live_bytes", "rounding_bytes", "page_slack_bytes", "cached_bytes", "metadata_bytes", "not_ours_bytes"]
    assert sum(rss[key] for key in plus) - rss["untouched_bytes"] == rss["rss_bytes"] == got["rss_bytes"]
    assert got["rss_peak_bytes"] >= got["rss_bytes"] > 0
    assert got["time_cpu_ns"] > 0 and got["time_wall_ns"] > 0
    sizes = [row["slot_bytes"] for row in got["classes"]]
    assert sizes == sorted(sizes) and len(sizes) > 10
    assert sum(row["live_blocks"] for row in got["classes"]) + heap["large_blocks"] == heap["live_blocks"]
    assert sum(row["count"] for row in got["leaks"]) <= got["leaked_blocks"] == heap["live_blocks"]
    assert got["leaked_guarded_blocks"] == 0
    weights = [row["count"] * row["size_bytes"] for row in got["leaks"]]
    assert weights == sorted(weights, reverse=True)


def test_the_text_report_goes_to_standard_error_and_explains_the_memory():
    done = run("perl", "-e", "print 42", conf="stats:exit,leaks:1")
    assert done.stdout == "42"
    assert re.search(r"^quire: perl\[\d+\]: [\d.]+ m?s, CPU [\d.]+ m?s; memory [\d.]+ [KM]iB, at most ", done.stderr, re.M)
    for words in ("live, as asked for", "not the heap's", "in memory (RSS)", "live at the end:", 'heaps\n', '"default"'):
        assert words in done.stderr


def test_what_lives_between_guards_is_counted_apart_from_the_heaps_blocks(tmp_path):
    done = run("perl", "-e", "print 42", conf="leaks:1,guard:1/2")
    of_heap = int(re.search(r"heap: (\d+) live blocks", done.stderr).group(1))
    blocks, guarded = map(int, re.search(r"live at the end: (\d+) blocks, .*, of which guarded: (\d+)$", done.stderr, re.M).groups())
    assert guarded > 0 and blocks == of_heap + guarded
    got = report("perl", "-e", "print 42", conf="leaks:1,guard:1/2", tmp_path=tmp_path)
    assert got["leaked_guarded_blocks"] > 0 and got["leaked_blocks"] == got["heap"]["live_blocks"] + got["leaked_guarded_blocks"]


def test_the_prometheus_report_has_every_metric_once(tmp_path):
    file = tmp_path / "r.prom"
    run("/bin/true", conf=f"stats:exit,stats_file:{file},stats_format:prom")
    types = re.findall(r"^# TYPE (\S+) ", file.read_text(), re.M)
    assert len(types) == len(set(types)) and {"quire_exit_rss_peak_bytes", "quire_heap_bytes"} <= set(types)


def test_each_process_of_a_program_writes_a_file_of_its_own(tmp_path):
    done = run("sh", "-c", "perl -e 'fork; wait'; true", conf=f"stats:exit={tmp_path}/%p.json,stats_format:json")
    assert done.returncode == 0, done.stderr
    files = list(tmp_path.iterdir())
    assert len(files) >= 2
    for file in files:
        assert json.loads(file.read_text())["pid"] == int(file.stem)


def test_a_program_that_closes_its_standard_error_is_reported_all_the_same():
    done = run("perl", "-e", "close(STDERR); open(my $f, '>', '/dev/null')", conf="stats:exit")
    assert "in memory (RSS)" in done.stderr


def test_a_report_never_lands_in_another_file_of_the_program(tmp_path):
    mine = tmp_path / "mine"
    code = "import os, resource; os.closerange(2, 4096); fd = os.open(%r, os.O_WRONLY | os.O_CREAT); assert fd == 2" % str(mine)
    done = run(PYTHON, "-S", "-c", code, conf="stats:exit")
    assert (done.returncode, done.stderr, mine.read_text()) == (0, "", "")


def test_a_line_about_mallopt_never_lands_in_a_file_of_the_program(tmp_path):
    mine = tmp_path / "mine"
    code = "import os, ctypes; os.close(2); os.open(%r, os.O_WRONLY | os.O_CREAT); ctypes.CDLL(None).mallopt(-3, 1 << 20)" % str(mine)
    done = run(PYTHON, "-S", "-c", code)
    assert (done.returncode, done.stderr, mine.read_text()) == (0, "", "")
    assert "M_MMAP_THRESHOLD has no meaning" in run(PYTHON, "-S", "-c", code.replace("os.close(2); ", "")).stderr


@pytest.mark.parametrize("bytes_max", [0, 300])
def test_a_file_size_limit_costs_the_profile_and_not_the_program(tmp_path, bytes_max):
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes_max}, {bytes_max})); print('on'); "
    done = run(PYTHON, "-S", "-c", limit + SAMPLED, conf=f"prof:4K,prof_file:{tmp_path}/p.%p")
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert "File too large" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_one_signal_for_two_things_is_one_line_and_the_recordings(tmp_path):
    done = run("/bin/echo", "on", conf=f"prof:1G,prof_signal:USR2,record:{tmp_path}/r.%n,record_signal:USR2,prof_exit:0")
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert "prof_signal and record_signal are one" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_file_that_cannot_be_written_is_one_line():
    done = run("/bin/true", conf="stats:exit=/nowhere/at/all")
    assert done.returncode == 0
    assert done.stderr.startswith("quire: the report cannot be written to /nowhere/at/all: No such file or directory; set stats_file")


LATE = {"stats:exit=/nowhere/at/all": "the report", "stats:exit=/dev/full,stats_format:json": "the report", "prof:1K,prof_file:/nowhere/%p": "the profile"}
SAMPLED = "blocks = [bytes(10000) for each in range(2000)]"


@pytest.mark.parametrize("conf", LATE)
def test_a_line_about_a_file_at_the_end_is_said_and_never_into_a_file_of_the_program(conf, tmp_path):
    said = run(PYTHON, "-S", "-c", SAMPLED, conf=conf)
    assert said.returncode == 0 and said.stderr.startswith(f"quire: {LATE[conf]} cannot be written to "), said.stderr
    mine = tmp_path / "mine"
    code = f"import os; os.close(2); fd = os.open({str(mine)!r}, os.O_WRONLY | os.O_CREAT); assert fd == 2; {SAMPLED}"
    done = run(PYTHON, "-S", "-c", code, conf=conf)
    assert (done.returncode, done.stderr, mine.read_text()) == (0, "", "")


@pytest.mark.parametrize("form", ["text", "json", "prom"])
@pytest.mark.parametrize("also", ["", ",leaks", ",passthrough"])
def test_a_report_that_a_full_disk_cuts_off_is_one_line(form, also):
    done = run("/bin/true", conf=f"stats:exit=/dev/full,stats_format:{form}{also}")
    assert done.stderr == "quire: the report cannot be written to /dev/full: No space left on device; set stats_file in QUIRE_CONF to a file that can\n"
    assert done.returncode == 0


@pytest.mark.parametrize("key", ["limit:1M", "leaks", "secure", "plan:/nowhere"])
def test_what_passthrough_takes_away_is_one_line(key):
    done = run("/bin/true", conf=f"passthrough,{key}")
    said = "quire: QUIRE_CONF: limit, leaks, secure, check and plan do not go with passthrough: libc's malloc knows none of them\n"
    assert done.returncode == 0 and done.stderr.startswith(said) and done.stderr.count("QUIRE_CONF") == 1, done.stderr


USELESS = {
    "prof": "prof_at and prof_signal go with prof:1; there is no profile",
    "plan": "plan_control and plan_timed go with plan:FILE; there is no plan",
    "stats": "stats_file goes with stats:exit and leaks:1; there is no report",
}


@pytest.mark.parametrize("conf", ["prof_at:1G", "prof_signal:USR2", "prof:0,prof_at:1G,prof_signal:USR2", "plan_control", "plan_timed", "stats_file:/tmp/r"])
def test_a_key_that_does_nothing_without_another_is_one_line(conf):
    done = run("/bin/echo", "on", conf=conf)
    said = USELESS[conf.split("_")[0].split(":")[0]]
    assert (done.returncode, done.stdout, done.stderr) == (0, "on\n", f"quire: QUIRE_CONF: {said}\n")


def test_malloc_stats_is_the_report(build):
    done = run(PYTHON, "-c", "import ctypes; ctypes.CDLL(None).malloc_stats()", conf="")
    assert "in memory (RSS)" in done.stderr


def test_passthrough_says_so_and_speaks_of_no_heap(tmp_path):
    got = report("/bin/true", conf="passthrough:1", tmp_path=tmp_path)
    assert got["passthrough"] is True and "heap" not in got


LIBCS_TOO = """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.mallopt(-6, 0x55)  # M_PERTURB
print(ctypes.string_at(libc.malloc(20000), 1))
libc.fdopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, file), libc.fflush(file), libc.malloc_stats(), libc.malloc_trim(0)
"""


def test_passthrough_passes_on_what_tunes_and_looks_too():
    done = run(PYTHON, "-c", LIBCS_TOO, conf="passthrough:1")
    assert done.returncode == 0 and "b'\\xaa'\n" in done.stdout, done.stdout[:200]  # which stands first is a question of buffers
    assert "<sizes>" in done.stdout and "Arena 0:" in done.stderr and "quire" not in done.stderr


# ---- who serves malloc ----

ASK = "import ctypes; print(ctypes.CDLL(None).quire_malloc_serving())"


def test_a_program_can_be_asked_whether_we_serve():
    assert run(PYTHON, "-c", ASK, conf="").stdout == "1\n"
    assert run(PYTHON, "-c", ASK, conf="passthrough:1").stdout == "0\n"


def test_a_program_with_a_malloc_of_its_own_keeps_it_and_is_told_apart(build):
    done = run(build("own_malloc.c"), conf="stats:exit")
    assert (done.returncode, done.stdout) == (0, "sound\n"), done.stderr


def test_a_library_opened_late_serves_nobody_and_frees_what_libc_allocated():
    code = (
        f"import ctypes; q = ctypes.CDLL({str(LIBRARY)!r}, mode=ctypes.RTLD_LOCAL); c = ctypes.CDLL(None)\n"
        "for f in (q.malloc, q.realloc, c.malloc): f.restype = ctypes.c_void_p\n"
        "for f in (q.free, c.free, q.malloc_usable_size, q.realloc): f.argtypes = [ctypes.c_void_p]\n"
        "q.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]\n"
        "libcs, ours = c.malloc(100), q.malloc(100)\n"
        "assert q.malloc_usable_size(libcs) >= 100 and q.malloc_usable_size(ours) >= 100\n"
        "q.free(q.realloc(libcs, 1000)); q.free(q.realloc(ours, 1000))\n"
        "print(q.quire_malloc_serving())"
    )
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, env={**environment(""), "LD_PRELOAD": ""}, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


# ---- misuse ----


@pytest.mark.parametrize("conf", ["", "check:10"])
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("p = c.malloc(100); c.free(p); c.free(p)", "quire: heap: E1 "),
        ("c.free(ctypes.addressof(ctypes.c_int()) & ~15 ^ 1 << 46)", "quire: heap: E2 "),
        ("p = c.malloc(100); c.free(p + 16)", "quire: heap: E3 "),
    ],
)
def test_misuse_stops_the_program_with_one_line(code, said, conf):
    head = "import ctypes; c = ctypes.CDLL(None); c.malloc.restype = ctypes.c_void_p; c.free.argtypes = [ctypes.c_void_p]; "
    done = run(PYTHON, "-c", head + code, conf=conf)
    assert done.returncode < 0
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("conf", ["", "check:1", "secure:1"])
def test_a_delete_with_too_large_a_size_is_seen(conf):
    code = (
        "import ctypes; c = ctypes.CDLL(None); c.malloc.restype = ctypes.c_void_p; f = c._ZdlPvm; "
        "f.argtypes = [ctypes.c_void_p, ctypes.c_size_t]; f(c.malloc(100), 5000)"
    )
    done = run(PYTHON, "-c", code, conf=conf)
    assert done.returncode < 0
    assert done.stderr.startswith("quire: malloc: M1 deleted with another size than it was made with: address 0x"), done.stderr
