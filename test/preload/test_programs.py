# SPDX-License-Identifier: MIT
"""Programs that know nothing of us, with the heap checked all the while: they end as they do on libc, and print the same."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from preload_kit import PYTHON, ROOT, complaints, environment, run

CONF = "check:2000"
CPYTHON_TESTS = Path("/usr/lib/python3.11/test/test_json")


def both(*command, conf=CONF, **options):
    """What the command prints, the same on libc and under the library."""
    plain = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, check=False, **options)
    ours = run(*command, conf=conf, **options)
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout), ours.stderr
    assert complaints(ours.stderr) == [], ours.stderr
    return ours


def needs(program):
    return pytest.mark.skipif(not shutil.which(program), reason=f"{program} is not installed")


PYTHON_WORK = """
import hashlib, json, re, threading
objects = [{"name": "n%d" % i, "list": list(range(i % 50)), "text": "x" * (i % 300)} for i in range(6000)]
text = json.dumps(objects)
assert json.loads(text) == objects
def work(out, n):
    out.append(hashlib.sha256("".join(re.findall(r"n\\d+", text * n)).encode()).hexdigest())
got = []
threads = [threading.Thread(target=work, args=(got, 1)) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print(len(text), set(got))
"""
MULTIPROCESSING = """
import multiprocessing, subprocess
def f(n): return sum(len(str(i)) for i in range(n))
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(3) as pool:
        print(pool.map(f, range(1000, 1040)))
    print(subprocess.run(["echo", "child"], capture_output=True).stdout)
"""


@pytest.mark.by_turns
@pytest.mark.parametrize("conf", ["check:5000", "secure:1,check:5000"])
@pytest.mark.parametrize("code", [PYTHON_WORK, MULTIPROCESSING], ids=["objects", "processes"])
def test_python_with_every_object_from_malloc(code, conf):
    both("env", "PYTHONMALLOC=malloc", PYTHON, "-c", code, conf=conf)


@pytest.mark.skipif(not CPYTHON_TESTS.exists(), reason="CPython's own tests are not installed (libpython3.11-testsuite)")
@pytest.mark.parametrize("name", ["test_json", "test_dict"])
def test_cpythons_own_tests_pass(name):
    done = run(PYTHON, "-m", "test", "-q", name, conf="check:20000", env={"PYTHONMALLOC": "malloc"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert complaints(done.stderr) == []


@needs("perl")
def test_perl_with_hashes_strings_and_forks():
    code = "my %h; for my $i (1..30000) { $h{$i} = 'x' x ($i % 200); delete $h{$i / 2} if $i % 3 } my $p = fork; exit 0 unless $p; waitpid $p, 0; print scalar(keys %h), ' ', $?"
    both("perl", "-e", code)


@needs("ruby")
def test_ruby_with_a_collector_of_its_own():
    both("ruby", "-e", "a = (1..30000).map { |i| 'x' * (i % 200) }; GC.start; puts a.sum(&:size); puts Thread.new { a.sort.first.size }.value")


@needs("sqlite3")
def test_sqlite_in_memory():
    rows = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 8000) insert into t select i, hex(zeroblob(i % 90)) from n;"
    both("sqlite3", ":memory:", f"create table t(i integer primary key, x text); {rows} create index u on t(x); select count(*), sum(length(x)), count(distinct x) from t;")


@needs("lua5.4")
def test_lua_whose_every_size_changes_by_realloc():
    both("lua5.4", "-e", "local t = {} for i = 1, 60000 do t[#t + 1] = ('x'):rep(i % 100) end collectgarbage() print(#t, #table.concat(t))")


def test_a_shell_with_pipes_and_many_children():
    both("bash", "-c", "for i in $(seq 20); do printf '%s\\n' $i | sed s/1/x/ | sort; done | sort | uniq -c")


def test_a_compiler_builds_the_same_object(tmp_path):
    source = ROOT / "src" / "base" / "bitmap.c"
    objects = []
    for env in (None, {"LD_PRELOAD": ""}):
        out = tmp_path / f"{len(objects)}.o"
        done = run("gcc", "-O1", "-c", "-D_GNU_SOURCE", "-I", ROOT / "src", "-I", ROOT / "include", source, "-o", out, conf=CONF, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        objects.append(out.read_bytes())
    assert objects[0] == objects[1]


@needs("git")
def test_git_clones_packs_and_verifies(tmp_path):
    """A repository of its own: the checkout that is tested may have no history."""
    script = (
        "git init -q a && cd a && git config user.email t@example.org && git config user.name t && "
        "for i in 1 2 3 4 5 6; do seq $((i * 300)) > f$i; cp f$i g; git add . ; git commit -q -m $i; done && "
        "git gc -q --aggressive && git fsck --full && cd .. && git clone -q --no-local a b && diff -r a/f6 b/f6 && git -C b log --oneline | wc -l"
    )
    done = run("bash", "-c", script, conf=CONF, cwd=tmp_path)
    assert (done.returncode, done.stdout.strip(), complaints(done.stderr)) == (0, "6", []), done.stderr


@needs("redis-server")
def test_redis_under_load_serves_and_shrinks(tmp_path):
    place = {"cwd": tmp_path}  # a socket there, by a short name: a port that is free now may be another's in a moment
    command = ["redis-server", "--port", "0", "--unixsocket", "./socket", "--save", "", "--timeout", "0"]
    cli = ["redis-cli", "-s", "./socket"]
    with subprocess.Popen(command, env=environment("check:20000"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **place) as server:
        try:
            until_s = time.monotonic() + 60
            while subprocess.run([*cli, "ping"], capture_output=True, text=True, check=False, **place).stdout != "PONG\n":
                assert server.poll() is None and time.monotonic() < until_s, "it does not answer"
                time.sleep(0.05)
            load = ["redis-benchmark", "-s", "./socket", "-q", "-n", "4000", "-r", "1000", "-d", "200", "-t", "set,get,lpush,lpop,hset,sadd,zadd"]
            assert subprocess.run(load, capture_output=True, timeout=300, check=False, **place).returncode == 0
            assert subprocess.run([*cli, "flushall"], capture_output=True, text=True, check=True, **place).stdout == "OK\n"
        finally:
            subprocess.run([*cli, "shutdown", "nosave"], capture_output=True, check=False, **place)
            stderr = server.communicate(timeout=60)[1]
    assert server.returncode == 0, stderr
    assert complaints(stderr) == []
