# SPDX-License-Identifier: MIT
"""
prediction_inputs_more.py - the texts that the fourth program of each section reads: one writer a file, as in prediction_inputs.py, which writes them.
"""

from prediction_words import word, words


def mangled(draw):
    """Names of C++ functions as a linker has them."""
    for _ in range(150000):
        space, name, kind = (f"{len(part)}{part}" for part in (word(draw), word(draw), word(draw)))
        yield f"_ZN{space}{name}E{draw.choice('ijl')}PKcSt6vectorI{kind}SaIS3_EE"


def ipe(draw):
    """A drawing of Ipe's: paths of lines and curves."""
    yield '<?xml version="1.0"?>\n<!DOCTYPE ipe SYSTEM "ipe.dtd">\n<ipe version="70218" creator="words">\n<page>\n<layer name="alpha"/>\n<view layers="alpha" active="alpha"/>'
    for _ in range(15000):
        at = [f"{draw.randrange(600)} {draw.randrange(800)}" for _ in range(5)]
        yield f'<path layer="alpha" stroke="0 0 {draw.random():.2f}" fill="{draw.random():.2f} 0 1">\n{at[0]} m\n{at[1]} l\n{" ".join(at[2:])} c\nh\n</path>'
    yield "</page>\n</ipe>"


def m4(draw):
    """Macros that are defined and used."""
    for number in range(45000):
        yield f"define(`m{number}', `ifelse(eval($1 % 3), 0, `translit(`$2', `a-z', `A-Z')', `len(`{words(draw, 2)}')')')dnl"
        yield f"m{number}({draw.randrange(99)}, {word(draw)}) m{draw.randrange(number + 1)}({number}, {word(draw)}) substr(`{words(draw, 3)}', 2, 9)"


def pdl(_):
    """Small arrays of PDL, made, cut and summed."""
    yield "use PDL;\nmy $total = 0;\nfor my $i (1 .. 3000) {\n  my $x = sequence(8) * $i + 1;"
    yield "  $total += ($x->slice('2:5') ** 2)->sum + $x->maximum->sclr;\n}\nprint \"$total\\n\";"


def template(draw):
    """A page of the Template Toolkit: blocks, loops and conditions."""
    yield "[% BLOCK line %]<tr><td>[% name | html %]</td><td>[% number * 2 %]</td></tr>[% END %]"
    for number in range(250):
        yield f"[% name_{number} = '{words(draw, 2)}' %]<h2>[% name_{number} %], {words(draw, 3)}</h2>"
        yield f"[% FOREACH n IN [1, 2, 3, 4, 5] %][% IF n > {draw.randrange(5)} %]{word(draw)} [% INCLUDE line name = '{words(draw, 2)}' number = n %][% END %][% END %]"


def options(draw):
    """What oslo.config's generator tells of a program's options, as YAML."""
    yield "deprecated_options: {}\ngenerator_options: {}\noptions:\n  DEFAULT:\n    driver_option: ''\n    driver_opts: {}\n    dynamic_group_owner: ''\n    help: ''\n    opts:"
    for number in range(90):
        yield f"    - name: option_{number}\n      dest: option_{number}\n      default: {draw.randrange(999)}\n      type: integer\n      help: {words(draw, 8)}"


def configuration(draw):
    """A file that sets them."""
    yield "[DEFAULT]"
    for number in range(90):
        yield f"# {words(draw, 6)}\noption_{number} = {draw.randrange(999)}"


def rake(draw):
    """Tasks that need others."""
    yield "by = Hash.new { |h, k| h[k] = [] }"
    for number in range(4000):
        needs = ", ".join(f":t{draw.randrange(number)}" for _ in range(min(number, 3)))
        yield f"task t{number}: [{needs}] do\n  by['{word(draw, 2)}'] << '{words(draw, 2)}'.upcase\nend"
    yield "task default: :t3999 do\n  puts by.values.flatten.size\nend"


def dna(draw, number=2400):
    """Sequences of DNA, in FASTA's form."""
    for one in range(number):
        yield f">s{one} {words(draw, 3)}\n" + "\n".join("".join(draw.choices("ACGT", k=70)) for _ in range(6))


