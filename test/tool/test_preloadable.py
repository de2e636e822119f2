# SPDX-License-Identifier: MIT
"""test_preloadable - our libraries are preloaded from wherever they are installed, also where ld.so would split the name."""

import pytest
from toolkit import BUILD, quire

import native


@pytest.fixture
def built(tmp_path):
    place = tmp_path / "a place:of ours"
    place.symlink_to(BUILD)
    return {"QUIRE_BUILD_DIR": str(place)}


@pytest.mark.parametrize("words", [("check",), ("run",), ("record", "-o", "t.qtr")], ids=lambda words: words[0])
def test_a_folder_with_spaces_and_colons_in_its_name_does(tmp_path, built, words):
    done = quire(tmp_path, *words, "--", "/bin/ls", "/", environment=built)
    assert done.returncode == 0 and "cannot be preloaded" not in done.stderr, done.stderr
    if words[0] == "record":
        assert (tmp_path / "t.qtr").stat().st_size > 10000


def test_a_name_that_ld_so_takes_is_as_it_is():
    assert native.preloadable("/usr/lib/libquire-malloc.so") == "/usr/lib/libquire-malloc.so"


def test_a_link_is_one_that_nobody_else_can_change(tmp_path, monkeypatch):
    folder = tmp_path / "a b"
    folder.mkdir()
    own = tmp_path / "own"
    assert native._links_to(str(own), str(folder)) and native._links_to(str(own), str(folder))
    assert not native._links_to(str(own), str(tmp_path / "another"))
    own.chmod(0o777)
    assert not native._links_to(str(own), str(folder))
    (tmp_path / "link").symlink_to(own)
    assert not native._links_to(str(tmp_path / "link"), str(folder))
