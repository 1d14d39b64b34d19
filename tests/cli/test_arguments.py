from __future__ import annotations

import argparse

import pytest

from luthier import cli
from luthier.errors import BadInput, Problem


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="luthier train")
    parser.add_argument("reference", nargs="?")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--devices")
    parser.add_argument("--seed", type=cli.whole)
    parser.add_argument("--new", action="store_true")
    return parser


def test_options_stand_anywhere():
    words = ["--new", "configs.a", "x=1", "--devices", "cpu:8", "y=2", "--seed", "3", "z~"]
    parsed, problems = _parser().parse(words)
    assert parsed.reference == "configs.a"
    assert parsed.overrides == ["x=1", "y=2", "z~"]
    assert (parsed.devices, parsed.seed, parsed.new) == ("cpu:8", 3, True)
    assert not problems


def test_values_may_begin_with_a_dash_or_hold_anything():
    parsed, problems = _parser().parse(["a", "x=-1", "y=[1, -2]", "z=--new", "w= a b"])
    assert parsed.overrides == ["x=-1", "y=[1, -2]", "z=--new", "w= a b"]
    assert not problems


def test_unknown_options_are_problems_with_the_nearest_name():
    parsed, problems = _parser().parse(["a", "--devcies", "cpu:8", "x=1", "--nwe", "--seeds=3"])
    assert parsed.overrides == ["x=1"], "the value of a misspelt option is not an override"
    assert [problem.what for problem in problems] == [
        "unknown option '--devcies'",
        "unknown option '--nwe'",
        "unknown option '--seeds'",
    ]
    assert [problem.nearest[0] for problem in problems] == ["--devices", "--new", "--seed"]


def test_options_are_not_abbreviated():
    _, problems = _parser().parse(["a", "--dev", "cpu:8"])
    assert problems


def test_two_dashes_end_the_options():
    parsed, problems = _parser().parse(["a", "--", "--unknown=1"])
    assert parsed.overrides == ["--unknown=1"]
    assert not problems


@pytest.mark.parametrize("words", [["--devices"], ["--seed", "x"], ["--seed", "-1"], ["--new=1"]])
def test_errors_raise_bad_input(words):
    with pytest.raises(BadInput) as caught:
        _parser().parse(["a", *words])
    assert words[0].split("=")[0] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_that_were_taken_out_before_are_suggested():
    parser = _parser()
    assert parser.takes("overrides")
    assert not parser.takes("run")
    _, problems = parser.parse(["a", "--fdl_sett", "x=1", "y=2"], ["--fdl_set"])
    assert [problem.nearest for problem in problems] == [["--fdl_set"]]


@pytest.mark.parametrize(
    ("read", "text", "number"),
    [
        (cli.whole, "0", 0),
        (cli.positive, "7", 7),
        (cli.number_within(0, 1), "0", 0.0),
        (cli.number_within(0, 1, above=True), "1", 1.0),
    ],
)
def test_numbers(read, text, number):
    assert read(text) == number


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (cli.whole, "-1"),
        (cli.whole, "1.5"),
        (cli.positive, "0"),
        (cli.number_within(0, 1), "nan"),
        (cli.number_within(0, 1), "2"),
        (cli.number_within(0, 1), "one"),
        (cli.number_within(0, 1, above=True), "0"),
    ],
)
def test_numbers_out_of_range(read, text):
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        read(text)


def test_problems_are_collected_and_raised_once():
    problems = cli.Problems([Problem("first")])
    with problems.collected():
        raise BadInput([Problem("second"), Problem("third")])
    problems.add("fourth", remedy="do this")
    with pytest.raises(BadInput) as caught:
        problems.raise_any()
    assert [p.what for p in caught.value.problems] == ["first", "second", "third", "fourth"]


def test_no_problems_raise_nothing():
    problems = cli.Problems()
    with problems.collected():
        pass
    problems.raise_any()
