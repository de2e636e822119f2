# SPDX-License-Identifier: MIT
"""test_follow - scripts, shims and wrappers are followed to the program that their process becomes, and that one is judged."""

import json
import os
import shutil

import pytest
from toolkit import build, quire

import follow

HELLO = '#include <stdlib.h>\nint main(void) { char *volatile p = malloc(50000); p[0] = 1; free(p); return 0; }'


@pytest.fixture
def served(tmp_path):
    return build(tmp_path, HELLO, "served")


@pytest.fixture
def static(tmp_path):
    return build(tmp_path, HELLO, "static", ["-static"])


def script(tmp_path, text, name="script", shell="#!/bin/sh"):
    path = tmp_path / name
    path.write_text(f"{shell}\n{text}\n")
    path.chmod(0o755)
    return path


def end_of(*argv):
    chain = follow.follow(list(map(str, argv)))
    return chain.steps[-1].path, chain.sure


@pytest.mark.parametrize(
    "text",
    [
        'exec {there}/static "$@"',
        'DIR={there}\nNAME=static\nexec "$DIR/$NAME" -x "$@"',
        'here=$(dirname "$0")\nexec "$here"/static',
        'exec "${{0%/*}}/static"',
        'exec "${{SURELY_NOT_SET:-{there}/static}}" "$@"',
        'if [ -n "$DEBUG" ]; then\n  exec /usr/bin/env -i nothing\nfi\nexec -a other {there}/static',
        "# exec /bin/true\necho once; exec {there}/static",
    ],
)
def test_a_script_is_judged_by_what_it_executes_in_the_end(tmp_path, static, text):
    path = script(tmp_path, text.format(there=tmp_path))
    assert end_of(path) == (str(static), True)
    done = quire(tmp_path, "check", "--", path)
    assert done.returncode == 1 and f"{static} is a static binary" in done.stdout


def test_a_script_that_executes_what_nobody_knows_is_judged_as_its_shell_and_that_is_said(tmp_path, served):
    path = script(tmp_path, 'exec "$(cat secret)" "$@"')
    assert end_of(path) == (str(path), False)
    done = quire(tmp_path, "check", "--", path)
    assert done.returncode == 0 and "only a run tells what" in done.stdout
    assert json.loads(quire(tmp_path, "check", "--json", "--", path).stdout)["sure"] is False


def test_a_script_of_commands_is_its_shell(tmp_path):
    assert end_of(script(tmp_path, "ls\ngrep exec /dev/null")) == (str(tmp_path / "script"), True)


def test_an_exec_that_ends_with_a_message_is_not_what_the_script_becomes(tmp_path):
    path = script(tmp_path, 'case $1 in --help) exec echo "usage" ;; esac\nexec 3>&1\nls "$@"')
    assert end_of(path) == (str(path), True)


def test_scripts_that_lead_to_scripts_are_followed_and_circles_end(tmp_path, served):
    script(tmp_path, f"exec {served}", "inner")
    assert end_of(script(tmp_path, f"exec {tmp_path}/inner", "outer")) == (str(served), True)
    circle = script(tmp_path, f"exec {tmp_path}/circle", "circle")
    assert end_of(circle)[1] is False


@pytest.mark.parametrize("words", [["env", "A=1"], ["env", "-u", "B", "A=1"], ["nice", "-n", "5"], ["nohup"], ["setsid"], ["stdbuf", "-oL"], ["taskset", "1"]])
def test_commands_that_execute_their_arguments_are_followed(tmp_path, served, words):
    if not shutil.which(words[0]):
        pytest.skip(f"{words[0]} is not here")
    assert end_of(*words, served, "x") == (str(served), True)


@pytest.mark.parametrize(
    "words",
    [
        ["sh", "-c", "exec {there}/static -r 1;"],
        ["sh", "-ec", "{there}/static 'a;b' >/dev/null 2>&1"],
        ["bash", "-o", "pipefail", "-c", "A=1 env B=1 {there}/static"],
        ["sh", "-c", "cd / && exec {there}/static"],
        ["sh", "-c", 'exec "$0" "$@"', "{there}/static", "x"],
        ["sh", "{there}/script", "x"],
        ["sh", "-c", "sh {there}/script"],
        ["unshare", "-r", "{there}/static"],
        ["ld.so", "{there}/static"],
    ],
)
def test_a_shell_before_the_program_is_followed(tmp_path, static, words):
    script(tmp_path, f'exec {static} "$@"')
    words = [word.format(there=tmp_path) for word in words]
    assert end_of(*words) == (str(static), True)
    done = quire(tmp_path, "check", "--", *words)
    assert done.returncode == 1 and f"{static} is a static binary" in done.stdout


@pytest.mark.parametrize(
    ("text", "sure"),
    [("{there}/served; {there}/served", False), ("{there}/served | cat", False), ("LD_PRELOAD= {there}/served", False), ("$SURELY_NOT_SET", False), ("'", False), ("echo {there}", True), ("exit 3", True)],
)
def test_a_text_of_more_than_one_command_is_its_shell_and_not_promised(tmp_path, served, text, sure):
    assert end_of("sh", "-c", text.format(there=tmp_path)) == (shutil.which("sh"), sure)


