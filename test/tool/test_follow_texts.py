# SPDX-License-Identifier: MIT
"""test_follow_texts - what a text may become is sure only where all of it is answered alike; options of wrappers are theirs."""

import json
import os
import shutil

import pytest
import toolkit
from toolkit import build, quire

import follow
import shelltext

HELLO = "#include <stdlib.h>\nint main(void) { char *volatile p = malloc(50000); p[0] = 1; free(p); return 0; }"
SERVED, NOT, ONLY_A_RUN_TELLS = (True, True), (False, True), None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With `served`, `another` and `static`, of which the last is not."""
    if not (toolkit.BUILD / "libquire-malloc.so").exists():
        pytest.skip("libquire-malloc.so is not built")
    folder = tmp_path_factory.mktemp("texts")
    shutil.copy(build(folder, HELLO, "served"), folder / "another")
    build(folder, HELLO, "static", ["-static"])
    return folder


def script(folder, text, shell="#!/bin/sh"):
    path = folder / "a-script"
    path.write_text(f"{shell}\n{text}\n")
    path.chmod(0o755)
    return path


def said(folder, *words):
    """(serves, sure), the answer."""
    answer = json.loads(quire(folder, "check", "--json", "--", *words).stdout)
    return (answer["serves"], answer["sure"]), answer


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('case "$1" in -v) exec {there}/served;; *) exec {there}/static "$@";; esac', ONLY_A_RUN_TELLS),
        ('case "$1" in -v) exec {there}/served;; *) exec {there}/another "$@";; esac', SERVED),
        ("case $1 in (a|b) exec {there}/static ;; *)\n exec {there}/static -x; esac", NOT),
        ('if [ -x B ]; then exec {there}/static "$@"; else exec {there}/served "$@"; fi', ONLY_A_RUN_TELLS),
        ('[ -x B ] && exec {there}/static "$@"\nls', ONLY_A_RUN_TELLS),
        ('[ -x B ] || {{ echo no >&2; exit 1; }}\nexec {there}/static "$@"', NOT),
        ('main() {{\n  exec {there}/static "$@"\n}}\nmain "$@"', NOT),
        ("P=served\n[ -n \"$X\" ] && P=static\nexec {there}/$P", ONLY_A_RUN_TELLS),
        ("for P in static served; do exec {there}/$P; done", ONLY_A_RUN_TELLS),
        ("exec {there}/served\nexec {there}/static", SERVED),
        ("cat <<END\nexec {there}/static\nEND\nexec {there}/served", SERVED),
        ("(exec {there}/static)\nexec {there}/served", SERVED),
        ("exec nice -n 5 {there}/static", NOT),
        ("unset LD_PRELOAD; exec {there}/served", ONLY_A_RUN_TELLS),
        ("export LD_PRELOAD=\nexec {there}/served", ONLY_A_RUN_TELLS),
        ("LD_PRELOAD= exec {there}/served", ONLY_A_RUN_TELLS),
        ("exec env -u LD_PRELOAD {there}/served", ONLY_A_RUN_TELLS),
        ("LD_PRELOAD=; ls", SERVED),
        ('eval "exec $1"\nls', ONLY_A_RUN_TELLS),
        (". ./$1\nls", ONLY_A_RUN_TELLS),
        ("RUN='exec nice'\n$RUN {there}/static", ONLY_A_RUN_TELLS),
        ("[ -n \"$SURELY_NOT_SET\" ] || SURELY_NOT_SET={there}/static\nexec $SURELY_NOT_SET", NOT),
        ("exec env QUIRE_CONF=passthrough:1 {there}/served", ONLY_A_RUN_TELLS),
        ("cd /nowhere\nexec ./served", ONLY_A_RUN_TELLS),
    ],
)
def test_a_script_is_promised_nothing_that_its_text_does_not_decide(folder, text, wanted):
    found, answer = said(folder, script(folder, text.format(there=folder)))
    assert (found == wanted) if wanted else not found[1], answer


def test_a_run_goes_on_where_the_text_does_not_decide_and_strict_tells(folder):
    path = script(folder, f'case "$1" in -v) exec {folder}/served;; *) exec {folder}/static "$@";; esac')
    done = quire(folder, "run", "--strict", "--", path, "-v")
    assert done.returncode == 0 and "may not be served" in done.stderr, done.stderr
    assert quire(folder, "run", "--strict", "--", path).returncode == 3


@pytest.mark.parametrize(
    ("shell", "text", "is_sure"),
    [
        ("#!/usr/bin/env python3", "import os\nos.execvp('ls', ['ls'])", False),
        ("#!/usr/bin/env python3", "import subprocess  # no exec\n# os.execv\nsubprocess.run(['ls'])", True),
        ("#!/usr/bin/perl", "exec 'ls';", False),
        ("#!/bin/csh", "exec ls", False),
        ("#!/usr/bin/perl", "# exec\nprint 1; system('ls -exec');", True),
    ],
)
def test_a_script_that_executes_another_program_is_not_promised(folder, shell, text, is_sure):
    path = script(folder, text, shell)
    if not shutil.which(shell.removeprefix("#!").split()[-1]):
        pytest.skip(f"{shell} is not here")
    assert follow.follow([str(path)]).sure is is_sure
    if shell.endswith("perl") and shutil.which("perl"):
        assert follow.follow(["perl", "-e", text]).sure is is_sure


LD = "/lib64/ld-linux-x86-64.so.2"


@pytest.mark.parametrize(
    "words",
    [
        *([LD, *option.split(), "{program}"] for option in ("--library-path /x", "--argv0 x", "--preload /x", "--inhibit-cache", "--inhibit-rpath L", "--audit L", "--glibc-hwcaps-prepend L", "--glibc-hwcaps-mask L")),
        ["setarch", "-R", "{program}"],
        ["setarch", "x86_64", "-R", "{program}"],
        ["linux64", "{program}"],
        ["i386", "-R", "{program}"],
        ["env", "-C", "{folder}", "./static"],
        ["env", "--chdir={folder}", "./static"],
        ["env", "--unset", "X", "A=1", "{program}"],
        ["env", "--uns=X", "{program}"],
        ["env", "-S", "A=1 nice {program} x"],
        ["nice", "--adjustment", "5", "{program}"],
        ["nice", "-5", "{program}"],
        ["ionice", "--class", "3", "{program}"],
        ["stdbuf", "--output", "L", "{program}"],
        ["unshare", "--mount", "-r", "{program}"],
        ["timeout", "-k", "1", "--signal=9", "5", "{program}"],
        ["xargs", "-n", "1", "{program}"],
        ["flock", "-w", "1", "lock", "{program}"],
        ["flock", "lock", "-c", "exec {program} x"],
        ["strace", "-f", "-o", "log", "{program}"],
        ["watch", "-n", "1", "{program}"],
    ],
    ids=" ".join,
)
def test_options_and_operands_of_wrappers_are_no_programs(folder, words):
    words = [word.format(program=folder / "static", folder=folder) for word in words]
    if not shutil.which(words[0]):
        pytest.skip(f"{words[0]} is not here")
    chain = follow.follow(words, started=True)
    assert (os.path.normpath(chain.steps[-1].path), chain.sure) == (str(folder / "static"), True)


@pytest.mark.parametrize("words", [["setarch", "--unheard-of", "ls"], ["chroot", "/", "ls"], ["strace", "-E", "LD_PRELOAD=x", "ls"], ["env", "--unset", "LD_PRELOAD", "ls"], ["env", "-S", "${X} ls"]])
def test_what_a_wrapper_does_is_not_promised_where_it_is_not_clear(words):
    if not shutil.which(words[0]):
        pytest.skip(f"{words[0]} is not here")
    assert follow.follow(words, started=True).sure is False


def test_a_wrapper_that_tells_of_itself_executes_nothing():
    for words in (["env", "--version"], ["su", "--version"], ["chroot", "--help"], ["nice", "--help", "ls"], [LD, "--list", "ls"]):
        chain = follow.follow(words)
        assert len(chain.steps) == 1 and chain.sure, words


def test_what_a_command_starts_beside_itself_is_judged_and_named(folder):
    done = quire(folder, "check", "--", "timeout", "5", folder / "static")
    assert done.returncode == 1 and f"  judged: {folder}/static, started by timeout\n" in done.stdout
    assert quire(folder, "check", "--", "timeout", "5", folder / "served").returncode == 0
    assert quire(folder, "run", "--", "timeout", "5", folder / "static").returncode == 0, "the process that was started is timeout"


@pytest.mark.parametrize(
    ("text", "stays", "commands"),
    [
        ("a; b &\nc | d\n(e)\nf || g", True, "a b/ c/ d/ e/ f g?"),
        ("if a; then exit; elif b; then c; else exec d; fi\ne", True, "a exit? b? c? exec? e"),
        ("while a; do exec b; done", True, "a exec?"),
        ("f() { exec a; }\nf\nb", False, "exec? f"),
        ("f() { return; exec a; }\nf\nb", True, "return? f b"),
        ("[[ $a =~ ^(x|y)$ && b ]] && cd / && c", True, "[[ cd? c?"),
        ('a "$(b "c;d" | e)" `f; g` ${h:-"; i"} \'j; k\' # l; m', True, "a"),
        ("X=(a b); (( X < 3 )); case x in *) exit 3;; esac\nnever", False, " (( exit?"),
        ("cat <<-'A' <<B\n\tx; y\n\tA\nz\nB\nd", True, "cat d"),
    ],
)
def test_a_text_is_read_as_a_shell_reads_it(text, stays, commands):
    read = shelltext.read(text)
    assert read.stays is stays
    assert " ".join(c.name + "?" * c.maybe + "/" * c.aside for c in read.found) == commands


@pytest.mark.parametrize("text", ["'", "if a; then b", "case x in", "fi", "a )", "$(", "(" * 500])
def test_what_is_no_text_of_a_shell_is_not_read(text):
    assert shelltext.read(text) is None


@pytest.mark.parametrize(("name", "is_language"), [("python3.11", True), ("nodejs", True), ("perl5.36-x86_64-linux-gnu", True), ("rclone", False), ("luatex", False), ("perldoc", False)])
def test_an_interpreter_is_known_by_its_whole_name(tmp_path, name, is_language):
    (tmp_path / "text").write_text("import os\nos.execv('ls', [])\nexec('ls')\nprocess.execve()\n")
    assert follow._may_execute(name, [str(tmp_path / "text")]) is is_language
