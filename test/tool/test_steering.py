# SPDX-License-Identifier: MIT
"""test_steering - plan files: written by advise, checked, matched to another build, carried out by run, counted."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from toolkit import BUILD, ROOT, TOOL, build, quire

import rebuilt
import render
import steering
import steerplan
import target as targets
from errors import QuireError

# Two kinds of blocks that die together, by the hundred thousand, and one that does not.
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct node { struct node *next; char *text; long n, unused; };
static __attribute__((noinline)) char *copy(const char *text) { char *p = malloc(strlen(text) + 1); strcpy(p, text); return p; }
static __attribute__((noinline)) struct node *node_new(struct node *next, long n) {
    struct node *node = malloc(sizeof *node);
    node->next = next; node->n = n; node->text = copy("some other text");
    return node;
}
int main(void) {
    long sum = 0;
    for (int round = 0; round < 5; round++) {
        struct node *list = NULL;
        for (long i = 0; i < 60000; i++) list = node_new(list, i);
        while (list) { struct node *next = list->next; sum += list->n + strlen(list->text); free(list->text); free(list); list = next; }
    }
    char *one = malloc(100); sprintf(one, "%ld", sum); puts(one); free(one);
    return 0;
}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The program, its trace, its plan."""
    folder = tmp_path_factory.mktemp("steer")
    build(folder, PROGRAM)
    assert quire(folder, "record", "-o", "t.qtr", "--", "./program").returncode == 0
    done = quire(folder, "advise", "-o", "p.plan", "t.qtr")
    assert done.returncode == 0, done.stderr
    assert "p.plan: 2 call sites" in done.stderr
    return folder


def plan_of(made):
    return steerplan.read(str(made / "p.plan"))


def report_of(folder, plan, program="./program", **asked):
    """What the library says of one run."""
    env = steering.environment({}, str(plan), report=str(folder / "report.json"), **asked)
    done = subprocess.run([program], cwd=folder, env=env, capture_output=True, text=True, check=True)
    return done.stdout, steering.counters(str(folder / "report.json"))


@pytest.mark.by_turns
def test_a_plan_says_for_each_site_where_it_goes_and_why(made):
    plan = plan_of(made)
    steered = [site for site in plan.sites if site.pool]
    assert [site.where.split(" at ")[0] for site in steered] == ["node_new", "copy"] or [site.where.split(" at ")[0] for site in steered] == ["copy", "node_new"]
    assert all("die together, 5 times" in site.reason and site.allocs == 300000 for site in steered)
    assert all(site.reason for site in plan.sites)
    assert plan.modules[plan.program].path == str(made / "program")
    assert steerplan.read(str(made / "p.plan")).text() == plan.text()


def test_its_blocks_come_from_arenas_and_all_of_them_are_counted(made):
    stdout, said = report_of(made, made / "p.plan")
    assert stdout == "9004350000\n"
    assert said.refused == "" and said.fallbacks == 0
    assert said.blocks == said.needless_frees == 600000
    assert said.bytes == 300000 * (32 + 16)
    assert said.needless_free_ns is None
    assert sorted(site["blocks"] for site in said.sites) == [300000, 300000]


def test_the_control_finds_the_sites_and_has_everything_from_the_heap(made):
    stdout, said = report_of(made, made / "p.plan", control=True)
    assert stdout == "9004350000\n"
    assert said.blocks == 0 and said.needless_frees == 0


def test_needless_frees_are_timed_when_asked_for(made):
    _, said = report_of(made, made / "p.plan", timed=True)
    assert 0.6e6 < said.needless_free_ns < 600e6  # 600,000 of them: between 1 ns and 1 us each


def test_run_carries_a_plan_out_and_says_so(made):
    done = quire(made, "run", "--plan", "p.plan", "--", "./program")
    assert (done.returncode, done.stdout) == (0, "9004350000\n")
    assert "plan: 600,000 blocks" in done.stderr and "node_new at program.c:" in done.stderr
    done = quire(made, "run", "--plan", "p.plan", "--stats=json:r.json", "-f", "--", "./program")
    said = json.loads((made / "r.json").read_text())["report"]["plan"]
    assert said["blocks"] == 600000 and {"node_new", "copy"} == {site["where"].split(" at ")[0] for site in said["sites"]}


