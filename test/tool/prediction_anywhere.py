# SPDX-License-Identifier: MIT
"""
prediction_anywhere.py - `try` beside plain runs, for whatever of forty commands a machine has: for machines where nothing can be installed.

    python3 test/tool/prediction_anywhere.py -o any.json --workers 7      two CPUs each; then: prediction.py --document any.json

The list below was written before anything was measured.  A command is tried if it is there, ends with 0 and takes between 0.1 and 4 s of CPU time; what
falls out is told with its reason.  Each is given to `try` as a newcomer would, then it runs SECONDS long in rounds of an order drawn anew for each, with
each malloc that `try` measured, on the same two CPUs.  Python's programs have PYTHONMALLOC=malloc in all of these runs, as in `try`'s, but for `today`.
Not a test: it takes minutes.  Not here: judging and tables (prediction_tables.py).
"""

import argparse
import concurrent.futures
import datetime
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import time

import prediction

SECONDS, ROUNDS_MOST = 55, 60
CPU_S_LEAST, CPU_S_MOST = 0.1, 4.0
LIBC, LIBSTDCXX = "/lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libstdc++.so.6"
C_PART = (
    "struct s{i}{{int a;char b[{m}+1];struct s{before}*n;}};int f{i}(struct s{i}*p,int x){{int r=0;"
    "for(int k=0;k<x;k++){{r+=p->a*k;if(r>{i})r-=p->b[k%({m}+1)];}}return r;}}\n"
)
CXX_PART = (
    "struct k{i}{{int v;bool operator<(const k{i}&o)const{{return v<o.v;}}}};"
    'int g{i}(){{std::map<k{i},std::vector<std::string>>m;m[k{i}{{{i}}}].push_back("x");return (int)m.size();}}\n'
)
CUDA_PART = (
    "__global__ void k{i}(float*a,const float*b,int n){{int t=blockIdx.x*blockDim.x+threadIdx.x;float s=0;"
    "for(int j=0;j<n;j++)s+=b[(t*{m}+j)%n]*a[j];if(t<n)a[t]=s/(1+{i});}}\n"
)
PREPARED = (
    "gcc -S -O1 big.c -o big1.s; gcc -c -O1 big.c -o big1.o; g++ -c -O0 t.cc -o t1.o; nvcc -ptx k.cu -o k1.ptx; "
    "sed -i 's/.target sm_[0-9]*/.target sm_90/' k1.ptx; ptxas -O3 -arch=sm_90 k1.ptx -o k1.cubin"
)


def python(code):
    """Its command."""
    return ["python3", "-c", code]


