# SPDX-License-Identifier: MIT
"""
serverkit.py - the servers that `try --load` is tested with and held against plain runs, each with its usual load.

    SERVERS[name]  ->  prepared(name, folder, port, amount)  ->  its command, the load, when it is ready

apt-get install nginx-light memcached redis-server postgresql wrk nodejs apache2-bin uwsgi-core uwsgi-plugin-python3 yaws aiohttp-wsgi-serve lighttpd lighttpd-mod-deflate gunicorn mini-httpd libapache2-mod-wsgi-py3
"""

import contextlib
import glob
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
from collections import namedtuple

from live_kit import compile_c

# command, load, ready (a command; else the port): with {port}, {folder} and, in the load, {amount}, about a second each; needs: programs; prepare: a
# function of folder and port
Server = namedtuple("Server", "command load needs prepare ready", defaults=(None, None))

NGINX = """daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{ access_log off; gzip on; gzip_types *; server {{ listen 127.0.0.1:{port}; root {folder}; }} }}
"""
APACHE = """ServerName localhost
Listen 127.0.0.1:{port}
PidFile {folder}/apache.pid
ErrorLog {folder}/error.log
DocumentRoot {folder}
TypesConfig /dev/null
AddType text/html .html
User nobody
Group nogroup
StartServers 1
ServerLimit 1
ThreadsPerChild 4
MaxRequestWorkers 4
MaxKeepAliveRequests 0
{modules}
AddOutputFilterByType DEFLATE text/html
"""
YAWS = """logdir = {folder}
log_wrap_size = 0
<server localhost>
  port = {port}
  listen = 127.0.0.1
  docroot = {folder}
  access_log = false
  deflate = true
</server>
"""
LIGHTTPD = """server.modules = ("mod_deflate")
server.bind = "127.0.0.1"
server.port = {port}
server.document-root = "{folder}"
mimetype.assign = (".html" => "text/html")
deflate.mimetypes = ("text/html")
deflate.allowed-encodings = ("gzip")
"""
MOD_WSGI = """WSGIScriptAlias / {folder}/wsgi.py
WSGICallableObject page
<Directory {folder}>
  Require all granted
</Directory>
"""
APACHE_MODULES = "mpm_event authz_core filter deflate mime".split()
TAIL = """done = function(summary, latency, requests) io.write(string.format("latency p99.9: %d us\\n", latency:percentile(99.9))) end\n"""
POSTGRES = (glob.glob("/usr/lib/postgresql/*/bin") or ["/none"])[-1]


def page_files(folder):
    (folder / "tail.lua").write_text(TAIL)
    (folder / "index.html").write_text("".join(f"line {n} of a page\n" for n in range(400)))


def nginx_files(folder, port):
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port))
    page_files(folder)


