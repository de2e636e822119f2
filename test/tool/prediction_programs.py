#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
prediction_programs.py - the programs of doc/prediction.md, chosen by a rule before anything was measured.

The rule: Debian 12's sections database, devel, graphics, interpreters, math, perl, python, ruby, science, text, utils, vcs, web; in each
the first two packages, in the order of how many packages of main depend on or recommend them (prediction_rule.py), that have a
command which reads a text or script that our generator writes (prediction_inputs.py), ends by itself, runs between 0.1 and 1 s of CPU
time on it and calls malloc's family more than 100,000 times there, counted, not timed. A dependency package in whose name the
commands come (gcc, ruby, python3) has them. Two programs of our own, in C and C++, stand at the end.

Every second one, by position, is *sealed*: nobody looks at what `try` says of it before all work on `try` is done.

The third of each section came later (THIRD), and after it the fourth (FOURTH), chosen in the same way of the packages that at least two
others want, each of them to be looked at once.

    python3 test/tool/prediction_programs.py            the sections in that order: chosen, or why not; 1 when one has no reason
    python3 test/tool/prediction_programs.py --apt      the line that installs them
    python3 test/tool/prediction_programs.py --count    what each calls and takes, counted by `quire record`; --only fourth: of this set
"""

import argparse
import functools
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
from collections import namedtuple

import prediction_inputs
import prediction_rule
from toolkit import BUILD, ROOT, TOOL

import target as targets  # of the tool, whose folder toolkit puts on the path
import tracefile

FOLDER = ROOT / "build" / "prediction"
CALLS_MIN, SECONDS_MIN, SECONDS_MAX = 100_000, 0.1, 1.0
CHOSEN_EACH = 4
WANTED_MIN = 2

# files: written first; command, source (standard input), prepare (a shell command before each run): with {folder} for their place;
# packages: what is installed beside the package itself.
Program = namedtuple("Program", "section package command files source prepare packages", defaults=(None, None, ()))

PROGRAMS = [
    Program("database", "sqlite3", "sqlite3 :memory:", ["shop.sql"], "shop.sql"),
    Program("database", "groonga-bin", "groonga --file {folder}/texts.grn -n {folder}/db", ["texts.grn"], None, "rm -f {folder}/db*"),
    Program("devel", "pkg-config", "pkg-config --with-path={folder}/modules --static --libs --cflags " + " ".join(f"m{n}" for n in range(36)), ["modules/"]),
    Program("devel", "gcc", "gcc -O1 -c {folder}/functions.c -o /dev/null", ["functions.c"]),
    Program("graphics", "graphviz", "dot -Tsvg {folder}/ranks.dot", ["ranks.dot"]),
    Program("graphics", "librsvg2-bin", "rsvg-convert {folder}/drawing.svg", ["drawing.svg"]),
    Program("interpreters", "erlang-base", "escript {folder}/maps.erl", ["maps.erl"]),
    Program("interpreters", "gawk", "gawk -f {folder}/sums.awk {folder}/server.log", ["sums.awk", "server.log"]),
    Program("math", "octave", "octave-cli --no-init-file {folder}/cells.m", ["cells.m"]),
    Program("math", "gnuplot", "gnuplot {folder}/plots.gp", ["plots.gp"], packages=("gnuplot-nox",)),
    Program("perl", "perl", "perl {folder}/hashes.pl", ["hashes.pl"]),
    Program("perl", "libwww-perl", "lwp-request -o links file://{folder}/page.html", ["page.html"]),
    Program("python", "python3", "python3 {folder}/objects.py", ["objects.py"]),
    Program("python", "python3-numpy", "f2py --quiet -h stdout -m x {folder}/routines.f", ["routines.f"]),
    Program("ruby", "ruby", "ruby {folder}/hashes.rb", ["hashes.rb"]),
    Program("ruby", "ruby-nokogiri", "nokogiri {folder}/page.html -e puts(@doc.css('p>a').map{{|a|a['href']+a.text}}.join.size)", ["page.html"]),
    Program("science", "cg3", "vislcg3 -g {folder}/grammar.cg3 -I {folder}/cohorts.txt", ["grammar.cg3", "cohorts.txt"]),
    Program("science", "yorick", "yorick -batch {folder}/strings.i", ["strings.i"]),
    Program("text", "xsltproc", "xsltproc {folder}/table.xsl {folder}/list.xml", ["table.xsl", "list.xml"]),
    Program("text", "libxml2-utils", "xmllint --noout {folder}/catalogue.xml", ["catalogue.xml"]),
    Program("utils", "openssl", "openssl asn1parse -genconf {folder}/structure.cnf -noout", ["structure.cnf"]),
    Program("utils", "dpkg-dev", "dpkg-parsechangelog -l {folder}/changelog.txt --all", ["changelog.txt"]),
    Program("vcs", "git", "git shortlog", ["log.txt"], "log.txt"),
    Program("vcs", "patch", "patch --dry-run -p1 -d {folder} -i {folder}/many.patch", ["many.patch"]),
    Program("web", "nodejs", "nodejs {folder}/maps.js", ["maps.js"]),
    Program("web", "curl", "curl -s -K {folder}/urls.curl", ["urls.curl", "sums.awk"]),
    Program("ours", "json_tree.c", "{folder}/json_tree {folder}/records.json", ["records.json"]),
    Program("ours", "map_server.cc", "{folder}/map_server 60000", []),
]

THIRD = [  # chosen and counted on 2026-11-28, when `try` had long been done with the others
    Program("devel", "make", "make -r -s -f {folder}/rules.mk", ["rules.mk"]),
    Program("graphics", "fig2dev", "fig2dev -L svg {folder}/drawing.fig", ["drawing.fig"]),
    Program("interpreters", "cpp", "cpp {folder}/macros.c", ["macros.c"]),
    Program("math", "bc", "bc {folder}/numbers.bc", ["numbers.bc"]),
    Program("perl", "libdbi-perl", "dbilogstrip {folder}/dbi.trace", ["dbi.trace"]),
    Program("python", "python3-pygments", "/usr/bin/pygmentize -f html {folder}/coloured.py", ["coloured.py"]),
    Program("ruby", "ruby-thor", "env -C {folder} thor shop:count", ["Thorfile"]),
    Program("science", "apertium-lex-tools", "yasmet", ["events.txt"], "events.txt"),
    Program("text", "groff-base", "groff -man -Tascii {folder}/manual.roff", ["manual.roff"]),
    Program("utils", "file", "file -f {folder}/names.txt", ["names/", "names.txt"]),
    Program("vcs", "mercurial", "/usr/bin/hg -R {folder}/hg import --bypass -q -u nobody -m all {folder}/new.patch", ["new.patch"], None, "rm -rf {folder}/hg && hg init {folder}/hg"),
    Program("web", "lynx", "lynx -dump {folder}/links.html", ["links.html"]),
]

FOURTH = [  # chosen and counted on 2026-11-28, before `try` was run on any of them
    Program("devel", "binutils", "c++filt", ["mangled.txt"], "mangled.txt"),
    Program("graphics", "ipe", "ipetoipe -xml {folder}/drawing.ipe /dev/null", ["drawing.ipe"]),
    Program("interpreters", "m4", "m4 {folder}/macros.m4", ["macros.m4"]),
    Program("math", "pdl", "perldl - {folder}/arrays.pdl", ["arrays.pdl"]),
    Program("perl", "libtemplate-perl", "tpage {folder}/page.tt", ["page.tt"]),
    Program("python", "python3-oslo.config", "/usr/bin/oslo-config-validator --opt-data {folder}/options.yaml --input-file {folder}/options.conf", ["options.yaml", "options.conf"]),
    Program("ruby", "rake", "rake -s -f {folder}/tasks.rake", ["tasks.rake"]),
    Program("science", "ncbi-blast+", "blastn -query {folder}/few.fa -subject {folder}/dna.fa", ["few.fa", "dna.fa"]),
    Program("text", "texinfo", "makeinfo --plaintext -o - {folder}/manual.texi", ["manual.texi"]),
    Program("utils", "poppler-utils", "pdftotext {folder}/pages.pdf -", ["pages.pdf"]),
    Program("vcs", "cvs", "cvs -Q -d {folder} rlog ledger", ["ledger/"], None, "cvs -d {folder} init"),
    Program("web", "jekyll", "jekyll build -q --disable-disk-cache -s {folder}/site -d {folder}/made", ["site/"]),
]

NO_COMMAND, NO_TEXT, SERVER, DISPLAY = "no command", "its commands read no text to an end", "a server, or needs one", "needs a display"
FEW = "fewer than 100,000 calls"
FALLEN = {
    "postgresql-15": SERVER,
    "postgresql-client": SERVER,
    "default-mysql-client": SERVER,
    "mariadb-server": SERVER,
    "postgresql": SERVER,
    "default-mysql-server": SERVER,
    "postgresql-common": SERVER,
    "default-libmysqlclient-dev": NO_COMMAND,
    "virtuoso-opensource": SERVER,
    "mariadb-client": SERVER,
    "libreoffice-base": DISPLAY,
    "redis-server": SERVER,
    "firebird3.0-common": NO_COMMAND,
    "mariadb-common": NO_COMMAND,
    "clickhouse-common": "linked with jemalloc",
    "firebird3.0-server-core": SERVER,
    "firebird3.0-utils": SERVER,
    "gaviotatb": "reads tables that are no text",
    "dh-elpa-helper": NO_COMMAND,
    "gcc-12-cross-base-mipsen": NO_COMMAND,
    "gcc-12-cross-base-ports": NO_COMMAND,
    "gcc-12-cross-base": NO_COMMAND,
    "gcc-11-cross-base-mipsen": NO_COMMAND,
    "gcc-11-cross-base": NO_COMMAND,
    "tesseract-ocr": "reads pictures, no text",
    "imagemagick": f"{FEW} (convert on 600 polygons of MVG: 16,007)",
    "netpbm": f"{FEW} (pnmcrop on a plain PPM: 611)",
    "gem": DISPLAY,
    "inkscape": DISPLAY,
    "gimp": DISPLAY,
    "colord": SERVER,
    "imagemagick-6-common": NO_COMMAND,
    "gtk2-engines-pixbuf": NO_COMMAND,
    "optipng": f"{FEW} (a plain PPM: 621)",
    "graphicsmagick": f"{FEW} (a plain PPM: 850)",
    "libjpeg-turbo-progs": f"{FEW} (cjpeg on a plain PPM: 14)",
    "okular": DISPLAY,
    "gstreamer1.0-gtk3": NO_COMMAND,
    "tk": DISPLAY,
    "python3-pkg-resources": NO_COMMAND,
    "ruby-activesupport": NO_COMMAND,
    "science-config": NO_COMMAND,
    "science-tasks": NO_COMMAND,
    "samtools": f"{FEW} (sort on 60,000 reads: 71)",
    "sgml-base": NO_TEXT,
    "dictionaries-common": NO_TEXT,
    "ghostscript": f"an allocator of its own; {FEW} (4,000 lines of PostScript: 3,843)",
    "aspell": f"{FEW} (72,000 words: 1,612)",
    "ispell": f"{FEW} (a page of 465 kB: 28)",
    "less": f"{FEW} (13 MB of text: 271)",
    "ucf": NO_TEXT,
    "sensible-utils": NO_TEXT,
    "initramfs-tools": NO_TEXT,
    "xdg-utils": DISPLAY,
    "gnupg": NO_COMMAND,
    "xz-utils": f"{FEW} (13 MB of text: 226)",
    "firefox-esr": DISPLAY,
    "groonga-server-common": NO_COMMAND,
    "kexi": DISPLAY,
    "libgda-5.0-postgres": NO_COMMAND,
    "mariadb-client-core": SERVER,
    "postgresql-client-15": SERVER,
    "postgresql-client-common": SERVER,
    "postgresql-contrib": SERVER,
    "db5.3-util": f"{FEW} (db5.3_load of 120,000 pairs: 2,825)",
    "default-mysql-client-core": SERVER,
    "default-mysql-server-core": SERVER,
    "libreoffice-base-drivers": NO_COMMAND,
    "libreoffice-base-nogui": NO_COMMAND,
    "mariadb-server-core": SERVER,
    "pgqd": SERVER,
    "redis-tools": SERVER,
    "unixodbc": SERVER,
    "virtuoso-opensource-7": SERVER,
    "virtuoso-opensource-7-bin": SERVER,
    "virtuoso-opensource-7-common": NO_COMMAND,
    "djvulibre-bin": f"{FEW} (c44 on a plain PPM: 643)",
    "ngraph-gtk": DISPLAY,
    "xplanet": DISPLAY,
    "blender": DISPLAY,
    "dia": DISPLAY,
    "graphicsmagick-imagemagick-compat": f"{FEW} (that of graphicsmagick)",
    "sane-utils": "asks a scanner",
    "xsane": DISPLAY,
    "debian-edu-artwork": NO_COMMAND,
    "tcl": f"an allocator of its own; {FEW} (60,000 keys: 530)",
    "erlang-crypto": NO_COMMAND,
    **dict.fromkeys("liburi-perl libmoose-perl libmoo-perl libjson-perl libscalar-list-utils-perl libtry-tiny-perl libnamespace-autoclean-perl".split(), NO_COMMAND),
    **dict.fromkeys("python3-six python3-requests python3-gi python3-yaml sphinx-rtd-theme-common python3-scipy python3-matplotlib python3-lxml".split(), NO_COMMAND),
    **dict.fromkeys("python3-dateutil python3-pil python3-jinja2 python3-pyqt5 python3-packaging python3-click python3-dbus".split(), NO_COMMAND),
    **dict.fromkeys("python3-typing-extensions python3-cryptography python3-oslo.utils python3-pandas python3-importlib-metadata python3-tz".split(), NO_COMMAND),
    "python3-pbr": NO_TEXT,
    "python3-django": SERVER,
    "tryton-server": SERVER,
    "ruby-rack": SERVER,
    "ruby-railties": NO_TEXT,
    **dict.fromkeys("ruby-json ruby-activerecord ruby-addressable".split(), NO_COMMAND),
    "hunspell-en-us": NO_COMMAND,
    "docbook-xml": NO_COMMAND,
    "pandoc": f"{FEW} (a page: 354)",
    "xml-core": NO_TEXT,
    "docbook-xsl": NO_COMMAND,
    "gv": DISPLAY,
    "xpdf": DISPLAY,
    "foomatic-filters": "asks a printer",
    "bzip2": f"{FEW} (4 MB of text: 13)",
    "wget": SERVER,
    "chromium": DISPLAY,
    "libluajit2-5.1-2": NO_COMMAND,
    "gap": f"an allocator of its own; {FEW} (60,000 elements into lists: 1,472)",
    **dict.fromkeys("libnamespace-clean-perl liblist-moreutils-perl libdatetime-perl libhtml-parser-perl libxml-libxml-perl".split(), NO_COMMAND),
    **dict.fromkeys("libclass-accessor-perl libhttp-message-perl libmodule-runtime-perl libcgi-pm-perl libtype-tiny-perl".split(), NO_COMMAND),
    **dict.fromkeys("ruby-multi-json ruby-actionpack ruby-ffi ruby-faraday ruby-concurrent".split(), NO_COMMAND),
    "ienglish-common": NO_COMMAND,
    "unzip": "reads archives, no text",
    "fcitx-table": NO_COMMAND,
    "fuse": NO_TEXT,
    "subversion": f"{FEW} in a second (svndumpfilter on 8,000 revisions: 16,216; svnadmin load of 200 files: 1,760)",
    "konqueror": DISPLAY,
    "uwsgi-plugin-python3": SERVER,
    "uwsgi-core": SERVER,
    "w3m": f"an allocator of its own; {FEW} (6,000 links: 244)",
}


def settings(command):
    """The environment of a plain run, as `try` makes it: CPython that is tried itself leaves its own allocator; what only starts it, or has it inside, does not."""
    return {**os.environ, **({"PYTHONMALLOC": "malloc"} if _is_python(*map(str, command)) else {})}


@functools.cache
def _is_python(*command):
    return targets.resolve_for_preload(list(command), inside=True)[0].is_python


def name_of(program):
    """How the tables call it."""
    return program.package.removesuffix(".cc").removesuffix(".c")


SETS = {"open": PROGRAMS[::2], "sealed": PROGRAMS[1::2], "third": THIRD, "fourth": FOURTH}
ALL = [*PROGRAMS, *THIRD, *FOURTH]


def walk(order, programs=tuple(ALL), fallen=FALLEN):
    """Of each section (package, how many want it, its fate) down to the fourth chosen one; a fate of None breaks the rule."""
    for section, packages in order.items():
        wanted = {p.package for p in programs if p.section == section}
        found = 0
        for package, number in packages:
            if found == CHOSEN_EACH or number < WANTED_MIN:
                break
            found += package in wanted
            yield section, package, number, "chosen" if package in wanted else fallen.get(package)


def print_rule():
    """The walk through Debian's sections; whether all of it has a reason."""
    text = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    complete, seen = True, set()
    for section, package, number, fate in walk(prediction_rule.ranked(text)):
        if section not in seen:
            print(section)
        seen.add(section)
        print(f"  {package:28}{number:6}  {fate or '?'}")
        complete = complete and fate is not None
    return complete


