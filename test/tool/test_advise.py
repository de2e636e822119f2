# SPDX-License-Identifier: MIT
"""test_advise - advice on one trace and on several: counter-examples, wrappers, inlined frames, many sites, odd names."""

import json
import os
import subprocess
from collections import namedtuple

import pytest
from qrp import Program
from toolkit import build, native, native_json, quire

import advise.advice as advice
import advise.evidence as advise_evidence
import advise.intersect as advise_intersect
import advise.wrappers as advise_wrappers
import render
import ui


def planned(tmp_path, program, *options):
    return native_json("quire-plan", *options, program.write(tmp_path / "p.qrp", runs=True))


def phases_with_a_survivor(rounds=20, kept_for=50):
    """Phases of 100 objects of site 1; in the third one of them outlives the others by other sites' objects."""
    program = Program()
    for number in range(rounds):
        slots = [program.alloc(0, site=1, size=64) for _ in range(100)]
        late = slots.pop(40) if number == 2 else None
        for slot in slots:
            program.free(0, slot)
        for _ in range(kept_for if late is not None else 0):
            program.free(0, program.alloc(0, site=2, size=5000))
        if late is not None:
            program.free(0, late)
    return program


def test_an_object_that_outlives_its_generation_is_named(tmp_path):
    document = planned(tmp_path, phases_with_a_survivor())
    arena = document["arenas"][0]
    assert arena["generations"] == 20 and arena["objects"] == 2000
    assert arena["late_objects"] == arena["late_generations"] == 1
    worst = arena["counterexamples"][0]
    assert worst["generation"] == 3 and worst["few_objects"] == 1 and worst["ended"]
    assert worst["objects"] == 100 and worst["held_bytes"] == 6400
    last = worst["last_to_die"][0]
    assert last["site"] == 1 and last["born"] == 241 and last["died"] == 350
    names = {1: named(1, "parse")}
    said = "\n".join(advise_evidence.arena_lines(document, names))
    assert "20 generations of 100 objects on average; 1 object outlives the rest" in said
    joined = " ".join(said.split())
    assert "held 6.4 KB for 50 more allocations after all but 1 of its 100 objects had died" in joined
    assert "64 B born at allocation 241 in parse x.c:1 died 109 allocations later" in joined


def test_objects_that_die_together_leave_no_counter_example(tmp_path):
    document = planned(tmp_path, phases_with_a_survivor(kept_for=0))
    arena = document["arenas"][0]
    assert arena["late_objects"] == 0 and arena["counterexamples"] == []
    assert "none outlives the rest" in "\n".join(advise_evidence.arena_lines(document, {}))


def come_and_go(program, count=30000):
    live = []
    for i in range(count):
        live.append(program.alloc(0, site=1, size=200))
        if len(live) > 500:
            program.free(0, live.pop((i * 7919) % len(live)))


def test_a_site_without_an_arena_says_why_and_by_which_object(tmp_path):
    program = Program()
    come_and_go(program)
    document = planned(tmp_path, program)
    assert document["sites"][0]["no_arena"] == "its generations would hold much that is dead"
    refused = document["refused"][0]
    assert refused["site"] == 1 and refused["generations"] == 1 and refused["objects"] == 30000
    worst = refused["counterexamples"][0]
    assert worst["held_bytes"] == 30000 * 208 and worst["peak_live_bytes"] == 501 * 208
    assert not worst["ended"] and worst["first_to_die"]["died"] == 501
    said = " ".join(advise_evidence.said(worst, {1: named(1, "node")}).split())
    assert "would hold 6.2 MB where 104 KB live at its peak" in said
    assert "in node x.c:1 died" in said and "the program goes on for 29,499 more allocations" in said


def test_few_objects_a_generation_and_resizing_elsewhere_are_reasons_too(tmp_path):
    program = Program(reuse=False)
    for _ in range(500):
        program.free(0, program.alloc(0, site=1))
        slot = program.alloc(0, site=2)
        program.realloc(1, slot, 300)
        program.free(0, slot)
    program.alloc(0, site=3)
    reasons = {s["site"]: s["no_arena"] for s in planned(tmp_path, program)["sites"]}
    assert reasons[1] == "its generations have few objects"
    assert reasons[2] == "another thread resizes its objects"
    assert reasons[3] == "it is not among the busiest sites"


