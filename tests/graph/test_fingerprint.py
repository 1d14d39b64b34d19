from __future__ import annotations

import functools
import os
import pathlib
import subprocess
import sys

import fiddle as fdl
import jax
import numpy as np
import pytest
from graph_toys import parts, recorded

from luthier import graph as graphs
from luthier.errors import RecordError, UnknownReference
from luthier.graph import apply, copy_graph, fingerprint, multiply, resolve
from luthier.graph.fingerprint import default_content
from luthier.graph.record import entries

# Equal on Python 3.11, 3.12 and 3.13 and on jax 0.10.2 and 0.12.0.
GOLDEN_RECORD = "19b1ee48d08967b14b4af477a32cc47913934014512afe9657b87daaee788488"
GOLDEN_PROGRAM = "91367e922c02955f0f748da265d56ff187438496a04d954241be5cd599976050"
IMPORTABLE = str(pathlib.Path(recorded.__file__).parents[1])

KINDS = ("record", "program")


def both(graph, without=()):
    return tuple(fingerprint(graph, kind, without) for kind in KINDS)


def part(**given):
    return fdl.Config(recorded.Part, **given)


def test_the_golden_fingerprints():
    assert both(recorded.everything()) == (GOLDEN_RECORD, GOLDEN_PROGRAM)


