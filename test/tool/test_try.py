# SPDX-License-Identifier: MIT
"""test_try - `quire try` on real programs: the verdicts that must come out, and what it does with every other end."""

import json
import os
import random
import re
import shutil
import subprocess
import sys

import pytest
from test_steering import PROGRAM as LISTS
from toolkit import BUILD, HANGS_S, TOOL, build, quire, try_json

import advise.advice as advice

INSERTS = (
    "create table t(a,b); with recursive n(i) as (select 1 union all select i+1 from n where i<20000) "
    "insert into t select i,'name'||i from n;"
)

LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"
SOON = ("--rounds", 1, "--time-limit", 0.2)  # where no figure matters
WORDS = {advice.YES, advice.NO, advice.INCONCLUSIVE}

LIST = """
#include <stdlib.h>
#include <string.h>
struct node { struct node *next; char text[40]; };
static struct node *heads[64];
static struct node *add(unsigned at) {
    struct node *n = malloc(sizeof *n);
    n->next = heads[at]; heads[at] = n; return n;
}
static void label(struct node *n, unsigned i) {
    char *text = malloc(100);
    memset(text, 'a' + i % 26, 100); memcpy(n->text, text + i % 50, 40); free(text);
}
int main(void) {
    unsigned random = 1, live = 0;
    for (unsigned i = 0; i < 60000; i++) {
        random = random * 1664525u + 1013904223u;
        label(add(random >> 26), i);
        for (live++; live > 500; ) {
            random = random * 1664525u + 1013904223u;
            struct node **at = &heads[random >> 26];
            if (*at) { struct node *gone = *at; *at = gone->next; free(gone); live--; }
        }
    }
    return 0;
}
"""

CRASH = """
#include <stdlib.h>
int main(void) {
    for (int i = 0; i < 5000; i++) { char *p = malloc(i + 1); p[0] = 1; if (i % 2) free(p); }
    return *(volatile int *)0;
}
"""


@pytest.fixture(scope="module")
def big_json(tmp_path_factory):
    chance = random.Random(7)
    rows = [
        {
            "id": chance.randrange(10**9),
            "name": f"user{i}",
            "tags": ["a", "bb", "ccc"][: i % 4],
            "at": {"x": chance.random()},
        }
        for i in range(8000 if LONG else 3000)
    ]
    path = tmp_path_factory.mktemp("input") / "big.json"
    path.write_text(json.dumps(rows))
    return path


def check_whole(document):
    """What every full verdict must have."""
    assert document["schema"] == "quire.try/1"
    assert document["verdict"]["word"] in WORDS and document["verdict"]["reason"]
    assert document["trace"]["events"] > 2000
    share = document["allocation_share_percent"]
    assert share["low"] <= share["value"] <= share["high"] <= 100 and share["high"] > 0
    names = [row["name"] for row in document["allocators"]]
    assert names[0] == "libc" and {"mimalloc", "jemalloc", "tcmalloc"} <= set(names)
    rows = {row["name"]: row for row in document["allocators"]}
    assert all(row["failures"] == 0 for row in rows.values() if "failures" in row)
    for row in rows.values():
        assert row["measured"] == (document["measured"] and row["name"] != "mix")
        saving = row["saving_percent"]
        assert saving["low"] <= saving["value"] <= saving["high"]
        assert not row["measured"] or row["rounds"] == document["rounds"] and row["peak_rss_bytes"] > 0 < row["program_wall_s"]
    if document["measured"] and document["saving_of"]:
        assert document["saving_percent"] == rows[document["saving_of"]]["saving_percent"]
    classes = {"arena", "slab", "recycling slot", "heap", "leave alone"}
    assert {s["class"] for s in document["sites"]} <= classes
    gains = {part["class"]: part["served"] for part in document["parts"]}
    for site in document["sites"]:
        assert site["served"] == gains.get(site["class"], False)
        assert (site["saving_percent"] is not None) == site["served"]
    assert any(gains.values()) == ("mix" in names)
    assert len(document["next"]) == 3


