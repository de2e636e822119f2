# SPDX-License-Identifier: MIT
"""test_documents - what the documents point at exists, and what they tell a newcomer to type is
there to be typed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import readme

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "doc/**/*.md", "bench/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "template.md"
)


def text_of(root, name):
    return (root / name).read_text(encoding="utf-8")


def prose_of(text):
    """A document without its code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def anchors_of(text):
    """What the headings of a document are called in links."""
    headings = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_of_a_document_leads_to_a_file_and_its_heading(root, name):
    text = text_of(root, name)
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(text)):
        path, _, anchor = target.partition("#")
        file = (root / name).parent / path if path else root / name
        if "://" in target:
            continue
        if not file.exists() or (anchor and anchor not in anchors_of(file.read_text(encoding="utf-8"))):
            wrong.append(target)
    assert wrong == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_file_that_a_document_names_exists(root, name):
    folders = r"(?:doc|src|include|tools|test|bench|examples|scripts|cmake|packaging|fuzz)"
    named = re.findall(rf"`({folders}/[\w./-]+\.\w+|{folders}/(?:[\w-]+/)*)`", text_of(root, name))
    assert [path for path in named if "noun" not in path and not (root / path).exists()] == []


def test_the_documents_are_a_site_without_a_warning_that_fetches_nothing(root, tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", tmp_path / "site"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    pages = list((tmp_path / "site").rglob("*.html"))
    manual = {page.stem for page in pages if page.parent.name == "manual"} - {"index"}
    assert manual == {source.stem for source in (root / "doc" / "man").glob("*.scd")}
    shown = (tmp_path / "site" / "manual" / "quire-run.1.html").read_text(encoding="utf-8")
    assert "<dt><b>--fail-on</b> <i>COND</i></dt>" in shown
    assert '<a href="quire-conf.7.html"><b>quire-conf</b>(7)</a>' in shown
    fetched = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"(?:https?:)?//(?!localhost)[^\"]*\"")
    canonical = 'rel="canonical"'
    for page in pages:
        found = [tag for tag in fetched.findall(page.read_text(encoding="utf-8")) if canonical not in tag]
        assert found == [], page.name


def test_every_decision_stands_in_the_list_of_decisions(root):
    listed = re.findall(r"^- (\d+)\. \[([^\]]+)\]\((\S+)\)$", text_of(root, "doc/adr/index.md"), re.MULTILINE)
    kept = [path.name for path in sorted((root / "doc/adr").glob("0*.md"))]
    assert [file for _, _, file in listed] == kept
    for number, title, file in listed:
        assert text_of(root, f"doc/adr/{file}").startswith(f"# {number}. {title}\n")


def test_the_list_of_documents_has_every_document(root):
    index = text_of(root, "doc/index.md") + text_of(root, "mkdocs.yml")
    assert [path.name for path in (root / "doc").glob("*.md") if path.name not in index] == []


def test_the_readme_opens_with_the_question_and_the_command_that_answers_it(root):
    lines = text_of(root, "README.md").splitlines()
    assert lines[0] == "# Quire" and lines[2].startswith("**Would another memory allocator help your program?**")
    assert lines[5].startswith("./quire try -- yourprogram args")


def test_the_readme_explains_the_words_of_its_sample(root):
    text = text_of(root, "README.md")
    sample = readme.SAMPLE.search(text).group()
    explained = re.findall(r"\*([^*\n]+)\*", text.split("What these words mean:")[1].split("\n\n")[1])
    assert readme.VERDICT.search(sample)[1] in explained, "python3 scripts/readme.py --run writes both"
    words = {"CPU time", "wall time", "peak memory", "saves", "drop-in", "advice carried out", "advice in the code", "rounds", "pace", "call site", "live at peak", "arena 0", "wrapper", "inlined"}
    assert words <= set(explained) and [word for word in words if word not in sample] == []
    assert readme.LEFT_OUT.strip() not in sample and sample.count("\n") < 40