COMMANDS = {
    "gcc -O2": ["gcc", "-O2", "-c", "big.c", "-o", "big.o"],
    "g++ -O1": ["g++", "-O1", "-c", "t.cc", "-o", "t.o"],
    "gcc -S -O0": ["gcc", "-S", "-O0", "big.c", "-o", "big0.s"],
    "as": ["as", "big1.s", "-o", "big2.o"],
    "ld -r": ["ld", "-r", "big1.o", "t1.o", "-o", "r.o"],
    "objdump -d": ["objdump", "-d", LIBSTDCXX],
    "nm -DC": ["nm", "-DC", LIBSTDCXX],
    "readelf -aW": ["readelf", "-aW", LIBSTDCXX],
    "perl": ["perl", "-e", 'open F,"words.txt";my %h;while(<F>){for(split){$h{$_}++}}print scalar(keys %h)'],
    "awk": ["awk", "{for(i=1;i<=NF;i++)c[$i]++} END{for(k in c)n++;print n}", "words.txt"],
    "sort": ["sort", "words.txt"],
    "tar": ["tar", "cf", "/dev/null", "/usr/include"],
    "git": ["git", "-C", str(prediction.TOOL.parent.parent), "log", "--stat"],
    "find": ["find", "/usr", "-name", "*.h"],
    "cmake -P": ["cmake", "-P", "s.cmake"],
    "cmake": ["cmake", "-S", ".", "-B", "b"],
    "ninja -n": ["ninja", "-n"],
    "make -n": ["make", "-n", "-f", "a.mk"],
    "m4": ["m4", "m.m4"],
    "nvcc": ["nvcc", "-ptx", "k.cu", "-o", "k.ptx"],
    "ptxas": ["ptxas", "-O3", "-arch=sm_90", "k1.ptx", "-o", "k.cubin"],
    "nvdisasm": ["nvdisasm", "k1.cubin"],
    "bash": ["bash", "-c", "declare -A m;for i in {1..60000};do m[k$i]=v$i;done;echo ${#m[@]}"],
    "py json": python("import json;[json.loads(open('d.json').read()) for _ in range(3)]"),
    "py ast": python("import ast,glob;[ast.parse(open(f,encoding='utf8',errors='replace').read()) for f in sorted(glob.glob('/usr/lib/python3*/[a-d]*.py'))]"),
    "py sqlite3": python(
        "import sqlite3;c=sqlite3.connect(':memory:');c.execute('create table t(a,b)');"
        "c.executemany('insert into t values(?,?)',((i,'n%d'%i) for i in range(300000)));c.execute('create index x on t(b)');"
        "print(c.execute('select count(distinct b) from t').fetchone())"
    ),
    "py xml": python("import xml.etree.ElementTree as E;[len(E.parse('d.xml').getroot()) for _ in range(2)]"),
    "py lxml": python("import lxml.etree as E;[len(E.parse('d.xml').getroot().xpath('//b')) for _ in range(4)]"),
    "py yaml": python("import yaml;yaml.safe_load(open('d.yaml'))"),
    "py jinja2": python("import jinja2;t=jinja2.Template('{% for i in r %}<a>{{i}}-{{i*2}}</a>{% endfor %}');[t.render(r=range(60000)) for _ in range(4)]"),
    "py markdown": python("import markdown;markdown.markdown(open('d.md').read())"),
    "py networkx": python(
        "import networkx as n;g=n.gnm_random_graph(3000,20000,seed=1);"
        "print(sum(len(x) for x in n.connected_components(g)),len(n.single_source_shortest_path(g,0)),sum(n.clustering(g).values()))"
    ),
    "py pandas": python("import pandas as p;d=p.read_csv('d.csv');print(d.groupby('name').x.mean().sum())"),
    "py pyarrow": python("import pyarrow.csv as c;t=c.read_csv('d.csv');print(t.group_by('name').aggregate([('x','mean')]).num_rows)"),
    "py sympy": python("from sympy import *;x,y,z=symbols('x y z');print(len(str(expand((x+y+z+1)**18))))"),
    "py pygments": python("import pygments,pygments.lexers as l,pygments.formatters as f;pygments.highlight(open('big.c').read()[:150000],l.CLexer(),f.HtmlFormatter())"),
    "py re": python("import re;t=open('words.txt').read();print(len(re.findall(r'\\b(\\w+) \\1?\\w',t)),len(set(t.split())))"),
    "py regex": python("import regex;t=open('words.txt').read();print(len(regex.findall(r'\\b(\\w{3,})\\s',t)))"),
    "py numpy": python(
        "import numpy as n;a=n.random.rand(600,600);[n.linalg.svd(a[:200,:200]) for _ in range(6)];"
        "print(sum(float((a[i]+a[i+1]).sum()) for i in range(599) for _ in range(60)))"
    ),
    "py llvmlite": python(
        "import llvmlite.binding as b;m='\\n'.join('define i32 @f%d(i32 %%a) {\\n%%b = mul i32 %%a, %d\\n%%c = add i32 %%b, %%a\\nret i32 %%c\\n}'%(i,i) "
        "for i in range(12000));x=b.parse_assembly(m);x.verify();print(len(str(x)))"
    ),
}


