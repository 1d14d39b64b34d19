"""Whatever is written, there is a graph or an OverrideError; and order is all that counts."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.resources
import re
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import fiddle as fdl
import pytest
from graph_toys import edited, grammar_cases, parts
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from luthier.errors import OverrideError, UserCodeError
from luthier.graph import apply, equal, evaluate, is_value_node, parse_path, walk
from luthier.graph.grammar import parse_statement

ALLOWED = importlib.resources.files("luthier.graph") / "allowed_names.txt"
LIBRARIES = {
    line.split()[1].partition(".")[0]
    for line in ALLOWED.read_text().splitlines()
    if line and line[0] != "#"
}
PART_TEXTS = """
    steps model layers optimizer b2 learning_rate peak rules sizes parameters embed evaluations
    held_out every count extra name kind data path block out stpes lambda __class__ __init__ self
    [0] [1] [-1] [9] ['long_text'] [*] * **
"""
PARTS = st.sampled_from(PART_TEXTS.split())
PATHS = st.lists(PARTS, max_size=4).map(
    lambda found: ".".join(found).replace(".[", "[").replace("long_text", "long text")
)
PREFIXES = st.sampled_from(
    ["", "", "", "any:", "class:", "tag:", "@", "#", "--fdl.", "reset:", "**.", "~", "fiddler:"]
)
OPERATORS = st.sampled_from(["=", "=", "=", ":=", "+=", "-=", "*=", "~", "", "==", ":"])
VALUE_TEXTS = """
    3 abc 0.5 None true 2,4 [1,2] {a:1} Constant(1) Mlp(hidden=2) $steps $model.dim*2 bf16
    ref:optimizer.b2 alias:model &model.layers[0] $extra partial:Mlp() config:Dense optax.sgd(1)
    jax.nn.gelu ' "x () ( 1/0 2**99 fast Steps(1) $ & alias: ref: ref:1 lambda:0 a.b.c é run:last
    run:last.model @run:last.steps run:x.y @run: widen(2) widen shrink(1) count(*) files:a run:a
    eval('1') exec('1') __import__('os') os.system('false') subprocess.run off_list.thing(1)
    off_list.Thing luthier.cli.main.main(1) numpy.load parts.os.system open('x') 9**9**9
    Mlp.__init__ Mlp.mro() graph_toys.fiddlers.widen [[[[1]]]] -$steps 1if True else{} {**a} f(*a)
"""
VALUES = st.one_of(st.sampled_from(VALUE_TEXTS.split()), st.text(max_size=12))
WRITTEN = st.builds(lambda *drawn: "".join(drawn), PREFIXES, PATHS, OPERATORS, VALUES)
KNOWN = [
    word
    for case in grammar_cases.cases()
    if "flags" not in case
    for word in grammar_cases.words_of(case)
]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A word of the table, cut, doubled or crossed with another one, or with noise in it."""
    word, other = draw(st.sampled_from(KNOWN)), draw(st.sampled_from(KNOWN))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 3]))):
        start = draw(st.integers(0, len(word)))
        end = draw(st.integers(start, len(word)))
        noise = draw(st.text("=:.[](){}'\"*+-~#$&@,_ 09aexé\x00\\", max_size=3))
        middle = draw(st.sampled_from([word[start:end] * 2, "", noise, other[start:end]]))
        word = word[:start] + middle + word[end:]
    return word


WORD = st.one_of(mutated(), WRITTEN, st.text(max_size=20))
MAKERS = ("experiment", "shared", "template", "untyped", "warm")
GRAPHS = {name: getattr(edited, name)() for name in MAKERS}


@dataclasses.dataclass
class Watched:
    """What luthier.graph did while it was watched."""

    imported: set[str] = dataclasses.field(default_factory=set)
    ran: list[str] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def watched() -> Iterator[Watched]:
    """Watch what luthier imports, and whether it runs text as code."""
    seen = Watched()

    def caller() -> str:
        return sys._getframe(2).f_globals.get("__name__", "")

    def running(name, function):
        @functools.wraps(function)
        def run(*given, **named):
            if caller().startswith("luthier."):
                seen.ran.append(f"{name} in {caller()}")
            return function(*given, **named)

        return run

    real_import, real_import_module = __import__, importlib.import_module

    def import_statement(name, *given, **named):
        if caller().startswith("luthier.graph"):
            seen.imported.add(name.split(".")[0])
        return real_import(name, *given, **named)

    def import_module(name, package=None):
        if caller().startswith("luthier.graph"):
            seen.imported.add(name.split(".")[0])
        return real_import_module(name, package)

    with (
        mock.patch("builtins.eval", running("eval", eval)),
        mock.patch("builtins.exec", running("exec", exec)),
        mock.patch("builtins.__import__", import_statement),
        mock.patch("importlib.import_module", import_module),
        mock.patch("os.system", running("os.system", lambda *_: 0)),
    ):
        yield seen


