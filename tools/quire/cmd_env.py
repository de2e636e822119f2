# SPDX-License-Identifier: MIT
"""
cmd_env.py - what this machine has and what is missing, to paste into a report.

    facts()  ->  [("kernel", "page size", "4096 B"), ...]   ->  text, or JSON with --json
    lacks()  ->  [("libjemalloc2", "one peer fewer", "apt-get install ..."), ...]

Only the standard library is imported: this has to work where nothing else does.
Not here: judging a program (check), measuring (bench).
"""

import json
import os
import resource
import shutil
import sys

import native
import peers
import ui
from lazily import ctypes, platform
from version import VERSION

HELP = "what this machine has and what is missing, to paste into a report"
SCHEMA = "quire.env/1"
PR_SET_VMA = 0x53564D41
MEMBARRIER_NUMBER = {"x86_64": 324, "aarch64": 283}
MEMBARRIER_PRIVATE_EXPEDITED = 8
MADV_POPULATE_WRITE = 23
IN_BYTES = {
    "os_page_bytes",
    "huge_page_bytes",
    "memory_bytes",
    "cgroup_memory_max_bytes",
    "rlimit_as_bytes",
}
THP = "/sys/kernel/mm/transparent_hugepage/enabled"
OVERCOMMIT = "/proc/sys/vm/overcommit_memory"
HELPERS = ["quire-analyse", "quire-replay", "libquire-record.so"]


def add_arguments(parser):
    parser.add_argument("--json", action="store_true", help="JSON instead of text")


def run(args):
    found, missing = facts(), lacks()
    if args.json:
        listed = [{"what": what, "why": why, "fix": fix} for what, why, fix in missing]
        print(
            json.dumps(
                {
                    "schema": SCHEMA,
                    "facts": {key: value for key, _, value in found},
                    "missing": listed,
                },
                indent=2,
            )
        )
        return 0
    width = max(len(label) for _, label, _ in found)
    for key, label, value in found:
        text = size_text(value) if key in IN_BYTES else "none" if value is None else value
        ui.say([f"{label:<{width}}  {text}"])
    print()
    for what, why, fix in missing:
        ui.say([f"missing: {what}: {why}", f"    {fix}"])
    if not missing:
        print("missing: nothing")
    return 0


def size_text(size_bytes):
    """A size for people: the largest binary unit that leaves at least 1."""
    if size_bytes is None:
        return "none"
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes} bytes"


def facts():
    """[(JSON key, label, value)], in the order they are shown; a number's unit stands in its key;
    None: there is none."""
    return [*_software(), *_processor(), *_memory(), *_kernel_features(), *_peers()]