def test_deaths_in_another_thread_are_told(tmp_path):
    program = Program(reuse=False)
    for number in range(10):
        slots = [program.alloc(0, site=1, size=64) for _ in range(100)]
        for slot in slots[:-1]:
            program.free(0, slot)
        for _ in range(40):
            program.free(1, program.alloc(1, site=2, size=3000))
        program.free(1, slots[-1])
    arena = next(a for a in planned(tmp_path, program)["arenas"] if a["late_objects"] == 10)
    assert arena["counterexamples"][0]["last_to_die"][0]["freed_by"] == 1
    said = advise_evidence.said(arena["counterexamples"][0], {})
    assert said.endswith("in thread 2")


def test_evidence_is_bounded_however_many_generations_there_are(tmp_path):
    program = Program(sites=100)
    for _ in range(70):
        for site in range(1, 100):
            for _ in range(3):
                program.free(0, program.alloc(0, site=site, size=100 * site))
    document = planned(tmp_path, program)
    assert len(document["refused"]) <= 32
    assert all(len(r["counterexamples"]) <= 3 for r in document["refused"] + document["arenas"])


# what is left over


def test_the_rest_is_the_heaps_and_what_cannot_gain_is_left_alone(tmp_path):
    program = Program()
    for i in range(3000):
        slots = [program.alloc(0, site=1, size=16 + (i * 37 + k * 900) % 5000) for k in range(3)]
        for slot in slots:
            program.free(0, slot)
        if i % 30 == 0:
            program.free(0, program.alloc(0, site=2, size=200000))
    for _ in range(10):
        program.free(0, program.alloc(0, site=3))
    path = tmp_path / "plan"
    document = planned(tmp_path, program, "--plan", path)
    classes = {s["site"]: s["class"] for s in document["sites"]}
    assert classes == {1: "heap", 2: "leave alone", 3: "leave alone"}
    assert path.read_text() == "quire-plan 1\nsite 1 heap 0\n"


def test_rare_sites_of_one_busy_line_are_the_heaps_together(tmp_path):
    program = Program(sites=40)
    for site in range(1, 31):
        for _ in range(5):
            program.free(0, program.alloc(0, site=site))
    program.free(0, program.alloc(0, site=35, size=100))
    program.free(0, program.alloc(0, site=1, size=50))
    named_sites = {s: {"function": "copy", "file": "x.c", "line": 3} for s in range(1, 31)}
    named_sites[35] = {"function": "once", "file": "x.c", "line": 9}
    recording = namedtuple("R", "program sites")(program.write(tmp_path / "p.qrp", runs=True), named_sites)
    document = advice.plan(recording, tmp_path / "plan")
    classes = {s["site"]: s["class"] for s in document["sites"]}
    assert {classes[site] for site in range(1, 31)} == {"heap"} and classes[35] == "leave alone"
    assert (tmp_path / "plan").read_text().count(" heap 0\n") == 30
    figures = native_json("quire-replay", "--verify", "--plan", tmp_path / "plan", recording.program)
    assert figures["ops_on_heap"] == 2 * 151 and figures["ops"] == 2 * 152


# several traces


def named(number, name, klass="arena", **facts):
    site = advice.Site(number, name, "x.c:1", [name], klass, None, None, 1000, 48000, 10, 2000, 0)
    return site._replace(**{"key": name, **facts})


class FakeMix(namedtuple("FakeMix", "planned gains")):
    def serves(self, klass):
        return klass in self.gains


Recording = namedtuple("Recording", "path executable")
ALL = ("arena", "slab", "recycling slot", "heap")


def trace(path, *rows, gains=ALL, slabs=(), refused=(), executable="prog"):
    document = {"allocs": sum(r.allocs for r in rows), "slabs": list(slabs), "refused": list(refused)}
    return advise_intersect.Judged(Recording(path, executable), FakeMix({**document, "arenas": []}, gains), list(rows))


