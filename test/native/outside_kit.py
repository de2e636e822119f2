# SPDX-License-Identifier: MIT
"""What the tests that see the library from outside share: building a small program against it, running it, refusing its system calls."""

import itertools
import os
import shutil
import subprocess

import pytest
from record_kit import BUILD, HANGS_S, ROOT

PROGRAMS = ROOT / "test" / "native" / "programs"
LIBRARY = BUILD / "libquire.a"


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside")

    def compile_one(name, *flags):
        path = folder / (name + "".join(flags).replace("/", "").replace("=", ""))
        if not path.exists():
            subprocess.run(["cc", "-O1", "-g", *flags, "-I", str(ROOT / "include"), str(PROGRAMS / f"{name}.c"), str(LIBRARY),
                            "-lpthread", "-o", str(path)], check=True)
        return path

    return compile_one


def run(*command, timeout=HANGS_S):
    # Sanitizers want the addresses where they expect them, whatever the kernel's randomisation.
    words = ["setarch", "-R", *command] if shutil.which("setarch") else command
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=timeout, check=False)


def check_refusals(program, call, log, places):
    """The program is sound whichever of its calls the kernel refuses, once or from then on; some refusal must have happened."""
    refused = 0
    if not os.environ.get("QUIRE_TEST_LONG"):
        places = [nth for i, nth in enumerate(places) if nth < 8 or i % 2]
    for source, nth, onwards in itertools.product(["default", "anon"], places, ["", "+"]):
        inject = f"inject={call}:error=ENOMEM:when={nth}{onwards}"
        done = run("strace", "-f", "-qq", "-o", log, "-e", f"trace={call}", "-e", inject, program, source)
        if not done.stdout and ("shared" in done.stderr or (call == "mmap" and nth == 1)):
            continue  # the loader was refused, before the program began
        assert (done.returncode, done.stdout) == (0, "sound\n"), f"{source} {call} {nth}{onwards}: {done.stderr}"
        refused += "(INJECTED)" in log.read_text()
    assert refused > 0, f"{call} was never refused"