def tried(made, folder, **environment):
    """The document of a `try` of it, of one round."""
    done = quire(folder, "try", "--json", "--no-report", "--rounds", 1, "--time-limit", 0.5, "--", made / "program", environment=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize("name", ["here, or there", "50%p"])
def test_try_carries_the_advice_out_wherever_temporary_files_go(made, tmp_path, name):
    odd = tmp_path / name
    odd.mkdir()
    found = tried(made, tmp_path, TMPDIR=str(odd))
    assert found["steered"]["needless_frees"] == 600_000 and found["steered"]["saving_percent"]
    assert not list(odd.iterdir())


@pytest.mark.long
def test_try_promises_nothing_of_a_plan_that_the_library_does_not_take(made, tmp_path):
    found = tried(made, tmp_path, QUIRE_CONF="limit:1G")
    row = next(row for row in found["allocators"] if row["name"] == "steered")
    assert "saving_percent" not in row and "limit, leaks, secure and check are for the heap alone" in row["error"]
    assert found["steered"]["saving_percent"] is None and found["steered"]["refused"]


def test_of_several_processes_those_count_whose_plan_it_is(made, tmp_path):
    env = steering.environment({}, str(made / "p.plan"), report=f"{tmp_path}/%p.json", timed=True)
    shell = ["bash", "-c", "./program; ./program; exit 0"]  # it is another program, and ends last
    subprocess.run(shell, cwd=made, env=env, capture_output=True, check=True)
    reports = sorted(map(str, tmp_path.glob("*.json")))
    assert len(reports) == 3
    said, one = steering.counters(*reports), max((steering.counters(path) for path in reports), key=lambda c: c is not None)
    assert (said.needless_frees, said.blocks, said.refused) == (1_200_000, 1_200_000, "")
    assert said.needless_free_ns > one.needless_free_ns > 0
    assert [steering.counters(path) for path in reports].count(None) == 1


@pytest.mark.parametrize("option", ["--limit=1G", "--leaks", "--secure"])
def test_what_is_for_the_heap_alone_does_not_go_with_a_plan(made, option):
    done = quire(made, "run", "--plan", "p.plan", option, "--", "./program")
    assert (done.returncode, done.stdout) == (2, "")
    assert "do not go together" in done.stderr


def refused(made, text, what):
    """One line, exit 3, and the program is not run."""
    (made / "bad.plan").write_text(text)
    done = quire(made, "run", "--plan", "bad.plan", "--", "./program")
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1 and what in done.stderr, done.stderr


@pytest.mark.by_turns
def test_a_bad_plan_is_refused_in_one_line(made):
    good = (made / "p.plan").read_text()
    refused(made, good[: len(good) // 2], "cut")
    refused(made, "", "cut")
    refused(made, good.replace("quire-steer 1", "quire-steer 7"), "it is a plan of version 7")
    refused(made, good.replace("pool 1", "pool x"), "it is no line of a plan")
    refused(made, good.replace("path 0", "path 77"), "there is no such frame")
    refused(made, "\x7fELF\0\0", "it is no plan")
    refused(made, good.replace("\nend ", "\nend 1"), "the number of lines is wrong")


def test_a_plan_that_is_not_there_is_refused_in_one_line(made):
    done = quire(made, "run", "--plan", "none.plan", "--", "./program")
    assert done.returncode == 3 and len(done.stderr.splitlines()) == 1


def test_a_plan_of_another_program_is_refused(made):
    done = quire(made, "run", "--plan", "p.plan", "--", "/bin/echo", "hello")
    assert (done.returncode, done.stdout) == (3, "")
    assert "is a plan of another program" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [["./program"], ["sh", "-c", "./program; true"]])
def test_the_way_to_a_steered_saving_works_as_it_is_typed(made, command):
    """A plan of what a shell starts is refused by `run --plan` of the shell; a setting is the program's, not `advise`'s."""
    recording = SimpleNamespace(path=str(made / "p.qtr"), executable="program", span_ns=None)
    target = targets.resolve([str(made / word) if word == "./program" else word for word in command])
    way = steering.as_typed(recording, target, " ".join(map(shlex.quote, command)), False, "A=1 ").partition(" && ")[2]
    assert way.startswith("A=1 QUIRE_CONF=" if len(command) > 1 else f"A=1 {render.command()} run --plan ")
    way = way.replace(render.command(), f"{sys.executable} {TOOL}").replace(" -- ", " --stats=json:way.json -f -- ", 1)
    done = subprocess.run(["sh", "-c", way], cwd=made, capture_output=True, text=True, env={**os.environ, "QUIRE_BUILD_DIR": str(BUILD)})
    assert done.returncode == 0 and "another program" not in done.stderr, done.stderr
    told = json.loads((made / "way.json").read_text())
    assert any(one["plan"]["blocks"] for one in [told["report"], *told["other_processes"]] if one and one["plan"]["sites"])


def rebuild(made, folder, text=PROGRAM, flags=()):
    """Another build of the program in a folder of its own, the same source name."""
    folder.mkdir()
    build(folder, text, flags=flags)
    return str(folder / "program")


def test_in_another_build_places_are_found_by_function_and_its_shape(made, tmp_path):
    program = rebuild(made, tmp_path / "a", PROGRAM.replace("int main", "int more(int a) { return a * 3; }\nint main"))
    matched = rebuilt.match(plan_of(made), program, str(tmp_path))
    assert matched.path != str(made / "p.plan") and "2 of 2 places found again" in matched.notes[0]
    stdout, said = report_of(tmp_path, matched.path, program)
    assert stdout == "9004350000\n" and said.blocks == 600000


def test_in_another_build_places_are_found_by_function_and_line(made, tmp_path):
    (tmp_path / "a").mkdir()
    shutil.copy(made / "program.c", tmp_path / "a" / "program.c")
    program = tmp_path / "a" / "program"
    command = ["cc", "-O2", "-g", "-w", "-fno-builtin", str(made / "program.c"), "-o", str(program)]
    subprocess.run(command, check=True)
    matched = rebuilt.match(plan_of(made), str(program), str(tmp_path))
    stdout, said = report_of(tmp_path, matched.path, str(program))
    assert stdout == "9004350000\n" and said.blocks == 600000, matched.notes


def test_a_build_in_which_nothing_is_found_again_is_refused_with_what_differs(made, tmp_path):
    program = rebuild(made, tmp_path / "a", "int main(void) { return 0; }\n")
    with pytest.raises(QuireError) as caught:
        rebuilt.match(plan_of(made), program, str(tmp_path))
    assert caught.value.exit_code == 3
    assert "none of its call sites is found again" in caught.value.what and "copy" in caught.value.what


def test_a_plan_that_only_says_how_much_memory_to_expect_holds_for_another_build(made, tmp_path):
    plan = plan_of(made)
    plan.sites = [site._replace(pool=0, paths=[]) for site in plan.sites]
    plan.frames, plan.pools = [], []
    plan.write(str(tmp_path / "p.plan"))
    program = rebuild(made, tmp_path / "a", PROGRAM.replace("round < 5", "round < 4"))
    done = quire(tmp_path, "run", "--plan", "p.plan", "--stats=json:r.json", "--", program)
    assert done.returncode == 0 and plan.memory_bytes > 0, done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["report"]["plan"]["refused"] == ""


@pytest.mark.by_turns
def test_an_arena_that_holds_little_at_a_time_stays_the_heap_s_unless_asked(tmp_path):
    source = (ROOT / "test" / "tool" / "programs" / "requests.c").read_text()
    build(tmp_path, source, flags=("-pthread",))
    assert quire(tmp_path, "record", "-o", "t.qtr", "--", "./program", "ten", "20000").returncode == 0
    assert quire(tmp_path, "advise", "-o", "p.plan", "t.qtr").returncode == 0
    plan = steerplan.read(str(tmp_path / "p.plan"))
    busy = [site for site in plan.sites if site.allocs == 20000]
    assert len(busy) == 10 and all(site.pool == 0 and "holds little at a time" in site.reason for site in busy)
    assert quire(tmp_path, "advise", "--small", "-f", "-o", "p.plan", "t.qtr").returncode == 0
    asked = [site for site in steerplan.read(str(tmp_path / "p.plan")).sites if site.allocs == 20000]
    assert len(asked) == 10 and all(site.pool for site in asked)


@pytest.mark.long
def test_sites_found_by_anothers_return_addresses_are_in_the_figure(tmp_path):
    text = PROGRAM.replace("static __attribute__((noinline)) char *copy", "__attribute__((noinline)) void *own(size_t n) { void *p = malloc(n); if (!p) abort(); return p; }\nstatic __attribute__((noinline)) char *copy", 1)
    build(tmp_path, text.replace("= malloc(strlen", "= own(strlen").replace("= malloc(sizeof", "= own(sizeof"))
    assert quire(tmp_path, "record", "-o", "t.qtr", "--", "./program").returncode == 0
    done = quire(tmp_path, "advise", "-o", "p.plan", "t.qtr")
    assert "p.plan: 2 call sites, 100 % of the allocations" in done.stderr, done.stderr


def test_advise_overwrites_no_plan_unasked(made):
    done = quire(made, "advise", "-o", "p.plan", "t.qtr")
    assert done.returncode == 2 and "exists" in done.stderr


def test_a_plan_does_not_go_to_stdout_nor_into_a_file_named_minus(made):
    done = quire(made, "advise", "-o", "-", "t.qtr")
    assert done.returncode == 2 and "name one: -o program.plan" in done.stderr and not os.path.exists(made / "-")


def test_replay_says_that_a_mix_which_was_asked_for_is_none(tmp_path):
    assert quire(tmp_path, "record", "-o", "t.qtr", "--", "/bin/ls", "/").returncode == 0
    done = quire(tmp_path, "replay", "--allocator", "mix", "--rounds", "1", "t.qtr")
    assert done.returncode == 0 and "mix: none is advised" in done.stderr and "mix" not in done.stdout


def ways(*stacks):
    """Stacks of two frames, as steering.Way has them: (site, allocs, pool, first frame, second frame)."""
    frames = [{"function": "f", "module_path": "/a"}] * 10
    return [
        steering.Way({"site": site, "allocs": allocs, "frames": [first, second, 9], "slots": [[3, 5, -1, -1, -1, -1, -1, -1]]}, frames, pool)
        for site, allocs, pool, first, second in stacks
    ]


def ends_of(stacks, peaks=None):
    tree = steering.Tree(ways(*stacks), {1: 1 << 20, 2: 1 << 20}, peaks or {})
    return [(end.site, end.arena, end.path) for end in tree.ends], tree.left


def test_one_return_address_is_enough_where_all_behind_it_go_to_one_arena():
    assert ends_of([(1, 10, 1, 0, 1), (2, 20, 1, 0, 2)]) == ([(2, 1, [(0, 0)])], {})


def test_a_wrappers_callers_are_told_apart_by_the_next_one():
    ends, left = ends_of([(1, 10, 1, 0, 1), (2, 20, 2, 0, 2)])
    assert sorted(ends) == [(1, 1, [(0, 0), (3, 1)]), (2, 2, [(0, 0), (3, 2)])] and left == {}


def test_few_strangers_that_hold_little_go_along_and_many_or_large_ones_do_not():
    stacks = [(1, 95, 1, 0, 1), (2, 5, 0, 0, 2)]
    assert ends_of(stacks, {2: 100})[0] == [(1, 1, [(0, 0)])]
    assert ends_of(stacks, {2: 1 << 20})[0] == [(1, 1, [(0, 0), (3, 1)])]


def test_a_wrapper_that_is_mostly_the_heaps_is_left_to_it():
    ends, left = ends_of([(1, 40, 1, 0, 1), (2, 60, 0, 0, 2)])
    assert ends == [] and "most of what comes by its wrapper" in left[1]


def test_a_wrapper_whose_frame_differs_in_size_is_left_to_the_heap():
    mixed = ways((1, 90, 1, 0, 1), (2, 10, 2, 0, 2))
    mixed[1].steps[0] = 7
    tree = steering.Tree(mixed, {1: 0, 2: 0}, {2: 1 << 20})
    assert tree.ends == [] and "not always of one size" in tree.left[1]


def test_the_library_and_the_tool_read_the_same_plans(made, tmp_path):
    """Lines taken out, doubled and cut: where the tool says yes the library does, and what it refuses the tool does, too."""
    good = (made / "p.plan").read_text().splitlines(keepends=True)
    library = {"LD_PRELOAD": str(BUILD / "libquire-malloc.so")}
    for number in range(len(good)):
        for text in (good[:number] + good[number + 1 :], good[:number] + [good[number]] + good[number:], good[:number] + [good[number][:9] + "\n"] + good[number + 1 :]):
            path = tmp_path / "x.plan"
            lines = [line for line in text if not line.startswith("end ")]
            count = sum(not line.startswith("#") for line in lines) - 1
            path.write_text("".join(lines) + f"end {max(count, 0)}\n")
            try:
                steerplan.read(str(path))
                taken = True
            except QuireError:
                taken = False
            done = subprocess.run(["/bin/true"], env={**os.environ, **library, "QUIRE_CONF": f"plan:{path}"}, capture_output=True, text=True, check=True)
            assert not (taken and "is not used" in done.stderr), done.stderr


def test_advice_of_a_load_is_typed_with_the_loads_span_which_advise_keeps_to(made):
    recording = SimpleNamespace(path=str(made / "p.qtr"), executable="program", span_ns=(5, 9))
    typed = steering.as_typed(recording, targets.resolve([str(made / "program")]), "./program", False)
    assert " advise --span 5-9 -o " in typed
    said = quire(made, "advise", "--span", "5-9", "--json", "t.qtr")  # long before the recording began
    assert said.returncode == 0 and json.loads(said.stdout)["traces"][0]["facts"]["allocations"] == 0, said.stderr
    assert quire(made, "advise", "--span", "9-5", "t.qtr").returncode == 2
