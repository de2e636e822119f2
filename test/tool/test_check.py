# SPDX-License-Identifier: MIT
"""test_check - quire check: who serves malloc is what the loader says, and every no has its reason."""

import contextlib
import ctypes.util
import json
import os
import shutil
import subprocess

import pytest
import toolkit
from toolkit import quire

import bindings

PROGRAM = (
    "#include <stdlib.h>\n#include <unistd.h>\n"
    "int main(int c, char **v) { free(malloc(9)); if (c > 1) { write(1, v[1], 1); pause(); } return 3; }"
)
LIBRARY = "#include <stddef.h>\nvoid *malloc(size_t n) { return 0; }"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if not (toolkit.BUILD / "libquire-malloc.so").exists():
        pytest.skip("libquire-malloc.so is not built")
    return toolkit.build(tmp_path_factory.mktemp("check"), PROGRAM)


def answer(tmp_path, *words, **options):
    """(status, the JSON)."""
    done = quire(tmp_path, "check", "--json", *words, **options)
    return done.returncode, json.loads(done.stdout)


def test_a_plain_program_is_served_by_the_drop_in(tmp_path, program):
    status, said = answer(tmp_path, "--", program)
    assert (status, said["serves"], said["schema"]) == (0, True, "quire.check/1")
    assert os.path.realpath(said["malloc_library"]) == os.path.realpath(
        toolkit.BUILD / "libquire-malloc.so"
    )


def test_the_program_is_not_run(tmp_path):
    source = '#include <stdio.h>\n#include <stdlib.h>\nint main(void) { free(malloc(1)); fclose(fopen("ran", "w")); }'
    program = toolkit.build(tmp_path, source)
    quire(tmp_path, "check", "--", program)
    assert not (tmp_path / "ran").exists()


def test_a_program_without_a_malloc_call_of_its_own_is_served_through_libc(tmp_path, program):
    quiet = toolkit.build(tmp_path, '#include <stdio.h>\nint main(void) { puts("x"); }', "quiet")
    assert answer(tmp_path, "--", quiet)[0] == 0


TAKES_ADDRESS = """
#include <stdlib.h>
#include <string.h>
extern void *borrowed(size_t n);
int main(void) { void *(*volatile served)(size_t) = malloc; char *p = served(100000), *q = borrowed(50); memset(p, 1, 100000); free(p); free(q); return p && q ? 5 : 1; }
"""
BORROWER = "#include <stdlib.h>\nvoid *(*volatile found)(size_t) = malloc; void *borrowed(size_t n) { return found(n); }"


@pytest.fixture
def lender(tmp_path, program):
    """A program whose file has a value for malloc, the entry of its own jump table; its library's pointer leads there."""
    library = toolkit.build(tmp_path, BORROWER, "libborrower.so", ["-shared", "-fPIC"])
    flags = ["-no-pie", "-fno-pie", library, f"-Wl,-rpath,{tmp_path}"]
    lender = toolkit.build(tmp_path, TAKES_ADDRESS, "lender", flags)
    table = subprocess.run(["readelf", "-W", "--dyn-syms", lender], capture_output=True, text=True, check=True).stdout
    (entry,) = [line.split() for line in table.splitlines() if " malloc" in line]
    assert int(entry[1], 16) > 0 and entry[6] == "UND"
    return lender


def test_a_program_at_a_fixed_place_that_takes_mallocs_address_is_served(tmp_path, lender):
    status, said = answer(tmp_path, "--", lender)
    assert (status, said["serves"]) == (0, True), said["reason"]
    assert "libc.so" in bindings.malloc_owner(str(lender), environment={"PATH": os.environ["PATH"]})
    done = quire(tmp_path, "run", "--stats=json:report.json", "--", lender)
    assert done.returncode == 5, done.stderr
    assert json.loads((tmp_path / "report.json").read_text())["report"]["heap"]["peak_bytes"] > 100000
    done = quire(tmp_path, "record", "--", lender)
    assert done.returncode == 5 and "cannot be traced" not in done.stderr


