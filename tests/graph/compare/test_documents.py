"""Reading a record: nothing is imported, and whatever is wrong is told in one line."""

from __future__ import annotations

import itertools
import json
import sys
import time

import fiddle as fdl
import hypothesis
import pytest
from graph_toys import compared, parts, recorded
from hypothesis import strategies as st

from luthier.errors import RecordError
from luthier.graph import apply, compare, history_record, to_dict, to_json, values
from luthier.graph.compare import nodes
from luthier.graph.compare.document import RecordReader, of_plain
from luthier.graph.compare.nodes import CONSTANT, LEAF, OPERATIONS, ConfigNode, Key, Numbers


def test_fingerprints_depend_on_sharing_and_not_on_the_order_of_keys():
    a, b = compared.tie()
    assert compare.document(a).fingerprint != compare.document(b).fingerprint
    assert compare.document(b).fingerprint == compare.read(to_json(b)).fingerprint
    one, other = ({"x": 1, "y": 2}, {"y": 2, "x": 1})
    first, second = (compare.document(compared.part(other=value)) for value in (one, other))
    assert first.fingerprint == second.fingerprint


def test_origins_of_a_record():
    graph = apply(parts.experiment(), ["model.layers[2].hidden=3", "optimizer.b2=0.5"])
    history = json.dumps(history_record(graph))
    document = compare.read(to_json(graph), history=history)
    for path in ("model.layers[0].hidden", "model.layers[2].hidden"):
        assert document.origin(path) == "argument 1: model.layers[2].hidden=3"
    assert document.origin("optimizer.b2") == "argument 2: optimizer.b2=0.5"
    assert document.origin("optimizer.b1") == ""
    assert document.origin("what.is.this") == ""
    assert compare.read(to_json(graph)).origin("optimizer.b2") == ""
    assert compare.document(graph).origin("optimizer.b2") == "argument 2: optimizer.b2=0.5"


def test_damaged_side_files():
    text = to_json(parts.experiment())
    for history in ("{}", "[]", '{"format": "luthier.history", "version": 1, "sets": 3}'):
        assert compare.read(text, history=history).origin("optimizer.b2") == ""
    odd = {"format": "luthier.history", "version": 1, "sets": {"optimizer.b2": [3], "steps": 1}}
    assert compare.read(text, history=json.dumps(odd)).origin("optimizer.b2") == ""
    with pytest.raises(RecordError) as raised:
        compare.read(text, "run", history="{")
    assert str(raised.value) == "the config.history.json beside run is not readable as JSON"
    with pytest.raises(RecordError) as raised:
        compare.read(text, "run", values="{")
    assert str(raised.value) == "the config.values.json beside run is not readable as JSON"
    assert compare.read(text, values='{"model": [1, {"x": 2}], "optimizer": 3}').root is not None


def test_the_defaults_of_a_record_are_those_of_its_run():
    graph = parts.experiment()
    document = compare.read(to_json(graph), values=json.dumps(to_dict(graph)))
    optimizer = document.root.by_part["optimizer"]
    found = document.defaults(optimizer)
    assert {name: node.data for name, node in found.items()} == {"b1": 0.9, "nesterov": False}
    unknown = compare.read(to_json(graph))
    assert unknown.defaults(unknown.root) is None


def test_sharing_is_identity():
    root = node_of(parts.experiment())
    layers = root.by_part["model"].by_part["layers"]
    assert layers.by_part[0] is layers.by_part[2]
    assert layers.by_part[0] is not layers.by_part[1]


def test_circles_are_refused():
    graph = compared.part(size=[])
    graph.size.append(graph)
    with pytest.raises(RecordError, match=r"^size\[0\]: the config contains a cycle here$"):
        node_of(graph)


def test_defaults_are_those_of_the_class():
    document = compare.document(compared.mlp())
    found = document.defaults(document.root)
    assert {name: node.live for name, node in found.items()} == {
        "hidden": 32,
        "dim": 8,
        "dropout": 0.0,
        "activation": parts.relu,
        "dtype": None,
    }


