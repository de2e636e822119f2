# SPDX-License-Identifier: MIT
"""test_packages - what the tool tells its user to type: the command that brings Python packages, and its own name."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import toolkit

import packages
import render


@pytest.mark.parametrize(
    ("managed", "apt", "line"),
    [
        (True, "/usr/bin/apt-get", "apt-get install -y python3-jinja2 python3-numpy"),
        (True, None, "python3 -m venv ~/.quire && ~/.quire/bin/pip install jinja2 numpy"),
        (False, "/usr/bin/apt-get", f"{sys.executable} -m pip install jinja2 numpy"),
    ],
)
def test_packages_come_by_the_way_that_this_python_allows(monkeypatch, managed, apt, line):
    monkeypatch.setattr(packages, "is_managed", lambda: managed)
    monkeypatch.setattr(packages.shutil, "which", lambda name: apt)
    assert packages.install_line(["jinja2", "numpy"]).startswith(line)


def test_a_python_is_managed_where_its_library_says_so_and_a_virtual_environment_never_is(monkeypatch, tmp_path):
    monkeypatch.setattr(packages.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(packages.sys, "prefix", packages.sys.base_prefix)
    assert not packages.is_managed()
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    assert packages.is_managed()
    monkeypatch.setattr(packages.sys, "prefix", "/somewhere/else")
    assert not packages.is_managed()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """bin/quire in an empty directory that we are in."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "quire"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return program


def test_the_tool_is_called_as_the_user_called_it(installed, monkeypatch):
    for typed in (str(installed), "bin/quire", "./bin/quire"):
        monkeypatch.setattr(sys, "argv", [typed])
        assert render.command() == typed
    monkeypatch.chdir("bin")
    monkeypatch.setattr(sys, "argv", ["quire"])
    assert render.command() == "./quire"


def test_the_tool_is_called_by_its_name_where_the_shell_finds_it_so(installed, monkeypatch):
    monkeypatch.setenv("PATH", f"{installed.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "argv", [str(installed)])
    assert render.command() == "quire"


def test_an_installed_tree_that_was_not_called_by_its_script_is_quire(installed, monkeypatch):
    (installed.parent / "share" / "quire" / "tool").mkdir(parents=True)  # share/quire is there, and no command
    monkeypatch.setattr(sys, "argv", ["share/quire/tool"])
    monkeypatch.setattr(render, "HERE", str(installed.parent / "share" / "quire" / "tool"))
    assert render.command() == "quire"


def test_the_typed_name_reaches_the_tool_and_no_program_that_it_starts(installed):
    env = {**os.environ, "QUIRE_TYPED": str(installed)}
    tool = [sys.executable, toolkit.ROOT / "tools" / "quire"]
    done = subprocess.run(
        [*tool, "check", "--json", "--", "sh"], env=env, capture_output=True, text=True
    )
    assert json.loads(done.stdout)["schema"] == "quire.check/1"
    done = subprocess.run([*tool, "advise", "--patch", "x", "a", "b"], env=env, capture_output=True, text=True)
    assert done.returncode == 2 and f"fix: {installed} advise --patch" in done.stderr
    ran = subprocess.run([*tool, "run", "--", shutil.which("env")], env=env, capture_output=True, text=True)
    assert "QUIRE_CONF=" in ran.stdout and "QUIRE_TYPED" not in ran.stdout
