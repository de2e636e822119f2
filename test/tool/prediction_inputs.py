# SPDX-License-Identifier: MIT
"""
prediction_inputs.py - the texts that the programs of prediction_programs.py read, the same each time: one writer a file (prediction_inputs_more.py
has those of the fourth of each section).

    write(folder, ["shop.sql", "page.html"])

A writer takes a random.Random that is seeded by the file's name, and yields lines. What a text is about does not matter; that it
is of the kind that the program is made for does, and that it takes 0.1 to 1 s.
"""

import random

import prediction_inputs_more
from prediction_words import word, words


def sql(draw):
    """A shop: single rows in one transaction, then questions that join, group and sort."""
    yield "create table item(id integer primary key, name text, kind text, price real);"
    yield "create table sale(id integer primary key, item int, day text, number int);"
    yield "create index sale_item on sale(item);\nbegin;"
    for number in range(8000):
        yield f"insert into item values({number}, '{words(draw, 2)}', '{word(draw, 2)}', {draw.random() * 99:.2f});"
        yield f"insert into sale values(null, {draw.randrange(number + 1)}, date('2020-01-01', '+{number % 900} days'), {draw.randint(1, 9)});"
    yield "commit;"
    for number in range(40):
        yield f"select kind, upper(name), sum(number * price) from item join sale on item = item.id where price > {number} group by kind order by 3 desc limit 3;"


def groonga(draw):
    """Tables and a full-text index, loaded and asked."""
    yield "table_create Texts TABLE_HASH_KEY ShortText\ncolumn_create Texts body COLUMN_SCALAR Text"
    yield "table_create Terms TABLE_PAT_KEY ShortText --default_tokenizer TokenBigram --normalizer NormalizerAuto"
    yield "column_create Terms body COLUMN_INDEX|WITH_POSITION Texts body\nload --table Texts\n["
    for number in range(1500):
        yield f'{{"_key": "text {number}", "body": "{words(draw, 20)}"}},'
    yield "]"
    for _ in range(400):
        yield f'select Texts --query "body:@{word(draw, 2)}" --limit 5'


def pc(draw):
    """pkg-config's files, as one text: modules that require others."""
    for number in range(36):
        needs = sorted({draw.randrange(number) for _ in range(min(number, 4))})
        yield f"=== m{number}.pc\nprefix=/usr\nlibdir=${{prefix}}/lib\nName: m{number}\nDescription: {words(draw, 6)}\nVersion: 1.{number}"
        yield f"Requires: {', '.join(f'm{n} >= 1.0' for n in needs)}"
        yield f"Libs: -L${{libdir}} -lm{number} -l{word(draw)}\nCflags: -I${{prefix}}/include/{word(draw)} -D{word(draw).upper()}=1"


def c(draw):
    """Functions of loops and switches."""
    yield "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>"
    for number in range(60):
        name = f"{word(draw)}_{number}"
        yield f"static int {name}(int n, const char *text) {{\n  int sum = {draw.randrange(99)};\n  for (int i = 0; i < n; i++) {{"
        yield f"    switch (text[i] % {draw.randint(3, 9)}) {{\n" + "".join(f"    case {k}: sum += i * {draw.randrange(99)}; break;\n" for k in range(3)) + "    }\n  }"
        yield f"  return sum;\n}}\nint use_{name}(const char *text) {{ return {name}((int)strlen(text), text) + printf(\"{words(draw, 3)}\"); }}"


def svg(draw):
    """A drawing of polygons, curves and words."""
    yield '<svg xmlns="http://www.w3.org/2000/svg" width="300" height="300">'
    for number in range(3000):
        points = " ".join(f"{draw.randrange(300)},{draw.randrange(300)}" for _ in range(3))
        yield f'<g id="g{number}" class="{word(draw)}" style="stroke: black; opacity: 0.9"><polygon fill="rgb({draw.randrange(256)},99,90)" points="{points}"/>'
        yield f'<path d="M {points.replace(",", " ")} Z"/></g>'
    yield "</svg>"


def dot(draw):
    """A graph in ranks."""
    yield "digraph g {"
    for number in range(1, 620):
        yield f'  n{number} [label="{words(draw, 2)}"];'
        for _ in range(2):
            yield f"  n{draw.randrange(max(0, number - 9), number)} -> n{number};"
    yield "}"


