"""Reading a record: nothing is imported, and whatever is wrong is told in one line."""

from __future__ import annotations

import itertools
import json
import sys
import time

import hypothesis
import pytest
from graph_toys import parts, recorded
from hypothesis import strategies as st

from luthier.errors import RecordError
from luthier.graph import compare, to_json
from luthier.graph.compare.document import of_plain
from luthier.graph.compare.nodes import Numbers


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
def test_what_cannot_be_read_is_told_in_one_line(graph, message):
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
