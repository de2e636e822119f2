# SPDX-License-Identifier: MIT
"""What the tests of the per-CPU allocator's modes share: how a mode is had, whether sequences are to be expected, what the mixture comes to."""
import os
import shutil
import subprocess

WITHOUT_RSEQ = ["env", "GLIBC_TUNABLES=glibc.pthread.rseq=0"]
SKIPPED = 77
THREADS, COUNTERS, STEPS, NODES, BUCKETS = 4, 64, 20000, 300, 8


def results():
    """What the mixture comes to, by plain arithmetic."""
    sums = [0] * COUNTERS
    for thread in range(THREADS):
        for step in range(STEPS):
            sums[(step * 7 + thread) % COUNTERS] += step - 3 * thread
    least, most = min(sums), max(sums)
    mixed = 0
    for value in sums:
        mixed = (mixed * 31 + value) % 2**64
    buckets = [(value - least) * BUCKETS // (most - least + 1) for value in sums]
    return (
        f"sums {least} to {most}, hash {mixed:016x}\n"
        f"histogram {' '.join(str(buckets.count(k)) for k in range(BUCKETS))}\n"
        f"exchanged {THREADS * STEPS // 4 * 5}\n"
        f"nodes {NODES} of {NODES}, values {sum(range(NODES))}\n"
        f"live {COUNTERS + 4}, check sound\n"
        "live 4 after the frees\n"
    )


RESULTS = results()


def libc_registers():
    """True when this libc registers an area for its threads here: glibc 2.35 or later, and a kernel that takes it."""
    if not shutil.which("getconf"):
        return False
    version = subprocess.run(["getconf", "GNU_LIBC_VERSION"], capture_output=True, text=True, check=False).stdout.split()
    return len(version) == 2 and tuple(map(int, version[1].split(".")[:2])) >= (2, 35) and "rseq=0" not in os.environ.get("GLIBC_TUNABLES", "")
