# SPDX-License-Identifier: MIT
"""test_checks - each house-rule check passes a sound tree and fails on the fault it exists for."""

import importlib
import subprocess
import sys

import pytest

SPDX = "// SPDX-License-Identifier: MIT\n"
SOUND_HEADER = (
    SPDX + "#ifndef QUIRE_ARENA_H\n#define QUIRE_ARENA_H\n"
    "/* Make one.  Returns NULL with errno ENOMEM.  MT-Safe. */\n"
    '__attribute__((visibility("default"))) struct quire_arena *quire_arena_create(int hint);\n'
    "#endif\n"
)


def findings(check, root):
    return importlib.import_module(f"check_{check}").check(root)


def only_finding(check, root):
    found = findings(check, root)
    assert len(found) == 1, found
    return found[0]


def long_function(lines):
    return SPDX + "static int f(int a)\n{\n" + "    a++;\n" * (lines - 4) + "    return a;\n}\n"


def test_an_include_that_points_down_is_accepted(tree):
    root = tree(
        {
            "src/pages/a.c": '#include "base/b.h"\n#include "os/o.h"\n',
            "src/base/b.h": "",
            "src/os/o.h": "",
        }
    )
    assert findings("includes", root) == []


def test_an_include_that_points_up_is_found_with_its_line(tree):
    root = tree({"src/base/a.c": '// why\n#include "pages/p.h"\n', "src/pages/p.h": ""})
    assert only_finding("includes", root).startswith(
        "src/base/a.c:2: src/base includes pages above it"
    )


def test_siblings_of_layer_three_may_not_meet(tree):
    root = tree({"src/slab/a.c": '#include "arena/arena.h"\n', "src/arena/arena.h": ""})
    assert "its sibling arena" in only_finding("includes", root)


def test_siblings_may_not_meet_through_a_public_header_either(tree):
    root = tree(
        {
            "src/slab/a.c": "#include <quire/quire.h>\n",
            "include/quire/quire.h": "#include <quire/arena.h>\n",
            "include/quire/arena.h": "",
        }
    )
    assert "its sibling arena (quire/quire.h)" in only_finding("includes", root)


def test_an_include_in_a_comment_is_no_include(tree):
    assert (
        findings(
            "includes", tree({"src/os/a.c": '/*\n#include "pages/p.h"\n*/\n', "src/pages/p.h": ""})
        )
        == []
    )


def test_a_source_file_may_not_be_included(tree):
    assert "never included" in only_finding(
        "includes", tree({"src/os/a.c": '#include "b.c"\n', "src/os/b.c": ""})
    )


def test_a_directory_without_a_layer_is_found(tree):
    assert "src/extra has no layer" in only_finding("includes", tree({"src/extra/a.c": ""}))


def test_an_order_tag_with_both_sides_is_accepted(tree):
    assert (
        findings(
            "tags",
            tree(
                {"src/base/a.c": "// release [ready]\n", "src/pages/b.c": "/* acquire [ready] */\n"}
            ),
        )
        == []
    )


@pytest.mark.parametrize("side", ["release", "acquire", "acq_rel"])
def test_an_order_tag_with_one_side_only_is_found(tree, side):
    assert f"{side} [ready] has no other side" in only_finding(
        "tags", tree({"src/base/a.c": f"int a; // {side} [ready]\n"})
    )


def test_an_order_tag_in_a_string_is_not_a_side(tree):
    root = tree({"src/base/a.c": '// release [ready]\nconst char *s = "acquire [ready]";\n'})
    assert only_finding("tags", root).startswith("src/base/a.c:1:")


def test_a_function_over_the_soft_limit_needs_a_reason(tree):
    root = tree({"src/os/a.c": long_function(51)})
    assert "src/os/a.c:f has 51 lines" in only_finding("sizes", root)
    tree({"scripts/size-exceptions.txt": "src/os/a.c:f one switch over all verbs\n"})
    assert findings("sizes", root) == []


def test_a_function_at_the_soft_limit_is_accepted(tree):
    assert findings("sizes", tree({"src/os/a.c": long_function(50)})) == []


def test_a_reason_does_not_help_over_the_hard_limit(tree):
    root = tree(
        {
            "src/os/a.c": long_function(71),
            "scripts/size-exceptions.txt": "src/os/a.c:f one switch over all verbs\n",
        }
    )
    assert any("the hard limit is 70" in finding for finding in findings("sizes", root))


