# SPDX-License-Identifier: MIT
"""test_patch - `advise --patch`: what it prints compiles, and the changed program does what it did."""

import json
import os
import subprocess

import pytest
from toolkit import BUILD, ROOT, build, quire

import advise.advice as advice
import cmd_advise
import patch.code as patch
import patch.c as patch_c
import patch.cpp as patch_cpp
import patch.source as patch_source
import tracefile
from errors import UsageError

C_SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifndef BEGIN
#define BEGIN() 0
#define END() (void)0
#define GIVE(p) free(p)
#endif
struct node { struct node *next; unsigned value; char text[32]; };
static struct node *heads[64];
static char *texts[64];
static unsigned sum, live, chance = 1;
static unsigned roll(unsigned n) { chance = chance * 1664525u + 1013904223u; return (chance >> 8) % n; }

static __attribute__((noinline)) struct node *parse(struct node *next) {
    struct node *n = malloc(sizeof(struct node));
    n->next = next; n->value = roll(9); return n;
}
static __attribute__((noinline)) void add(unsigned at) {
    struct node *n = calloc(1, sizeof *n);
    n->next = heads[at]; n->value = 3; heads[at] = n; live++;
}
static __attribute__((noinline)) void label(unsigned i) {
    char *text = malloc(100);
    memset(text, (int)(i % 26), 100); sum += (unsigned)text[i % 100]; LABEL_GIVE(text);
}
static __attribute__((noinline)) void any(unsigned i) {
    char **at = &texts[roll(64)];
    ANY_GIVE(*at); *at = malloc(16 + roll(4000)); **at = (char)i; sum += (unsigned)**at;
}
static __attribute__((noinline)) void *rare(void) {
    return malloc(77);
}
static void phase(void) {
    struct node *list = NULL;
    if (BEGIN()) exit(3);
    for (unsigned i = 0; i < 100; i++) list = parse(list);
    while (list) { struct node *n = list->next; sum += list->value; PARSE_GIVE(list); list = n; }
    END();
}
int main(void) {
    if (START()) return 3;
    for (unsigned i = 0; i < 100; i++) phase();
    for (unsigned i = 0; i < 30000; i++) {
        add(roll(64)); label(i); any(i);
        while (live > 400) {
            struct node **at = &heads[roll(64)];
            if (*at) { struct node *gone = *at; sum += gone->value; *at = gone->next; ADD_GIVE(gone); live--; }
        }
    }
    void *r = rare(); sum += r != NULL; free(r);
    printf("%u\n", sum);
    return 0;
}
"""
PLAIN = ["-DSTART()=0"] + [f"-D{who}_GIVE=free" for who in ("PARSE", "ADD", "LABEL", "ANY")]
CHANGED = {  # by site: the class, and what a programmer does besides applying the diff
    "parse": ("arena", ["-DBEGIN()=parse_begin()", "-DEND()=parse_end()", "-DPARSE_GIVE=parse_free"]),
    "add": ("slab", ["-DSTART()=add_begin()", "-DADD_GIVE=add_free"]),
    "label": ("recycling slot", ["-DSTART()=label_begin()", "-DLABEL_GIVE=label_free"]),
    "any": ("heap", ["-DANY_GIVE=any_free"]),
}

CPP_SOURCE = """
#include <cstdio>
#include <cstdlib>
struct node {
    node *next;
    unsigned value;
};
class item final {
  public:
    item *next;
    unsigned value;
    char text[32];
    explicit item(unsigned v) : next(nullptr), value(v), text() {}
};
static item *heads[64];
__attribute__((noinline)) node *parse(node *next) {
    node *n = new node();
    n->next = next; n->value = 2; return n;
}
__attribute__((noinline)) item *add(unsigned v) {
    return new item(v);
}
#ifndef PHASE
#define PHASE
#define GIVE(n) delete n
#endif
int main() {
    unsigned sum = 0, chance = 1;
    for (int r = 0; r < 100; r++) {
        PHASE
        node *list = nullptr;
        for (int i = 0; i < 50; i++) list = parse(list);
        while (list) { node *n = list->next; sum += list->value; GIVE(list); list = n; }
    }
    for (unsigned i = 0; i < 60000; i++) {
        chance = chance * 1664525u + 1013904223u;
        item *one = add(chance >> 20), **at = &heads[chance >> 26];
        one->next = *at; *at = one;
        if (i > 300) { do { chance = chance * 1664525u + 1013904223u; at = &heads[chance >> 26]; } while (!*at);
            item *gone = *at; *at = gone->next; sum += gone->value; delete gone; }
    }
    std::printf("%u\\n", sum);
}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("patch")