def test_a_process_at_a_fixed_place_that_takes_mallocs_address_is_served_while_it_runs(tmp_path, program):
    source = PROGRAM.replace("free(malloc(9))", "void *(*volatile served)(size_t) = malloc; free(served(9))")
    other = toolkit.build(tmp_path, source, "fixed", ["-no-pie", "-fno-pie"])
    env = {**os.environ, "LD_PRELOAD": str(toolkit.BUILD / "libquire-malloc.so")}
    with subprocess.Popen([other, "x"], env=env, stdout=subprocess.PIPE) as process:
        process.stdout.read(1)
        status, said = answer(tmp_path, "--pid", process.pid)
        process.kill()
    assert (status, said["serves"]) == (0, True)


def test_a_program_at_a_fixed_place_with_a_malloc_inside_is_not_served(tmp_path, program):
    source = LIBRARY + " int main(void) { void *(*volatile served)(size_t) = malloc; return !served; }"
    own = toolkit.build(tmp_path, source, "own", ["-no-pie", "-fno-pie", "-rdynamic"])
    status, said = answer(tmp_path, "--", own)
    assert status == 1 and "own malloc inside" in said["reason"]


def test_a_static_program_is_not_served(tmp_path, program):
    static = toolkit.build(tmp_path, PROGRAM, "static", ["-static"])
    status, said = answer(tmp_path, "--", static)
    assert status == 1 and "static binary" in said["reason"]


def test_a_static_process_is_told_what_it_is_and_not_to_be_run_under_the_library(tmp_path, program):
    static = toolkit.build(tmp_path, PROGRAM, "static", ["-static"])
    with subprocess.Popen([static, "x"], stdout=subprocess.PIPE) as process:
        process.stdout.read(1)
        status, said = answer(tmp_path, "--pid", process.pid)
        process.kill()
    assert status == 1 and "static binary" in said["reason"] and said["fix"].startswith("link it dynamically"), said


def test_a_library_is_no_program(tmp_path, program):
    bare = toolkit.build(tmp_path, LIBRARY, "plug.so", ["-shared", "-fPIC"])
    needs = toolkit.build(tmp_path, BORROWER, "needs.so", ["-shared", "-fPIC"])
    for command, library in (("check", bare), ("check", needs), ("record", bare)):
        done = quire(tmp_path, command, "--", library)
        assert done.returncode == 126 and "is a shared library, not a program" in done.stderr and "fix: " in done.stderr


@pytest.mark.skipif(not os.path.exists("/lib64/ld-linux-x86-64.so.2"), reason="glibc's loader of x86-64 stands for musl's")
def test_a_program_on_musl_is_told_so(tmp_path, program):
    shutil.copy("/lib64/ld-linux-x86-64.so.2", tmp_path / "ld-musl-x86_64.so.1")
    musl = toolkit.build(tmp_path, PROGRAM, "musl", [f"-Wl,--dynamic-linker={tmp_path}/ld-musl-x86_64.so.1"])
    status, said = answer(tmp_path, "--", musl)
    assert status == 1 and f"{musl} runs on musl" in said["reason"] and "build it for glibc" in said["fix"]
    for command in ("run", "record", "try"):
        done = quire(tmp_path, command, "--", musl)
        assert done.returncode == 3 and "runs on musl" in done.stderr and "fix: " in done.stderr


def test_a_setuid_program_is_not_served(tmp_path, program):
    other = toolkit.setuid_of_another(tmp_path, PROGRAM)
    status, said = answer(tmp_path, "--", other)
    assert status == 1 and "setuid" in said["reason"]


def test_who_has_the_rights_of_a_setuid_program_already_is_served(tmp_path, program):
    own = toolkit.build(tmp_path, PROGRAM, "setuid")
    own.chmod(0o4755)
    assert answer(tmp_path, "--", own)[0] == 0


def test_a_program_with_a_malloc_inside_is_not_served(tmp_path, program):
    own = toolkit.build(tmp_path, LIBRARY + " int main(void) { return 0; }", "own")
    status, said = answer(tmp_path, "--", own)
    assert status == 1 and "own malloc inside" in said["reason"]
    status, said = answer(tmp_path, "--", "sh", "-c", f"{own} x")
    assert status == 1 and f"quire try -- sh -c '{own} x' " in said["fix"]