def log(draw):
    """Lines of fields, as a server's log has."""
    names = [word(draw) for _ in range(3000)]
    for number in range(60000):
        yield f"{number % 24:02}:{number % 60:02} {draw.choice(names)} {draw.choice(names)}/{draw.randrange(5000)} {draw.randrange(10**6)}"


def erlang(_):
    """Maps, lists and texts."""
    yield "#!/usr/bin/env escript\nmain(_) ->\n  L = [{I * 7919 rem 10007, integer_to_list(I)} || I <- lists:seq(1, 20000)],"
    yield "  M = lists:foldl(fun({K, V}, A) -> maps:update_with(K, fun(X) -> [V | X] end, [V], A) end, #{}, L),\n  io:format(\"~p~n\", [maps:size(M)])."


def awk(_):
    """Sums by field, and the words turned round."""
    yield '{ n = split($3, part, "/"); sum[$2 "/" part[1]] += $4; name = toupper(substr($2, 2)) "-" part[2]; gsub(/A/, "x", name); seen[name]++ }'
    yield 'END { for (k in sum) { total += sum[k]; text = text substr(k, 1, 1) }; for (k in seen) m++; print total, m, length(text) }'


def octave(_):
    """Strings, cells, structures and small matrices."""
    yield "s = struct(); total = 0;\nfor i = 1:900\n  key = sprintf('k%d', mod(i * 7919, 997));\n  m = rand(4) + i; total += trace(m * m');"
    yield "  if isfield(s, key), s.(key){end + 1} = upper(key); else s.(key) = {key, i}; end\nend\nprintf('%d\\n', numel(fieldnames(s)));"


def gnuplot(draw):
    """Plots of data in the script, drawn as text and as SVG."""
    yield "set terminal svg\nset output '/dev/null'\n$data << END"
    for number in range(40000):
        yield f"{number} {draw.random() * 100:.4f} {draw.randrange(9)} {word(draw)}"
    yield "END\nplot $data using 1:2 with lines, '' using 1:(sin($1 / 50) * $2) with points\nset dgrid3d 20,20\nsplot $data using 1:3:2 with lines"
    yield "plot $data using 1:2:4 with labels"


def perl(_):
    """Hashes of lists, strings and patterns."""
    yield 'my (%by, $total);\nfor my $i (1 .. 120000) {\n  my $key = "key " . ($i * 7919 % 10007);\n  push @{$by{$key}}, join("-", $i, uc $key);\n}'
    yield 'for my $key (sort keys %by) { for (@{$by{$key}}) { my @f = split /-/; s/KEY/k/; $total += @f + length } }\nprint "$total\\n";'


def html(draw):
    """A page of headings, links and tables."""
    yield f"<html><head><title>{words(draw, 4)}</title></head><body>"
    for number in range(1200):
        yield f"<h2 id=h{number}>{words(draw, 3)}</h2><p class='{word(draw)}'>{words(draw, 20)} <a href='/{word(draw)}/{number}'>{words(draw, 2)}</a> &amp; <b>{word(draw)}</b></p>"
        yield "<table>" + "".join(f"<tr><td>{word(draw)}</td><td>{draw.randrange(999)}</td></tr>" for _ in range(3)) + "</table>"
    yield "</body></html>"


def python(_):
    """Objects, dictionaries and strings."""
    yield "class Node:\n    def __init__(self, key, left, right):\n        self.key, self.left, self.right = key, left, right\n"
    yield "def grow(depth, key):\n    return Node(f'key {key}', grow(depth - 1, 2 * key), grow(depth - 1, 2 * key + 1)) if depth else None\n"
    yield "def walk(node):\n    return [node.key.upper()] + walk(node.left) + walk(node.right) if node else []\n"
    yield "by = {}\nfor n in range(4):\n    for key in walk(grow(13, 1)):\n        by.setdefault(key[-2:], []).append((key, n))\nprint(sum(len(v) for v in by.values()))"