def judged(folder, program):
    """A recorded run of a program, judged without a clock: which part gains is no matter here."""
    assert quire(folder, "record", "-o", f"{program.name}.qtr", "--", program).returncode == 0
    os.environ["QUIRE_BUILD_DIR"] = str(BUILD)
    recording = tracefile.analyse(str(folder / f"{program.name}.qtr"), str(folder))
    planned = advice.plan(recording, str(folder / "plan"))
    mixed = cmd_advise.mix.Mix(planned, None, {})
    return recording, mixed, advice.sites(recording, planned)


@pytest.fixture(scope="module")
def c_program(place):
    return judged(place, build(place, C_SOURCE, name="shop", flags=PLAIN))


@pytest.fixture(scope="module")
def cpp_program(place):
    (place / "list.cc").write_text(CPP_SOURCE)
    subprocess.run(["g++", "-O1", "-g", "list.cc", "-o", "list"], cwd=place, check=True)
    return judged(place, place / "list")


def compiled(folder, *words):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def output(folder, program):
    return subprocess.run([folder / program], capture_output=True, text=True, check=True).stdout


def change(folder, found, source):
    """Carries a change out in a folder of its own: the headers, and the diff by patch -p0."""
    folder.mkdir()
    stem = found["header"].rsplit(".", 1)[0]
    (folder / f"{stem}.h").write_text(found["c"])
    (folder / f"{stem}.hpp").write_text(found["cpp"])
    (folder / source.name).write_text(source.read_text())
    done = subprocess.run(["patch", "-p0"], cwd=folder, input="some words\n" + found["diff"], capture_output=True, text=True)
    assert done.returncode == 0 and "fuzz" not in done.stdout, done.stdout + done.stderr


INCLUDE = ["-I", str(ROOT / "include"), "-I", "."]
LINK = [str(BUILD / "libquire.a"), "-pthread"]


@pytest.mark.parametrize("site", CHANGED)
def test_a_c_program_with_the_change_compiles_and_does_what_it_did(tmp_path, place, c_program, site):
    klass, macros = CHANGED[site]
    found = patch.document(*c_program, site)
    assert found["class"] == klass and found["where"].startswith("shop.c:")
    change(tmp_path / "new", found, place / "shop.c")
    header = found["header"]
    strict = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only", *INCLUDE]
    compiled(tmp_path / "new", "gcc", "-std=c11", *strict, "-x", "c", header)
    begins = [] if site == "parse" else ["-DBEGIN()=0", "-DEND()=(void)0"]
    macros = macros + begins + [word for word in PLAIN if word.split("=")[0] not in {m.split("=")[0] for m in macros}]
    words = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", *INCLUDE, *macros, "shop.c", "-o", "shop", *LINK]
    compiled(tmp_path / "new", *words)
    assert output(tmp_path / "new", "shop") == output(place, "shop")


@pytest.mark.by_turns
@pytest.mark.parametrize(
    "site, klass, macros",
    [("parse", "arena", ["-DPHASE=parse_phase phase;", "-DGIVE(n)=(void)0"]), ("add", "slab", [])],
)
def test_a_cpp_program_with_the_change_compiles_and_does_what_it_did(tmp_path, place, cpp_program, site, klass, macros):
    found = patch.document(*cpp_program, site)
    assert found["class"] == klass and found["header"].endswith(".hpp")
    headings = [line for line in patch.text(found) if ": save as " in line]
    assert headings[0].startswith("C++:") and headings[1].startswith("C:")
    change(tmp_path / "new", found, place / "list.cc")
    words = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", *INCLUDE, *macros]
    compiled(tmp_path / "new", *words, "list.cc", "-o", "list", *LINK)
    assert output(tmp_path / "new", "list") == output(place, "list")


USES = """
#include "{header}"
struct thing {base} {{ int a; char b[20]; }};
int main() {{ {body} return 0; }}
"""
BODIES = {
    "parse": (
        "",
        "parse_phase phase; std::pmr::vector<int> v(&phase); v.push_back(1);"
        " thing *t = new (parse_alloc(sizeof(thing))) thing(); t->a = 1;",
    ),
    "add": (
        ": add_element",
        "delete new thing(); std::list<int, add_allocator<int>> l; l.push_back(1); l.pop_back();",
    ),
    "any": (
        ": any_element",
        "delete new thing(); std::pmr::vector<int> v(&any_memory()); v.resize(100);",
    ),
}