def write_inputs():
    """What the commands read, into the current folder: the same bytes each time."""
    chance = random.Random(1)
    words = ["".join(chance.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(chance.randint(2, 9))) for _ in range(20000)]
    word = lambda: chance.choice(words)  # noqa: E731
    files = {
        "big.c": "".join(C_PART.format(i=i, m=i % 50, before=max(0, i - 1)) for i in range(450)),
        "t.cc": "#include <map>\n#include <string>\n#include <vector>\n" + "".join(CXX_PART.format(i=i) for i in range(14)),
        "k.cu": "".join(CUDA_PART.format(i=i, m=i + 3) for i in range(40)),
        "words.txt": "".join(" ".join(word() for _ in range(10)) + "\n" for _ in range(60000)),
        "d.json": json.dumps([{"id": i, "name": word(), "tags": [word() for _ in range(5)], "x": {"y": i / 7, "z": [1, 2, i]}} for i in range(40000)]),
        "d.xml": "<r>" + "".join(f'<p id="{i}" n="{word()}"><a>{word()}</a><b c="{i % 7}"/></p>' for i in range(60000)) + "</r>",
        "d.yaml": "".join(f"- name: {word()}\n  items: [1, {i}, {word()}]\n  sub: {{a: {i}, b: {word()}}}\n" for i in range(1200)),
        "d.md": "".join(f"# {word()}\n\nSome *{word()}* and `{word()}` [l](http://x/{i}).\n\n- a\n- b\n\n" for i in range(1200)),
        "d.csv": "id,name,x\n" + "".join(f"{i},{word()},{i / 7:.6f}\n" for i in range(400000)),
        "s.cmake": 'foreach(i RANGE 15000)\nset(v${i} a${i})\nlist(APPEND l ${v${i}})\nstring(REPLACE a b w "${v${i}}")\nendforeach()\n',
        "CMakeLists.txt": "cmake_minimum_required(VERSION 3.16)\nproject(x NONE)\nforeach(i RANGE 30000)\nset(v${i} a${i})\nlist(APPEND l ${v${i}})\nendforeach()\n",
        "build.ninja": "rule c\n command = true $in $out\n" + "".join(f"build o{i}: c i{i} | h{i % 97} h{i % 53}\nbuild i{i}: phony\n" for i in range(60000))
        + "".join(f"build h{i}: phony\n" for i in range(97)),
        "a.mk": "all:" + "".join(f" t{i}" for i in range(5000)) + "\n" + "".join(f"t{i}: u{i}\nu{i}:\n" for i in range(5000)),
        "m.m4": "define(`f',`ifelse($1,0,,`$1 f(decr($1))')')dnl\n" + "f(700)\n" * 20,
    }
    for name, text in files.items():
        pathlib.Path(name).write_text(text, encoding="utf-8")
    subprocess.run(["/bin/sh", "-c", PREPARED], capture_output=True, check=False)


def unfit(command):
    """Why it is not tried; None: it is."""
    if not shutil.which(command[0]):
        return "it is not here"
    try:
        cpu_s = prediction.cpu_s(command)
    except subprocess.CalledProcessError as error:
        return f"its status is {error.returncode}"
    return None if CPU_S_LEAST <= cpu_s <= CPU_S_MOST else f"it takes {cpu_s:.2f} s"


def settle(folder, pairs):
    """A worker begins: on two CPUs of its own."""
    os.chdir(folder)
    os.sched_setaffinity(0, pairs.get())


def measured(name, command):
    """One program, tried and run: as prediction.py stores it."""
    document, refused = prediction.tried(command)
    if not document:
        return {"name": name, "command": command, "rows": [], "left_out": [f"`try` refuses: {refused}"], "verdict": None, "times": {}}
    found = prediction.asked_of(document)
    mallocs = {"libc": None, **{row["name"]: row["library"] for row in found["rows"] if row["library"]}}
    times, end_s, chance = {malloc: [] for malloc in mallocs}, time.monotonic() + SECONDS, random.Random(name)
    while time.monotonic() < end_s and len(times["libc"]) < ROUNDS_MOST:
        for malloc in chance.sample(list(mallocs), len(mallocs)):
            times[malloc].append(prediction.cpu_s(command, preload=mallocs[malloc]))
    return {"name": name, "command": command, **found, "reason": document["verdict"].get("reason"), "times": times}


def main():
    """See the top."""
    parser = argparse.ArgumentParser(description="what try prints, beside what the program does, for commands that are here")
    parser.add_argument("-o", "--output", type=pathlib.Path, metavar="FILE", required=True, help="results as JSON")
    parser.add_argument("--workers", type=int, default=1, help="so many at a time, on two CPUs each (1)")
    parser.add_argument("--only", action="append", metavar="NAME", help="this one of them")
    args = parser.parse_args()
    output = args.output.resolve()
    run = {"schema": "quire.prediction/1", "date": str(datetime.date.today()), "rounds": ROUNDS_MOST, "stdout": "null", "time_limit_s": None}
    run |= {"processors": os.cpu_count(), "load": [prediction.load()] * 2, "programs": []}
    pairs = multiprocessing.Queue()
    for pair in list(zip(*[iter(sorted(os.sched_getaffinity(0)))] * 2))[: args.workers]:
        pairs.put(pair)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_inputs()
        why = {name: unfit(command) for name, command in COMMANDS.items() if not args.only or name in args.only}
        run["left_out"] = {name: reason for name, reason in why.items() if reason}
        with concurrent.futures.ProcessPoolExecutor(args.workers, initializer=settle, initargs=(folder, pairs)) as pool:
            for found in concurrent.futures.as_completed([pool.submit(measured, name, COMMANDS[name]) for name, reason in why.items() if not reason]):
                run["programs"].append(found.result())
                run["load"][1] = prediction.load()
                output.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
        os.chdir("/")
    print("left out:", *(f"{name} ({reason})" for name, reason in run["left_out"].items()))


if __name__ == "__main__":
    main()