def fortran(draw):
    """Subroutines for f2py to read."""
    for number in range(40):
        yield f"      subroutine s{number}(n, a, b, c)\n      integer n\n      double precision a(n), b(n), c"
        yield f"cf2py intent(in) a\ncf2py intent(out) c\nc {words(draw, 6)}\n      integer i\n      c = 0\n      do i = 1, n\n        c = c + a(i) * b(i)\n      end do\n      end"


def ruby(_):
    """Objects, hashes and strings."""
    yield "by = Hash.new { |h, k| h[k] = [] }\n60000.times do |i|\n  key = \"a key that is rather long: #{i * 7919 % 10007}\"\n  by[key] << \"#{i} and #{key.upcase}, which is long too\"\nend"
    yield "puts by.sum { |k, v| v.map { |s| s.sub('KEY', 'k').split(' ').size }.sum }"


def grammar(draw):
    """A constraint grammar."""
    yield 'DELIMITERS = "<.>" ;\nLIST N = n ;\nLIST V = v ;\nLIST ADJ = adj ;\nLIST BOS = (>>>) ;'
    for number in range(60):
        yield f'LIST W{number} = {" ".join(chr(34) + word(draw) + chr(34) for _ in range(10))} ;'
    yield "SECTION"
    for number in range(60):
        yield f"SELECT N IF (0 V) (-1 W{number}) ;\nREMOVE V IF (0 N) (1 ADJ) (*-2 W{(number + 7) % 60} BARRIER V) ;"


def cohorts(draw):
    """Words with their readings."""
    for number in range(9000):
        name = word(draw, 2)
        yield f'"<{name}>"\n' + "".join(f'\t"{name}" {kind} {draw.choice(("sg", "pl"))}\n' for kind in draw.sample(("n", "v", "adj"), 2)).rstrip()
        if number % 12 == 11:
            yield '"<.>"\n\t"." sent'


def yorick(_):
    """Strings and arrays, made and dropped."""
    yield "func work(n) {\n  s = 0;\n  for (i = 1; i <= n; i++) {\n    t = swrite(format=\"key %d\", i);\n    a = array(double, 40);"
    yield "    a(:) = i;\n    s += strlen(strpart(t, 2:)) + sum(a * 2);\n  }\n  return s;\n}\nwrite, work(150000);"


def xml(draw):
    """A catalogue with attributes, text and empty elements."""
    yield '<?xml version="1.0"?>\n<catalogue>'
    for number in range(50000):
        yield f'  <item id="{number}" kind="{word(draw, 2)}"><name lang="x">{words(draw, 2)}</name><price unit="e">{draw.random() * 99:.2f}</price><text>{words(draw, 8)} &amp; <em>{word(draw)}</em></text></item>'
    yield "</catalogue>"


def small_xml(draw):
    """The same, a sixth of it."""
    lines = list(xml(draw))
    yield from lines[:8001] + lines[-1:]


def xsl(_):
    """Sorted, grouped by key, written as a table."""
    yield '<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform"><xsl:key name="k" match="item" use="@kind"/>'
    yield '<xsl:template match="/catalogue"><table><xsl:for-each select="item"><xsl:sort select="name"/><xsl:apply-templates select="."/></xsl:for-each></table></xsl:template>'
    yield '<xsl:template match="item"><tr class="{@kind}"><td><xsl:value-of select="concat(name, \', \', price)"/></td><td><xsl:value-of select="count(key(\'k\', @kind))"/></td><td><xsl:copy-of select="text"/></td></tr></xsl:template>'
    yield "</xsl:stylesheet>"


def asn1(draw):
    """A structure for OpenSSL's asn1parse to build, out of many sections."""
    yield "asn1 = SEQUENCE:top\n[top]"
    yield "\n".join(f"f{n} = SEQUENCE:s{n}" for n in range(6000))
    for number in range(6000):
        yield f"[s{number}]\n" + "\n".join(f"a{k} = UTF8:{words(draw, 2)}\nb{k} = INTEGER:{draw.randrange(10**9)}" for k in range(6))


def changelog(draw):
    """A Debian package's history."""
    for number in range(1000, 0, -1):
        yield f"{word(draw)} (1.{number}-1) unstable; urgency=medium\n"
        yield "\n".join(f"  * {words(draw, 7)} (Closes: #{draw.randrange(10**6)})" for _ in range(4))
        yield f"\n -- {word(draw).title()} <{word(draw)}@example.org>  Mon, 0{number % 9 + 1} Jan 2020 00:00:00 +0000\n"


