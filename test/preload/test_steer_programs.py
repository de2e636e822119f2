# SPDX-License-Identifier: MIT
"""Real programs under plans that are wrong in every way: they print what they print on libc."""

import json
import shutil
import subprocess

import pytest
from preload_kit import PYTHON, assert_sound, environment, run
from steer_kit import plan_of_one, record, wild_plan

SQL = (
    "create table t(id integer primary key, name text); with recursive n(i) as (select 1 union all select i+1 from n where i<20000)"
    " insert into t select i, 'name'||(i*7919%20000) from n; create index x on t(name); delete from t where id%3=0;"
    " select count(*), min(name), max(name) from t; select group_concat(name) from (select name from t order by name limit 50);"
)
PERL = "my %w; for my $i (1..40000) { push @{$w{$i % 997}}, \"x\" x ($i % 200) } print join(',', map { scalar(@{$w{$_}}) . length(join '', @{$w{$_}}) } sort keys %w), \"\\n\""
PYTHON_TEXT = """
import json, re, threading
objects = [{"name": "n%d" % i, "list": list(range(i % 40)), "text": "x" * (i % 300)} for i in range(3000)]
assert json.loads(json.dumps(objects)) == objects
got = []
def work(n): got.append(len(re.sub("n(\\\\d+)", r"<\\\\1>", json.dumps(objects[:n]))))
threads = [threading.Thread(target=work, args=(n,)) for n in (500, 1000, 1500, 2000)]
for t in threads: t.start()
for t in threads: t.join()
print(sorted(got))
"""
C_TEXT = "".join(f"int f{i}(int a, int b) {{ int c = a * {i}; while (c > b) c -= f{max(0, i - 1)}(c, b); return c; }}\n" for i in range(120))


def needs(program):
    return pytest.mark.skipif(not shutil.which(program), reason=f"{program} is not installed")


def compare(folder, command, env=None, stdin=None, least=50, cwd=None):
    """The command on libc and under two wild plans prints the same; blocks did come from arenas."""
    plain = subprocess.run([str(w) for w in command], capture_output=True, text=True, timeout=300, check=True, input=stdin, cwd=cwd, env={**environment(), "LD_PRELOAD": "", **(env or {})})
    ways = record(folder, command, env=env or {}, input=stdin and stdin.encode(), cwd=cwd)
    for seed in range(2):
        plan, report = folder / f"{seed}.plan", folder / f"{seed}.json"
        assert wild_plan(ways, plan, seed) >= 3
        conf = f"plan:{plan},stats:exit,stats_format:json,stats_file:{report}.%p"
        done = run(*command, conf=conf, env=env, input=stdin, cwd=cwd)
        assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)
        said = [json.loads(one.read_text())["plan"] for one in folder.glob(f"{seed}.json.*")]
        assert sum(one["blocks"] for one in said) >= least, "it is steered at all"


@needs("jq")
def test_jq(tmp_path):
    text = json.dumps([{"n": i, "t": [str(j) for j in range(i % 7)], "s": "y" * (i % 100)} for i in range(3000)])
    compare(tmp_path, ["jq", "-c", "group_by(.t | length) | map({k: length, s: (map(.s | length) | add)})"], stdin=text)


@needs("sqlite3")
def test_sqlite3(tmp_path):
    compare(tmp_path, ["sqlite3", ":memory:", SQL])


@needs("perl")
def test_perl(tmp_path):
    compare(tmp_path, ["perl", "-e", PERL])


@pytest.mark.long
def test_cpython_with_threads(tmp_path):
    compare(tmp_path, [PYTHON, "-c", PYTHON_TEXT], env={"PYTHONMALLOC": "malloc"})


@pytest.mark.long
@needs("gcc")
def test_the_compiler_makes_the_same_code(tmp_path):
    (tmp_path / "in.c").write_text(C_TEXT)
    compare(tmp_path, ["gcc", "-O2", "-S", "-o", "-", "in.c"], cwd=tmp_path)