def apache_conf(folder, port, names, more=""):
    modules = "\n".join(f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so" for name in names)
    (folder / "apache.conf").write_text(APACHE.format(folder=folder, port=port, modules=modules) + more.format(folder=folder))


def apache_files(folder, port):
    apache_conf(folder, port, APACHE_MODULES)
    page_files(folder)


def mod_wsgi_files(folder, port):
    apache_conf(folder, port, [*APACHE_MODULES, "wsgi"], MOD_WSGI)
    wsgi_files(folder, port)


def yaws_files(folder, port):
    (folder / "yaws.conf").write_text(YAWS.format(folder=folder, port=port))
    page_files(folder)


def lighttpd_files(folder, port):
    (folder / "lighttpd.conf").write_text(LIGHTTPD.format(folder=folder, port=port))
    page_files(folder)


WSGI = """import json, sys
from wsgiref.simple_server import WSGIRequestHandler, make_server
class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass
def page(environ, start_response):
    rows = [{{"number": n, "name": f"row {{n}}", "square": n * n}} for n in range(400)]
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(rows).encode()]
if __name__ == "__main__":
    make_server("127.0.0.1", {port}, page, handler_class=Quiet).serve_forever()
"""
NODE = """require("http").createServer((request, response) => {{
  const rows = [...Array(400).keys()].map((n) => ({{ number: n, name: `row ${{n}}`, square: n * n }}));
  response.end(Buffer.from(JSON.stringify(rows)).toString("base64"));
}}).listen({port}, "127.0.0.1");
"""


def wsgi_files(folder, port):
    (folder / "wsgi.py").write_text(WSGI.format(port=port))
    (folder / "tail.lua").write_text(TAIL)


def node_files(folder, port):
    (folder / "server.js").write_text(NODE.format(port=port))
    (folder / "tail.lua").write_text(TAIL)


def memcached_files(folder, port):
    compile_c(folder, pathlib.Path(__file__).parent / "programs" / "memcached_load.c", "memcached_load", ["-lpthread"])


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


WRK = "wrk -d {amount} -t 1 -c 4 --latency -s {folder}/tail.lua "
SERVERS = {
    "nginx": Server(
        "nginx -c {folder}/nginx.conf",
        WRK + "-H 'Accept-Encoding: gzip' http://127.0.0.1:{port}/index.html",
        ("nginx", "wrk"),
        nginx_files,
    ),
    "redis": Server(
        "redis-server --port {port} --save '' --bind 127.0.0.1 --dir {folder}",
        "redis-benchmark -p {port} -n {amount}0000 -c 4 -d 200 -r 2000 -t set,get,lpush",
        ("redis-server", "redis-benchmark"),
    ),
    "memcached": Server(
        "memcached -l 127.0.0.1 -p {port} -t 1 -u nobody",
        "{folder}/memcached_load {port} 4 {amount}0000",
        ("memcached",),
        memcached_files,
    ),
    "postgresql": Server(
        f"setpriv --reuid=postgres --regid=postgres --clear-groups {POSTGRES}/postgres -D {{folder}}/data",
        POSTGRES + "/pgbench -U postgres -h {folder} -p {port} -n -t {amount}000 -c 2 -l --log-prefix=$QUIRE_LATENCIES/log postgres",
        (POSTGRES + "/postgres", POSTGRES + "/pgbench"),
        postgres_files,
        ready=POSTGRES + "/pg_isready -q -h {folder} -p {port}",
    ),
    "wsgi": Server("/usr/bin/python3 {folder}/wsgi.py", WRK + "http://127.0.0.1:{port}/", ("/usr/bin/python3", "wrk"), wsgi_files),
    "node": Server("node {folder}/server.js", WRK + "http://127.0.0.1:{port}/", ("node", "wrk"), node_files),
    "apache2": Server(
        "apache2 -DFOREGROUND -f {folder}/apache.conf",
        WRK + "-H 'Accept-Encoding: gzip' http://127.0.0.1:{port}/index.html",
        ("apache2", "wrk"),
        apache_files,
    ),
    "uwsgi": Server(
        "uwsgi --http-socket 127.0.0.1:{port} --plugin python3 --wsgi-file {folder}/wsgi.py --callable page --disable-logging --die-on-term",
        WRK + "-H 'Connection: close' http://127.0.0.1:{port}/",
        ("uwsgi", "/usr/lib/uwsgi/plugins/python3_plugin.so", "wrk"),
        wsgi_files,
    ),
    "yaws": Server(
        "erl -noshell -noinput -pa /usr/lib/yaws/ebin -run yaws -conf {folder}/yaws.conf -yaws id quire",
        WRK + "-H 'Accept-Encoding: gzip' http://127.0.0.1:{port}/index.html",
        ("erl", "/usr/lib/yaws/ebin/yaws.beam", "wrk"),
        yaws_files,
    ),
    "aiohttp": Server(
        "env PYTHONPATH={folder} aiohttp-wsgi-serve --quiet --host 127.0.0.1 --port {port} wsgi:page",
        WRK + "http://127.0.0.1:{port}/",
        ("aiohttp-wsgi-serve", "wrk"),
        wsgi_files,
    ),
    "lighttpd": Server(
        "lighttpd -D -f {folder}/lighttpd.conf",
        WRK + "-H 'Accept-Encoding: gzip' http://127.0.0.1:{port}/index.html",
        ("lighttpd", "/usr/lib/lighttpd/mod_deflate.so", "wrk"),
        lighttpd_files,
    ),
    "gunicorn": Server(
        "gunicorn --bind 127.0.0.1:{port} --chdir {folder} wsgi:page",
        WRK + "-H 'Connection: close' http://127.0.0.1:{port}/",
        ("gunicorn", "wrk"),
        wsgi_files,
    ),
    "mini-httpd": Server(
        "mini_httpd -D -u nobody -h 127.0.0.1 -p {port} -d {folder}",
        WRK + "http://127.0.0.1:{port}/index.html",
        ("mini_httpd", "wrk"),
        lambda folder, _port: page_files(folder),
    ),
    "mod_wsgi": Server(
        "apache2 -DFOREGROUND -f {folder}/apache.conf",
        WRK + "http://127.0.0.1:{port}/",
        ("apache2", "/usr/lib/apache2/modules/mod_wsgi.so", "wrk"),
        mod_wsgi_files,
    ),
}
# Looked at once, when all work on `try` is done. By a rule: of Debian 12's packages that provide `httpd`, and of those that provide `httpd-wsgi3`, the first by the
# SHA-1 of its name that no table has yet and that listens by itself (micro-httpd wants inetd).
# Sealed before, and looked at: wsgi and node, apache2 and uwsgi, yaws and aiohttp, lighttpd and gunicorn, mini-httpd and mod_wsgi.
SEALED = ()


Prepared = namedtuple("Prepared", "command load ready")  # words, a shell command, words of `quire try`


def there(server):
    """Whether all its programs are installed."""
    return all(shutil.which(name) or os.path.exists(name) for name in server.needs)


@contextlib.contextmanager
def open_folder():
    """A folder that a server's own user can reach, too."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o777)
        yield pathlib.Path(name)


def free_port():
    """One that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def prepared(name, folder, port, amount=1):
    """A server's files made, and its words filled in."""
    server = SERVERS[name]
    if server.prepare:
        server.prepare(folder, port)
    command, load = (text.format(folder=folder, port=port, amount=amount) for text in (server.command, server.load))
    ready = ["--ready-cmd", server.ready.format(folder=folder, port=port)] if server.ready else ["--ready-port", str(port)]
    return Prepared([word.strip("'") for word in command.split(" ")], load, ready)
