# SPDX-License-Identifier: MIT
"""
test_check_programs - what `check` says of real programs beside what happens when they run under the library.

    package, command  -->  check: served? sure?                                 these two are compared
                      -->  LD_PRELOAD, QUIRE_CONF=stats: the process's report  /  for each program that is here

A program was served when its own process left a report in which the heap handed something out.  Who ends by _exit (dash) leaves none:
such a one was served when it cannot do its work within a limit of no memory; but what the C code at the start of a Go program allocates is
not that program's memory.  Each row's kind is what it stands for.
"""

import json
import os
import shutil
import subprocess

import pytest
import toolkit
from toolkit import quire

LIBRARY = toolkit.BUILD / "libquire-malloc.so"
PIE, FIXED, STATIC, STATIC_PIE, MUSL, SCRIPT, CHAIN, SHELL, LOADER, RIGHTS, OWN, NEEDED, DEEPBIND, GO, RUST, RUST_JEMALLOC, CXX = KINDS = (
    "position independent", "at a fixed place", "static", "static and position independent", "linked with musl", "a script", "becomes another", "a shell before it",
    "a loader before it, as Wine's", "has rights of its own", "own malloc inside", "another malloc by DT_NEEDED", "RTLD_DEEPBIND", "Go", "Rust", "Rust with jemalloc", "C++",
)  # fmt: skip
MADE = "made-with-musl-gcc"
PROGRAMS = [
    (PIE, "bash", "bash -c :"),
    (PIE, "coreutils", "ls -l /"),
    (PIE, "coreutils", "sort /etc/passwd"),
    (PIE, "coreutils", "stat /"),
    (PIE, "coreutils", "id"),
    (PIE, "coreutils", "date"),
    (PIE, "dash", "dash -c :"),
    (PIE, "diffutils", "diff /etc/passwd /etc/passwd"),
    (PIE, "findutils", "find /etc/apt"),
    (PIE, "grep", "grep -c root /etc/passwd"),
    (PIE, "sed", "sed -n 1p /etc/passwd"),
    (PIE, "mawk", "mawk BEGIN{x[1]=2}"),
    (PIE, "tar", "tar -cf /dev/null /etc/hostname"),
    (PIE, "perl-base", "perl -e @x=1..9"),
    (PIE, "dpkg", "dpkg -l dpkg"),
    (PIE, "libc-bin", "getent passwd root"),
    (PIE, "libc-bin", "locale"),
    (PIE, "git", "git --version"),
    (PIE, "gpgv", "gpgv --version"),
    (PIE, "procps", "ps"),
    (PIE, "sqlite3", "sqlite3 :memory: .databases"),
    (PIE, "jq", "jq -n 1"),
    (PIE, "strace", "strace -V"),
    (PIE, "binutils", "readelf -h /bin/true"),
    (PIE, "binutils", "ld --version"),
    (PIE, "gcc", "gcc --version"),
    (PIE, "pkgconf-bin", "pkgconf --version"),
    (PIE, "man-db", "man --version"),
    (PIE, "lua5.4", "lua5.4 -v"),
    (PIE, "openssl", "openssl version"),
    (CXX, "apt", "apt-config dump"),
    (CXX, "cmake", "cmake --version"),
    (CXX, "ninja-build", "ninja --version"),
    (CXX, "gdb", "gdb --version"),
    (FIXED, "python3-minimal", "/usr/bin/python3 -c 1"),
    (FIXED, "nodejs", "node -e 1"),
    (STATIC_PIE, "libc-bin", "/sbin/ldconfig -V"),
    (STATIC, "busybox-static", "busybox true"),
    (STATIC, "bash-static", "bash-static -c :"),
    (MUSL, "musl-tools", MADE),
    (SCRIPT, "libc-bin", "ldd --version"),
    (SCRIPT, "gzip", "zforce --version"),
    (SCRIPT, "debianutils", "which sh"),
    (SCRIPT, "debconf", "debconf-show passwd"),
    (SCRIPT, "xz-utils", "xzgrep --version"),
    (CHAIN, "gzip", "gunzip -L"),
    (CHAIN, "grep", "egrep --version"),
    (CHAIN, "coreutils", "env A=1 nice -n 1 sort /etc/passwd"),
    (CHAIN, "coreutils", "nohup /sbin/ldconfig -V"),
    (CHAIN, "valgrind", "valgrind --version"),
    (CHAIN, "rustup", "rustdoc --version"),
    (CHAIN, "pyenv", "python3 -c 1"),
    (SHELL, "dash", "sh -c id"),
    (SHELL, "bash", "bash -c exec\tphp\t-r\t1;"),
    (SHELL, "grep", "sh /usr/bin/egrep --version"),
    (LOADER, "libc6", "/lib64/ld-linux-x86-64.so.2 /bin/ls /"),
    (LOADER, "libc6", "/lib64/ld-linux-x86-64.so.2 /sbin/ldconfig -V"),
    (RIGHTS, "util-linux", "mount --version"),
    (RIGHTS, "passwd", "chage --help"),
    (RIGHTS, "util-linux", "su --version"),
    (OWN, "chromium", "chromium --version"),
    (OWN, "firefox-esr", "firefox-esr --version"),
    (NEEDED, "redis-server", "redis-server --version"),
    (DEEPBIND, "php-cli", "php -r 1;"),
    (GO, "golang", "go version"),
    (GO, "restic", "restic version"),
    (RUST, "ripgrep", "rg --version"),
    (RUST, "fd-find", "fdfind --version"),
    (RUST, "rustup", "cargo --version"),
    (RUST_JEMALLOC, "rustup", "rustc --version"),
]  # fmt: skip
LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"
FIRST_OF_A_KIND = {kind: place for place, (kind, _, _) in reversed(list(enumerate(PROGRAMS)))}
CHOSEN = [row for place, row in enumerate(PROGRAMS) if LONG or place % 3 == 0 or place == FIRST_OF_A_KIND[row[0]]]  # the short form: each kind, and every third
# valgrind's starter becomes the tool, which it looks for; libmount may open a library past every preload; chromium's script reads others, which may say anything
ONLY_A_RUN_TELLS = {"valgrind", "mount", "chromium"}