@pytest.mark.by_turns
@pytest.mark.parametrize("site", BODIES)
def test_the_cpp_header_of_each_class_compiles_and_serves_containers(tmp_path, c_program, site):
    found = patch.document(*c_program, site)
    base, body = BODIES[site]
    header = f"quire_{site}.hpp"
    (tmp_path / header).write_text(found["cpp"])
    text = "#include <list>\n#include <vector>\n" + USES.format(header=header, base=base, body=body)
    (tmp_path / "use.cc").write_text(text)
    words = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", *INCLUDE, "use.cc", "-o", "use", *LINK]
    compiled(tmp_path, *words)
    output(tmp_path, "use")


NESTED = """
#include "quire_f.hpp"
#include <cstring>
static void *phase(bool within) {
    f_phase outer;
    char *text = static_cast<char *>(f_alloc(100));
    std::memset(text, 7, 100);
    if (within) { f_phase inner; std::memset(f_alloc(100), 9, 100); }
    return text[99] == 7 ? text : nullptr;
}
int main() { void *first = phase(false), *again = phase(true); return !(first && first == again && phase(true)); }
"""


@pytest.mark.by_turns
def test_a_small_phase_keeps_its_arena_for_the_next_and_one_within_another_has_its_own(tmp_path, c_program):
    kept = patch.document(*c_program, "parse")
    assert "quire_arena_reset" in kept["c"] and "parse_quit" in kept["c"] and "is_kept = true" in kept["cpp"]
    made = patch.Change("f", "arena", "", 4096, "", site_named("f"), [])
    assert "quire_arena_reset" not in patch_c.code(made) and "is_kept = false" in patch_cpp.code(made)
    (tmp_path / "quire_f.hpp").write_text(patch_cpp.code(made._replace(kept=True)))
    (tmp_path / "use.cc").write_text(NESTED)
    words = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", *INCLUDE, "use.cc", "-o", "use", *LINK]
    compiled(tmp_path, *words)
    output(tmp_path, "use")


def test_the_code_tells_the_figures_the_place_and_the_type(c_program, place):
    found = patch.document(*c_program, "parse")
    assert "struct node" in found["c"] and f"{place}/shop.c:" in found["c"]
    assert "10,000 objects" in found["c"] and "100 phases" in found["c"]
    assert any("below phase" in note for note in found["notes"])
    assert "ADD_BYTES = 48" in patch.document(*c_program, "add")["c"]


def test_a_site_is_named_by_its_number_its_function_or_its_line(c_program):
    site = next(s for s in c_program[2] if s.name == "label")
    for wanted in ("label", str(site.id), site.where, f"{site.path}:{site.line}"):
        assert patch.document(*c_program, wanted)["site"] == site.id


def test_an_unknown_site_is_a_usage_error_with_the_nearest_name(c_program):
    with pytest.raises(UsageError) as caught:
        patch.document(*c_program, "pares")
    assert "no call site `pares`" in str(caught.value) and "parse" in caught.value.text()


@pytest.mark.by_turns
def test_a_site_to_be_left_alone_gets_no_code_and_exit_1(place, c_program):
    found = patch.document(*c_program, "rare")
    assert found["c"] is None and "Leave it alone" in found["notes"][0]
    done = quire(place, "advise", "--json", "--patch", "rare", "shop.qtr")
    document = json.loads(done.stdout)
    assert done.returncode == 1 and document["schema"] == "quire.patch/1" and document["c"] is None


@pytest.mark.by_turns
def test_on_a_pipe_the_whole_output_is_what_patch_takes(tmp_path, place):
    done = quire(place, "advise", "--patch", "parse", "shop.qtr")
    assert done.returncode == 0, done.stderr
    (tmp_path / "shop.c").write_text((place / "shop.c").read_text())
    patched = subprocess.run(["patch", "-p0"], cwd=tmp_path, input=done.stdout, text=True, capture_output=True)
    assert patched.returncode == 0, patched.stdout
    assert "parse_alloc(sizeof(struct node))" in (tmp_path / "shop.c").read_text()


def test_without_the_source_there_is_code_and_no_diff(c_program):
    site = next(s for s in c_program[2] if s.name == "any")
    away = [site._replace(path="/nowhere/any.c")]
    found = patch.document(c_program[0], c_program[1], away, "any")
    assert found["diff"] is None and "any_alloc" in found["c"]
    assert any("/nowhere/any.c" in note for note in found["notes"])


LIST = "std::__cxx11::list<int, std::allocator<int> >::push_back(int&&) (inlined) (stl_list.h:1311)"