def test_two_local_functions_of_one_name_are_two():
    def make():
        def local():
            pass

        return local

    one, other = make(), make()
    first, second = (node_of(fdl.Config(target)) for target in (one, other))
    assert first.name == second.name
    assert first.content != second.content


def record(graph):
    return json.dumps({"format": "luthier.graph", "version": 1, "graph": graph})


def node(name, **arguments):
    return {"config": name, "arguments": arguments}


def test_nothing_that_a_record_names_is_imported(tmp_path, monkeypatch):
    trap = tmp_path / "imported"
    (tmp_path / "trap_of_a_record.py").write_text(f"open({str(trap)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ["trap_of_a_record.Thing", "trap_of_a_record.Other"]
    texts = [
        record(
            {**node(name, x={"name": name}, y={"enum": name, "member": "A"}), "tags": {"x": [name]}}
        )
        for name in names
    ]
    values = json.dumps({"class": names[0], "z": 3})
    before = set(sys.modules)
    a, b = (compare.read(text, values=values) for text in texts)
    comparison = compare.compare(a, b)
    data = compare.to_json(comparison, packages=("trap_of_a_record",))
    assert [change.kind for change in comparison.changes][:1] == ["class"]
    assert "import trap_of_a_record" in data["patch"]
    assert compare.rows_of(comparison)
    assert not trap.exists()
    assert not [name for name in set(sys.modules) - before if "trap" in name]


def test_what_a_record_holds_never_becomes_code():
    bad = 'os.system("true")'
    for graph in (
        node(bad),
        node("a.b", x={"name": bad}),
        node("a.b", x={"enum": bad, "member": "A"}),
        node("a.b", x={"instance": bad, "fields": {}}),
        {**node("a.b"), "tags": {"x": [bad]}},
        node("a.b", x={"path": "a", "kind": bad}),
        node("a.b", x={"float": bad}),
        node("a.b", x={"complex": bad}),
        node("a.b", x={"bytes": bad}),
        node("a.b", x={"range": [bad, 1, 1]}),
    ):
        with pytest.raises(RecordError):
            compare.read(record(graph))
    text = "\"'); import os #\n"
    graph = node("a.b", **{text: text}, x={"dtype": text}, y={"path": text, "kind": "Path"})
    a, b = compare.read(record(node("a.b"))), compare.read(record(graph))
    source = compare.patch_of(compare.compare(a, b))
    compile(source, "patch", "exec")
    assert "import os\n" not in source


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (node(1), "run holds a node of 1, which is not a name"),
        (node("a b"), "run holds a node of a b, which is not a name"),
        ({"config": "a.b", "arguments": [1]}, "run holds a node that cannot be read"),
        (node("a", x={"what": 1}), "x: run holds something that is not known, with the keys what"),
        (node("a", x={"ref": 1}), 'x: run has no "id": 1 before this "ref"'),
        (node("a", x={"ref": {}}), 'x: run has no "id": {} before this "ref"'),
        ({**node("a", x={"ref": 1}), "id": 1}, 'x: run has no "id": 1 before this "ref"'),
        (
            node("a", x={"id": 1, "list": []}, y={"id": 1, "list": []}),
            'y: run gives the "id" 1 twice, or it is not a number',
        ),
        (node("a", x={"tuple": 3}), "x: run holds a tuple that cannot be read"),
        (node("a", x={"dict": [[1]]}), "x: run holds a dict that cannot be read"),
        (node("a", x={"dict": [[1, 2], [1, 3]]}), "x: run gives the key 1 twice"),
        (node("a", x={"float": "x"}), "x: run holds a value that cannot be read: {'float': 'x'}"),
        (
            node("a", x={"instance": "a.B", "fields": 3}),
            "x: run holds a dataclass that cannot be read",
        ),
        ({**node("a"), "tags": {"x": "a"}}, "run holds tags that cannot be read"),
    ],
)
def test_what_cannot_be_read_is_reported_in_one_line(graph, message):
    with pytest.raises(RecordError) as raised:
        compare.read(record(graph), "run")
    assert str(raised.value) == message