def test_a_long_file_is_found(tree):
    assert "has 501 lines" in only_finding("sizes", tree({"src/os/a.c": "int a;\n" * 501}))
    assert "the hard limit is 800" in only_finding("sizes", tree({"src/os/a.c": "int a;\n" * 801}))


def test_an_exception_that_excuses_nothing_is_found(tree):
    assert "needs no excuse" in only_finding(
        "sizes", tree({"scripts/size-exceptions.txt": "src/os/a.c:f one switch over all verbs\n"})
    )


def test_an_exception_without_a_reason_is_found(tree):
    root = tree(
        {"src/os/a.c": long_function(51), "scripts/size-exceptions.txt": "src/os/a.c:f long\n"}
    )
    assert "has no reason" in only_finding("sizes", root)


def test_a_long_function_inside_extern_c_and_after_tables_is_found(tree):
    text = (
        'extern "C" {\nstatic const int t[] = {1, 2};\nstruct s {\n    int (*f)(void);\n};\n'
        + long_function(60)
        + "}\n"
    )
    assert "src/os/a.c:f has 60 lines" in only_finding("sizes", tree({"src/os/a.c": text}))


def test_a_long_python_function_is_found(tree):
    assert "a.py:f has 51 lines" in only_finding(
        "sizes", tree({"a.py": "def f():\n" + "    x = 1\n" * 50})
    )


def build_library(root, source):
    build = root / "build" / "release"
    build.mkdir(parents=True)
    (root / "a.c").write_text(source)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", build / "libquire.so", "a.c"], cwd=root, check=True
    )
    subprocess.run(["gcc", "-c", "-o", build / "a.o", "a.c"], cwd=root, check=True)
    subprocess.run(["ar", "rc", build / "libquire.a", build / "a.o"], cwd=root, check=True)


def test_a_library_that_exports_what_is_declared_is_accepted(tree):
    root = tree({"include/quire/arena.h": SOUND_HEADER})
    build_library(root, "void *quire_arena_create(int h) { return (void *)(long)h; }\n")
    assert findings("exports", root) == []


def test_an_undeclared_export_and_a_missing_one_are_found(tree):
    root = tree({"include/quire/arena.h": SOUND_HEADER})
    build_library(root, "int quire_secret(void) { return 1; }\n")
    found = "\n".join(findings("exports", root))
    assert (
        "build/release/libquire.so:1: defines quire_secret, which no public header declares"
        in found
    )
    assert (
        "include/quire/arena.h:5: quire_arena_create is declared but build/release/libquire.so does"
        " not define it" in found
    )


def test_a_library_that_defines_malloc_is_found(tree):
    root = tree({"include/quire/arena.h": SOUND_HEADER})
    build_library(
        root,
        "void *quire_arena_create(int h) { return (void *)(long)h; }\nvoid *malloc(unsigned long n)"
        " { return (void *)n; }\n",
    )
    assert any("defines malloc, libc's" in finding for finding in findings("exports", root))


def test_exports_cannot_be_checked_before_the_build(tree):
    assert "is not built" in only_finding("exports", tree({"include/quire/arena.h": SOUND_HEADER}))


def test_a_header_that_needs_another_one_is_found_in_both_languages(tree):
    found = findings(
        "headers", tree({"include/quire/a.h": "#pragma once\nsize_t quire_a(void);\n"})
    )
    assert [f.split(":")[2].split()[-1] for f in found] == ["C11", "C++17"]


def test_a_header_that_only_c_understands_is_found(tree):
    assert "alone as C++17" in only_finding(
        "headers", tree({"include/quire/a.h": "#pragma once\nint quire_a(int class);\n"})
    )


def test_a_sound_header_compiles_alone(tree):
    assert findings("headers", tree({"include/quire/arena.h": SOUND_HEADER})) == []


def test_a_declaration_with_its_contract_is_accepted(tree):
    assert findings("contracts", tree({"include/quire/arena.h": SOUND_HEADER})) == []


def test_a_declaration_without_a_comment_is_found(tree):
    header = SOUND_HEADER.replace(
        "#endif", "\nvoid quire_arena_reset(struct quire_arena *arena);\n#endif"
    )
    assert "quire_arena_reset has no comment directly above it" in only_finding(
        "contracts", tree({"include/quire/arena.h": header})
    )


def test_a_comment_holds_for_the_declarations_up_to_the_next_empty_line(tree):
    second = "struct quire_arena *quire_arena_make(int hint);\n"
    header = SOUND_HEADER.replace("#endif", second + "#endif")
    assert findings("contracts", tree({"include/quire/arena.h": header})) == []
    header = SOUND_HEADER.replace("#endif", "\n" + second + "#endif")
    assert "quire_arena_make has no comment" in only_finding(
        "contracts", tree({"include/quire/arena.h": header})
    )


