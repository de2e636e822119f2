#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tags_cost.py - what memory tags cost: instructions for each malloc and free of one size, as the emulator counts them.

    python3 test/native/tags_cost.py DROP_IN     an arm64 build's libquire-malloc.so (cmake --toolchain cmake/aarch64.cmake)

The difference of a run of 300 pairs and one of 100, by which the start of the program goes away. Instructions are not time: what a processor's tags cost in
time nobody has measured here.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

QEMU, PREFIX = "qemu-aarch64", "/usr/aarch64-linux-gnu"
PROGRAM = r"""
#include <stdlib.h>
int main(int count, char **words)
{
    static void *block[64];
    int pairs = atoi(words[1]), bytes = atoi(words[2]);
    for (int i = 0; i < pairs + 1000; i++) {
        free(block[i % 64]);
        block[i % 64] = malloc(bytes);
    }
    return count == 0;
}
"""


def instructions(program, drop_in, conf, words):
    """How many of them a run executes: one line each where no blocks are linked and each has one instruction."""
    trace = program.with_suffix(".trace")
    command = [QEMU, "-singlestep", "-d", "exec,nochain", "-D", trace, "-L", PREFIX, "-E", f"LD_PRELOAD={drop_in}", "-E", "GLIBC_TUNABLES=glibc.cpu.name=kunpeng920"]
    subprocess.run([*command, program, *words], env={**os.environ, "QUIRE_CONF": conf}, check=True)
    with open(trace, "rb") as lines:
        return sum(line.startswith(b"Trace") for line in lines)


def main():
    drop_in = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "pairs"
        program.with_suffix(".c").write_text(PROGRAM)
        subprocess.run(["aarch64-linux-gnu-gcc", "-O1", "-fno-builtin", program.with_suffix(".c"), "-o", program], check=True)
        print("| bytes | `secure:1` | `secure:1,tags:1` |\n|---|---|---|")
        for size in ("16", "100", "1000"):
            cells = []
            for conf in ("secure:1", "secure:1,tags:1"):
                few, many = (instructions(program, drop_in, conf, [pairs, size]) for pairs in ("100", "300"))
                cells.append(f"{(many - few) / 200:.0f}")
            print(f"| {size} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
