# SPDX-License-Identifier: MIT
"""
loadwords.py - what a load tells of itself: how many requests there were, and how long they took.

    what it printed (wrk, ab, hey, h2load, pgbench, redis-benchmark, memcslap, memcaslap, or the lines below)  --+
    a number of microseconds a request, in files of the folder $QUIRE_LATENCIES (pgbench -l, h2load --log-file) -+->  requests, p50, p99, p99.9

Not here: running it (load.py).
"""

import os
import re

from lazily import csv

LATENCIES = "QUIRE_LATENCIES"  # the load's environment: a folder of its own, empty at each run
SHARES = {"p50": 500, "p99": 990, "p99.9": 999}  # of a thousand

COUNTS = [
    r"(\d+) requests in ",  # wrk
    r"Complete requests:\s+(\d+)",  # ab
    r"transactions actually processed: (\d+)",  # pgbench
    r"requests: (\d+) total",  # h2load
    r"^\s+\[\d+\]\s+(\d+) responses$",  # hey, for each status
    r"^\s*(\d+) requests completed in ",  # redis-benchmark, for each of its tests
    r"^Time to \w+ +(\d+) keys by",  # memcslap
    r"^Run time: \S+ Ops: (\d+) ",  # memcaslap
    r"^requests: (\d+)$",  # a load of the user's own
]
MS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "secs": 1e3, "": 1.0}
PERCENTILES = [
    r"^\s+(50|99|99\.9)\.?0*%\s+([\d.]+)(us|ms|s)?\s*$",  # wrk --latency, wrk2, ab
    r"^\s+(50|99|99\.9)% in ([\d.]+) (secs)$",  # hey
    r"^latency p(50|99|99\.9): ([\d.]+) ?(us|ms|s)$",  # a load of the user's own
]
SUMMARY = r"^\s+(avg\s+min\s+p50\s.*)$\n^\s+([\d. ]+)$"  # redis-benchmark: names, and milliseconds below them
DISTRIBUTION = r"^([\d.]+)% <= ([\d.]+) milliseconds"  # above it, of each test, to 100 %
COLUMNS = {"p50_latency_ms": "p50", "p99_latency_ms": "p99"}  # redis-benchmark --csv


def requests(text, samples=()):
    """How many requests a load says there were, all its tests together, or None."""
    found = [re.findall(pattern, text, re.MULTILINE) for pattern in COUNTS]
    return next((sum(map(int, numbers)) for numbers in found if numbers), len(samples) or None)


def latencies(text, samples=()):
    """{"p50": milliseconds, ...} as far as a load says; of several tests the slowest."""
    if samples:
        return percentiles(sorted(samples))
    found = [(f"p{share}", float(value) * MS[unit]) for p in PERCENTILES for share, value, unit in re.findall(p, text, re.MULTILINE)]
    for names, values in re.findall(SUMMARY, text, re.MULTILINE):
        found += [(n, float(v)) for n, v in zip(names.split(), values.split()) if n in ("p50", "p99")]
    for test in text.split("Latency by percentile distribution:")[1:]:
        steps = re.findall(DISTRIBUTION, test.split("\n\n")[0], re.MULTILINE)
        found += [("p99.9", float(ms)) for share, ms in steps if float(share) >= 99.9][:1]
    rows = text.splitlines() if text.startswith('"test","rps"') else []
    found += [(COLUMNS[name], float(row[name])) for row in csv.DictReader(rows) for name in COLUMNS if row.get(name)]
    return {name: max(value for n, value in found if n == name) for name in SHARES if any(n == name for n, _ in found)}


def percentiles(ordered):
    """The same of single requests; a share of which fewer than one request lies above is not told."""
    number = len(ordered)
    return {name: ordered[-(-share * number // 1000) - 1] for name, share in SHARES.items() if number * (1000 - share) >= 1000}


def samples(folder):
    """Milliseconds of single requests: each line's third word, as in the logs of pgbench and h2load, or its only one."""
    found = []
    for path in filter(os.path.isfile, (os.path.join(folder, name) for name in os.listdir(folder))):
        with open(path, encoding="ascii", errors="replace") as file:
            for words in map(str.split, file):
                word = words[2] if len(words) > 2 else words[0] if words else ""
                if word.isdigit():  # pgbench writes `skipped` and `failed`, too
                    found.append(int(word) / 1e3)
    return found