def tried_until(word, try_once):
    """A document with this verdict, or, in the short form, with none where noise leaves none; in the long form it is tried again, with more rounds."""
    for rounds in (5, 12, 27) if LONG else (4,):
        document = try_once(rounds)
        check_whole(document)
        saving = document["saving_percent"]
        if document["verdict"]["word"] == word:
            return document
    if saving["high"] - saving["low"] > 2 * advice.SAVING_PERCENT_MIN:
        if LONG:
            pytest.skip("the machine is too busy with other programs to tell")
        assert document["verdict"]["word"] == advice.INCONCLUSIVE
        return document
    raise AssertionError(document["verdict"])


def test_the_heading_is_a_command_that_can_be_typed(tmp_path):
    done = quire(tmp_path, "try", "--no-report", *SOON, "--", "sh", "-c", "echo 'a b'")
    assert done.stdout.splitlines()[0] == """quire try: sh -c 'echo '"'"'a b'"'"''""", done.stdout + done.stderr


@pytest.mark.by_turns
def test_jq_on_json_fits_an_arena(tmp_path, big_json):
    document = try_json(tmp_path, "jq", ".", big_json)
    check_whole(document)
    moved = sum(s["allocations"] for s in document["sites"] if s["class"] == "arena")
    assert moved >= 0.9 * document["trace"]["allocations"]
    assert "mix" in [row["name"] for row in document["allocators"]]
    assert document["program"]["status"] == 0


@pytest.mark.by_turns
def test_python_is_seen_through_its_own_allocator_and_that_is_said(tmp_path, big_json):
    (tmp_path / "load.py").write_text(
        "import json, sys\nprint(len(json.dumps(json.load(open(sys.argv[1])))))\n"
    )
    (tmp_path / "some.json").write_text(json.dumps(json.loads(big_json.read_text())[:800]))
    done = quire(
        tmp_path,
        *("try", "--no-report", *SOON, "-o", "python.qtr"),
        *("--", os.path.realpath(sys.executable), "load.py", "some.json"),  # in PATH may stand a script that starts a hundred processes
    )
    assert done.returncode == 0, done.stderr
    assert "PYTHONMALLOC=malloc was set" in done.stdout and "own allocator" in done.stdout
    assert int(re.search(r"([\d,]+) allocations in", done.stdout).group(1).replace(",", "")) > 30000


@pytest.mark.long
def test_sqlite_gets_a_verdict(tmp_path):
    document = try_json(tmp_path, "sqlite3", ":memory:", INSERTS)
    check_whole(document)


@pytest.mark.long
def test_gcc_is_left_alone_and_its_busiest_process_is_looked_at(tmp_path):
    functions = "".join(
        f"int f{i}(int a, char *s) {{ for (int i = 0; i < a; i++) s[i % {i + 2}] += i * {i}; return s[0] ? a : f{max(0, i - 1)}(a - 1, s); }}\n"
        for i in range(20)
    )
    (tmp_path / "gen.c").write_text(functions)
    command = ["gcc", "-O2", "-c", "gen.c", "-o", "gen.o"]

    def once(rounds):
        for trace in tmp_path.glob("*.qtr"):
            trace.unlink()
        return try_json(tmp_path, *command, rounds=rounds)

    document = tried_until(advice.NO, once)
    assert (
        len(document["trace"]["processes"]) >= 2
        and "cc1" in document["trace"]["processes"][0]["command"]
    )
    assert [p.name for p in tmp_path.glob("*.qtr*")] == ["gcc.qtr"]


def test_a_program_that_does_nothing_is_not_worth_looking_at(tmp_path):
    done = quire(tmp_path, "try", "--no-report", "--", "true")
    assert done.returncode == 0 and "othing worth looking at" in done.stdout
    assert try_json(tmp_path, "true")["verdict"]["reason"] == "nothing worth looking at"


