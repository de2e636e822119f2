#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
old_kernel.py - a command under a kernel that knows as little as Linux 4.18 does: a seccomp filter says no to all that came later.

    scripts/old_kernel.py COMMAND ...                       one command, and all that it starts
    QUIRE_TEST_LONG=1 pytest test/native/old_kernel_test.py       unit, model, fault, race and death tests, the recorder's and the tool's

    rseq, membarrier                                        ENOSYS    distributions' 4.18 leave them out, and containers forbid them
    system calls from 424 on (5.1: pidfd_*, clone3, close_range, openat2, process_madvise, ...)      ENOSYS
    process_vm_readv, process_vm_writev                     ENOSYS    optional in 4.18
    madvise(MADV_COLD and whatever has a higher number)     EINVAL    5.4; 5.14 MADV_POPULATE_*
    prctl(PR_SET_VMA)                                       EINVAL    5.17

Not here: another libc (old_machine.py).
"""

import ctypes
import errno
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_SET_VMA = 38, 22, 2, 0x53564D41
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # BPF's load of a word, its jumps and its end
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NUMBER_AT, ARGUMENT_AT = 0, 16  # of struct seccomp_data, in bytes; an argument's low word stands first
FIRST_LATER = 424
SKIPPED = 77
MADV_COLD, MADV_HWPOISON = 20, 100
NUMBERS = {  # rseq, membarrier, process_vm_readv, process_vm_writev; madvise, prctl
    "x86_64": ((334, 324, 310, 311), 28, 157),
    "aarch64": ((293, 283, 270, 271), 233, 167),
}


def program(machine):
    """The filter: (code, to go on with if so, if not, operand) of each step."""
    absent, madvise, prctl = NUMBERS[machine]
    no, wrong = (RETURN, 0, 0, ERRNO | errno.ENOSYS), (RETURN, 0, 0, ERRNO | errno.EINVAL)
    steps = [(LOAD, 0, 0, NUMBER_AT), (AT_LEAST, 0, 1, FIRST_LATER), no]
    for number in absent:
        steps += [(EQUAL, 0, 1, number), no]
    steps += [(EQUAL, 0, 4, madvise), (LOAD, 0, 0, ARGUMENT_AT + 2 * 8), (AT_LEAST, 0, 6, MADV_COLD), (AT_LEAST, 5, 0, MADV_HWPOISON), wrong]
    steps += [(EQUAL, 0, 3, prctl), (LOAD, 0, 0, ARGUMENT_AT), (EQUAL, 0, 1, PR_SET_VMA), wrong]
    return steps + [(RETURN, 0, 0, ALLOW)]


def refuse(why):
    """Ends as a test does that cannot be run here."""
    print(f"old_kernel.py: {why}", file=sys.stderr)
    sys.exit(SKIPPED)


def begin():
    """From here on this process and all that it starts live with the old kernel."""
    machine = os.uname().machine
    if machine not in NUMBERS:
        refuse(f"not for {machine}")
    steps = b"".join(struct.pack("=HBBI", *step) for step in program(machine))
    held = ctypes.create_string_buffer(steps)
    described = struct.pack("HxxxxxxP", len(steps) // 8, ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    zeros = [ctypes.c_ulong(0)] * 2

    def filtered():
        return libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), described, *zeros) == 0

    if not filtered():  # only root may refuse calls to programs that gain rights
        libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), ctypes.c_ulong(0), *zeros)
        if not filtered():
            refuse(f"no system calls can be refused here: {os.strerror(ctypes.get_errno())}")


def main():
    """See the top."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    begin()
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
