from __future__ import annotations

import pytest

from luthier.cli.completion import candidates


def test_macros_of_a_file_that_includes_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.gin").write_text("include 'a.gin'\nA = 1\n# B = 2\nC.d = 3\n  E = 4\nf/G=5\n")
    assert list(candidates.macros(["a.gin", "absent.gin"])) == ["A", "f/G"]


def test_what_cannot_be_read_has_no_names(tmp_path):
    (tmp_path / "a.gin").write_bytes(b"\xff\xfe=")
    (tmp_path / "a.py").write_text("def get_config(:\n")
    assert list(candidates.macros([str(tmp_path / "a.gin"), str(tmp_path)])) == []
    assert list(candidates.keys(str(tmp_path / "a.py"))) == []
    assert list(candidates.offered(str(tmp_path / "absent" / "x"), (".py",))) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("c.a.b = 1", ["a.b"]),
        ("c = ConfigDict({'a': {'b': 1}, key: 2})", ["a", "a.b"]),
        ("c = cd.ConfigDict(dict(a=dict(b=1)))", ["a", "a.b"]),
        ("c.a = f(b=1)", ["a"]),
        ("c.a = c.b = 1", ["a", "b"]),
        ("f().a = 1; x[0] = 2; c.update(a=1)", []),
        ("c = dict(**other)", []),
    ],
)
def test_keys_that_a_line_sets(line, expected, tmp_path):
    (tmp_path / "a.py").write_text(line)
    assert list(candidates.keys(f"{tmp_path}/a.py:argument")) == expected


def test_hidden_files_come_when_their_dot_is_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (".hidden.gin", "seen.gin", "other.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "__pycache__").mkdir()
    assert [found.word for found in candidates.offered("", (".gin",))] == ["seen.gin"]
    assert [found.word for found in candidates.offered(".h", (".gin",))] == [".hidden.gin"]