FEW_BUT_LARGE = """
#include <stdlib.h>
#include <string.h>
int main(void) { for (int i = 0; i < 200; i++) { char *p = malloc(8 << 20); memset(p, i, 8 << 20); free(p); } return 0; }
"""


@pytest.mark.long
def test_a_program_of_few_but_large_blocks_is_run_with_each_malloc_though_there_is_nothing_to_replay(tmp_path):
    found = try_json(tmp_path, build(tmp_path, FEW_BUT_LARGE), rounds=2)
    rows = {row["name"]: row for row in found["allocators"]}
    assert found["measured"] and rows["libc"]["rounds"] == rows["drop-in"]["rounds"] == 2 and found["sites"] == []
    assert found["verdict"]["word"] in ("YES", "NO, leave it alone", "INCONCLUSIVE")
    done = quire(tmp_path, "try", *SOON, "-o", "page.qtr", "--", tmp_path / "program")
    assert "200 allocations in" in done.stdout and "too few to replay" in done.stdout and "worth looking at:" not in done.stdout
    assert "no HTML report" not in done.stderr and (tmp_path / "page.html").exists()


@pytest.mark.by_turns
def test_the_bundled_demo_is_a_yes(tmp_path):
    document = tried_until(advice.YES, lambda rounds: try_json(tmp_path, rounds=rounds))
    by_name = {s["function"]: s["class"] for s in document["sites"]}
    assert by_name["parse_request"] == by_name["copy_text"] == by_name["answer"] == "arena"
    assert by_name["find_session"] == by_name["remember"] == "slab"
    assert by_name["write_log"] == "recycling slot"
    parts = {part["class"]: part for part in document["parts"]}
    assert set(parts) == {"arena", "slab", "recycling slot"}
    ops = sum(part["ops"] for part in parts.values())
    all_ns = ops * document["allocators"][0]["cpu_ns_per_op"]["value"]
    assert all(abs(part["saved_ns_per_op"]) * part["ops"] < 10 * all_ns for part in parts.values())
    sizes = {slab["element_bytes"] for slab in document["slabs"]}
    assert {32, 80, 160} == sizes


@pytest.mark.by_turns
def test_a_list_and_its_temporary_are_placed_on_slabs(tmp_path):
    program = build(tmp_path, LIST)
    document = try_json(tmp_path, program, rounds=2)
    check_whole(document)
    by_name = {s["function"]: s for s in document["sites"]}
    assert by_name["add"]["class"] == "slab" and by_name["label"]["class"] == "recycling slot"
    assert {s["element_bytes"]: s["peak_live"] for s in document["slabs"]} == {48: 501, 112: 1}
    advised = json.loads(quire(tmp_path, "advise", "--json", "program.qtr").stdout)["traces"][0]
    by_name = {s["function"]: s for s in advised["sites"]}
    assert by_name["add"]["class"] == "slab" and advised["slabs"] == document["slabs"]
    assert all((s["saving_cpu_s"] is not None) == s["served"] for s in advised["sites"])


@pytest.mark.long
def test_the_report_says_how_to_change_a_slabs_site(tmp_path, monkeypatch):
    import advise.mix as mix

    def all_gain(*arguments):
        parts = weigh(*arguments)
        return {name: part._replace(gains=True) for name, part in parts.items()}

    weigh = mix.weigh
    monkeypatch.setattr(mix, "weigh", all_gain)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUIRE_BUILD_DIR", str(BUILD))
    import cli

    program = build(tmp_path, LIST)
    said = []
    monkeypatch.setattr("builtins.print", lambda *words, **_: said.extend(map(str, words)))
    assert cli.main(["try", "--no-report", "--rounds", "1", "--", str(program)]) == 0
    text = "\n".join(said)
    assert "elements of 48 bytes, at most 501 alive" in text
    assert "INCONCLUSIVE: 1 round cannot be told from noise: --rounds 8" in text and "has no interval" in text
    assert "quire_slab_alloc for malloc, quire_slab_free for free" in text
    assert "slot of slab" in text and "not yet" not in text


