# SPDX-License-Identifier: MIT
"""test_load_servers - `try --load` of real servers, each under its usual load: a verdict, requests, latencies, and nothing left behind.

They run where they are installed; QUIRE_TEST_LONG runs them all, else the first that is there and starts at once.
apt-get install nginx-light memcached redis-server postgresql wrk
"""

import glob
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest
from toolkit import quire

LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"

# command, load, ready (a command; else the port): with {port} and {folder}; needs: programs; prepare: a function of the folder; allocates: by malloc, under load
Server = namedtuple("Server", "command load needs prepare allocates ready", defaults=(None, True, None))

NGINX = """daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{ access_log off; gzip on; gzip_types *; server {{ listen 127.0.0.1:{port}; root {folder}; }} }}
"""
POSTGRES = (glob.glob("/usr/lib/postgresql/*/bin") or ["/none"])[-1]


def nginx_files(folder, port):
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port))
    (folder / "index.html").write_text("".join(f"line {n} of a page\n" for n in range(400)))


def postgres_files(folder, port):
    """A database of pgbench's; the server itself refuses to be root's."""
    shutil.chown(folder, "postgres")
    asked = {"user": "postgres", "check": True, "capture_output": True, "cwd": folder}
    data = folder / "data"
    subprocess.run([f"{POSTGRES}/initdb", "-A", "trust", "-D", data], **asked)
    with open(data / "postgresql.conf", "a", encoding="ascii") as file:
        file.write(f"port = {port}\nunix_socket_directories = '{folder}'\nfsync = off\n")
    subprocess.run([f"{POSTGRES}/pg_ctl", "-w", "-D", data, "-l", folder / "log", "start"], **asked)
    subprocess.run([f"{POSTGRES}/pgbench", "-h", folder, "-p", str(port), "-i", "-q", "postgres"], **asked)
    subprocess.run([f"{POSTGRES}/pg_ctl", "-w", "-D", data, "stop"], **asked)


SERVERS = {
    "nginx": Server(
        "nginx -c {folder}/nginx.conf",
        "wrk -d 1 -t 1 -c 4 --latency -H 'Accept-Encoding: gzip' http://127.0.0.1:{port}/index.html",
        ("nginx", "wrk"),
        nginx_files,
    ),
    "redis": Server(
        "redis-server --port {port} --save '' --bind 127.0.0.1 --dir {folder}",
        "redis-benchmark -p {port} -n 10000 -c 4 -d 200 -r 2000 -t set,get,lpush",
        ("redis-server", "redis-benchmark"),
    ),
    "memcached": Server(
        "memcached -l 127.0.0.1 -p {port} -t 1 -u nobody",
        "memcslap --servers=127.0.0.1:{port} --concurrency=4 --execute-number=4000 --test=set",
        ("memcached", "memcslap"),
        allocates=False,
    ),
    "postgresql": Server(
        f"setpriv --reuid=postgres --regid=postgres --clear-groups {POSTGRES}/postgres -D {{folder}}/data",
        POSTGRES + "/pgbench -U postgres -h {folder} -p {port} -n -t 300 -c 2 postgres",
        (POSTGRES + "/postgres", POSTGRES + "/pgbench"),
        postgres_files,
        ready=POSTGRES + "/pg_isready -q -h {folder} -p {port}",
    ),
}


def there(server):
    return all(shutil.which(name) for name in server.needs)


def chosen():
    names = [name for name in SERVERS if there(SERVERS[name])]
    return names if LONG else [name for name in names if name != "postgresql"][:1]


@pytest.fixture
def open_folder():
    """A folder that a server's own user can reach, too."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.mark.parametrize("name", chosen() or [pytest.param("none", marks=pytest.mark.skip(reason="none of the servers is installed"))])
def test_a_server_of_the_world_gets_a_verdict_under_its_load(open_folder, name):
    server, folder = SERVERS[name], open_folder
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if server.prepare:
        server.prepare(folder, port)
    command, load = (text.format(folder=folder, port=port) for text in (server.command, server.load))
    words = [word.strip("'") for word in command.split(" ")]
    asked = ("--rounds", 5, "-o", folder / "t.qtr") if not LONG else ("-o", folder / "t.qtr")
    ready = ("--ready-cmd", server.ready.format(folder=folder, port=port)) if server.ready else ("--ready-port", port)
    done = quire(folder, "try", "--json", "--no-report", *asked, *ready, "--load", load, "--", *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"]["word"] in ("YES", "NO, leave it alone", "INCONCLUSIVE")
    if server.allocates:
        ran = [row for row in found["allocators"] if row.get("rounds")]
        assert len(ran) >= 2 and all(row["program_cpu_s"] > 0 for row in ran)
        assert all(row["under_load"]["requests_per_cpu_s"] > 0 for row in ran)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "it still listens"
