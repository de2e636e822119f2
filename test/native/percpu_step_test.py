# SPDX-License-Identifier: MIT
"""Every instruction of every operation on this CPU's copy is once the place where a signal comes, and once the place where the thread is moved."""
import re

import pytest
from outside_kit import build, run  # noqa: F401 (build is a fixture)
from percpu_kit import SKIPPED, WITHOUT_RSEQ, libc_registers

OPERATIONS = ["add", "cmpxchg", "push", "pop"]
INSIDE_LEAST = 6  # finding the CPU, looking whether it has written, committing
COUNTS = re.compile(r"(\d+) instructions, (\d+) inside sequences, (\d+) restarted, (\d+) committed\n")


def step_through(*command):
    """(instructions, inside, restarted, committed) of a run whose results were exact."""
    done = run(*command)
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr.strip() or "the system does not let one process trace another")
    assert done.returncode == 0, done.stdout + done.stderr
    return map(int, COUNTS.fullmatch(done.stdout).groups())


@pytest.mark.skipif(not libc_registers(), reason="libc registers no area for sequences here")
@pytest.mark.parametrize("flag", ["-DQUIRE_PERCPU_INLINE=1", "-DQUIRE_PERCPU_INLINE=0"])
@pytest.mark.parametrize("state", ["hot", "cold"])
@pytest.mark.parametrize("disturbance", ["signal", "move"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_sequence_is_restarted_wherever_it_is_disturbed_and_the_result_is_exact(build, flag, disturbance, state, operation):
    for handler in ["same", "add"] if disturbance == "signal" else ["same"]:
        instructions, inside, restarted, committed = step_through(build("percpu_step", flag), disturbance, state, operation, handler)
        assert instructions > inside >= INSIDE_LEAST
        assert restarted == inside
        assert committed > 0 or (operation, state) == ("pop", "cold")  # an empty list: nothing to commit


@pytest.mark.parametrize("state", ["hot", "cold"])
@pytest.mark.parametrize("disturbance", ["signal", "move"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_without_sequences_the_result_is_exact_wherever_it_is_disturbed(build, disturbance, state, operation):
    instructions, inside, _, _ = step_through(*WITHOUT_RSEQ, build("percpu_step"), disturbance, state, operation, "add")
    assert instructions > 10
    assert inside == 0