def intersected(*judged):
    found = advise_intersect.Intersection(list(judged))
    return found, {row.name.split()[0]: row for row in found.rows}


def test_a_site_keeps_its_advice_where_all_traces_agree():
    found, rows = intersected(trace("a.qtr", named(1, "f")), trace("b.qtr", named(9, "f")))
    assert rows["f"].advice == "arena" and not rows["f"].differs
    told = "\n".join(advise_intersect.text(found))
    assert "What 2 traces of prog agree on" in told and "1 call site of 1 that matter" in told
    assert found.document()["sites"][0]["ids"] == [1, 9] and found.matched_by == "key"


def test_a_site_that_differs_is_left_alone_and_says_how():
    refusal = {"no_arena": "its generations would hold much that is dead"}
    one = trace("a.qtr", named(1, "f"))
    other = trace("b.qtr", named(1, "f", "heap", allocs=7, peak_live=3, **refusal))
    _, rows = intersected(one, other)
    assert rows["f"].advice == "leave alone"
    assert "arena in a.qtr (1,000 objects of 48 B" in rows["f"].differs
    assert "heap in b.qtr (7 objects of" in rows["f"].differs
    assert "at most 3 alive): its generations would hold much that is dead" in rows["f"].differs


def test_a_trace_in_which_a_site_does_not_matter_has_no_say():
    rare = named(4, "f", "leave alone", allocs=3)
    _, rows = intersected(trace("a.qtr", named(1, "f")), trace("b.qtr", rare, named(2, "g")))
    assert rows["f"].advice == rows["g"].advice == "arena"


def test_a_part_that_gains_nothing_in_one_trace_is_no_advice():
    _, rows = intersected(
        trace("a.qtr", named(1, "f", "slab", slab=0), slabs=[{"slab": 0, "element_bytes": 48}]),
        trace("b.qtr", named(1, "f", "slab"), gains=("arena",)),
    )
    assert rows["f"].advice == "leave alone" and "gains nothing in b.qtr" in rows["f"].differs


def test_a_slab_that_serves_all_traces_has_the_largest_element():
    _, rows = intersected(
        trace("a.qtr", named(1, "f", "slab", slab=0), slabs=[{"slab": 0, "element_bytes": 48}]),
        trace("b.qtr", named(1, "f", "recycling slot", slab=3), slabs=[{"slab": 3, "element_bytes": 64}]),
    )
    assert rows["f"].advice == "slab" and rows["f"].element_bytes == 64


def test_only_sites_that_share_an_arena_in_all_traces_share_one():
    one = trace("a.qtr", named(1, "f", arena=0), named(2, "g", arena=0), named(3, "h", arena=0))
    other = trace("b.qtr", named(1, "f", arena=2), named(2, "g", arena=2), named(3, "h", arena=1))
    found, _ = intersected(one, other)
    assert sorted(sorted(row.name[0] for row in group) for group in found.arenas()) == [["f", "g"], ["h"]]


def test_another_build_is_matched_by_the_names_of_functions():
    one = trace("a.qtr", named(1, "f", key="k1", stack=["f (x.c:1)", "main (x.c:9)"]))
    other = trace("b.qtr", named(1, "f", key="k2", stack=["f (x.c:3)", "main (x.c:11)"]))
    found, rows = intersected(one, other)
    assert found.matched_by == "names" and rows["f"].advice == "arena"
    assert "different builds" in "\n".join(advise_intersect.text(found))


# real traces