def test_a_crash_gives_its_status_and_the_trace_so_far(tmp_path):
    program = build(tmp_path, CRASH, name="crash")
    done = quire(tmp_path, "try", "--no-report", "--", program)
    assert done.returncode == 139
    assert "SIGSEGV" in done.stdout and "trace so far: 5,000 allocations" in done.stdout
    assert (tmp_path / "crash.qtr").exists()
    document = try_json(tmp_path, program, status=139)
    assert document["verdict"]["word"] is None and document["trace"]["allocations"] == 5000


@pytest.mark.by_turns
def test_the_programs_own_failure_is_passed_through(tmp_path):
    done = quire(
        tmp_path, "try", "--no-report", *SOON, "--", "jq", "-n", '[range(3000)|tostring]|error("no luck")'
    )
    assert done.returncode == 5
    assert "exit status 5" in done.stdout and "no luck" in done.stdout


@pytest.mark.by_turns
def test_standard_input_is_given_to_every_run(tmp_path, big_json):
    command = ["try", "--no-report", "--json", *SOON, "--", "jq", "length"]
    piped = quire(tmp_path, *command, input=big_json.read_text())
    assert piped.returncode == 0, piped.stderr
    with open(big_json, encoding="utf-8") as file:
        redirected = quire(tmp_path, *command, stdin=file)
    counts = [json.loads(done.stdout)["trace"]["allocations"] for done in (piped, redirected)]
    assert counts[0] == counts[1] > 10000


@pytest.mark.by_turns
def test_json_is_alone_on_stdout_and_progress_is_not(tmp_path):
    done = quire(
        tmp_path, "try", "--no-report", "--json", *SOON, "--", "jq", "-n", "[range(3000)|tostring]"
    )
    json.loads(done.stdout)
    assert "recording it" in done.stderr and "\033" not in done.stderr


@pytest.mark.long
def test_json_has_the_same_members_whatever_came_out(tmp_path):
    ends = {
        "nothing": try_json(tmp_path, "true"),
        "a crash": try_json(tmp_path, build(tmp_path, CRASH, name="crash"), status=139),
        "few": try_json(tmp_path, build(tmp_path, FEW_BUT_LARGE, name="few"), rounds=1),
        "hurried": json.loads(quire(tmp_path, "try", "--json", "--no-report", "--time-limit", 0.01, "--", "jq", "-n", "[range(3000)|tostring]").stdout),
        "a verdict": try_json(tmp_path, "jq", "-n", "[range(3000)|tostring]", rounds=1),
    }
    for what, document in ends.items():
        assert sorted(document) == sorted(ends["a verdict"]), what
    assert ends["a verdict"]["allocators"] and ends["a verdict"]["saving_percent"]["value"] is not None
    assert ends["nothing"]["saving_percent"] is None and ends["nothing"]["allocators"] == [] and ends["nothing"]["measured"] is False


@pytest.mark.by_turns
def test_strict_turns_an_inconclusive_verdict_into_exit_4(tmp_path, monkeypatch):
    import cmd_try
    import tryreport

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        tryreport.advice, "judge", lambda *_: advice.Verdict(advice.INCONCLUSIVE, "made so")
    )
    import cli

    arguments = ["try", "--no-report", *map(str, SOON), "--", "jq", "-n", "[range(3000)|tostring]|length"]
    assert cli.main(arguments[:1] + ["--strict"] + arguments[1:]) == 4
    assert cli.main(arguments) == 0
    assert cmd_try.EXIT_INCONCLUSIVE == 4