def test_a_second_name_for_a_symbol_is_not_taken_for_an_export(tree):
    header = SOUND_HEADER.replace(
        "#endif", '\nvoid *quire_arena_other(int hint) __asm__("quire_arena_create");\n#endif'
    )
    assert findings("contracts", tree({"include/quire/arena.h": header})) == []


def test_a_declaration_without_a_thread_safety_word_is_found(tree):
    header = SOUND_HEADER.replace("MT-Safe", "Safe")
    assert "has no thread-safety word" in only_finding(
        "contracts", tree({"include/quire/arena.h": header})
    )


def test_mt_unsafe_without_what_is_raced_for_is_found(tree):
    header = SOUND_HEADER.replace("MT-Safe", "MT-Unsafe")
    assert "without saying for what" in only_finding(
        "contracts", tree({"include/quire/arena.h": header})
    )


def test_a_function_that_can_fail_must_name_its_errno(tree):
    header = SOUND_HEADER.replace(" with errno ENOMEM", "")
    assert "names no errno" in only_finding("contracts", tree({"include/quire/arena.h": header}))


def test_a_file_without_its_licence_line_is_found(tree):
    root = tree(
        {
            "src/os/a.c": SPDX,
            "src/os/b.c": "int b;\n",
            "run.sh": "#!/bin/sh\n# SPDX-License-Identifier: MIT\n",
        }
    )
    assert only_finding("spdx", root).startswith("src/os/b.c:1:")


def test_a_licence_line_that_stands_too_late_is_found(tree):
    assert only_finding("spdx", tree({"src/os/a.c": "int a;\n" + SPDX})).startswith("src/os/a.c:1:")


def test_conditions_are_accepted_where_they_belong(tree):
    guard = "#ifndef A_H\n#define A_H\n#ifdef __cplusplus\n#endif\n#endif\n"
    root = tree(
        {
            "src/os/a.c": "#ifdef __linux__\n#endif\n",
            "include/quire/a.h": guard,
            "src/base/b.c": "#if QUIRE_CHECK\n#endif\n",
        }
    )
    assert findings("ifdefs", root) == []


@pytest.mark.parametrize(
    "line",
    [
        "#ifdef FEATURE",
        "#ifndef FEATURE",
        "#if A && defined(FEATURE)",
        "#  if \\\n defined FEATURE",
    ],
)
def test_a_condition_on_being_defined_is_found_elsewhere(tree, line):
    assert only_finding("ifdefs", tree({"src/base/a.c": f"int a;\n{line}\n#endif\n"})).startswith(
        "src/base/a.c:2:"
    )


@pytest.mark.parametrize(
    "words",
    [
        "// TO" + "DO later",
        "/* FIX" + "ME */",
        "see /ro" + "ot/notes.txt",
        "in /home" + "/jo/quire",
        "SPDX-License" + "-Identifier: GPL-2.0",
    ],
)
def test_words_that_no_file_says_are_found(tree, words):
    root = tree({"LICENSE": "MIT License\n", "src/os/a.c": f"int a;\n{words}\n"})
    assert only_finding("words", root).startswith("src/os/a.c:2:")


def test_a_tree_without_the_mit_licence_is_found(tree):
    assert only_finding("words", tree({"LICENSE": "All rights reserved\n"})).startswith(
        "LICENSE:1:"
    )


@pytest.mark.parametrize(
    "check", ["includes", "tags", "sizes", "contracts", "spdx", "ifdefs", "words"]
)
def test_a_check_is_a_program_that_exits_1_with_a_line_a_finding(tree, root, check):
    broken = tree(
        {
            "src/base/a.h": (
                '#include "pages/p.h"\n#ifdef X\n// release [x]\n#endif\n' + "int a;\n" * 500
            ),
            "src/pages/p.h": SPDX,
            "include/quire/a.h": SPDX + "int quire_a(void);\n",
        }
    )
    done = subprocess.run(
        [sys.executable, root / "scripts" / f"check_{check}.py", "--root", broken],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert ":" in done.stdout.splitlines()[0]
    assert done.stderr == ""


def test_an_unknown_check_is_refused_with_the_names_there_are(root):
    done = subprocess.run(
        [sys.executable, root / "scripts" / "check.py", "szes"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "no check named szes; there are: contracts exports" in done.stderr
