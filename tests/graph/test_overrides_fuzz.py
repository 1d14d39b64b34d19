"""Whatever is written, there is a graph or an OverrideError; and order is all that counts."""

from __future__ import annotations

from graph_toys import parts
from hypothesis import example, given, settings
from hypothesis import strategies as st

from luthier.errors import OverrideError
from luthier.graph import apply, equal, evaluate
from luthier.graph.paths import walk

WORDS = st.sampled_from(
    [
        "steps",
        "model",
        "layers",
        "optimizer",
        "b2",
        "learning_rate",
        "peak",
        "rules",
        "sizes",
        "parameters",
        "embed",
        "evaluations",
        "held_out",
        "every",
        "count",
        "extra",
        "name",
        "kind",
        "data",
        "path",
        "[0]",
        "[1]",
        "[-1]",
        "['long text']",
        "[*]",
        "*",
        "**",
        "stpes",
        "",
        "lambda",
    ]
)
PATHS = st.lists(WORDS, min_size=1, max_size=4).map(
    lambda parts: ".".join(parts).replace(".[", "[")
)
PREFIXES = st.sampled_from(
    ["", "", "", "any:", "class:", "tag:", "@", "#", "--fdl.", "reset:", "**."]
)
OPERATORS = st.sampled_from(["=", "=", "=", ":=", "+=", "-=", "*=", "~", "", "=="])
VALUES = st.one_of(
    st.sampled_from(
        [
            "3",
            "abc",
            "0.5",
            "None",
            "true",
            "2,4",
            "[1, 2]",
            "{a: 1}",
            "Constant(1)",
            "Mlp(hidden=2)",
            "$steps",
            "$model.dim*2",
            "ref:optimizer.b2",
            "alias:model",
            "&model.layers[0]",
            "$extra",
            "partial:Mlp()",
            "optax.sgd(1)",
            "bf16",
            "jax.nn.gelu",
            "'",
            '"x',
            "()",
            "(",
            "1/0",
            "2**99",
            "fast",
            "Steps(1)",
            "$",
            "&",
            "alias:",
            "ref:",
            "ref:1",
            "lambda: 0",
            "a.b.c",
            "\x00",
            "é",
        ]
    ),
    st.text(max_size=12),
)
OVERRIDE = st.builds(lambda *drawn: "".join(drawn), PREFIXES, PATHS, OPERATORS, VALUES)
FUZZED = parts.experiment()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(OVERRIDE, st.text(max_size=20)), min_size=1, max_size=4))
@example(["model=$model.layers[0]", "model.dim=alias:model.dim", "extra=&extra"])
@example(["model.dim=$steps", "steps=$model.dim"])
@example(["steps=$model.dim", "model.dim=$steps+1", "model.dim=$steps"])
@example(["any:every=Seconds(3)", "any:count=7", "class:Experiment.evaluations~"])
def test_fuzz(overrides):
    try:
        changed = apply(FUZZED, overrides)
    except OverrideError as error:
        lines = str(error).splitlines()
    else:
        lines = None
        assert all(circle_free(place.value) for place in walk(changed))
    assert lines is None or (lines and all("[set by argument " in line for line in lines))
    assert parts.experiment() == FUZZED


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
    except OverrideError as error:
        together = error
    one_by_one, failed = FUZZED, []
    for number, override in enumerate(overrides, 1):
        try:
            one_by_one = apply(one_by_one, [override])
        except OverrideError as error:
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