def few_dna(draw):
    """A few that are looked for in them."""
    yield from dna(draw, 80)


def texinfo(draw):
    """A manual in chapters, with lists and an index."""
    yield "\\input texinfo\n@settitle Thing\n@node Top\n@top Thing\n@menu\n" + "\n".join(f"* Part {n}::" for n in range(60)) + "\n@end menu"
    for number in range(60):
        yield f"@node Part {number}\n@chapter {words(draw, 3)}\n@cindex {word(draw)}\n{words(draw, 60)} @code{{{word(draw)}}} and @emph{{{words(draw, 2)}}}.\n"
        yield f"@itemize\n@item {words(draw, 9)}\n@item {words(draw, 5)}\n@end itemize"
    yield "@node Index\n@unnumbered Index\n@printindex cp\n@bye"


def pdf(draw):
    """Pages of lines, in PDF as plain text."""
    pages = range(300)
    parts = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Count {len(pages)} /Kids [{' '.join(f'{4 + 2 * n} 0 R' for n in pages)}] >>"]
    parts.append("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for page in pages:
        text = "BT /F 9 Tf 12 TL 20 780 Td\n" + "\n".join(f"({words(draw, 9)}) Tj T*" for _ in range(60)) + "\nET"
        parts.append(f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Resources << /Font << /F 3 0 R >> >> /Contents {5 + 2 * page} 0 R >>")
        parts.append(f"<< /Length {len(text)} >>\nstream\n{text}\nendstream")
    yield "%PDF-1.4"
    places, place = [], len("%PDF-1.4\n")
    for number, part in enumerate(parts, 1):
        whole = f"{number} 0 obj\n{part}\nendobj"
        places.append(f"{place:010} 00000 n ")
        place += len(whole) + 1
        yield whole
    yield f"xref\n0 {len(parts) + 1}\n0000000000 65535 f \n" + "\n".join(places)
    yield f"trailer\n<< /Size {len(parts) + 1} /Root 1 0 R >>\nstartxref\n{place}\n%%EOF"


def rcs(draw):
    """Files with their history, as CVS keeps them, as one text."""
    for number in range(400):
        yield f"=== {word(draw)}{number}.txt,v\nhead\t1.40;\naccess;\nsymbols\n\tR{number}:1.7;\nlocks; strict;\ncomment\t@# @;\n"
        for old in range(40, 0, -1):
            yield f"1.{old}\ndate\t2020.01.{old % 28 + 1:02}.01.02.03;\tauthor {word(draw)};\tstate Exp;\nbranches;\nnext\t{f'1.{old - 1}' if old > 1 else ''};\n"
        yield "\ndesc\n@@\n"
        for old in range(40, 0, -1):
            text = "\n".join(words(draw, 5) for _ in range(30)) if old == 40 else f"d{draw.randint(1, 9)} 1\na{draw.randint(12, 19)} 1\n{words(draw, 5)}"
            yield f"\n1.{old}\nlog\n@{words(draw, 5)}\n@\ntext\n@{text}\n@\n"


def pages(draw):
    """A site's pages in Markdown, as one text."""
    for number in range(3):
        yield f"=== {word(draw)}{number}.md\n---\ntitle: {words(draw, 2)}\n---\n# {{{{ page.title }}}}\n"
        for _ in range(4):
            yield f"## {words(draw, 3)}\n\n{words(draw, 30)} [{word(draw)}](/{word(draw)}) and *{word(draw)}*.\n\n- {words(draw, 4)}\n- {word(draw)}\n"


WRITERS = {
    "mangled.txt": mangled,
    "drawing.ipe": ipe,
    "macros.m4": m4,
    "arrays.pdl": pdl,
    "page.tt": template,
    "options.yaml": options,
    "options.conf": configuration,
    "tasks.rake": rake,
    "dna.fa": dna,
    "few.fa": few_dna,
    "manual.texi": texinfo,
    "pages.pdf": pdf,
    "ledger/": rcs,
    "site/": pages,
}
