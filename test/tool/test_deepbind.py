# SPDX-License-Identifier: MIT
"""test_deepbind - calls of dlopen with RTLD_DEEPBIND are seen in a file's code, on both processors, and others are taken for none."""

import shutil
import subprocess

import pytest
import toolkit  # noqa: F401 - puts the tool on the path

import deepbind

COMPILERS = ["gcc", "aarch64-linux-gnu-gcc"]
SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
int main(int count, char **words)
{
    void *other = dlopen(words[1], RTLD_NOW), *one = dlopen(words[count > 2], %s);
    return !one + !other;
}
"""


def built(folder, compiler, flags, *more):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    (folder / "opens.c").write_text(SOURCE % flags)
    subprocess.run([compiler, "-O1", *more, "opens.c", "-o", "opens"], cwd=folder, check=True)
    return folder / "opens"


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("flags", ["RTLD_NOW | RTLD_DEEPBIND", "RTLD_LAZY | RTLD_GLOBAL | RTLD_DEEPBIND", "RTLD_LAZY | RTLD_NODELETE | RTLD_NOLOAD | RTLD_DEEPBIND"])
def test_a_call_is_seen(tmp_path, compiler, flags):
    assert deepbind.opens_past_preloads(built(tmp_path, compiler, flags))


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_call_of_a_table_whose_entries_begin_with_a_landing_is_seen(tmp_path, compiler):
    landing = "-mbranch-protection=standard" if "aarch64" in compiler else "-fcf-protection=full"
    assert deepbind.opens_past_preloads(built(tmp_path, compiler, "RTLD_NOW | RTLD_DEEPBIND", landing, "-Wl,-z,force-bti" if "aarch64" in compiler else "-Wl,-z,ibtplt"))


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("flags", ["RTLD_NOW", "RTLD_LAZY | RTLD_GLOBAL", "RTLD_LAZY | RTLD_NODELETE", "count | RTLD_NOW"])
def test_other_calls_are_none(tmp_path, compiler, flags):
    assert not deepbind.opens_past_preloads(built(tmp_path, compiler, flags))


def test_what_is_no_program_has_none(tmp_path):
    for text in (b"", b"\x7fELF\x02", b"\x7fELF\x02" + bytes(100), b"#!/bin/sh\n"):
        (tmp_path / "file").write_bytes(text)
        assert not deepbind.opens_past_preloads(tmp_path / "file")
    assert not deepbind.opens_past_preloads(tmp_path / "none")
