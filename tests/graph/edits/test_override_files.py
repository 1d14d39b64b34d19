from __future__ import annotations

import pytest

from luthier.errors import OverrideError
from luthier.graph import read_overrides


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("steps=5", "steps=5"),
        ("  steps=5\t", "steps=5"),
        ("", ""),
        ("# a comment", ""),
        ("#", ""),
        ("#! /usr/bin", ""),
        ("#Rate=1", "#Rate=1"),
        ("# Rate=1", ""),
        ("steps=5 # few", "steps=5"),
        ("steps=5  #", "steps=5"),
        ("steps=5 #few", "steps=5 #few"),
        ("name=a#b", "name=a#b"),
        ("name='a # b' # c", "name='a # b'"),
        ('any:x="# y"', 'any:x="# y"'),
        ("name=it's # c", "name=it's"),
        ("e['a # b']=1 # c", "e['a # b']=1"),
    ],
)
def test_comments(line, word, tmp_path):
    (tmp_path / "a.txt").write_text(f"{line}\n")
    assert [text for text, _ in read_overrides(str(tmp_path / "a.txt"))] == [word] * bool(word)


def test_overrides_have_their_file_and_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfx=1\r\n\r\n# no\r\nfile:in/b.txt\r\ny=2\r\n")
    (tmp_path / "in" / "b.txt").write_text("file:c.txt\n")
    (tmp_path / "in" / "c.txt").write_text("\nz=3 # c\n")
    assert list(read_overrides("a.txt")) == [
        ("x=1", "a.txt:1"),
        ("z=3", "in/c.txt:2"),
        ("y=2", "a.txt:5"),
    ]


def test_one_file_may_be_read_twice(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("file:b.txt\nfile:b.txt\n")
    (tmp_path / "b.txt").write_text("x+=1\n")
    assert [word for word, _ in read_overrides("a.txt")] == ["x+=1", "x+=1"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({}, "cannot read the file 'a.txt': No such file or directory"),
        ({"a.txt": b"\xff"}, "cannot read the file 'a.txt': it is not text in UTF-8"),
        ({"a.txt": b"file:a.txt"}, "the file a.txt contains itself [set by a.txt:1: file:a.txt]"),
        (
            {"a.txt": b"\nfile:b.txt"},
            "cannot read the file 'b.txt': No such file or directory [set by a.txt:2: file:b.txt]",
        ),
    ],
)
def test_what_cannot_be_read(tmp_path, monkeypatch, texts, message):
    monkeypatch.chdir(tmp_path)
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text)
    with pytest.raises(OverrideError) as caught:
        list(read_overrides("a.txt"))
    assert str(caught.value) == message


def test_names_that_no_file_can_have():
    with pytest.raises(OverrideError) as caught:
        list(read_overrides("a\0b"))
    assert str(caught.value) == "cannot read the file 'a\\x00b': no file can have this name"