def injection(examples: int) -> None:
    """Apply random words to random graphs; see to what must hold whatever they are."""

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(MAKERS), st.lists(WORD, min_size=1, max_size=3))
    @example("experiment", ["model=$model.layers[0]", "model.dim=alias:model.dim", "extra=&extra"])
    @example("experiment", ["model.dim=$steps", "steps=$model.dim"])
    @example("experiment", ["steps=$model.dim", "model.dim=$steps+1", "model.dim=$steps"])
    @example("experiment", ["any:every=Seconds(3)", "any:count=7", "class:Experiment.seed~"])
    @example("experiment", ["model.layers[1]=alias:model.layers[090]", "extra['\\']=3"])
    @example("experiment", ["extra=optax.sgd(1)", "extra=graph_toys.parts.Mlp()"])
    @example("experiment", ["extra=off_list.Thing", "fiddler:os.system('false')"])
    def check(name, words):
        graph = GRAPHS[name]
        for word in words:
            try:
                changed = grammar_cases.apply_words(graph, [word])
            except (OverrideError, UserCodeError) as error:  # a fiddler may fail on what it gets
                lines = str(error).splitlines()
                assert lines
                assert all(
                    "[set by argument 1: " in line or "[set by words" in line for line in lines
                )
            else:
                assert all(circle_free(place.value) for place in walk(changed))
                assert_nothing_was_made_up(graph, changed, word.strip())
                graph = changed
        assert GRAPHS[name] == getattr(edited, name)()

    with watched() as seen:
        check()
    assert seen.ran == []
    assert {"optax", "graph_toys"} <= seen.imported
    assert seen.imported <= {*LIBRARIES, "graph_toys", "pydantic", "numpy", "builtins"}
    assert "off_list" not in sys.modules


def assert_nothing_was_made_up(before: Any, after: Any, word: str) -> None:
    """What a word names was there before, or is a new key by `:=`; so is what it changed."""
    if word.startswith(("fiddler:", "file:")):
        return
    statement = parse_statement(word)
    assert names_something(before, statement), word
    known = {place.path: place.value for place in walk(before, unset=True)}
    for path in grammar_cases.changes(before, after):
        if path in known or path == "":
            continue
        inside = known.get(re.sub(r"(\.\w+|\[[^\[\]]*\])$", "", path))
        assert isinstance(inside, dict), f"{word}: {path} is new"
        # `:=` adds this key; `=` and `+=` were given the whole dict, which was there.
        assert statement.operator == ":=" or parse_path(statement.target) != parse_path(path), word


def names_something(graph: Any, statement: Any) -> bool:
    """Say whether a statement names what is there, found without luthier's own search."""
    target = statement.target
    if statement.selector == "path":
        parts = parse_path(target)
        at = functools.reduce(step, parts[:-1], graph)
        is_new = statement.operator == ":=" and isinstance(at, dict)
        return at is not MISSING and (is_new or step(at, parts[-1]) is not MISSING)
    places = list(walk(graph, unset=True))
    nodes = [graph, *(place.value for place in places if isinstance(place.value, fdl.Buildable))]
    if statement.selector == "tag":
        tags = {tag for node in nodes for s in node.__argument_tags__.values() for tag in s}
        return any(target.split(".")[-1] == base.__name__ for tag in tags for base in tag.__mro__)
    if statement.selector == "class":
        classes = [node.__fn_or_cls__ for node in nodes]
        names = {b.__name__ for c in classes for b in getattr(c, "__mro__", (c,))}
        return bool(names & set(target.split(".")))
    last = re.split(r"[.\[]", target)[-1].strip("]'\" ")
    return "*" in last or any(str(place.part) == last for place in places)


MISSING = object()


def step(value: Any, part: Any) -> Any:
    """Return one part of a node, container or dataclass; `MISSING` where there is none."""
    if isinstance(value, fdl.Buildable) and not is_value_node(value):
        found = fdl.ordered_arguments(value, include_defaults=True, include_unset=True)
        made = getattr(value.__fn_or_cls__, "__dataclass_fields__", {}).get(part)
        if part not in value.__arguments__ and made and callable(made.default_factory):
            return made.default_factory()
        return found.get(part, MISSING)
    if isinstance(value, dict):
        return value.get(part, MISSING)
    if isinstance(value, list | tuple):
        is_inside = isinstance(part, int) and -len(value) <= part < len(value)
        return value[part] if is_inside else MISSING
    if dataclasses.is_dataclass(value) and isinstance(part, str):
        return getattr(value, part, MISSING)
    return MISSING


@pytest.mark.full
def test_fuzz():
    injection(1000)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_fuzz_at_length():
    injection(20_000)


FUZZED = parts.experiment()


GOOD = st.sampled_from(
    """
    any:hidden*=2
    any:hidden=3
    model.layers[1].hidden+=1
    model.layers[0]=Mlp(hidden=4)
    model.layers+=GatedMlp(hidden=5)
    any:dropout=.5
    class:Layer.dropout*=.5
    steps~
    model.dim=$steps
    steps=ref:seed
    seed=7
    steps+=1
    model.dim:=8
    any:dim*=2
    model.layers[0].dim=$model.dim*2
    model.layers[1]=alias:model.layers[0]
    any:hidden~
    rules.sizes[*]+=1
    rules.sizes=3,4
    any:count+=1
    evaluations.held_out.every~
    evaluations.new:=Evaluation(Source(), Steps(3))
    any:every=Steps(9)
    tag:Rate*=2
    """.strip().splitlines()
)


@settings(max_examples=150, deadline=None)
@given(st.lists(GOOD, max_size=7))
def test_together_is_one_after_the_other(overrides):
    """What is remembered between statements must not show."""
    try:
        together = apply(FUZZED, overrides)
    except (OverrideError, UserCodeError) as error:
        together = error
    one_by_one, failed = FUZZED, []
    for number, override in enumerate(overrides, 1):
        try:
            one_by_one = apply(one_by_one, [override])
        except (OverrideError, UserCodeError) as error:
            failed += [str(error).replace("argument 1:", f"argument {number}:")]
    if failed:
        assert str(together) == "\n".join(failed)
    else:
        assert equal(together, one_by_one)


def circle_free(node) -> bool:
    try:
        evaluate(node)
    except ValueError as error:
        return "depends on itself" not in str(error)
    except (ArithmeticError, TypeError):
        pass
    return True
