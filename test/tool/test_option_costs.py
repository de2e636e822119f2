# SPDX-License-Identifier: MIT
"""option_costs.py measures the malloc that it was asked to: one that the loader would pass over is refused."""

import argparse
import subprocess
import sys
from pathlib import Path

import option_costs
import pytest


def test_a_name_that_the_loader_knows_is_one():
    assert str(option_costs.preloadable("libm.so.6")) == "libm.so.6"


@pytest.mark.parametrize("name", ["libnothing.so.9", "/nowhere/libm.so.6"])
def test_what_is_not_there_is_refused(name):
    with pytest.raises(argparse.ArgumentTypeError):
        option_costs.preloadable(name)
    done = subprocess.run([sys.executable, Path(option_costs.__file__), "decay:1s", "--peer", name], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{name} cannot be preloaded" in done.stderr