@pytest.mark.by_turns
@needs("git")
def test_git_clones_and_packs_the_same_objects(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    quiet = {"cwd": source, "check": True, "capture_output": True}
    subprocess.run(["git", "init", "-q"], **quiet)
    for turn in range(4):
        for i in range(60):
            (source / f"file{i}").write_text(f"line {turn}\n" * (i * 7 % 90 + 1))
        subprocess.run(["git", "add", "-A"], **quiet)
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", f"turn {turn}"], **quiet)
    script = "rm -rf copy; git clone -q --no-local source copy && cd copy && git gc -q && git fsck --strict 2>&1 | sort && git rev-list --objects --all | sort | git hash-object --stdin"
    compare(tmp_path, ["sh", "-c", script], cwd=tmp_path, least=20)


GROUPS = [("edges.c", group) for group in ("huge", "aligned", "zero", "overflow", "realloc", "zeroed")]
GROUPS += [("life.c", *words) for words in (["before_main"], ["at_exit"], ["fork"], ["signals"], ["small_stacks"], ["key_destructors", "100"], ["many_threads", "300"], ["cancel", "30"])]


@pytest.mark.parametrize("words", GROUPS)
def test_what_malloc_must_be_it_is_under_a_wild_plan(build, tmp_path, words):
    """POSIX's corners, threads that end, forks: the programs that the drop-in is tested with."""
    command = [build(words[0]), *words[1:]]
    ways = record(tmp_path, [build("life.c"), "many_threads", "100"] if "cancel" in words else command)
    for seed in range(2):
        assert wild_plan(ways, tmp_path / "plan", seed) >= 1
        assert_sound(run(*command, conf=f"plan:{tmp_path}/plan"))


def under_plan(folder, program):
    """QUIRE_CONF with a plan for the call site that the program's blocks come from, and what the report of a run under it says."""
    plan_of_one(record(folder, [program]), folder / "plan")
    conf, report = f"plan:{folder}/plan", folder / "report"
    assert_sound(run(program, "keep", conf=f"{conf},stats:exit={report},stats_format:json"))
    found = json.loads(report.read_text())
    assert found["plan"]["blocks"] >= 2000
    return conf, found


@pytest.mark.parametrize("what", ["sized", "sized_heap", "c_sized", "twice", "right"])
def test_misuse_is_named_the_same_with_a_plan_and_without(build, tmp_path, what):
    program = build("steered.cc")
    conf, _ = under_plan(tmp_path, program)
    for done in (run(program, what), run(program, what, conf=conf)):
        if what == "right":
            assert_sound(done)
        else:
            assert done.returncode < 0 and ("heap: E1 " if what == "twice" else "malloc: M1 ") in done.stderr, done.stderr


def test_what_lives_in_arenas_of_a_plan_is_live_and_accounted_for(build, tmp_path):
    _, found = under_plan(tmp_path, build("steered.cc"))
    assert found["plan"]["live_blocks"] >= 2000 and found["heap"]["live_blocks"] >= 2000 and found["heap"]["live_bytes"] >= 2000 * 64
    assert found["rss_explained"]["live_bytes"] >= 2000 * 64


def test_a_word_above_a_coroutines_stack_is_not_read_when_it_is_gone(build, tmp_path):
    program = build("steered.cc")
    ways = record(tmp_path, [program])
    for seed in range(12):
        wild_plan(ways, tmp_path / "plan", seed)
        for _ in range(3):
            assert_sound(run(program, "coroutines", conf=f"plan:{tmp_path}/plan"))


def test_a_plan_that_is_damaged_is_said_in_one_line_and_the_heap_serves(tmp_path):
    (tmp_path / "plan").write_text("quire-steer 1\nsite one\nend 1\n")
    done = run("/bin/sh", "-c", "echo works", conf=f"plan:{tmp_path}/plan")
    assert done.stdout == "works\n"
    assert done.stderr == f"quire: QUIRE_CONF: the plan {tmp_path}/plan is not used: line 2: a number is missing; the heap serves every call\n"


def test_a_plan_of_another_program_is_passed_over_in_silence(tmp_path):
    (tmp_path / "plan").write_text("quire-steer 1\nmodule 0 00112233 /usr/bin/nothing\nprogram 0\nend 2\n")
    done = run("/usr/bin/env", "echo", "works", conf=f"plan:{tmp_path}/plan,stats:exit")
    assert done.stdout == "works\n"
    assert "plan: not used: it is of another program" in done.stderr


@pytest.mark.parametrize("other", ["limit:1G", "secure:1", "check:100", "leaks:1"])
def test_what_is_promised_of_the_heap_alone_goes_before_a_plan(tmp_path, other):
    (tmp_path / "plan").write_text("quire-steer 1\nend 0\n")
    done = run("/bin/true", conf=f"plan:{tmp_path}/plan,{other}")
    assert "limit, leaks, secure and check are for the heap alone" in done.stderr
    assert done.returncode == 0


