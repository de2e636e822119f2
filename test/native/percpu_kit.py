# SPDX-License-Identifier: MIT
"""What the tests of the per-CPU allocator's modes share: how a mode is had, whether sequences are to be expected, what the mixture comes to."""
import os
import re
import shutil
import struct
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


DESCRIPTOR = struct.Struct("<IIQQQ")  # version, flags, start, bytes to the commit's end, where it restarts
INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\t([0-9a-f ]+?)\s*\t(.*)")


def descriptors(objdump, program):
    """What the program tells the kernel of its sequences, from its section __rseq_cs."""
    text = _output(objdump, "-s", "-j", "__rseq_cs", program)
    rows = re.findall(r"^ [0-9a-f]+ ((?:[0-9a-f]{2,8} ){1,4})", text, re.MULTILINE)
    return list(DESCRIPTOR.iter_unpack(bytes.fromhex("".join(rows))))


def instructions(objdump, program):
    """address -> (bytes as text, words of the instruction)."""
    found = INSTRUCTION.findall(_output(objdump, "-d", "-w", program))
    return {int(address, 16): (code.replace(" ", ""), re.sub(r"\s+", " ", words).strip()) for address, code, words in found}


def _output(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout


def check_sequences(objdump, program, how):
    """Each sequence reads its CPU first and stores last; where it restarts stands behind the signature and leads back to before its start."""
    code = instructions(objdump, program)
    places = sorted(code)
    found = descriptors(objdump, program)
    for version, flags, start, commit_bytes, restart in found:
        inside = [code[place][1] for place in places if start <= place < start + commit_bytes]
        listing = f"{start:x}:\n" + "\n".join(inside)
        assert (version, flags) == (0, 0)
        assert start in code and start + commit_bytes in code, "start and commit lie between instructions"
        assert not start <= restart < start + commit_bytes, listing
        assert re.match(how["reads_cpu"], inside[0]), listing
        assert re.match(how["stores"], inside[-1]), listing
        assert not [words for words in inside if re.match(how["calls"], words)], listing
        assert sum(bool(re.match(how["branches"], words)) for words in inside) >= 2, "it looks at the CPU's number and at the unit: " + listing
        signature, _ = code[restart - how["signature_bytes"]]
        assert signature == how["signature"], listing
        jump = re.match(how["jumps"], code[restart][1])
        assert jump, code[restart][1]
        before = [code[place][1] for place in places if int(jump[1], 16) <= place < start]
        assert len(before) == len(how["tells_kernel"]) and all(map(re.match, how["tells_kernel"], before)), before
    return len(found)


X86_64 = {
    "reads_cpu": r"mov %fs:0x4\(%r\w+\),%eax",
    "stores": r"(mov|add)q? [%$][\w-]+,\(%rax\)",
    "calls": r"call|ret|syscall",
    "branches": r"j(ae|e) ",
    "signature": "0fb93d53300553",
    "signature_bytes": 7,
    "jumps": r"jmp ([0-9a-f]+)",
    "tells_kernel": [r"lea -?0x[0-9a-f]+\(%rip\),%rax", r"mov %rax,%fs:0x8\(%r\w+\)"],
}
AARCH64 = {
    "reads_cpu": r"ldr w9, \[x\d+, #4\]",
    "stores": r"str x\d+, \[x\d+, x9\]",
    "calls": r"blr? |ret|svc",
    "branches": r"b\.(cs|hs)|cbz",
    "signature": "d428bc00",
    "signature_bytes": 4,
    "jumps": r"b ([0-9a-f]+)",
    "tells_kernel": [r"adrp x9, ", r"add x9, x9, #", r"str x9, \[x\d+, #8\]"],
}
