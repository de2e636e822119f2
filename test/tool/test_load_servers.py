# SPDX-License-Identifier: MIT
"""test_load_servers - `try --load` of real servers, each under its usual load: a verdict, requests, latencies, and nothing left behind.

They run where they are installed; QUIRE_TEST_LONG runs them all, else the first that is there and starts at once.
"""

import json
import os
import socket

import pytest
from serverkit import SERVERS, free_port, open_folder, prepared, there
from toolkit import quire

LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"


def chosen():
    names = [name for name in SERVERS if there(SERVERS[name])]
    return names if LONG else [name for name in names if name != "postgresql"][:1]


@pytest.mark.parametrize("name", chosen() or [pytest.param("none", marks=pytest.mark.skip(reason="none of the servers is installed"))])
def test_a_server_of_the_world_gets_a_verdict_under_its_load_with_requests_and_tail_latencies(name):
    with open_folder() as folder:
        port = free_port()
        server = prepared(name, folder, port)
        asked = ("--rounds", 2, "-o", folder / "t.qtr") if not LONG else ("-o", folder / "t.qtr")
        done = quire(folder, "try", "--json", "--no-report", *asked, *server.ready, "--load", server.load, "--", *server.command)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"]["word"] in ("YES", "NO, leave it alone", "INCONCLUSIVE")
    ran = [row for row in found["allocators"] if row.get("rounds")]
    assert len(ran) >= 2 and {"libc", "drop-in"} <= {row["name"] for row in ran}
    for row in ran:
        under = row["under_load"]
        assert under["requests_per_cpu_s"] > 0 and row["program_cpu_s"] > 0.02, row
        assert 0 < under["latency_ms"]["p50"] <= under["latency_ms"]["p99"] <= under["latency_ms"]["p99.9"], row
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "it still listens"