def test_deep_and_large_records_are_refused_at_once():
    start = time.process_time()
    deep = {"list": []}
    for _ in range(400):
        deep = {"list": [deep]}
    with pytest.raises(RecordError, match=r"^run is nested too deeply$"):
        compare.read(record(deep), "run")
    for kind in ("tuple", "frozenset"):
        doubled = [{"id": 1, kind: [1, 2]}]
        for number in range(2, 100):
            twice = [{"ref": number - 1}, {kind: [{"ref": number - 1}]}]
            doubled.append({"id": number, kind: twice})
        with pytest.raises(RecordError) as raised:
            compare.read(record(node("a", x=doubled)), "run")
        assert len(raised.value.problems) == 1
    assert time.process_time() - start < 5


def test_arithmetic_of_a_record_stays_small():
    def power(value):
        return node("luthier.graph.values.raised", left=value, right=9)

    number = 9
    for _ in range(60):
        number = power(number)
    doubled = [{"id": 1, **node("luthier.graph.values.constant", value="a")}]
    for index in range(2, 60):
        sides = {"left": {"ref": index - 1}, "right": {"ref": index - 1}}
        doubled.append({"id": index, **node("luthier.graph.values.total", **sides)})
    start = time.process_time()
    text = record(node("a", x=number, y=doubled))
    document = compare.read(text)
    for change in compare.compare(document, compare.read(record(node("a")))).changes:
        assert len(str(change)) < 50_000
    assert not compare.compare(document, compare.read(text)).changes
    assert time.process_time() - start < 5


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=4)),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    *("config", "partial", "arguments", "tags", "dict", "list", "tuple", "set"),
                    *("id", "ref", "name", "enum", "member", "value", "float", "dtype", "range"),
                    *("instance", "fields", "slice", "partition_spec", "path", "kind", "x"),
                ]
            ),
            inside,
            max_size=4,
        ),
    ),
    max_leaves=20,
)


@hypothesis.settings(deadline=None, max_examples=150)
@hypothesis.given(JSON)
def test_garbage_is_read_or_refused(graph):
    try:
        document = compare.read(record(graph))
    except RecordError:
        return
    comparison = compare.compare(document, compare.read(record(None)))
    json.dumps(compare.to_json(comparison), allow_nan=False)


@hypothesis.settings(deadline=None, max_examples=40)
@hypothesis.given(st.data())
def test_damaged_records_are_read_or_refused(data):
    text = to_json(recorded.everything())
    place = data.draw(st.integers(0, len(text) - 1))
    damaged = (
        text[:place] + data.draw(st.sampled_from(['"', "{", "]", "1", ""])) + text[place + 1 :]
    )
    try:
        comparison = compare.compare(compare.read(damaged), compare.read(text))
    except RecordError:
        return
    json.dumps(compare.to_json(comparison), allow_nan=False)


def test_plain_values():
    number = Numbers()
    nodes = [of_plain(x) for x in (1, 1.0, True, "1", None, [1], {"a": 1}, float("inf"), {})]
    assert len({number(node) for node in nodes}) == len(nodes)


def test_a_record_reads_as_its_graph():
    for make in (recorded.everything, parts.experiment):
        a, b = compare.read(to_json(make())), compare.document(make())
        number = Numbers()
        assert number(a.root) == number(b.root)
        assert a.fingerprint == b.fingerprint
    assert list(itertools.islice(a.first_paths.values(), 3)) == ["", "model", "model.layers"]


def test_numbers_depend_on_content_and_not_on_sharing():
    layer, number = compared_layer(), Numbers()
    again = compared_layer()
    assert number(node_of([layer, layer])) == number(node_of([layer, again]))
    assert number(node_of({"a": 1, "b": 2})) == number(node_of({"b": 2, "a": 1}))
    contents = [0.0, -0.0, 0, False, "0", b"0", None, (0,), [0], {0: 0}, {"0": 0}, {0}, layer]
    assert len({number(node_of(value)) for value in contents}) == len(contents)


