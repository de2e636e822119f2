#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""record_slowdown.py - how much the recorder slows real programs down: test/native/record_slowdown.py [ROUNDS]

Runs jq, python3, sqlite3 and gcc on generated input, untraced and traced in turn (5 rounds), and prints medians of CPU
time (user + system, children included) and of wall time.  Exit status 1 when a program takes more than 2.5 times as long.
The last line, a loop of nothing but malloc and free, is the worst case and is not held to that.
"""
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from record_kit import RECORDER

BAR = 2.5
LOOP = """#include <stdlib.h>
int main(void) { for (int i = 0; i < 10000000; i++) free(malloc((size_t)i % 200)); return 0; }
"""
PYTHON_WORK = "import json; d = json.load(open('big.json')); s = json.dumps(d); d = json.loads(s)"


def make_json(path, size=5_000_000):
    draw, rows, written = random.Random(1), [], 0
    while written < size:
        rows.append({"id": len(rows), "name": f"user{draw.randrange(10**6)}", "active": draw.random() < 0.5, "note": None,
                     "tags": [draw.choice("abcdefgh") * draw.randrange(3, 12) for _ in range(5)],
                     "position": {"x": draw.random(), "y": draw.random()}})
        written += len(json.dumps(rows[-1]))
    path.write_text(json.dumps(rows))


def make_sql(path, rows=300_000):
    with path.open("w") as out:
        out.write("create table t(id integer primary key, name text, v real); create index i on t(name); begin;\n")
        out.writelines(f"insert into t values({i},'name{i * 7919 % 1000003}',{i * 0.37});\n" for i in range(rows))
        out.write("commit; select count(*), sum(v) from t;\n")


def make_c(path, functions=150):
    with path.open("w") as out:
        out.write("#include <stdlib.h>\n#include <string.h>\n")
        for i in range(functions):
            out.write(f"struct s{i} {{ int a, b; double c; struct s{i} *next; }};\n"
                      f"int f{i}(int n, struct s{i} *p) {{ int x = {i}; for (int k = 0; k < n; k++) {{ if (k % {i % 7 + 2} == 0) x += k * {i};\n"
                      f" else x ^= k << {i % 5}; switch (x & 7) {{ case 0: x += p->a; break; case 1: x -= p->b; break; case 2: p->c *= 1.5; break;\n"
                      f" case 3: while (p->next && x < {i * 3}) {{ p = p->next; x += p->a; }} break; default: x += {i}; }} }} return x; }}\n")


def run(command, folder, stdin, environment):
    """(CPU seconds, wall seconds) of one run."""
    with open(folder / stdin if stdin else os.devnull, "rb") as source:
        before, start = os.times(), time.monotonic()
        subprocess.run(command, cwd=folder, stdin=source, stdout=subprocess.DEVNULL, check=True,
                       env={**os.environ, **environment})
        wall, after = time.monotonic() - start, os.times()
    return (after.children_user - before.children_user) + (after.children_system - before.children_system), wall


def measure(name, command, folder, rounds, stdin=None):
    plain, traced, size = [], [], 0
    extra = {"PYTHONMALLOC": "malloc"} if name.startswith("python3") else {}
    for _ in range(rounds):
        plain.append(run(command, folder, stdin, extra))
        with tempfile.TemporaryDirectory(dir=folder) as traces:
            path = pathlib.Path(traces) / "t.qtr"
            traced.append(run(command, folder, stdin, {**extra, "LD_PRELOAD": str(RECORDER), "QUIRE_RECORD": str(path)}))
            size = sum(trace.stat().st_size for trace in pathlib.Path(traces).iterdir())
    cpu = [statistics.median(values[0] for values in runs) for runs in (plain, traced)]
    wall = [statistics.median(values[1] for values in runs) for runs in (plain, traced)]
    print(f"{name:34} CPU {cpu[0]:6.2f} -> {cpu[1]:6.2f} s = {cpu[1] / cpu[0]:4.2f}   "
          f"wall {wall[0]:6.2f} -> {wall[1]:6.2f} s = {wall[1] / wall[0]:4.2f}   trace {size / 1e6:6.1f} MB", flush=True)
    return cpu[1] <= BAR * cpu[0] and wall[1] <= BAR * wall[0]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_json(folder / "big.json")
        make_sql(folder / "insert.sql")
        make_c(folder / "generated.c")
        cases = [("jq . big.json (5 MB)", ["jq", ".", "big.json"], None),
                 ("python3 JSON (PYTHONMALLOC=malloc)", [python, "-c", PYTHON_WORK], None),
                 ("sqlite3 :memory: 300,000 rows", ["sqlite3", ":memory:"], "insert.sql"),
                 ("gcc -O2 -c generated.c", ["gcc", "-O2", "-c", "generated.c", "-o", "generated.o"], None)]
        results = []
        for label, command, stdin in cases:
            if shutil.which(command[0]) is None:
                print(f"{label:34} left out: {command[0]} is not installed")
                continue
            results.append(measure(label, command, folder, rounds, stdin))
        (folder / "loop.c").write_text(LOOP)
        subprocess.run(["cc", "-O1", "-fno-builtin", "loop.c", "-o", "loop"], cwd=folder, check=True)
        measure("malloc + free, 10 million times", ["./loop"], folder, rounds)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