SHOP = """
#include <stdlib.h>
#include <string.h>
struct node { struct node *next; char text[40]; };
static struct node *heads[64];
static inline __attribute__((always_inline)) struct node *make(struct node *next) {
    struct node *n = malloc(sizeof *n);
    n->next = next; memset(n->text, 1, 40); return n;
}
static __attribute__((noinline)) struct node *build_list(int count) {
    struct node *list = NULL;
    for (int i = 0; i < count; i++) list = make(list);
    return list;
}
static __attribute__((noinline)) void *grab(size_t bytes) { void *p = malloc(bytes); ((char *)p)[0] = 1;
    for (volatile int i = 0; i < 3; i++) { } ((char *)p)[bytes - 1] = (char)(bytes * 7 + 3); return p; }
#define USER(name, k) static __attribute__((noinline)) void name(int i) { char *p = grab(30 + i % (8 + k)); p[2] = (char)(i * k); free(p); }
USER(one, 1) USER(two, 2) USER(three, 3) USER(four, 4) USER(five, 5) USER(six, 6) USER(seven, 7)
int main(int argc, char **argv) {
    unsigned sum = 0, random = 1, live = 0;
    for (int i = 0; i < 1000; i++) { one(i); two(i); three(i); four(i); five(i); six(i); seven(i); }
    for (int r = 0; r < 400; r++) {
        if (argc > 1) {
            for (int i = 0; i < 100; i++) {
                random = random * 1664525u + 1013904223u;
                heads[random >> 26] = make(heads[random >> 26]); live++;
            }
            while (live > 500) {
                random = random * 1664525u + 1013904223u;
                struct node **at = &heads[random >> 26];
                if (*at) { struct node *n = *at; *at = n->next; free(n); live--; }
            }
        } else {
            for (struct node *l = build_list(100); l;) { struct node *n = l->next; sum += (unsigned)l->text[3]; free(l); l = n; }
        }
    }
    return sum == 1;
}
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Two recorded runs of one program: phases, and nodes that come and go."""
    place = tmp_path_factory.mktemp("shop")
    (place / "shop.c").write_text(SHOP)
    words = ["cc", "-O2", "-g", "-fno-builtin", "shop.c", "-o", "shop"]
    subprocess.run(words, cwd=place, check=True)
    for output, words in (("a.qtr", []), ("b.qtr", ["churn"])):
        done = quire(place, "record", "-o", output, "--", "./shop", *words)
        assert done.returncode == 0, done.stderr
    return place


def test_inlined_frames_are_shown_with_their_function_file_and_line(shop):
    done = quire(shop, "advise", "--wrapper", "grab", "a.qtr")
    assert done.returncode == 0, done.stderr
    line = SHOP.splitlines().index("    struct node *n = malloc(sizeof *n);") + 1
    assert f"make (inlined) shop.c:{line} < build_list" in done.stdout
    assert f"    make (inlined) (shop.c:{line})\n    build_list" in done.stdout


@pytest.mark.by_turns
def test_a_function_that_looks_like_a_wrapper_is_suggested_and_looked_through(shop):
    plain = quire(shop, "advise", "a.qtr")
    assert "grab has 7 callers and one line that allocates" in " ".join(plain.stdout.split())
    assert "--wrapper 'grab'" in plain.stdout
    through = json.loads(quire(shop, "advise", "--json", "--wrapper", "grab", "a.qtr").stdout)
    functions = {site["function"] for site in through["traces"][0]["sites"]}
    assert {"one", "two", "seven"} <= functions and "grab" not in functions
    assert through["traces"][0]["wrappers"] == []


def test_a_place_without_a_name_is_no_wrapper_that_could_be_named():
    def callers(name):
        stacks = [[name, f"user{i} (x.c:{i})"] for i in range(9)]
        return [named(i, name, stack=stack) for i, stack in enumerate(stacks)]

    assert advise_wrappers.candidates(callers("grab")) == [("grab", 9, 9000)]
    assert advise_wrappers.candidates([named(i, "grab", stack=["grab", "text", f"user{i}"]) for i in range(9)]) == [("grab", 9, 9000)]
    assert advise_wrappers.candidates(callers("libx.so.1+0x12a32")) == []
    assert advise_wrappers.candidates(callers("grab")[:5]) == []