def test_a_shell_alone_is_a_shell(tmp_path):
    assert end_of("sh")[1] is True and end_of("bash", "--version")[1] is True
    assert end_of("sh", script(tmp_path, "ls\ngrep exec /dev/null")) == (shutil.which("sh"), True)


def test_wrappers_of_wrappers_lead_to_the_last(tmp_path, static):
    done = quire(tmp_path, "check", "--", "env", "A=1", "nice", "-n", "5", static)
    assert done.returncode == 1 and f"{static} is a static binary" in done.stdout
    done = quire(tmp_path, "run", "--", "env", "A=1", static)
    assert done.returncode == 3


def test_an_environment_that_is_emptied_takes_the_preload_away(tmp_path, served):
    assert end_of("env", "-i", served)[1] is False
    assert end_of("env", "-u", "LD_PRELOAD", served)[1] is False
    for word in ("-uLD_PRELOAD", "--unset=LD_PRELOAD", "LD_PRELOAD=", "LD_PRELOAD=/x.so", "-0i"):
        assert end_of("env", word, served)[1] is False, word
    for word in ("-uINIT", "--unset=HOME", "LD_PRELOADED=1", "-0"):
        assert end_of("env", word, served)[1] is True, word


@pytest.mark.parametrize("manager", ["pyenv", "rbenv", "nodenv"])
def test_a_shim_is_asked_of_its_version_manager(tmp_path, served, manager):
    real = tmp_path / "versions" / "tool"
    real.parent.mkdir()
    shutil.copy(served, real)
    script(tmp_path, f'[ "$1 $2" = "which tool" ] && echo {real}', manager)
    shim = script(tmp_path, f'program="${{0##*/}}"\nexec "{tmp_path}/{manager}" exec "$program" "$@"', "tool", "#!/usr/bin/env bash")
    assert end_of(shim) == (str(real), True)


def test_a_proxy_of_rustup_is_asked_of_rustup(tmp_path, served):
    real = tmp_path / "toolchain" / "rustc"
    real.parent.mkdir()
    shutil.copy(served, real)
    rustup = build(tmp_path, f'#include <stdio.h>\nint main(void) {{ puts("{real}"); return 0; }}', "rustup")
    os.symlink(rustup, tmp_path / "rustc")
    assert end_of(tmp_path / "rustc") == (str(real), True)


def test_a_program_that_can_only_become_another_is_not_promised(tmp_path):
    source = "#include <unistd.h>\n#include <stdlib.h>\nint main(int c, char **v) { free(malloc(9)); return execv(v[1], v + 1); }"
    becomes = build(tmp_path, source, "becomes")
    done = quire(tmp_path, "check", "--", becomes)
    assert done.returncode == 0 and "only a run tells what becomes executes" in done.stdout


def test_a_script_of_another_language_is_its_interpreter(tmp_path):
    assert end_of(script(tmp_path, "print(1)", shell="#!/usr/bin/perl"))[0] == "/usr/bin/perl"


@pytest.mark.parametrize(
    ("line", "interpreter", "loses"),
    [
        ("#!/usr/bin/perl -w", "/usr/bin/perl", False),
        ("#! \t/usr/bin/perl", "/usr/bin/perl", False),
        ("#!/usr/bin/env perl", "perl", False),
        ("#!/usr/bin/env -S perl -w", "perl", False),
        ("#!/usr/bin/env -S -u FOO A=1 perl -w", "perl", False),
        ('#!/usr/bin/env -S "perl" -w', "perl", False),
        ("#!/usr/bin/env -S -i perl", "perl", True),
        ("#!/usr/bin/env -iS perl", "perl", True),
        ("#!/usr/bin/env -S -uLD_PRELOAD perl", "perl", True),
        ("#!/usr/bin/env -S LD_PRELOAD=x perl", "perl", True),
        ("#!/usr/bin/env -S 'perl", None, False),
        ("#!/usr/bin/env", None, False),
        ("#!perl", "./perl", False),
        ("#!/usr/bin/perl\r", "/usr/bin/perl\r", False),
        ("#!", None, False),
        ("# no such line", None, False),
    ],
)
def test_a_first_line_is_read_as_the_kernel_and_env_read_it(tmp_path, line, interpreter, loses):
    assert follow.first_line(script(tmp_path, "print 1", shell=line)) == (interpreter, loses)


def test_a_script_that_the_kernel_cannot_execute_is_told_so_and_one_without_the_preload_is_not_promised(tmp_path):
    done = quire(tmp_path, "check", "--", script(tmp_path, "print 1", shell="#!/bin/sh\r"))
    assert done.returncode == 127 and "the line ends with a carriage return" in done.stderr, done.stderr
    done = quire(tmp_path, "check", "--", script(tmp_path, "print 1", shell="#!perl"))
    assert done.returncode == 127 and "names ./perl, which is not there" in done.stderr, done.stderr
    done = quire(tmp_path, "check", "--", script(tmp_path, "echo", shell="#!/usr/bin/env -S -i sh"))
    assert "only a run tells" in done.stdout, done.stdout
