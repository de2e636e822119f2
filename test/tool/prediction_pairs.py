# SPDX-License-Identifier: MIT
"""
prediction_pairs.py - programs with malloc and the same programs changed as advised: builds them, writes their inputs.

    examples/server  examples/tree           compiled from this checkout
    programs/requests.c                      in its shapes, with -DARENA=0 and -DARENA=1; only those that are named
    examples/advised/{jq,sqlite3}.sh         fetch Debian's source by name and change it: need the network

Not here: running or judging them (prediction.py).
"""

import pathlib
import random
import subprocess
import sys
from collections import namedtuple

from toolkit import BUILD, ROOT

SHAPES, REQUESTS = ("ten", "three", "two", "threads"), "1000000"
STATEMENTS, ROWS = 480, 300

# before, after: the commands without `arguments`; source: a file for standard input, or None.
Pair = namedtuple("Pair", "name before after arguments source")


def compiled(folder, name):
    """examples/NAME: the paths of NAME_malloc and NAME_advised."""
    paths = []
    for kind, more in (("malloc", []), ("advised", [str(BUILD / "libquire.a"), "-lpthread"])):
        path = folder / f"{name}_{kind}"
        source = ROOT / "examples" / name / f"{name}_{kind}.c"
        command = ["cc", "-std=c11", "-O2", "-g", f"-I{ROOT}/include", str(source), *more]
        subprocess.run([*command, "-o", str(path)], check=True)
        paths.append(path)
    return paths


def shaped(folder, name):
    """The request server, whatever its shape is called: likewise."""
    paths = []
    for arena, kind in enumerate(("malloc", "advised")):
        path = folder / f"{name}_{kind}"
        source = ROOT / "test" / "tool" / "programs" / "requests.c"
        command = ["cc", "-O2", "-g", f"-DARENA={arena}", f"-I{ROOT}/include", str(source), str(BUILD / "libquire.a"), "-lpthread"]
        subprocess.run([*command, "-o", str(path)], check=True)
        paths.append(path)
    return paths


def fetched(folder, name):
    """examples/advised/NAME.sh: likewise."""
    paths = [folder / f"{name}_{kind}" for kind in ("malloc", "advised")]
    if not all(path.exists() for path in paths):
        script = ROOT / "examples" / "advised" / f"{name}.sh"
        subprocess.run([str(script), str(folder)], check=True, stdout=sys.stderr)
    return paths


def write_sql(path):
    """A bulk load: statements of many rows, and questions about many keys."""
    draw, rows = random.Random(1), range(ROWS)
    with open(path, "w", encoding="ascii") as file:
        print("create table t(id integer primary key, name text, price real);", file=file)
        print("create index n on t(name);\nbegin;", file=file)
        for number in range(STATEMENTS):
            values = (f"('item {draw.randrange(10**6)}', {draw.random() * 100:.2f})" for _ in rows)
            print(f"insert into t(name, price) values {','.join(values)};", file=file)
            keys = (str(draw.randrange((number + 1) * ROWS) + 1) for _ in rows)
            print(f"select sum(price) from t where id in ({','.join(keys)});", file=file)
        print("commit;\nselect count(*), sum(price) from t;", file=file)
    return path


def made(folder, only=()):
    """The pairs, or those of them that are named, built in a folder."""
    folder = pathlib.Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    big_json, sql = folder / "big.json", folder / "load.sql"
    with open(big_json, "wb") as file:
        subprocess.run([sys.executable, str(ROOT / "examples" / "big_json.py")], check=True, stdout=file)
    write_sql(sql)
    wanted = (
        ("jq", fetched, [".", str(big_json)], None),
        ("sqlite3", fetched, [":memory:"], str(sql)),
        ("server", compiled, ["30000"], None),
        ("tree", compiled, ["4000"], None),
        *((shape, shaped, [shape, REQUESTS], None) for shape in SHAPES),
    )
    pairs = []
    for name, maker, arguments, source in wanted:
        if name not in only if only else name in SHAPES:
            continue
        before, after = (str(path) for path in maker(folder, name))
        pairs.append(Pair(name, [before], [after], arguments, source))
    return pairs