def compared_layer():
    return parts.experiment().model.layers[0]


def test_value_nodes_are_known_by_name():
    node = node_of(values.add(values.value(1), 2))
    assert node.is_value_node
    assert node.name in OPERATIONS
    assert node.by_part["left"].name == CONSTANT
    assert not node_of(compared_layer()).is_value_node


def test_keys_that_are_neither_text_nor_numbers():
    node = node_of({None: 1, True: 2, recorded.Speed.FAST: 3, "a": 4, 5: 6})
    keys = [part for part, _ in node.parts]
    assert [repr(key) for key in keys] == ["None", "True", "Speed.FAST", "'a'", "5"]
    assert [type(key) for key in keys] == [Key, Key, Key, str, int]


def node_of(value):
    return compare.document(value).root


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (1.5e-7, "1.5e-07"),
        (float("-inf"), "-inf"),
        ("a'b", '"a\'b"'),
        (b"\x00a", "b'\\x00a'"),
        (recorded.Speed.FAST, "Speed.FAST"),
        (recorded.Ways.UP | recorded.Ways.DOWN, "Ways(3)"),
        (range(3), "range(0, 3)"),
        (slice(None, 3), "slice(None, 3, None)"),
        (..., "Ellipsis"),
        ((1,), "(1,)"),
        ([{"a": (1, 2)}], "[{'a': (1, 2)}]"),
        ({None: 1}, "{None: 1}"),
        ({2, 1}, "{1, 2}"),
        (recorded.Point(1, [2]), "graph_toys.recorded.Point(x=1, y=[2])"),
        (parts.relu, "graph_toys.parts.relu"),
        (values.multiply(values.value(8, name="dim"), 4), "dim * 4 = 32"),
        (values.power(values.add(values.value(1), 2), 2), "(1 + 2) ** 2 = 9"),
        (values.true_divide(values.value(1, name="a"), 0), "a / 0 = ?"),
        (values.add(values.value("a", name="a"), "b"), "a + 'b' = 'ab'"),
        (values.value(8, name="dim"), "8 (shared as dim)"),
    ],
)
def test_nodes_on_one_line(value, text):
    assert nodes.text_of(node_of(value)) == text


def test_a_record_says_what_its_graph_says():
    live, read = (
        node_of(recorded.everything()),
        compare.read(to_json(recorded.everything())).root,
    )
    assert nodes.full(live) == nodes.full(read)
    assert nodes.plain(live) == nodes.plain(read)


def test_plain_values_are_those_of_to_dict():
    graph = recorded.everything()
    graph.things.numbers = [1, 1.5, True]  # without those that are not finite
    for made in (parts.experiment(), graph):
        assert nodes.plain(node_of(made)) == to_dict(made, defaults=False)


def test_values_that_cannot_be_read():
    assert nodes.leaf_text({"bytes": "x"}) == "'x'"
    assert nodes.value_of(node_of(values.value(3))).data == 3
    assert nodes.value_of(RecordReader("x").read({"config": "luthier.graph.values.total"})) is None


def test_what_no_record_can_hold_is_reported_too():
    class Local:
        pass

    text = nodes.text_of(node_of(Local()))
    assert text.startswith("<tests.graph") or "Local" in text
    assert "Local" in nodes.text_of(node_of(Local))


def test_canonical_texts_distinguish_contents():
    contents = [1, 1.0, True, "1", (1,), [1], {1: 1}, {"1": 1}, {1}, None]
    assert len({nodes.canonical(node_of(value)) for value in contents}) == len(contents)
    first, second = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert nodes.canonical(node_of(first)) == nodes.canonical(node_of(second))
    assert nodes.text_of(ConfigNode(LEAF, data=3)) == "3"
