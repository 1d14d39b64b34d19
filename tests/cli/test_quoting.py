from __future__ import annotations

import pytest

from luthier.cli import HINT, with_hints
from luthier.errors import Problem

# What arrives, and what was typed.
DAMAGED = [
    ["a.b=.dim*4"],  # a.b=$model.dim*4
    ["seed="],  # seed=$steps, seed=&steps
    ["seed=*2"],  # seed=$steps*2
    ["seed=+1)"],  # seed=($steps+1)
    ["a=ref:"],  # a=ref:$b
    ["steps=5", "b"],  # steps=5 b
    ["x=[1,", "2]"],  # x=[1, 2]
    ["x={a:", "1}"],  # x={a: 1}
    ["x=a:1", "x=b:2"],  # x={'a':1,'b':2}
    ["e[long text].n=3"],  # e['long text'].n=3
    ["x=f(1"],
    ["fiddler:widen(2,"],  # fiddler:widen(2, 3)
    ["fiddler:"],  # fiddler:$NAME
    ["file:"],  # file:$NAME
]
WHOLE = [
    ["steps=abc"],
    ["stpes=5"],
    ["steps=.5"],
    ["steps=-5"],
    ["e['long text'].n=3"],
    ["name=it's"],
    ["reset:stpes"],
    ["fiddler:widen(2)"],
    ["any:x=1", "any:y=2"],
    ["a.b=ref:x*4"],
]


@pytest.mark.parametrize("words", DAMAGED, ids=" ".join)
def test_damaged_words_get_the_hint(words):
    problems = [problem(number, word) for number, word in enumerate(words, 1)]
    assert HINT in str(with_hints(problems, words)[-1])
    kept = with_hints([Problem("no", remedy="do this", origin=problems[-1].origin)], words)
    assert kept[0].remedy == f"do this; {HINT}"


@pytest.mark.parametrize("words", WHOLE, ids=" ".join)
def test_whole_words_get_none(words):
    problems = [problem(number, word) for number, word in enumerate(words, 1)]
    assert with_hints(problems, words) == problems


def test_quotes_that_were_eaten():
    problems = Problem("no", origin="argument 1: name=None", remedy="write it in quotes: 'None'")
    assert with_hints([problems], ["name=None"])[0].remedy.endswith(HINT)


def test_other_origins_are_left_alone():
    problems = [Problem("no", origin="sizes.txt:3: a="), Problem("no"), problem(7, "a=")]
    assert with_hints(problems, ["a="]) == problems


def problem(number, word):
    return Problem("wrong", origin=f"argument {number}: {word}")