def commits(draw):
    """What git log prints."""
    names = [f"{word(draw).title()} {word(draw).title()}" for _ in range(400)]
    for _ in range(180000):
        yield f"commit 0\nAuthor: {draw.choice(names)} <a@example.org>\n\n    {words(draw, 3)}\n"


def patch(draw):
    """A patch of many small files."""
    for number in range(7000):
        name = f"{word(draw)}/{word(draw)}{number}.txt"
        yield f"diff --git a/{name} b/{name}\nnew file mode 100644\nindex 0000000..1111111\n--- /dev/null\n+++ b/{name}\n@@ -0,0 +1,2 @@\n+{words(draw, 5)}\n+{words(draw, 5)}"


def javascript(_):
    """Objects, maps and strings."""
    yield "const by = new Map();\nfor (let i = 0; i < 200000; i++) {\n  const key = 'key ' + i * 7919 % 10007;\n  by.set(key, (by.get(key) || []).concat([{ i, name: key.toUpperCase() }]).slice(-9));\n}"
    yield "let total = 0;\nfor (const [k, v] of by) total += Buffer.from(JSON.stringify(v)).length;\nconsole.log(total);"


def urls(draw):
    """A configuration of curl: many small files."""
    for _ in range(4000):
        yield f'url = "file://FOLDER/sums.awk?{word(draw)}"\noutput = "/dev/null"\nrange = "0-99"'


def json(draw):
    """Records within records."""
    yield "["
    for number in range(9000):
        yield f'{{"id": {number}, "name": "{words(draw, 2)}", "tags": ["{word(draw)}", "{word(draw)}"], "at": {{"x": {draw.random():.6f}, "y": [1, 2, null, true]}}}},'
    yield "{}]"


def make(draw):
    """Targets that need others, variables and functions."""
    yield "all: t1999\n\t@echo done $@"
    for number in range(2000):
        needs = " ".join(f"t{draw.randrange(number)}" for _ in range(min(number, 3)))
        yield f"V{number} := $(patsubst %.c,%.o,$(addprefix {word(draw)}/,{' '.join(word(draw) + '.c' for _ in range(6))}))"
        yield f"t{number}: {needs}\n\t@echo $(words $(V{number})) $(subst a,b,$(V{number}))"


def fig(draw):
    """A drawing of xfig's: lines and words."""
    yield "#FIG 3.2\nLandscape\nCenter\nMetric\nA4\n100.00\nSingle\n-2\n1200 2"
    for number in range(20000):
        yield f"2 1 0 1 {number % 32} 7 50 -1 -1 0.000 0 0 -1 0 0 6\n\t " + " ".join(f"{draw.randrange(12000)} {draw.randrange(9000)}" for _ in range(6))
        yield f"4 0 0 50 -1 0 12 0.0000 4 150 500 {draw.randrange(12000)} {draw.randrange(9000)} {word(draw)}\\001"


def macros(draw):
    """Macros upon macros of C's preprocessor."""
    for number in range(6000):
        yield f"#define A{number}(x, y) x + y * {number} + B{number}(y)\n#define B{number}(z) ({word(draw)} - z)"
        yield f"int {word(draw)}{number} = A{number}({draw.randrange(99)}, A{draw.randrange(number + 1)}(1, 2));"


def bc(_):
    """Long numbers, functions and arrays."""
    yield "scale = 40\ndefine f(n) {\n  auto i, r\n  r = 1\n  for (i = 1; i <= n; i++) { r = r * i; t[i % 64] = r / (i + 1) }\n  return r\n}"
    yield "for (k = 1; k < 260; k++) { s = s + f(k) / f(k + 3) + sqrt(k) }\ns\nquit"


def dbi(draw):
    """A trace of Perl's DBI."""
    for _ in range(60000):
        handle = f"DBI::st=HASH(0x{draw.getrandbits(32):x})~0x{draw.getrandbits(32):x}"
        yield f"    -> {word(draw)} for DBD::{word(draw)}::st ({handle} '{words(draw, 3)}') thr#{draw.getrandbits(24):x}"