@pytest.mark.long
def test_a_trace_of_only_a_part_of_the_run_gives_no_no(tmp_path):
    words = ["try", "--no-report", "--json", "--rounds", 3, "--time-limit", 0.2, "--", "jq", "-n", "[range(60000)|tostring]|length"]
    done = quire(tmp_path, *words, environment={"QUIRE_RECORD_LIMIT": "150K"})
    document = json.loads(done.stdout)
    assert "QUIRE_RECORD_LIMIT" in document["trace"]["note"] and document["verdict"]["word"] != advice.NO
    assert document["measured"] and document["allocation_share_percent"] is None and document["replay_rounds"] in (0, None), "what holds of a part holds of no whole"
    done = quire(tmp_path, *[w for w in words if w not in ("--json", "--no-report")], environment={"QUIRE_RECORD_LIMIT": "150K"})
    assert "makes at least " in done.stdout and "Only a part of the run was recorded" in next(tmp_path.glob("*.html")).read_text()


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root to mount a small disk"
)
def test_a_full_disk_is_said_and_the_program_is_not_disturbed(tmp_path):
    (tmp_path / "small").mkdir()
    if subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "none", "small"],
        cwd=tmp_path,
        capture_output=True,
    ).returncode:
        pytest.skip("no small disk can be mounted here")
    tool = f"mount -t tmpfs -o size=64k none small && cd small && {sys.executable} {TOOL}"
    program = "jq -n '[range(20000)|tostring]|length'"
    env = {**os.environ, "QUIRE_BUILD_DIR": str(BUILD)}

    def run(command):
        return subprocess.run(
            ["unshare", "-m", "sh", "-c", f"{tool} {command} -- {program}"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=HANGS_S,
        )

    recorded, tried = run("record"), run("try --no-report")
    assert recorded.stdout == "20000\n" and recorded.returncode == 0
    assert "only the beginning: the disk was full" in recorded.stderr
    assert tried.returncode == 3 and "the disk was full" in tried.stderr and "-o " in tried.stderr


@pytest.mark.by_turns
def test_the_trace_goes_where_it_is_told(tmp_path):
    done = quire(tmp_path, "try", "-o", "here.qtr", "--", "true")
    assert done.returncode == 0 and (tmp_path / "here.qtr").exists()


@pytest.mark.by_turns
def test_a_script_is_run_through_its_interpreter(tmp_path):
    script = tmp_path / "script.sh"
    script.write_text("#!/bin/sh\njq -n '[range(4000)|tostring]|length'\n")
    script.chmod(0o755)
    document = try_json(tmp_path, script, rounds=1)
    assert "jq" in document["trace"]["processes"][0]["command"]


@pytest.mark.by_turns
def test_the_advice_is_carried_out_in_the_program_itself(tmp_path):
    document = try_json(tmp_path, build(tmp_path, LISTS), rounds=2)
    check_whole(document)
    steered = document["steered"]
    row = next(row for row in document["allocators"] if row["name"] == "steered")
    assert steered["saving_percent"] == row["saving_percent"] and row["rounds"] == 2
    assert steered["sites"] > 0 and not steered["refused"] and steered["fallbacks"] == 0
    assert steered["needless_frees"] >= 0.9 * document["trace"]["allocations"]
    assert steered["saving_without_frees_percent"]["value"] > steered["saving_percent"]["value"]


@pytest.mark.by_turns
def test_a_program_that_may_run_only_once_does_and_all_is_modelled(tmp_path):
    program = tmp_path / "count.sh"
    program.write_text("#!/bin/sh\necho ran >>times\njq -n '[range(4000)|tostring]|length'\n")
    program.chmod(0o755)
    done = quire(tmp_path, "try", "--json", "--no-report", "--once", *SOON[2:], "--", program)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "times").read_text() == "ran\n"
    document = json.loads(done.stdout)
    check_whole(document)
    assert not document["measured"] and document["model_error_percent"] is None and document["rounds"] == 0
    mixed = next(row for row in document["allocators"] if row["name"] == "mimalloc")
    own, modelled = mixed["saving_percent"], mixed["modelled_saving_percent"]
    assert own["high"] - own["low"] > modelled["high"] - modelled["low"]
    assert "modelled" in quire(tmp_path, "try", "--no-report", "--once", *SOON[2:], "--", program).stdout