@pytest.mark.full
@pytest.mark.parametrize("seed", ["0", "4711"])
def test_another_process_with_another_hash_seed_agrees(seed):
    program = (
        f"import sys; sys.path.insert(0, {IMPORTABLE!r})\n"
        "from graph_toys import recorded\nfrom luthier.graph import fingerprint\n"
        "graph = recorded.everything()\n"
        "print(fingerprint(graph), fingerprint(graph, 'program'))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert process.stdout.split() == [GOLDEN_RECORD, GOLDEN_PROGRAM]


def test_the_order_in_which_arguments_are_set_does_not_count():
    a, b = part(size=1), part(rate=2)
    a.rate, b.size = 2, 1
    assert both(a) == both(b)
    a, b = fdl.Config(recorded.keywords, x=1), fdl.Config(recorded.keywords, y=2)
    a.y, b.x = 2, 1
    assert both(a) == both(b)
    assert both(part(size={"a": 1, "b": 2})) == both(part(size={"b": 2, "a": 1}))


def _places(value, path="", entered=None):
    """Yield (path, container, key) of every leaf, once for each place."""
    entered = set() if entered is None else entered
    if isinstance(value, fdl.Buildable | list | dict):
        if id(value) in entered:
            return
        entered.add(id(value))
    for key, child in entries(value) or ():
        at = f"{path}.{key}"
        if entries(child) is None or not entries(child):
            yield at, value, key
        yield from _places(child, at, entered)


def _put(container, key, new):
    if isinstance(container, fdl.Buildable):
        setattr(container, key, new)
    elif isinstance(container, list | dict):
        container[key] = new
    else:
        return False
    return True


LEAF_PATHS = [path for path, _, _ in _places(recorded.everything())]


def test_there_are_many_leaves():
    assert len(LEAF_PATHS) > 60


def test_every_single_changed_leaf_changes_both():
    before = both(recorded.everything())
    seen = {before}
    changed = 0
    for index in range(len(LEAF_PATHS)):
        graph = recorded.everything()
        path, container, key = list(_places(graph))[index]
        if not _put(container, key, f"changed at {path}"):
            continue
        changed += 1
        record, program = both(graph)
        assert record != before[0], path
        excluded = path.startswith((".name", ".records", ".checkpoints"))
        assert (program == before[1]) == excluded, path
        assert (record, program) not in seen, path
        seen.add((record, program))
    assert changed > 50


def test_every_single_change_of_a_plain_experiment_changes_both():
    before = both(parts.experiment())
    for index, (path, _, _) in enumerate(_places(parts.experiment())):
        graph = parts.experiment()
        _, container, key = list(_places(graph))[index]
        assert _put(container, key, "another value")
        after = both(graph)
        assert after[0] != before[0], path
        assert (after[1] == before[1]) == (path == ".name"), path


def test_close_values_differ():
    close = [1, 1.0, True, "1", (1,), [1], {1}, frozenset([1]), {"1": 1}, {1: 1}, b"1", 1 + 0j]
    close += [0.0, -0.0, float("nan"), None, "None", np.float32(1), np.int64(1), range(1), int]
    close += [parts.relu, "graph_toys.parts.relu", parts.Kind.FAST, "fast", np.float32, "float32"]
    close += [{"ref": 1}, ["again", 0], [["again", 0]], {"name": "x"}, recorded.Pair(1, 2), (1, 2)]
    found = [fingerprint(part(size=value), kind) for value in close for kind in KINDS]
    assert len(set(found)) == len(found)


def test_classes_and_kinds_of_nodes_count():
    graphs = [
        fdl.Config(parts.Mlp),
        fdl.Config(parts.GatedMlp),
        fdl.Partial(parts.Mlp),
        fdl.ArgFactory(parts.Mlp),
        fdl.Config(parts.Layer),
    ]
    found = [fingerprint(part(size=graph), kind) for graph in graphs for kind in KINDS]
    assert len(set(found)) == len(found)


def test_tags_count_for_the_record_only():
    tagged = part(size=1)
    fdl.add_tag(tagged, "size", recorded.Tagged)
    assert fingerprint(tagged) != fingerprint(part(size=1))
    assert fingerprint(tagged, "program") == fingerprint(part(size=1), "program")


def test_a_value_set_to_its_default_is_the_same_program():
    explicit = part(size=3, rate=0.1, other=None, shape=(1, 2), extra={"a": [1]})
    assert fingerprint(explicit) != fingerprint(part())
    assert fingerprint(explicit, "program") == fingerprint(part(), "program")
    for default in (parts.Rules(), fdl.Config(parts.Rules)):
        graph = parts.experiment()
        graph.rules = default
        assert fingerprint(graph, "program") == fingerprint(parts.experiment(), "program")
        assert fingerprint(graph) != fingerprint(parts.experiment())


def test_a_moved_default_changes_both(monkeypatch):
    def make(rate):
        def function(x=1, rate=rate):
            return x

        function.__module__, function.__qualname__ = parts.__name__, "moving"
        monkeypatch.setattr(parts, "moving", function, raising=False)
        return both(fdl.Config(function))

    assert make(0.1) == make(0.1)
    old, new = make(0.1), make(0.2)
    assert old[0] != new[0]
    assert old[1] != new[1]


def test_sharing_counts():
    layer = fdl.Config(parts.Layer)
    shared, apart = (part(size=layer, rate=x) for x in (layer, copy_graph(layer)))
    assert fingerprint(shared) != fingerprint(apart)
    assert fingerprint(shared, "program") != fingerprint(apart, "program")
    # Of settings only: the same program.
    template = fdl.Partial(parts.Layer)
    shared, apart = (part(size=template, rate=x) for x in (template, copy_graph(template)))
    assert fingerprint(shared) != fingerprint(apart)
    assert fingerprint(shared, "program") == fingerprint(apart, "program")
    # Equal constant tuples are one object by chance.
    assert both(part(size=(1, 2), rate=(1, 2))) == both(part(size=(1, 2), rate=(*[1, 2],)))


def test_which_of_three_are_shared_counts():
    a, b = fdl.Config(parts.Layer), fdl.Config(parts.Layer)
    found = [both(part(size=[*order])) for order in ((a, a, b), (a, b, a), (b, a, a))]
    assert len({record for record, _ in found}) == 3
    assert len({program for _, program in found}) == 3


def test_paths_can_be_left_out():
    one, two = parts.experiment(), parts.experiment()
    two.optimizer.b2, two.optimizer.b1, two.seed = 0.5, 0.1, 7
    without = ("optimizer.b2", "optimizer.b1", "seed")
    assert both(one, without) == both(two, without)
    assert both(one, without[:2]) != both(two, without[:2])
    three = parts.experiment()
    three.evaluations["held_out"].batch_size = 77
    assert both(one, ["evaluations.held_out"]) == both(three, ["evaluations.held_out"])
    three.model.layers[1].hidden = 77
    without = ["evaluations.held_out", "model.layers[1]"]
    assert both(one, without) == both(three, without)
    with pytest.raises(UnknownReference, match="did you mean seed"):
        fingerprint(one, without=["sed"])


def test_a_value_node_is_left_out_for_all_its_users():
    def graph(size):
        dim = graphs.value(size)
        return part(size=dim, rate=multiply(dim, 2), other=[dim, {"k": (dim,)}])

    assert both(graph(1)) != both(graph(2))
    assert both(graph(1), ["other[0]"]) == both(graph(2), ["other[0]"])


def test_what_cannot_be_recorded_has_no_fingerprint():
    graph = part(size=lambda: 0, other=[object()])
    with pytest.raises(RecordError) as caught:
        fingerprint(graph)
    assert [problem.path for problem in caught.value.problems] == ["size", "other[0]"]


def test_defaults_that_cannot_be_recorded_are_described():
    assert default_content(recorded.make_scaler(1.0)) != default_content(recorded.make_scaler(2.0))
    assert default_content(np.zeros(3)) != default_content(np.ones(3))
    assert default_content(np.zeros(300)) != default_content(np.eye(300)[-1])
    assert default_content(functools.partial(int, base=3)) != default_content(
        functools.partial(int, base=4)
    )
    initializers = jax.nn.initializers
    assert default_content(initializers.he_normal()) != default_content(initializers.lecun_normal())
    assert default_content(object()) == default_content(object())
    assert "0x" not in str(default_content([object(), lambda: 0, {"k": recorded.Point(object())}]))


@pytest.mark.parametrize(
    ("override", "is_same_program"),
    [
        ("training.steps=899", False),
        ("training.global_batch_size=16", False),
        ("training.accumulation=2", False),
        ("seed=1", False),
        ("training.divergence=None", True),
        ("name=other", True),
        ("checkpoints.keep_latest=7", True),
    ],
)
def test_what_changes_training_changes_the_fingerprint_of_the_program(override, is_same_program):
    graph = resolve("configs.lm.quickstart")
    changed = apply(graph, [override])
    is_same = fingerprint(changed, "program") == fingerprint(graph, "program")
    assert is_same == is_same_program
    assert fingerprint(changed) != fingerprint(graph)


def test_a_graph_that_is_nested_too_deeply_is_not_called_a_cycle():
    graph = part()
    for _ in range(1000):
        graph = part(size=graph)
    with pytest.raises(RecordError, match=r"^the graph is nested too deeply$"):
        fingerprint(graph)
