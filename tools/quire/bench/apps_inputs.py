# SPDX-License-Identifier: MIT
"""
apps_inputs.py - what the programs of `quire bench apps` are given to do, the same on every machine.

    folder/ in.json  in.c  in.cc  objects.py  json.py  rows.sql  trees.lua  words.pl  words.rb  groups.jq  repository/

Everything is written by rules with fixed seeds; nothing is fetched.  A quick run has fewer turns over the
same data, so that peaks stay what they are, and smaller sources for the compilers.
Not here: how the programs are called (bench/apps.py).
"""

import json
import os
import random
import re
import shutil
import subprocess

OBJECTS_PY = """
class Node:
    def __init__(self, key):
        self.key, self.left, self.right, self.tags = key, None, None, [key, str(key)]
def build(depth):
    node = Node(depth)
    if depth:
        node.left, node.right = build(depth - 1), build(depth - 1)
    return node
def total(node):
    return 1 + total(node.left) + total(node.right) if node.left else 1
keep, words = build(13), {}
for turn in range(@25:4@):
    assert total(build(12)) == 8191
    for i in range(20000):
        words[f"key{i * 7 % 30011}"] = (i, [turn])
    words = {k: v for k, v in words.items() if v[0] % 3}
print(total(keep), len(words))
"""
JSON_PY = """
import json, sys
with open(sys.argv[1]) as file:
    text = file.read()
for turn in range(@6:1@):
    records = json.loads(text)
    groups = {}
    for r in records:
        groups.setdefault(r["tags"][0], []).append((r["name"], r["nested"]["y"]))
    out = json.dumps([dict(r, more=[str(i) for i in range(4)]) for r in records])
print(len(out), len(groups))
"""
SQL = """
create table item(id integer primary key, name text, price real, stamp text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < @220000:60000@)
 insert into item select i, 'name' || (i * 7919 % @220000:60000@), i * 1.5, hex(i) || '-' || (i % 97) from n;
create index by_name on item(name);
select count(*), sum(price) from item where name like 'name12%';
select stamp, count(*) from item group by substr(stamp, 1, 3) order by 2 desc limit 3;
select a.name from item a join item b on a.id = b.id + 1 where b.name > 'name99' order by a.stamp limit 3;
update item set name = name || '-' || id where id % 3 = 0;
delete from item where id % 5 = 0;
select group_concat(name) is not null, count(*) from (select name from item order by price desc);
"""
LUA = """
local function build(depth)
  if depth == 0 then return {} end
  return {left = build(depth - 1), right = build(depth - 1), name = "n" .. depth}
end
local function count(t) return t.left and 1 + count(t.left) + count(t.right) or 1 end
local keep, words = build(14), {}
for turn = 1, @24:7@ do
  assert(count(build(12)) == 8191)
  for i = 1, 20000 do words["key" .. (i * 7 % 30011)] = {i, turn, tostring(i)} end
end
print(count(keep))
"""
PERL = """
my %words; my @keep; my $text = join ' ', map { "word" . ($_ * 7919 % 5003) } 1 .. 60000;
for my $turn (1 .. @14:3@) {
  for my $w (split / /, $text) { push @{ $words{$w} }, length($w) + $turn }
  my @sorted = sort { $a cmp $b } keys %words;
  push @keep, { map { $_ => join(',', @{ $words{$_} }[0 .. 3]) } @sorted[0 .. 500] };
  (my $copy = $text) =~ s/word(\\d+)/<$1>/g;
}
print scalar(keys %words), " ", scalar(@keep), "\\n";
"""
RUBY = """
Node = Struct.new(:left, :right, :name)
def build(depth) = depth.zero? ? Node.new : Node.new(build(depth - 1), build(depth - 1), "n#{depth}")
def count(n) = n.left ? 1 + count(n.left) + count(n.right) : 1
keep, words = build(13), {}
@12:4@.times do |turn|
  raise unless count(build(12)) == 8191
  20000.times { |i| words["key#{i * 7 % 30011} with a longer tail"] = [i, turn, i.to_s * 8] }
  words.select! { |_, v| v[0] % 3 != 0 }
end
puts count(keep), words.size
"""
JQ = """
[range(@4:1@) as $k | .[] | {n: .name, t: (.tags | join("-")), s: (.score * $k)}]
 | group_by(.t) | map({k: .[0].t, c: length})
"""
REDIS = "@60000:10000@"
C_FUNCTIONS, CC_CLASSES, RECORDS, FILES = (150, 30), (8, 1), 9000, (300, 100)  # full, quick
BY_LENGTH = re.compile("@([0-9]+):([0-9]+)@")  # in a text: a full run's number, a quick one's