def test_a_preload_that_the_environment_has_is_the_one_that_is_asked_about(tmp_path, program):
    (tmp_path / "other.c").write_text(LIBRARY)
    other = tmp_path / "libother.so"
    subprocess.run(
        [
            "cc",
            "-shared",
            "-fPIC",
            "-w",
            "-fno-builtin",
            str(tmp_path / "other.c"),
            "-o",
            str(other),
        ],
        check=True,
    )
    assert bindings.malloc_owner(str(program), str(other)) == str(other)
    status, said = answer(
        tmp_path, "--preload", toolkit.BUILD / "libquire-malloc.so", "--", program
    )
    assert status == 0 and "libquire-malloc" in said["malloc_library"]


def test_a_library_without_malloc_does_not_serve(tmp_path, program):
    maths = ctypes.util.find_library("m")
    path = next(p for p in _loaded(program) if "libc.so" in p).replace("libc.so.6", maths)
    status, said = answer(tmp_path, "--preload", path, "--", program)
    assert status == 1 and "the loader gives it the malloc of" in said["reason"]


def _loaded(program):
    done = subprocess.run(["ldd", program], capture_output=True, text=True)
    return [w for line in done.stdout.splitlines() for w in line.split() if w.startswith("/")]


def test_a_library_that_cannot_be_loaded_is_the_reason_given(tmp_path, program):
    (tmp_path / "broken.so").write_text("no library")
    status, said = answer(tmp_path, "--preload", tmp_path / "broken.so", "--", program)
    assert status == 1 and "broken.so" in said["reason"]


@pytest.mark.parametrize("conf", ["passthrough:1", "limit:1G, Passthrough", "passthrough:0,passthrough : On"])
def test_passthrough_is_not_serving(tmp_path, program, conf):
    status, said = answer(tmp_path, "--", program, environment={"QUIRE_CONF": conf})
    assert status == 1 and "passthrough" in said["reason"]


def test_of_two_values_of_passthrough_the_last_counts(tmp_path, program):
    status, said = answer(tmp_path, "--", program, environment={"QUIRE_CONF": "passthrough,passthrough:0"})
    assert status == 0, said


def test_a_program_that_is_not_there_is_127(tmp_path, program):
    assert quire(tmp_path, "check", "--", "no-such-program-here").returncode == 127


@pytest.mark.parametrize("preloaded", [True, False])
def test_a_running_process_is_served_when_the_library_is_in_it(tmp_path, program, preloaded):
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    if preloaded:
        env["LD_PRELOAD"] = str(toolkit.BUILD / "libquire-malloc.so")
    with subprocess.Popen([program, "x"], env=env, stdout=subprocess.PIPE) as process:
        process.stdout.read(1)
        status, said = answer(tmp_path, "--pid", process.pid)
        process.kill()
    assert status == (0 if preloaded else 1)
    assert preloaded or "is not in process" in said["reason"]


@pytest.mark.parametrize(
    ("environment", "said"),
    [({"QUIRE_CONF": "passthrough:1"}, "passthrough"), ({"LD_PRELOAD": "libjemalloc.so.2:{ours}"}, "libjemalloc")],
)
def test_a_running_process_that_has_the_library_in_vain_is_not_served(tmp_path, program, environment, said):
    ours = str(toolkit.BUILD / "libquire-malloc.so")
    env = {**os.environ, "LD_PRELOAD": ours, **{key: value.format(ours=ours) for key, value in environment.items()}}
    with subprocess.Popen([program, "x"], env=env, stdout=subprocess.PIPE) as process:
        process.stdout.read(1)
        status, found = answer(tmp_path, "--pid", process.pid)
        process.kill()
    assert status == 1 and said in found["reason"], found


def test_a_process_that_is_not_there_is_told_with_a_fix(tmp_path, program):
    done = quire(tmp_path, "check", "--pid", 4194304 + 7)
    assert done.returncode == 3 and "there is no process" in done.stderr and "fix:" in done.stderr


