# SPDX-License-Identifier: MIT
"""A machine that has nothing: the README's two commands in a bare Debian 12.  A quarter of an hour, in the long form alone."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LONG = os.environ.get("QUIRE_TEST_LONG") == "1"


@pytest.mark.skipif(not LONG or os.geteuid() != 0 or not shutil.which("debootstrap"), reason="QUIRE_TEST_LONG=1, root and debootstrap")
def test_a_bare_debian_tries_a_program_and_then_tests_under_nohup():
    """Of the last commit: what is not committed is not there."""
    done = subprocess.run([sys.executable, ROOT / "scripts/fresh_machine.py"], capture_output=True, text=True, timeout=5400)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