@pytest.mark.long
def test_prepare_and_cleanup_stand_around_each_run_and_are_said(tmp_path):
    (tmp_path / "kept.txt").write_text("[1,2,3]")
    program = tmp_path / "eats.sh"
    program.write_text("#!/bin/sh\necho $# >>times\nmv in.txt out.txt && jq -n '[range(4000)|tostring]|length'\n")
    program.chmod(0o755)
    hooks = ("--prepare", "cp kept.txt in.txt", "--cleanup", "rm out.txt")
    done = quire(tmp_path, "try", "--json", "--no-report", "--rounds", 2, *SOON[2:], *hooks, "--", program)
    assert done.returncode == 0, done.stderr
    assert "--prepare runs `cp kept.txt in.txt` each time" in done.stderr
    assert json.loads(done.stdout)["program"]["status"] == 0 and not (tmp_path / "out.txt").exists()
    assert len((tmp_path / "times").read_text().split()) > 2 * 5


@pytest.mark.parametrize(
    "words, said",
    [(("--once", "--rounds", "3"), "--once runs the program once"), (("--json", "-o", "after.json"), "-o after.json: that is where the trace is kept"), (("--time-limit", "0"), "--time-limit"), (("--duration", "0"), "no time above 0"), (("--then", "stop", "--rounds", "3"), "there are no rounds"), (("--rounds", "0"), "--rounds")],
)
def test_options_that_make_no_sense_together_are_refused_before_anything_runs(tmp_path, words, said):
    done = quire(tmp_path, "try", *words, "--", "touch", "ran")
    assert done.returncode == 2 and said in done.stderr and not (tmp_path / "ran").exists()


def test_a_prepare_that_fails_ends_it_with_the_commands_own_words(tmp_path):
    done = quire(tmp_path, "try", "--no-report", "--prepare", "cat nothing-there", "--", "true")
    assert done.returncode != 0 and "--prepare" in done.stderr and "nothing-there" in done.stderr


def test_a_program_that_ends_otherwise_the_second_time_is_refused_with_what_would_help(tmp_path):
    script = tmp_path / "once.sh"
    script.write_text("#!/bin/sh\ntest ! -e made || { echo made is there already >&2; exit 4; }\n: >made\n")
    script.chmod(0o755)
    done = quire(tmp_path, "try", "--no-report", "-o", "t.qtr", "--", script)
    assert done.returncode == 3 and "exit status 0 alone" in done.stderr and "exit status 4" in done.stderr
    assert "made is there already" in done.stderr and "--prepare" in done.stderr and not (tmp_path / "t.qtr").exists()
    (tmp_path / "made").unlink()
    assert quire(tmp_path, "try", "--no-report", *SOON, "--prepare", "rm -f made", "--", script).returncode == 0


def test_a_program_that_binds_libraries_past_every_preload_has_a_predicted_verdict_that_says_why(tmp_path):
    source = LIST.replace("60000", "3000").replace("int main(", "#include <dlfcn.h>\nvoid *past(void) { return dlopen(\"x.so\", 8 /* RTLD_DEEPBIND */ | RTLD_LAZY); }\nint main(")
    found = try_json(tmp_path, build(tmp_path, source))
    assert not found["measured"] and "RTLD_DEEPBIND" in found["verdict"]["reason"] and "predicted" in found["verdict"]["reason"]
    assert {"libc", "drop-in"} <= {row["name"] for row in found["allocators"]}


@pytest.mark.skipif(not LONG, reason="QUIRE_TEST_LONG=1: a whole minute")
def test_all_defaults_suit_a_small_program(tmp_path):
    program = build(tmp_path, LIST.replace("60000", "3000"))
    done = quire(tmp_path, "try", "--", program)
    assert done.returncode == 0, done.stderr
    assert "rounds of the program itself" in done.stdout and "report: " in done.stdout
    assert sorted(p.suffix for p in tmp_path.iterdir()) == ["", ".c", ".html", ".qtr"]