def apt_line():
    """What installs the programs; recommended packages change nothing here."""
    packages = {p.package for p in ALL if p.section != "ours"}.union(*(p.packages for p in ALL))
    return "apt-get install --no-install-recommends " + " ".join(sorted(packages - {"gnuplot"}))


def compiled(folder, program):
    """One of our own sources, compiled."""
    path = folder / name_of(program)
    if not path.exists():
        driver = "c++" if program.package.endswith(".cc") else "cc"
        source = ROOT / "test" / "tool" / "programs" / program.package
        subprocess.run([driver, "-O2", "-g", str(source), "-o", str(path)], check=True)


def ready(program, folder):
    """Its files written: the command's words, standard input's path or None, the command before each run or None."""
    folder.mkdir(parents=True, exist_ok=True)
    prediction_inputs.write(folder, program.files)
    if program.section == "ours":
        compiled(folder, program)
    words = [word.format(folder=folder) for word in program.command.split(" ")]
    source = folder / program.source if program.source else None
    return words, source, program.prepare and program.prepare.format(folder=folder)


def counted(program, folder):
    """Calls of malloc's family in one recorded run, and CPU seconds of a plain one."""
    words, source, prepare = ready(program, folder)
    figures = []
    with tempfile.TemporaryDirectory() as traces:
        trace = f"{traces}/t.qtr"
        record = [sys.executable, str(TOOL), "record", "-o", trace, "--", *words]
        for command in (words, record):
            if prepare:
                subprocess.run(["/bin/sh", "-c", prepare], check=True)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            with open(source or os.devnull, "rb") as stdin:
                env = {**settings(words), "QUIRE_BUILD_DIR": str(BUILD)}
                subprocess.run(command, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            figures.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        facts = [r.facts for r in tracefile.analyse_family(trace, traces)]
    return sum(f["allocations"] + f["reallocs"] for f in facts), figures[0]


def print_counts(folder, programs):
    """One line a program; whether all are within the rule, our own aside."""
    complete = True
    for program in programs:
        calls, seconds = counted(program, folder)
        within = program.section == "ours" or calls > CALLS_MIN and SECONDS_MIN <= seconds <= SECONDS_MAX
        print(f"{name_of(program):16}{calls:12,} calls {seconds:8.3f} s {'' if within else '  not by the rule'}", flush=True)
        complete = complete and within
    return complete


def main():
    """See the top."""
    parser = argparse.ArgumentParser(description="the programs of doc/prediction.md")
    parser.add_argument("--apt", action="store_true", help="print the line that installs them")
    parser.add_argument("--count", action="store_true", help="run and record each once, and count")
    parser.add_argument("--only", choices=SETS, help="with --count: this set")
    parser.add_argument("--folder", type=pathlib.Path, default=FOLDER, help="where inputs are written")
    args = parser.parse_args()
    if args.apt:
        print(apt_line())
        return 0
    return 0 if (print_counts(args.folder.resolve(), SETS.get(args.only, ALL)) if args.count else print_rule()) else 1


if __name__ == "__main__":
    sys.exit(main())