def test_a_process_is_called_by_the_name_that_it_was_started_by(tmp_path):
    """Many names may lead to one file, which does for each another thing; and a title may follow the name."""
    shutil.copy("/usr/bin/sleep", tmp_path / "one")
    for words in (["./another", "30"], [f"{tmp_path}/another", "30"], ["titled: x", "30"]):
        for name in ("another", "titled"):
            (tmp_path / name).unlink(missing_ok=True)
            (tmp_path / name).symlink_to("one")
        path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        process = subprocess.Popen(words, executable=tmp_path / "one", cwd=tmp_path, env=path)
        try:
            done = quire(tmp_path, "check", "--pid", process.pid, environment=path)
            name = "titled" if words[0].startswith("titled") else "another"
            assert f"fix: quire run -- {tmp_path}/{name}\n" in done.stdout + done.stderr
        finally:
            process.kill()
            process.wait()


def parent_of(pid):
    """As text; None: it has ended meanwhile."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        return stat.read().rpartition(")")[2].split()[1]
    return None


def test_a_thread_of_the_kernel_is_told_as_what_it_is(tmp_path):
    kernels = [pid for pid in os.listdir("/proc") if pid.isdigit() and parent_of(pid) == "2"]
    if not kernels or os.geteuid() != 0:
        pytest.skip("no thread of the kernel is to be seen here, or only by root")
    for words in (["check", "--pid"], ["top"], ["map"], ["profile", "--pid"]):
        done = quire(tmp_path, *words, kernels[0])
        assert done.returncode == 3 and "thread of the kernel" in done.stderr and "quire run" not in done.stderr, done.stderr


def test_a_zombie_has_ended(tmp_path):
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        done = quire(tmp_path, "check", "--pid", process.pid)
    assert done.returncode == 3 and f"process {process.pid} has ended" in done.stderr and "kernel" not in done.stderr, done.stderr


def test_a_static_program_with_symbols_is_told_that_it_can_be_recorded(tmp_path, program):
    static = toolkit.build(tmp_path, PROGRAM, "static", ["-static"])
    assert f"quire record -- {static} x" in answer(tmp_path, "--", static, "x")[1]["fix"]
    assert quire(tmp_path, "record", "-o", "t.qtr", "--", static).returncode == 3 and (tmp_path / "t.qtr").exists()
    assert "quire record" not in answer(tmp_path, "--", "env", static)[1]["fix"]
    bare = toolkit.build(tmp_path, PROGRAM, "bare", ["-static", "-s"])
    assert "quire record" not in answer(tmp_path, "--", bare)[1]["fix"]


def test_the_answer_in_words_has_the_fix(tmp_path, program):
    done = quire(tmp_path, "check", "--", program)
    assert done.stdout.startswith(f"{program}: malloc is served by ") and done.stdout.count("\n") == 1
    static = toolkit.build(tmp_path, PROGRAM, "static", ["-static"])
    done = quire(tmp_path, "check", "--", static)
    assert "NOT served" in done.stdout and "  fix: " in done.stdout


@pytest.mark.one_by_one
@pytest.mark.parametrize("flags", ["RTLD_NOW | RTLD_DEEPBIND", "RTLD_LAZY | RTLD_GLOBAL | RTLD_DEEPBIND"])
@pytest.mark.parametrize("table", [[], ["-fno-plt"], ["-Wl,-z,now"], ["-no-pie", "-O2"]])
def test_a_program_that_opens_libraries_past_every_preload_is_refused_and_named(tmp_path, program, flags, table):
    source = f"#define _GNU_SOURCE\n#include <dlfcn.h>\nint main(int c, char **v) {{ return c > 1 && !dlopen(v[1], {flags}); }}"
    deep = toolkit.build(tmp_path, source, "deep", table)
    status, said = answer(tmp_path, "--", deep)
    assert status == 1 and "RTLD_DEEPBIND" in said["reason"] and str(deep) in said["reason"]
    assert quire(tmp_path, "run", "--", deep).returncode == 3
    plain = toolkit.build(tmp_path, source.replace(" | RTLD_DEEPBIND", ""), "plain", table)
    assert answer(tmp_path, "--", plain)[0] == 0


OPENS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
int opened(const char *path) { return path && !dlopen(path, RTLD_LAZY | RTLD_GLOBAL | RTLD_DEEPBIND); }
"""