def of_length(text, quick):
    """A program's text with the numbers of that length."""
    return BY_LENGTH.sub(lambda m: m.group(2 if quick else 1), text)


def write(folder, quick=False):
    """All inputs into a folder."""
    texts = {
        "objects.py": OBJECTS_PY,
        "json.in.py": JSON_PY,
        "rows.sql": SQL,
        "trees.lua": LUA,
        "words.pl": PERL,
        "trees.rb": RUBY,
        "groups.jq": JQ,
        "redis.requests": REDIS,
        "in.c": c_source(C_FUNCTIONS[quick]),
        "in.cc": cc_source(CC_CLASSES[quick]),
        "in.json": json.dumps(records()),
    }
    for name, text in texts.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(of_length(text, quick))


def redis_requests(folder):
    """How many of each kind."""
    with open(os.path.join(folder, "redis.requests"), encoding="ascii") as file:
        return file.read()


def records():
    """JSON as services exchange it."""
    return [
        {
            "id": i,
            "name": f"user{i}",
            "tags": [f"a{i % 7}", f"b{i % 11}"],
            "score": i * 1.5,
            "nested": {"x": i, "y": [i, i + 1, {"z": str(i)}]},
        }
        for i in range(RECORDS)
    ]


def c_source(functions):
    """Functions with loops, a switch and lists."""
    body = ["#include <stdio.h>", "#include <stdlib.h>", "#include <string.h>"]
    for i in range(functions):
        body.append(
            f"struct s{i} {{ int a; char *b; struct s{i} *next; }};\n"
            f"static int f{i}(struct s{i} *p, int n) {{ int t = 0; for (int i = 0; i < n; i++) {{\n"
            f" if (p->a > i) t += p->a * {i + 1}; else t ^= (int)strlen(p->b); if (p->next) p = p->next;\n"
            " switch (i & 3) { case 0: t += 3; break; case 1: t *= 7; break; default: t -= i; } }\n"
            f" return t; }}\nint g{i}(void *v) {{ return f{i}(v, {i + 10}); }}"
        )
    return "\n".join(body) + "\n"


def cc_source(classes):
    """Templates of the standard library, each with its own types."""
    body = [
        "#include <algorithm>\n#include <map>\n#include <memory>\n#include <string>\n#include <vector>"
    ]
    for i in range(classes):
        body.append(
            f"struct key{i} {{ int a; bool operator<(const key{i} &o) const {{ return a < o.a; }} }};\n"
            f"int use{i}(int n) {{ std::map<key{i}, std::vector<std::string>> m;\n"
            f" for (int i = 0; i < n; i++) m[key{i}{{i % 7}}].push_back(std::to_string(i));\n"
            f" int t = 0; for (auto &[k, v] : m) {{ std::sort(v.begin(), v.end()); t += k.a + (int)v.size(); }}\n"
            " return t; }"
        )
    return "\n".join(body) + "\n"


def repository(folder, quick=False, check=lambda: None):
    """A git repository with some hundred commits' worth of loose objects; `check` may end it between two steps."""
    place = os.path.join(folder, "repository")
    os.makedirs(place)
    rng = random.Random(7)
    env = {
        **os.environ,
        "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
        "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
    }
    who = ["-c", "user.name=bench", "-c", "user.email=bench@example.org", "-c", "gc.auto=0"]

    def git(*words):
        check()
        subprocess.run(["git", *who, *words], cwd=place, env=env, check=True, capture_output=True)

    git("init", "-q")
    for commit in range(6):
        for number in range(FILES[quick]):
            with open(os.path.join(place, f"file{number}.txt"), "w", encoding="ascii") as file:
                file.write("".join(f"line {rng.randrange(500)} {commit}\n" for _ in range(150)))
        git("add", "-A")
        git("commit", "-q", "-m", f"change {commit}")
    return place


def fresh_repository(folder):
    """A copy of it that nobody has packed."""
    place = os.path.join(folder, "fresh")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(os.path.join(folder, "repository"), place)
    return place