def run(folder, words, conf):
    environment = {**os.environ, "LD_PRELOAD": str(LIBRARY), "QUIRE_CONF": conf, "DEBIAN_FRONTEND": "noninteractive"}
    nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    process = subprocess.Popen(words, env=environment, cwd=folder, **nowhere)
    return process.pid, process.wait(timeout=toolkit.HANGS_S)


def made_with_musl(folder):
    """Linked dynamically."""
    (folder / "made.c").write_text("#include <stdlib.h>\nint main(void) { char *volatile p = malloc(50000); p[0] = 1; free(p); return 0; }")
    subprocess.run(["musl-gcc", folder / "made.c", "-o", folder / MADE], check=True)
    return folder / MADE


def served_in_truth(folder, kind, words):
    """Whether the process that was started ended as one whose heap was used."""
    pid, status = run(folder, words, f"stats:exit,stats_format:json,stats_file:{folder}/%p")
    report = folder / str(pid)
    if report.exists():
        return json.loads(report.read_text())["heap"]["peak_bytes"] > 0
    return status >= 0 and kind != GO and run(folder, words, "limit:4K")[1] != status  # below 0: it crashed


@pytest.mark.parametrize(("kind", "package", "command"), CHOSEN, ids=[f"{kind}: {command}".replace(" ", "_").replace("\t", "_") for kind, _, command in CHOSEN])
def test_check_says_what_happens(tmp_path, kind, package, command):
    words = command.split(" ")
    if command == MADE and shutil.which("musl-gcc"):
        words = [str(made_with_musl(tmp_path))]
    if not shutil.which(words[0]):
        pytest.skip(f"{package} is not installed")
    done = quire(tmp_path, "check", "--json", "--", *words)
    said = json.loads(done.stdout)
    assert done.returncode == (0 if said["serves"] else 1)
    assert said["sure"] == (words[0] not in ONLY_A_RUN_TELLS)
    if said["sure"] or said["opens_past_preloads"]:
        assert said["serves"] == served_in_truth(tmp_path, kind, words), said["reason"]


def test_the_table_has_every_kind_and_forty_programs():
    assert len(PROGRAMS) >= 40 and {kind for kind, _, _ in PROGRAMS} == set(KINDS)
    named = {"static and position independent", "linked with musl", "a loader before it, as Wine's", "a shell before it", "Rust", "Rust with jemalloc", "Go", "C++"}
    assert named < set(KINDS) and {kind for kind, _, _ in CHOSEN} == set(KINDS)
