# SPDX-License-Identifier: MIT
"""conftest - what the tests of the installation share: one prefix that the release build was
installed into."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build" / "release"


@pytest.fixture
def root():
    return ROOT


@pytest.fixture(scope="session")
def prefix(tmp_path_factory):
    """A prefix with everything installed, moved once after that: nothing in it may remember where
    it was."""
    first, final = tmp_path_factory.mktemp("first") / "p", tmp_path_factory.mktemp("final") / "p"
    done = subprocess.run(
        ["cmake", "--install", BUILD, "--prefix", first], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return first.rename(final)