@pytest.mark.parametrize(
    "frame, said",
    [
        (LIST, "std::list"),
        ("std::__cxx11::basic_string<char, std::char_traits<char> >::reserve(unsigned long)+0x5 (x)", "std::string"),
        ("std::make_unique<Square, int&>(int&) (inlined) (unique_ptr.h:1065)", ""),
        ("xmalloc+0x1 (prog)", ""),
    ],
)
def test_the_container_whose_memory_it_is_is_told_in_cpp(frame, said):
    site = site_named("fill", path="/nowhere/x.cc", line=3, frame=1)
    site = site._replace(stack=[frame, "fill (x.cc:3)", "main (x.cc:9)"])
    assert patch.container(site) == said
    made = patch.Change("fill", "slab", "", 48, "", site, [])
    told = " ".join(patch.notes(made, patch_mix(gains=True)))
    if said:
        assert f"memory of {said}: give it fill_allocator" in told
    else:
        assert "gets the base fill_element" in told


def patch_mix(gains):
    part = cmd_advise.mix.Part(1, None, gains)
    return cmd_advise.mix.Mix({}, None, {"slab": part})


def test_a_change_that_was_not_measured_to_gain_says_so():
    made = patch.Change("f", "slab", "", 48, "", site_named("f"), [])
    assert any("No gain was measured" in note for note in patch.notes(made, patch_mix(gains=False)))
    assert not any("No gain" in note for note in patch.notes(made, patch_mix(gains=True)))


def site_named(name, **facts):
    known = {"key": "", "path": "", "line": 0, **facts}
    site = advice.Site(7, name, "", [], "slab", None, 0, 100, 4800, 50, 200, 0)
    return site._replace(**known)


@pytest.mark.parametrize(
    "name, said",
    [
        ("parse", "parse"),
        ("ns::Tree<std::pair<int, int>>::insert(int)", "insert"),
        ("Tree::Insert(int)", "insert"),
        ("cc1+0x19ff", "site_7"),
        ("operator new(unsigned long)", "operator_new"),
        ("évil*/\n#error", "vil_error"),
        ("::", "site_7"),
    ],
)
def test_every_name_becomes_an_identifier(name, said):
    found = patch.identifier(site_named(name))
    assert found == said and found.isidentifier()


@pytest.mark.long
@pytest.mark.parametrize("klass", ["arena", "slab"])
def test_a_hostile_name_does_not_leave_its_comment(tmp_path, klass):
    site = site_named("f*/\n#error \\\n", path="/x/*/\n#error y.c\\", line=3)
    made = patch.Change("f", klass, "1 object */ \n#error", 64, "struct x */ \n #error", site, [])
    (tmp_path / "f.h").write_text(patch_c.code(made))
    (tmp_path / "f.hpp").write_text(patch_cpp.code(made))
    strict = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only", *INCLUDE]
    compiled(tmp_path, "gcc", *strict, "-x", "c", "f.h")
    compiled(tmp_path, "g++", "-std=c++17", *strict, "-x", "c++", "f.hpp")


@pytest.mark.parametrize(
    "line, klass, changed",
    [
        ("p = malloc(n);", "slab", "p = f_alloc(n);"),
        ("p = xmalloc(n);", "arena", "p = f_alloc(n);"),
        ("p = (char *)calloc(2, n);", "heap", "p = (char *)f_alloc_zero(2, n);"),
        ("return strdup(s);", "slab", "return f_strdup(s);"),
        ("p = malloc (a(b, c) +", "arena", "p = f_alloc(a(b, c) +"),
        ("p = realloc(p, n);", "arena", None),
        ("p = pool->malloc(n);", "arena", None),
        ("p = my_alloc(n);", "arena", None),
    ],
)
def test_only_what_is_certain_on_a_line_is_changed(tmp_path, line, klass, changed):
    path = tmp_path / "x.c"
    path.write_text(f"#include <stdlib.h>\n\n\n\nvoid f(void) {{\n    {line}\n}}\n\n\n\n")
    site = site_named("f", path=str(path), line=6)
    made = patch.Change("f", klass, "", 64, "", site, [])
    found = patch_source.diff(made, [site])
    if changed is None:
        assert found.text == "" and f"{path}:6" in found.notes[0]
    else:
        assert f"+    {changed}\n" in found.text and '+#include "quire_f.h"\n' in found.text


def test_a_file_with_other_line_ends_keeps_them(tmp_path):
    path = tmp_path / "x.c"
    path.write_bytes(b"#include <stdlib.h>\r\nvoid *f(void) {\r\n    return malloc(9);\r\n}")
    site = site_named("f", path=str(path), line=3)
    found = patch_source.diff(patch.Change("f", "heap", "", 0, "", site, []), [site])
    assert "+    return f_alloc(9);\r\n" in found.text and found.text.count("No newline") == 1
    done = subprocess.run(["patch", "-p0", "--binary"], cwd=tmp_path, input=found.text.encode())
    assert done.returncode == 0
    assert path.read_bytes().startswith(b'#include <stdlib.h>\r\n#include "quire_f.h"\r\nvoid *f')


