from __future__ import annotations

import pytest

from luthier.errors import LuthierError, Problem
from luthier.graph.grammar import Unreadable, pair, parse_statement


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=1", ("path", "a.b", "=", "1")),
        (" a.b = x y ", ("path", "a.b", "=", "x y")),
        ("a:=f(b=1)", ("path", "a", ":=", "f(b=1)")),
        ("a+=1", ("path", "a", "+=", "1")),
        ("a-=1", ("path", "a", "-=", "1")),
        ("a*=.5", ("path", "a", "*=", ".5")),
        ("a==b", ("path", "a", "=", "=b")),
        ("a~", ("path", "a", "~", "")),
        ("~a", ("path", "a", "~", "")),
        ("reset:a.b", ("path", "a.b", "~", "")),
        ("reset:any:a", ("any", "a", "~", "")),
        ("--fdl.a.b=1", ("path", "a.b", "=", "1")),
        ("any:dropout=0", ("any", "dropout", "=", "0")),
        ("**.dropout=0", ("any", "dropout", "=", "0")),
        ("a.**.b=0", ("glob", "a.**.b", "=", "0")),
        ("a[*].b=0", ("glob", "a[*].b", "=", "0")),
        ("a.*=0", ("glob", "a.*", "=", "0")),
        ("a.b* =2", ("glob", "a.b*", "=", "2")),
        ("a.*.b*=2", ("glob", "a.*.b", "*=", "2")),
        ("class:Mlp.hidden=5", ("class", "Mlp.hidden", "=", "5")),
        ("@Mlp.hidden+=5", ("class", "Mlp.hidden", "+=", "5")),
        ("tag:Rate=5", ("tag", "Rate", "=", "5")),
        ("#Rate*=5", ("tag", "Rate", "*=", "5")),
        ("a['x=y'].b=3", ("path", "a['x=y'].b", "=", "3")),
        ('a["]="]=3', ("path", 'a["]="]', "=", "3")),
        ("a=b=c", ("path", "a", "=", "b=c")),
        ("a=''", ("path", "a", "=", "''")),
    ],
)
def test_statements(text, expected):
    found = parse_statement(text)
    assert (found.selector, found.target, found.operator, found.text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abc", "expected PATH=VALUE (or :=, +=, -=, *=, reset:PATH, fiddler:NAME), got 'abc'"),
        ("", "got ''"),
        ("=3", "got '=3'; the path is missing"),
        ("any: =3", "the path is missing"),
        ("~", "the path is missing"),
        (
            "a=",
            "'a=' has no value; write reset:a to reset it, a=None for nothing, a='' for no text",
        ),
        ("a+=", "'a+=' has no value"),
        ("--fdl.", "got '--fdl.'"),
        ("gin_file:", "'gin_file:' has nothing after the colon"),
        ("config_dict_rename:", "'config_dict_rename:' has nothing after the colon"),
    ],
)
def test_what_is_no_statement(text, message):
    with pytest.raises(Unreadable) as caught:
        parse_statement(text)
    assert message in str(caught.value)


def test_pairs_are_about_what_words_are_about():
    made = pair("tag:Rate", [1])
    assert (made.selector, made.target, made.value, made.has_value) == ("tag", "Rate", [1], True)
    assert pair("a.b", None).selector == "path"
    assert pair("", None) == pair("", None)
    with pytest.raises(Unreadable, match="the path is missing"):
        pair("any:", 1)


def test_it_carries_a_problem():
    assert Unreadable("wrong").problem == Problem("wrong")
    assert str(Unreadable(Problem("wrong", path="a"))) == "a: wrong"
    assert not issubclass(Unreadable, LuthierError)  # `apply` and `resolve` turn it into one