def test_a_library_that_may_open_others_past_every_preload_is_named_and_nothing_promised(tmp_path, program):
    library = toolkit.build(tmp_path, OPENS, "libmid.so", ["-shared", "-fPIC"])
    source = "#include <stdlib.h>\nint opened(const char *); int main(int c, char **v) { free(malloc(9)); return c > 1 ? abort(), 1 : opened(v[1]); }"
    linked = toolkit.build(tmp_path, source, "linked", [library, f"-Wl,-rpath,{tmp_path}"])
    status, said = answer(tmp_path, "--", linked)
    assert (status, said["serves"], said["sure"], said["opens_past_preloads"]) == (0, True, False, [str(library)])
    done = quire(tmp_path, "check", "--", linked)
    assert done.returncode == 0 and f"only a run tells: {library} may open libraries with RTLD_DEEPBIND" in done.stdout
    assert answer(tmp_path, "--", program)[1]["sure"] is True
    assert "suspect" not in quire(tmp_path, "run", "--", linked).stderr
    assert f"suspect: {library} may open" in quire(tmp_path, "run", "--", linked, "abort").stderr


def test_a_go_program_is_told_about_its_collector(tmp_path, program):
    marked = tmp_path / "go"
    subprocess.run(["objcopy", f"--add-section=.go.buildinfo={__file__}", program, marked], check=True)
    status, said = answer(tmp_path, "--", marked)
    assert status == 1 and "garbage collector" in said["reason"] and "GOGC" in said["fix"]


BIG_WITHOUT_MALLOC = """
#include <string.h>
#include <sys/mman.h>
int main(int c, char **v) {
    memset(mmap(0, 32 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 32 << 20);
    return c - 1;
}"""


def test_a_run_in_which_nothing_was_served_is_told_in_one_line(tmp_path, program):
    big = toolkit.build(tmp_path, BIG_WITHOUT_MALLOC, "big")
    done = quire(tmp_path, "run", "--stats=json:a.json", "--", big)
    assert done.returncode == 0 and done.stderr.count("\n") == 1
    assert f"nothing was served: {big} had" in done.stderr
    assert quire(tmp_path, "run", "--strict", "--", big).returncode == 3
    assert quire(tmp_path, "run", "--strict", "--", big, "more").returncode == 1, "the program's own status comes first"


def test_a_run_whose_wrappers_program_was_not_served_is_told_in_one_line(tmp_path, program):
    big = toolkit.build(tmp_path, BIG_WITHOUT_MALLOC, "big")
    done = quire(tmp_path, "run", "--strict", "--stats=json:a.json", "--", "timeout", "60", big)
    assert done.returncode == 3 and done.stderr.count("\n") == 1, done.stderr
    assert f"nothing was served: {big}, which it started, had" in done.stderr
    assert quire(tmp_path, "run", "--strict", "--", "timeout", "60", "sort", "/etc/passwd").returncode == 0


def test_a_run_that_becomes_a_static_program_is_told_by_strict(tmp_path, program):
    static = toolkit.build(tmp_path, "int main(void) { return 0; }", "static", ["-static"])
    source = "#include <unistd.h>\n#include <stdlib.h>\nint main(int c, char **v) { free(malloc(9)); return execv(v[1], v + 1); }"
    becomes = toolkit.build(tmp_path, source, "becomes")
    done = quire(tmp_path, "run", "--strict", "--", becomes, static)
    assert done.returncode == 3 and "becomes left no report" in done.stderr


def test_strict_takes_nothing_from_a_run_that_was_served(tmp_path, program):
    done = quire(tmp_path, "run", "--strict", "--stats=json:a.json", "--", "sort", "/etc/passwd")
    assert done.returncode == 0 and done.stderr == "" and json.loads((tmp_path / "a.json").read_text())["unserved"] is None
    assert quire(tmp_path, "run", "--strict", "--stats=prom", "--", "true").returncode == 2
