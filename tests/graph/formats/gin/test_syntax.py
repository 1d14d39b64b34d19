from __future__ import annotations

import pytest

from luthier.graph.formats.gin.statements import (
    Directive,
    GinReference,
    MacroUse,
    Unit,
    gather,
    read_file,
    read_text,
    read_value,
)


def read(text, **options):
    unit = Unit()
    read_text(unit, text, "a.gin", **options)
    return unit


def errors(unit):
    return [str(problem) for problem in unit.problems]


def test_bindings_macros_blocks_and_imports():
    unit = read(
        "import a.b as c\nfrom d import e\nM = 1\ns/N/macro.value = %M\n\n"
        "x/y.Z.w = @p/q()  # said\nZ:\n  # comment\n  v = [\n   'a']\n"
    )
    assert [(b.target, b.argument, b.value) for b in unit.bindings] == [
        ("M", "", 1),
        ("s/N", "", MacroUse("M")),
        ("x/y.Z", "w", GinReference("p/q", True)),
        ("Z", "v", ["a"]),
    ]
    assert [b.where for b in unit.bindings[2:]] == ["a.gin:6: x/y.Z.w = @p/q()", "a.gin:9: Z.v = ["]
    assert [(i.module, i.is_from, i.alias) for i in unit.imports] == [
        ("a.b", False, "c"),
        ("d.e", True, ""),
    ]
    assert not unit.problems


def test_comments_for_this_reader_are_not_looked_for_in_text():
    unit = read("# luthier: shared M\nM = '''\n# luthier: shared N\n'''\n")
    assert [(d.kind, d.text, d.where) for d in unit.directives] == [
        ("shared", "M", "a.gin:1: # luthier: shared M")
    ]


def test_words_of_the_command_line_are_their_own_origin():
    unit = read("A.b = 1\nA.c = x", is_word=True)
    assert unit.bindings[0].where == "a.gin"
    assert unit.bindings[0].is_word


def test_every_statement_that_cannot_be_read_is_reported():
    assert errors(read("A.b = abc\nA.c = 1\nA.d 3\nA.e = [1\n")) == [
        "cannot read 'abc' as a value of gin [set by a.gin:1: A.b = abc]; text needs quotes",
        "cannot read this as gin: couldn't parse statement, expected ':' or '=' "
        "[set by a.gin:3: A.d 3]",
        "cannot read this as gin: EOF in multi-line statement [set by a.gin:4: A.e = [1]",
    ]


@pytest.mark.parametrize("text", ["A.b = " + "[" * 3000, "{[]: 1}", "A.b = {[]: 1}", "\x00", "'"])
def test_what_the_parser_stumbles_over(text):
    assert read(text).problems


def test_included_files_stand_in_their_place(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "a.gin").write_text("M = 1\ninclude 'in/b.gin'\nM = 3\n")
    (tmp_path / "in" / "b.gin").write_text("M = 2\ninclude 'c.gin'\n")
    (tmp_path / "in" / "c.gin").write_text("N = 2\n")
    unit = Unit()
    read_file(unit, "a.gin", [str(tmp_path)], "here")
    assert [(b.selector, b.value) for b in unit.bindings] == [
        ("M", 1),
        ("M", 2),
        ("N", 2),
        ("M", 3),
    ]
    assert not unit.problems


def test_a_circle_a_missing_file_and_one_that_is_not_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.gin").write_text("include 'b.gin'\ninclude 'no.gin'\ninclude 'bytes.gin'\n")
    (tmp_path / "b.gin").write_text("include 'a.gin'\n")
    (tmp_path / "bytes.gin").write_bytes(b"\xff\xfe\xff")
    unit = Unit()
    read_file(unit, "a.gin", [], "here")
    assert errors(unit) == [
        "the gin file a.gin includes itself [set by b.gin:1: include 'a.gin']",
        f"there is no gin file 'no.gin' in ., {tmp_path} [set by a.gin:2: include 'no.gin']",
        "cannot read bytes.gin: it is not text in UTF-8 [set by a.gin:3: include 'bytes.gin']",
    ]


def test_one_value():
    assert read_value("@a/b()") == GinReference("a/b", True)
    assert str(read_value("[%M]")[0]) == "%M"
    for text in ("@a b", "", "@", "x"):
        with pytest.raises(ValueError):
            read_value(text)


def read_directives(*lines):
    problems = []
    found = gather([Directive(*line.split(" ", 1), "here") for line in lines], problems)
    return found, [str(problem) for problem in problems]


def test_all_of_them():
    found, problems = read_directives(
        "format 1",
        "root @a.B()",
        "partial x/f",
        "factory g",
        "instance P",
        "tag x/f.y p.Tag",
        "shared M",
        'called dim_2 "dim"',
        "called size null",
        'value N {"dtype": "int8"}',
    )
    assert not problems
    assert found.is_export
    assert found.root == (GinReference("a.B", True), "here")
    assert found.kinds == {"x/f": "partial", "g": "factory", "P": "instance"}
    assert found.tags == [("x/f", "y", "p.Tag", "here")]
    assert found.shared == {"M"}
    assert found.called == {"dim_2": "dim", "size": ""}
    assert found.values == {"N": ({"dtype": "int8"}, "here")}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("format 2", "format 2 is not 1, which this luthier reads [set by here]"),
        ("rot @a", "there is no directive 'rot' [set by here]; did you mean root?"),
        ("root 3", "'3' is not a reference; write @Name() [set by here]"),
        ("tag f p.Tag", "a tag directive is `tag scope/Name.argument package.Tag` [set by here]"),
        ("value N {", "'{' is not JSON [set by here]"),
        ("called N 3", "3 is not a name [set by here]"),
    ],
)
def test_what_cannot_be_read(line, message):
    assert read_directives(line)[1] == [message]
