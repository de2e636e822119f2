#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""readme - the figures of the README, by the commands that stand beside them.

    doc/performance/seeds.json --> the one measurement
    ./quire try -- ./tree 8000 (with --run) --> the sample of `try`, and its pictures in doc/pictures

    scripts/readme.py            after `quire bench seeds --save doc/performance/seeds.json -f`
    scripts/readme.py --run      also tries the tree again; two minutes, best where nothing else runs

Not here: doc/performance.md (`quire bench document`), doc/examples.md (scripts/manual/examples.py).
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
SAMPLE = re.compile(r"(<!-- output of: \./quire try -- \./tree 8000 \(on .*?\) -->\n```text\n).*?(\n```\n)", re.DOTALL)
PROCESSOR = re.compile(r"(<!-- output of: \./quire try -- \./tree 8000 \(on )(.*?)\) -->")
MEASUREMENT = re.compile(r"(<!-- measurement -->\n).*?(\n<!-- end of measurement -->)", re.DOTALL)
OURS = "quire-arena"
VERDICT = re.compile(r"^  YES: (\S+ % \(.*?\)) of the CPU time", re.MULTILINE)
EXPLAINED = re.compile(r"\| \*\S+ % \([^)]*\)\* \|")  # the same figure, where the words are explained
LEFT_OUT = "\nWhat this cannot show\n"  # and what follows: the README says that it stops here


def in_ms(ns):
    return f"{ns / 1e6:.3g}"


def measurement(seeds):
    """The README's paragraph out of a saved run of `quire bench seeds`."""
    cost = {(row["allocator"], row["callers"]): row["cpu_ns_per_query"]["median"] for row in seeds["rows"]}
    peers = [name for name, callers in cost if callers == 1 and name not in (OURS, "libc")]
    peer = min(peers, key=lambda name: cost[name, 1])
    one, eight = ([in_ms(cost[name, callers]) for name in (OURS, peer, "libc")] for callers in (1, 8))
    machine, seconds = seeds["machine"], f"{seeds['seconds']:.0f} s"
    return (
        f"**One measurement** ({seeds['date']}, {machine['cpus_usable']} CPUs, `{seeds['command']}`, {seconds}, load"
        f" {machine['load_average_before']} before): a query of 500,000 objects, all touched,\n"
        f"takes {one[0]} ms of CPU time with an arena, {one[1]} ms with {peer} and {one[2]} ms with libc's malloc and"
        f" free; eight of them at once {eight[0]}, {eight[1]} and {eight[2]} ms each.\n"
        "Two seconds after the last arena is gone its memory is back with the system."
    )


def saved():
    return json.loads((ROOT / "doc" / "performance" / "seeds.json").read_text(encoding="utf-8"))


def processor():
    """This machine's, as the kernel calls it."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else platform.machine()


def replaced(pattern, text, words):
    return pattern.sub(lambda match: match.group(1) + words + match.group(2), text)


def tried(folder, tool=(ROOT / "quire",)):
    """What `try` prints for the README's example, run in `folder`; its page stays there."""
    subprocess.run(["gcc", "-O2", "-g", ROOT / "examples" / "tree" / "tree_malloc.c", "-o", folder / "tree"], check=True)
    command = [*tool, "try", "--", "./tree", "8000"]
    said = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout
    return said.partition(LEFT_OUT)[0].replace(str(ROOT / "quire"), "./quire")


def main():
    parser = argparse.ArgumentParser(description="the figures of the README")
    parser.add_argument("--run", action="store_true", help="try the tree again, and draw it")
    options = parser.parse_args()
    text = replaced(MEASUREMENT, README.read_text(encoding="utf-8"), measurement(saved()))
    if options.run:
        with tempfile.TemporaryDirectory(prefix="quire-") as name:
            text = replaced(SAMPLE, text, tried(Path(name)).rstrip("\n"))
            text = EXPLAINED.sub(f"| *{VERDICT.search(text)[1]}* |", text)
            text = PROCESSOR.sub(lambda match: f"{match[1]}{processor()}) -->", text)
            drawing = [ROOT / ".venv/bin/python", ROOT / "scripts/pictures.py"]
            subprocess.run([*drawing, Path(name) / "tree.html", ROOT / "doc" / "pictures"], check=True)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