def coloured(draw):
    """Functions of Python."""
    for number in range(900):
        yield f"def {word(draw)}_{number}(a, b='{words(draw, 2)}'):\n    # {words(draw, 5)}\n    return [x * {number} + len(b) for x in range(a) if x != {draw.randrange(99)}]\n"


def thor(_):
    """A task of thor's: a hash of lists."""
    yield "class Shop < Thor\n  desc 'count', 'counts'\n  def count\n    by = Hash.new { |h, k| h[k] = [] }"
    yield "    60000.times { |i| by[\"key #{i * 7919 % 10007}\"] << \"#{i}\".upcase }\n    puts by.values.flatten.size\n  end\nend"


def events(draw):
    """What a classifier learns from: of each event the class that is right, and the features of all four."""
    yield "4"
    for _ in range(6000):
        yield f"{draw.randrange(4)} $ 1 # " + " # ".join(" ".join(f"{word(draw, 2)}:{which} 1" for _ in range(5)) for which in range(4)) + " #"


def roff(draw):
    """A page of a manual."""
    yield ".TH THING 1"
    for _ in range(600):
        yield f".SH {words(draw, 2).upper()}\n{words(draw, 60)}\n.TP\n.B {word(draw)}\n.I {word(draw)}\n{words(draw, 30)}"


def small_files(draw):
    """Files of two kinds, as one text."""
    for number in range(1500):
        yield f"=== f{number}\n{'#!/bin/sh' if number % 2 else 'int main(void) {}'}\n{words(draw, 30)}"


def file_names(_):
    """Where they stand."""
    yield from (f"FOLDER/names/f{number}" for number in range(1500))


def new_files(draw):
    """A patch in git's form that makes files."""
    for number in range(450):
        name = f"d{number % 40}/f{number}.txt"
        yield f"diff --git a/{name} b/{name}\nnew file mode 100644\n--- /dev/null\n+++ b/{name}\n@@ -0,0 +1,4 @@\n" + "\n".join("+" + words(draw, 6) for _ in range(4))


def links(draw):
    """A page of links."""
    yield "<html><body><ul>"
    yield from (f"<li><a href='/{word(draw)}/{number}'>{word(draw)}</a> <a name=n{number}>{word(draw)}</a>" for number in range(6000))
    yield "</ul></body></html>"


WRITERS = {
    "shop.sql": sql,
    "texts.grn": groonga,
    "modules/": pc,
    "functions.c": c,
    "drawing.svg": svg,
    "ranks.dot": dot,
    "server.log": log,
    "sums.awk": awk,
    "maps.erl": erlang,
    "cells.m": octave,
    "plots.gp": gnuplot,
    "hashes.pl": perl,
    "page.html": html,
    "objects.py": python,
    "routines.f": fortran,
    "hashes.rb": ruby,
    "grammar.cg3": grammar,
    "cohorts.txt": cohorts,
    "strings.i": yorick,
    "catalogue.xml": xml,
    "list.xml": small_xml,
    "table.xsl": xsl,
    "structure.cnf": asn1,
    "changelog.txt": changelog,
    "log.txt": commits,
    "many.patch": patch,
    "maps.js": javascript,
    "urls.curl": urls,
    "records.json": json,
    "rules.mk": make,
    "drawing.fig": fig,
    "macros.c": macros,
    "numbers.bc": bc,
    "dbi.trace": dbi,
    "coloured.py": coloured,
    "Thorfile": thor,
    "events.txt": events,
    "manual.roff": roff,
    "names/": small_files,
    "names.txt": file_names,
    "new.patch": new_files,
    "links.html": links,
    **prediction_inputs_more.WRITERS,
}


def text_of(name):
    """A file's whole text."""
    return "\n".join(WRITERS[name](random.Random(name))) + "\n"


def write(folder, names):
    """Those of the files that are not there yet; a name that ends in a slash is a folder, `=== NAME` begins each file of its text."""
    for name in names:
        path = folder / name
        if path.exists():
            continue
        text = text_of(name).replace("FOLDER", str(folder))
        if not name.endswith("/"):
            path.write_text(text, encoding="utf-8")
            continue
        path.mkdir()
        for part in text.split("=== ")[1:]:
            inner, _, body = part.partition("\n")
            (path / inner).write_text(body, encoding="utf-8")