@pytest.mark.by_turns
def test_replay_and_try_look_through_a_wrapper_too(shop):
    words = ["--json", "--rounds", 1, "--wrapper", "grab"]
    replayed = quire(shop, "replay", *words, "--allocator", "libc,mix", "a.qtr")
    assert replayed.returncode == 0, replayed.stderr
    tried = quire(shop, "try", *words, "-o", "t.qtr", "--time-limit", 1, "--", "./shop")
    functions = {site["function"] for site in json.loads(tried.stdout)["sites"]}
    assert "one" in functions and "grab" not in functions


@pytest.mark.by_turns
def test_what_two_runs_of_one_program_agree_on_is_told(shop):
    document = json.loads(quire(shop, "advise", "--json", "a.qtr", "b.qtr").stdout)
    common = document["intersection"]
    assert common["matched_by"] == "key" and len(document["traces"]) == 2
    classes = {s["function"]: s["classes"] for s in common["sites"]}
    assert classes["grab"] in (["arena"] * 2, ["recycling slot"] * 2)
    made = [s for s in common["sites"] if s["function"] == "make"]
    assert made and all(None in s["classes"] for s in made)  # other callers: other sites


@pytest.mark.by_turns
def test_traces_of_different_programs_are_judged_alone(shop):
    other = build(shop, "#include <stdlib.h>\nint main(void) { for (int i = 0; i < 3000; i++) free(malloc(9)); return 0; }\n", name="other")
    assert quire(shop, "record", "-o", "other.qtr", "--", other).returncode == 0
    done = quire(shop, "advise", "a.qtr", "other.qtr")
    assert "different programs (shop, other): each is judged alone" in done.stdout
    assert "agree on" not in done.stdout


# names


def test_names_with_control_characters_are_written_out():
    site = named(1, "f\x1b[31m<b>&\"\n", where="a\tb.c:3", stack=["f", "g\x07h (x.c:2)"])
    said = render.called(site)
    assert said == "f\\x1b[31m<b>&\"\\n a\\tb.c:3 < g\\x07h" and said.isprintable()
    table = "\n".join(render.sites_text([site]))
    assert "\x1b" not in table and table.count("\n") == 1


def test_nothing_that_a_terminal_obeys_reaches_it_from_a_program(tmp_path):
    name = "x\x1b[2J<b>&"
    program = build(tmp_path, "#include <stdlib.h>\nint main(void) { for (int i = 0; i < 3000; i++) free(malloc(9)); return 0; }\n")
    os.rename(program, tmp_path / name)
    (tmp_path / "program.c").rename(tmp_path / "p\x1b.c")
    assert quire(tmp_path, "record", "-o", "x.qtr", "--", f"./{name}", "a\nb").returncode == 0
    done = quire(tmp_path, "advise", "x.qtr")
    assert done.returncode == 0 and "\x1b" not in done.stdout and "\\x1b[2J<b>&" in done.stdout
    document = json.loads(quire(tmp_path, "advise", "--json", "x.qtr").stdout)
    assert document["traces"][0]["facts"]["command"][0].endswith(name)


def test_a_stack_is_shown_from_the_last_wrapper_to_main():
    frames = ["malloc (x)", "operator new+0x1 (x)", "f (x.c:1)", "main (x.c:9)", "__libc_start_call_main (y.h:58)"]
    site = named(1, "f", frame=2, stack=frames)
    assert [line.strip() for line in render.stack_text(site)] == frames[1:4]
    assert render.caller(site) == "main"
    assert render.caller(site._replace(name="main", frame=3)) == ""


def test_cpp_names_are_shortened_to_what_tells_them_apart():
    assert render.short_frame("ns::f<int>(std::vector<int> const&) (x.cc:3)") == "ns::f<int>"
    assert render.short_frame("cc1+0x19a") == "cc1+0x19a"
    assert render.short_frame("_M_create<main()::<lambda()> >(int) (std_function.h:161)") in ("_M_create<main()::<lambda()>>", "_M_create<…>")
    assert render.short_frame("inner (inlined) (a.c:3)") == "inner"


# many