def test_the_verdict_of_the_readmes_sample_is_of_its_best_row_that_was_judged(root):
    sample = readme.SAMPLE.search(text_of(root, "README.md")).group()
    left_out = re.search(r"as many rounds of (.*?): .* the verdict does not hang on them", sample)
    rows = re.findall(r"^  (\S.*?)  +[\d.]+ m?s  +([-\d.]+) % \(.*\)  .* (\S+)$", sample, re.MULTILINE)
    savings = {name: float(saves) for name, saves, last in rows if last != "modelled" and name not in (left_out[1].split(", ") if left_out else [])}
    saver = re.search(r"is saved by (?:the )?(advice carried out|\S+)", sample)[1]
    assert len(savings) > 1 and saver == max(savings, key=savings.get)


def test_the_readme_has_a_line_for_each_of_the_four_allocators(root):
    rows = re.findall(r"^\| [^|]+ \| \*\*(\w+)\*\*", text_of(root, "README.md"), re.MULTILINE)
    assert rows == ["arena", "slab", "percpu", "heap"]


def test_every_command_of_the_tool_is_in_the_readme_and_no_other(root):
    table = text_of(root, "README.md").split("| command | does |")[1].split("\n\n")[0]
    named = set()
    for row in table.splitlines():
        if cell := re.match(r"\| (`\./quire .*?) \|", row):
            named |= {word.split()[0] for word in re.findall(r"`(?:\./quire )?([a-z][\w-]*)[^`]*`", cell.group(1))}
    assert named - {"test"} == {path.stem[4:] for path in (root / "tools" / "quire").glob("cmd_*.py")}


def test_the_readmes_measurement_is_that_of_the_saved_run(root):
    text = text_of(root, "README.md")
    fresh = readme.replaced(readme.MEASUREMENT, text, readme.measurement(readme.saved()))
    assert text == fresh, "python3 scripts/readme.py writes it again"


# What the README's pieces of code take for granted.
GIVEN = """
struct node { struct node *next; };
struct quire_counter requests;
struct quire_histogram times_ns;
"""


def test_the_readmes_code_compiles(root, tmp_path):
    pieces = re.findall(r"^```c\n(.*?)^```", text_of(root, "README.md"), re.DOTALL | re.MULTILINE)
    includes = {line for piece in pieces for line in piece.splitlines() if line.startswith("#include")}
    bodies = ["\n".join(line for line in piece.splitlines() if line not in includes) for piece in pieces]
    functions = [f"void piece{n}(uint64_t ns)\n{{\n(void)ns;\n{body}\n}}" for n, body in enumerate(bodies)]
    source = tmp_path / "readme.c"
    source.write_text("\n".join(["#include <stdio.h>", *sorted(includes), GIVEN, *functions]))
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-variable", "-fsyntax-only"]
    done = subprocess.run([*command, f"-I{root / 'include'}", source], capture_output=True, text=True)
    assert (done.returncode, done.stderr, len(pieces) >= 5) == (0, "", True)


def test_every_script_that_contributors_are_told_of_exists_and_none_is_left_out(root):
    told = set(re.findall(r"scripts/(check_\w+\.py)", text_of(root, "CONTRIBUTING.md")))
    assert told == {path.name for path in (root / "scripts").glob("check_*.py")}


def test_continuous_integration_runs_quire_test_and_nothing_else(root):
    commands = [
        line for line in text_of(root, ".ci/run").splitlines() if line and not line.startswith("#")
    ]
    assert commands[-1] == "exec ./quire test </dev/null"


@pytest.mark.long
def test_the_readmes_big_json_is_five_megabytes_and_the_same_each_time(root):
    command = [sys.executable, root / "examples" / "big_json.py"]
    first, second = (
        subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2)
    )
    assert first == second
    assert 4_500_000 < len(first) < 5_500_000


def test_the_changelog_names_the_released_version_or_unreleased(root):
    version = re.search(r"project\(quire VERSION ([\d.]+)", text_of(root, "CMakeLists.txt")).group(
        1
    )
    headings = re.findall(r"^## \[([^\]]+)\]", text_of(root, "CHANGELOG.md"), re.MULTILINE)
    assert headings[0] in ("Unreleased", version)
