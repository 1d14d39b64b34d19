from __future__ import annotations

import os
from pathlib import Path

import pytest

from luthier.cli.completion import index as caches


def test_the_folder_is_the_user_s(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert Path(caches.folder()) == tmp_path / ".cache" / "luthier" / "completion"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert Path(caches.folder()) == tmp_path / ".cache" / "luthier" / "completion"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert Path(caches.folder()) == tmp_path / "elsewhere" / "luthier" / "completion"


def test_what_is_written_is_read(cache):
    assert caches.read("a") == ""
    caches.write("a", "text\r\n")
    assert caches.read("a") == "text\r\n"
    assert [path.name for path in cache.iterdir()] == ["a"]


def test_a_write_is_whole_or_nothing(cache, monkeypatch):
    caches.write("a", "before")
    monkeypatch.setattr(os, "replace", _fails)
    caches.write("a", "after")
    assert caches.read("a") == "before"


def _fails(*_):
    raise OSError("no space left")


def test_a_cache_that_cannot_be_written_is_no_error(cache):
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder would be")
    caches.write("a", "text")
    assert caches.read("a") == ""
    assert not caches.claim("a")


def test_one_process_makes_a_file(cache):
    assert caches.claim("a")
    assert not caches.claim("a")
    assert caches.claim("b")
    caches.release("a")
    assert caches.claim("a")


def test_the_claim_of_a_process_that_was_killed_runs_out(cache):
    assert caches.claim("a")
    os.utime(cache / "a.claim", (0, 0))
    assert caches.claim("a")
    assert not caches.claim("a")


def test_fingerprints_follow_the_content(tmp_path):
    file = tmp_path / "a"
    file.write_text("one")
    first = caches.fingerprints([str(file), "not there"])
    assert first["not there"] == ""
    file.write_text("two")
    assert caches.fingerprints([str(file)]) != {str(file): first[str(file)]}


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\x80"])
def test_what_is_no_text_is_as_if_not_there(cache, content):
    caches.write("a", "")
    (cache / "a").write_bytes(content)
    assert caches.read("a") == ""