MANY = """
.section .note.GNU-stack,"",@progbits
.macro one
    .text
    .globl site\\@
    .type site\\@, @function
site\\@:
    .cfi_startproc
    push %rbx
    .cfi_adjust_cfa_offset 8
    mov $24, %edi
    call malloc@plt
    mov %rax, %rdi
    call free@plt
    pop %rbx
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
    .size site\\@, . - site\\@
    .section .data.rel.ro,"aw"
    .quad site\\@
.endm
.section .data.rel.ro,"aw"
.globl table
table:
.rept 100000
    one
.endr
    .section .data.rel.ro,"aw"
    .quad 0
"""


def many_sites(folder, count):
    """A recorded program with so many functions that each allocate once."""
    (folder / "many.S").write_text(MANY.replace("100000", str(count)))
    (folder / "main.c").write_text("extern void (*const table[])(void);\nint main(void) { for (int i = 0; table[i]; i++) table[i](); return 0; }\n")
    subprocess.run(["cc", "-O1", "main.c", "many.S", "-o", "many"], cwd=folder, check=True)
    assert quire(folder, "record", "--", "./many").returncode == 0


needs_x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the program is x86-64 assembly")


@pytest.mark.long
@needs_x86
def test_very_many_sites_are_analysed_and_planned_in_seconds(tmp_path):
    count = 100000 if os.environ.get("QUIRE_TEST_LONG") else 30000
    many_sites(tmp_path, count)
    trace, program, sites = tmp_path / "many.qtr", tmp_path / "many.qrp", tmp_path / "many.json"
    began_s = os.times().children_user
    done = native("quire-analyse", trace, "--program", program, "--sites", sites)
    assert done.returncode == 0, done.stderr
    assert sites.read_text().count('"key": ') == count
    planned_text = native("quire-plan", program).stdout
    assert planned_text.count('"class":"leave alone"') == count
    assert os.times().children_user - began_s < count / 5000


@needs_x86
def test_a_long_table_says_what_it_leaves_out(tmp_path):
    many_sites(tmp_path, 3000)
    done = quire(tmp_path, "advise", "many.qtr")
    assert done.returncode == 0 and len(done.stdout.splitlines()) < 100
    assert "3,000 call sites" in done.stdout
    assert "and 2,999 more call sites, 100 % of the allocations together" in done.stdout


def test_the_json_of_many_sites_is_whole():
    rows = [named(i, f"f{i}", "leave alone") for i in range(20000)]
    assert len(render.sites_json(rows, limit=None)) == 20000
    assert len(render.sites_text(rows, limit=25)) < 40
    assert advise_wrappers.candidates(rows) == []


@pytest.mark.parametrize("width", [60, 100])
def test_prose_of_counter_examples_fits_the_window(monkeypatch, width):
    monkeypatch.setattr(ui, "width", lambda: width)
    lines = advise_evidence.wrapped("a word or two " * 40, "  ")
    assert len(lines) > 3 and all(len(line) <= width for line in lines)


@pytest.mark.by_turns
def test_a_template_over_what_a_function_has_of_its_own_is_looked_through(tmp_path):
    """Its name has no std:: before it: the file says whose it is."""
    (tmp_path / "jobs.cc").write_text(
        "#include <functional>\n#include <vector>\nint main() {\n    long sum = 0;\n    for (int r = 0; r < 20; r++) {\n"
        "        std::vector<std::function<long()>> jobs;\n        for (long i = 0, b = r; i < 1000; i++)\n"
        "            jobs.push_back([i, b, r] { return i + b + r; });\n        for (auto &j : jobs) sum += j();\n    }\n    return sum == 1;\n}\n"
    )
    subprocess.run(["g++", "-O1", "-g", "jobs.cc", "-o", "jobs"], cwd=tmp_path, check=True)
    assert quire(tmp_path, "record", "-o", "jobs.qtr", "--", "./jobs").returncode == 0
    sites = native_json("quire-analyse", tmp_path / "jobs.qtr", "--sites", "-")["sites"]
    busiest = max(sites, key=lambda site: site["count"])
    assert busiest["count"] >= 20000 and busiest["function"].startswith("main") and busiest["line"] == 8, busiest