def test_names_that_the_source_has_already_are_not_taken(tmp_path):
    path = tmp_path / "x.c"
    path.write_text("void node_free(void *p);\n")
    assert patch.identifier(site_named("node", path=str(path))) == "node_site"


def test_a_patch_takes_one_trace(tmp_path):
    done = quire(tmp_path, "advise", "--patch", "f", "a.qtr", "b.qtr")
    assert done.returncode == 2 and "one trace" in done.stderr


def test_a_patch_of_no_site_is_a_usage_error(tmp_path):
    done = quire(tmp_path, "advise", "--patch", "", "a.qtr")
    assert done.returncode == 2 and "--patch names no call site" in done.stderr and not done.stdout


@pytest.mark.parametrize(
    "wanted", ["make_box<int>", "shop::make_box<int>", "shop::box<int>* shop::make_box<int>(std::vector<int>&)"]
)
def test_a_site_is_found_by_its_name_as_the_tables_show_it(wanted):
    name = "shop::box<int>* shop::make_box<int>(std::vector<int, std::allocator<int> >&)"
    site = advice.Site(7, name, "", [], "slab", None, 0, 100, 4800, 50, 200, 0)
    assert patch.find([site], wanted) == [site]


def test_a_line_that_several_callers_reach_is_changed_once_and_not_said_to_be_unchanged(tmp_path):
    source = tmp_path / "a.c"
    source.write_text("#include <stdlib.h>\nstruct node { int a; };\nvoid *new_node(void) {\n    return malloc(sizeof(struct node));\n}\n")
    sites = [site_named("new_node", path=str(source), line=4)._replace(id=number) for number in (1, 2)]
    found = patch_source.diff(patch.Change("n", "arena", "", 64, "", sites[0], sites[1:]), sites)
    assert found.text.count("+    return") == 1 and found.notes == []


@pytest.mark.parametrize(
    "stacks, said",
    [
        ([["malloc", "node", "parse", "main", "__libc_start_call_main"]], "parse"),
        ([["malloc", "main", "__libc_start_call_main", "_start"]], "main"),
        ([["malloc", "node", "main", "_start"], ["malloc", "main", "_start"]], "main"),
        ([["malloc", "work", "start_thread", "clone3"], ["malloc", "work", "start_thread", "clone3"]], "work"),
    ],
)
def test_a_phase_is_never_said_to_lie_in_what_calls_main(stacks, said):
    sites = [advice.Site(i, s[1], "", s, "arena", 0, None, 9, 9, 9, 9, 0)._replace(frame=1) for i, s in enumerate(stacks)]
    assert patch.common_frame(sites) == said


@pytest.mark.parametrize(("klass", "line", "said"), [
    ("arena", "p = (char *)malloc(64);", "Each free() of these objects goes."),
    ("arena", "p = new T(i);", "Each `delete` of these objects goes."),
    ("arena", "p = get();", "Each free() and `delete` of these objects goes."),
    ("slab", "p = (char *)malloc(64);", "Each free() of these objects becomes f_free(p, bytes)"),
    ("heap", "p = (char *)malloc(64);", "Each free() of these objects becomes f_free(p):"),
    ("slab", "p = new T(i);", "its `new` and `delete` stay as they are"),
])  # fmt: skip
def test_what_ends_an_object_in_cpp_is_told_by_how_it_is_made(tmp_path, klass, line, said):
    path = tmp_path / "x.cc"
    path.write_text(f"void f() {{\n    {line}\n}}\n")
    site = site_named("f", path=str(path), line=2, klass=klass)
    mixed = cmd_advise.mix.Mix({}, None, {klass: cmd_advise.mix.Part(1, None, True)})
    assert said in " ".join(patch.notes(patch.Change("f", klass, "", 64, "", site, []), mixed))


def test_the_other_calls_of_a_line_are_said_to_be_unchanged(tmp_path):
    path = tmp_path / "x.c"
    path.write_text("void f(void) {\n    r.name = strdup(s); r.v = calloc(n, 4);\n}\n")
    site = site_named("f", path=str(path), line=2)
    found = patch_source.diff(patch.Change("f", "slab", "", 64, "", site, []), [site])
    assert "+    r.name = f_strdup(s); r.v = calloc(n, 4);\n" in found.text
    assert found.notes == ["Line 2 has 2 calls that allocate, and the figures are of all of them: only strdup is changed here."]