def _software():
    return [
        ("quire", "quire", VERSION),
        ("python", "python", f"{platform.python_version()} ({sys.executable})"),
        ("helpers", "native helpers", _helpers_place()),
        ("system", "system", _os_release()),
        ("kernel", "kernel", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("libc", "libc", _confstr("CS_GNU_LIBC_VERSION") or "not glibc"),
    ]


def _processor():
    one, five, fifteen = os.getloadavg()
    return [
        (
            "cpu_model",
            "CPU",
            _field("/proc/cpuinfo", "model name") or platform.processor() or "unknown",
        ),
        ("cpus_usable", "CPUs usable", len(os.sched_getaffinity(0))),
        ("cpus_configured", "CPUs configured", os.sysconf("SC_NPROCESSORS_CONF")),
        ("cgroup_cpu_max", "cgroup CPU limit", _cgroup("cpu.max")),
        ("load_average", "load average", f"{one:.2f} {five:.2f} {fifteen:.2f}"),
    ]


def _memory():
    return [
        ("os_page_bytes", "OS page size", os.sysconf("SC_PAGE_SIZE")),
        ("huge_page_bytes", "huge page size", _meminfo_bytes("Hugepagesize")),
        ("thp_enabled", "transparent huge pages", _chosen(THP)),
        ("thp_defrag", "THP defrag", _chosen("/sys/kernel/mm/transparent_hugepage/defrag")),
        ("memory_bytes", "memory", _meminfo_bytes("MemTotal")),
        ("cgroup_memory_max_bytes", "cgroup memory limit", _number(_cgroup("memory.max"))),
        ("rlimit_as_bytes", "RLIMIT_AS", _limit(resource.RLIMIT_AS)),
        ("overcommit_memory", "overcommit_memory", _number(_line(OVERCOMMIT))),
        ("max_map_count", "max_map_count", _number(_line("/proc/sys/vm/max_map_count"))),
    ]


def _kernel_features():
    return [
        ("rseq", "rseq", rseq()),
        ("membarrier", "membarrier", membarrier()),
        ("code_by_address", "code by address", code_by_address()),
        ("protection_keys", "protection keys", protection_keys()),
        ("memory_tagging", "memory tagging", memory_tagging()),
        (
            "vma_names",
            "names in /proc/PID/smaps",
            "yes" if _can_name_memory() else "no (kernel without CONFIG_ANON_VMA_NAME)",
        ),
        ("populate", "pages in advance", populate()),
        (
            "seccomp",
            "seccomp",
            {"0": "off", "1": "strict", "2": "filter"}.get(
                _field("/proc/self/status", "Seccomp"), "unknown"
            ),
        ),
        ("preloaded", "preloaded here", os.environ.get("LD_PRELOAD") or "nothing"),
    ]


def _peers():
    have = [f"{peer.name} ({os.path.realpath(peer.path)})" for peer in peers.installed()]
    return [("peers", "peers", ", ".join(have) or "none")]


def rseq():
    """Whether glibc registered restartable sequences for this process, and why not."""
    try:
        size = ctypes.c_uint.in_dll(ctypes.CDLL(None), "__rseq_size").value
    except ValueError:
        return "no (needs glibc 2.35 or later)"
    if size:
        return f"yes ({size} bytes registered by glibc)"
    off_by_tunable = "glibc.pthread.rseq=0" in os.environ.get("GLIBC_TUNABLES", "")
    return (
        "no (switched off by GLIBC_TUNABLES)"
        if off_by_tunable
        else "no (kernel, seccomp filter or emulator without it)"
    )


def membarrier():
    """Whether one thread can put a barrier into the others: by the kernel's own list of what it can."""
    number = MEMBARRIER_NUMBER.get(os.uname().machine)
    known = ctypes.CDLL(None).syscall(number, 0, 0, 0) if number else -1
    return "yes" if known > 0 and known & MEMBARRIER_PRIVATE_EXPEDITED else "no (kernel, seccomp filter or emulator without it)"


def populate():
    """Whether memory can be filled with pages before it is touched, without a write of its own."""
    import mmap

    with mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        try:
            area.madvise(MADV_POPULATE_WRITE)
        except OSError:
            return "no (kernel before 5.14, or emulator without it)"
    return "yes"


def code_by_address():
    """How libc says which file an address lies in: profiles and plans ask."""
    return "without a lock" if hasattr(ctypes.CDLL(None), "_dl_find_object") else "by the loader's lock (glibc from 2.35 on needs none)"


def protection_keys():
    """Whether threads can be kept from memory by a register (x86's PKU), which the kernel has to switch on."""
    flags = (_field("/proc/cpuinfo", "flags") or "").split()
    if "ospke" in flags:
        return "yes"
    return "no (the kernel or hypervisor leaves them off)" if "pku" in flags else "no (processor without them)"


def memory_tagging():
    """Whether addresses and memory can bear tags that must agree (arm64's MTE)."""
    return "yes" if "mte" in (_field("/proc/cpuinfo", "Features") or "").split() else "no (processor or kernel without it)"


def lacks():
    """[(what, why it matters, the command that mends it)]."""
    missing = []
    packages = peers.missing_packages()
    if packages:
        install = "apt-get install -y --no-install-recommends " + " ".join(packages)
        missing.append((" ".join(packages), "comparisons go without them", install))
    if not _found_helpers():
        missing.append(
            ("native helpers", "nothing can be recorded or replayed", "./quire try   (builds them)")
        )
    missing += _system_lacks()
    if not shutil.which("gcc") and not shutil.which("cc"):
        missing.append(
            (
                "a C compiler",
                "a checkout cannot be built",
                "apt-get install -y --no-install-recommends gcc g++",
            )
        )
    return missing


def _system_lacks():
    """What the kernel or its settings withhold; everything works without, slower or within
    bounds."""
    missing = []
    if rseq().startswith("no"):
        missing.append(
            (
                "rseq",
                "per-CPU operations use the slower path",
                "run without GLIBC_TUNABLES and seccomp filters, on glibc 2.35 or later",
            )
        )
    if membarrier().startswith("no"):
        missing.append(
            (
                "membarrier",
                "slabs have no caches of threads: every operation takes the page's lock, and a write after a free is not seen",
                "allow membarrier in the seccomp filter, on Linux 4.14 or later",
            )
        )
    if populate().startswith("no"):
        why = "idle memory of file and memfd sources stays theirs; per-CPU pools that grow fault their maps in page by page"
        missing.append(("populate", why, "Linux 5.14 or later"))
    if code_by_address().startswith("by"):
        missing.append(
            (
                "code by address",
                "profiles and plans wait where the program loads libraries; what QUIRE_CONF=guard says has addresses for names",
                "glibc 2.35 or later",
            )
        )
    return missing + _settings_lacks()


def _settings_lacks():
    """What settings of the machine and limits withhold."""
    missing = []
    pages = _chosen(THP)
    if pages == "not available":
        missing.append(
            (
                "transparent huge pages",
                "fresh memory costs a page fault for each 4 KiB",
                "mount /sys here, or boot a kernel that has them",
            )
        )
    elif pages == "never":
        missing.append(
            (
                "transparent huge pages",
                "fresh memory costs a page fault for each 4 KiB",
                f"echo madvise >{THP}   (as root)",
            )
        )
    if _line(OVERCOMMIT) == "2":
        missing.append(
            (
                "overcommit",
                "address space counts as memory: smaller ranges are reserved",
                f"echo 0 >{OVERCOMMIT}   (as root)",
            )
        )
    if _limit(resource.RLIMIT_AS) is not None:
        missing.append(
            (
                "address space",
                "RLIMIT_AS is set: smaller ranges are reserved",
                "ulimit -v unlimited",
            )
        )
    return missing


def _found_helpers():
    for place in native.directories():
        if all(os.path.exists(os.path.join(place, name)) for name in HELPERS):
            return place
    return None


def _helpers_place():
    return _found_helpers() or "not built"


def _can_name_memory():
    """Names one page of this process and takes the name away again."""
    import mmap

    area = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pin = ctypes.c_char.from_buffer(area)
    address = ctypes.c_void_p(ctypes.addressof(pin))
    libc = ctypes.CDLL(None, use_errno=True)
    named = (
        libc.prctl(
            PR_SET_VMA,
            ctypes.c_ulong(0),
            address,
            ctypes.c_ulong(mmap.PAGESIZE),
            ctypes.c_char_p(b"quire"),
        )
        == 0
    )
    del pin
    area.close()
    return named


def _cgroup(name):
    """The tightest limit of this process's cgroup (v2) and those above it; None without one."""
    path = next(
        (row.split("::", 1)[1] for row in _rows("/proc/self/cgroup") if row.startswith("0::")), None
    )
    while path is not None:
        value = _line(f"/sys/fs/cgroup{path.rstrip('/')}/{name}")
        if value and not value.startswith("max"):
            return value
        path = os.path.dirname(path) if path.strip("/") else None
    return None


def _os_release():
    for row in _rows("/etc/os-release"):
        if row.startswith("PRETTY_NAME="):
            return row.split("=", 1)[1].strip('"')
    return "unknown"


def _confstr(name):
    try:
        return os.confstr(name)
    except (ValueError, OSError):
        return None


def _limit(which):
    """The soft limit in bytes; None without one."""
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _meminfo_bytes(name):
    value = _field("/proc/meminfo", name)
    return int(value.split()[0]) * 1024 if value else None


def _number(text):
    return int(text) if text and text.strip().isdigit() else None


def _chosen(path):
    """The bracketed word of a sysfs choice such as `always [madvise] never`."""
    words = (_line(path) or "").split()
    return next((word.strip("[]") for word in words if word.startswith("[")), "not available")


def _field(path, name):
    for row in _rows(path):
        key, _, value = row.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _line(path):
    rows = _rows(path)
    return rows[0].strip() if rows else None


def _rows(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
