# SPDX-License-Identifier: MIT
"""test_documents - what the documents point at exists, and what they tell a newcomer to type is
there to be typed."""

import re
import subprocess
import sys

import pytest

DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "doc/index.md", "doc/performance.md"]


def text_of(root, name):
    return (root / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_of_a_document_leads_to_a_file(root, name):
    targets = re.findall(r"\]\(([^)#]+)", text_of(root, name))
    inside = [target for target in targets if "://" not in target]
    assert [target for target in inside if not ((root / name).parent / target).exists()] == []


def test_the_readme_opens_with_one_sentence_and_four_allocators(root):
    lines = text_of(root, "README.md").splitlines()
    assert lines[0] == "# Quire"
    table = [line for line in lines[:15] if line.startswith("| ") and "**" in line]
    assert [re.search(r"\*\*(\w+)\*\*", row).group(1) for row in table] == [
        "arena",
        "slab",
        "percpu",
        "heap",
    ]


def test_every_script_that_contributors_are_told_of_exists_and_none_is_left_out(root):
    told = set(re.findall(r"scripts/(check_\w+\.py)", text_of(root, "CONTRIBUTING.md")))
    assert told == {path.name for path in (root / "scripts").glob("check_*.py")}


def test_continuous_integration_runs_quire_test_and_nothing_else(root):
    commands = [
        line for line in text_of(root, ".ci/run").splitlines() if line and not line.startswith("#")
    ]
    assert commands[-1] == "exec ./quire test </dev/null"


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
