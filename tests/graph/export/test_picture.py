from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import fiddle as fdl
import hypothesis
import pytest
from graph_toys import parts, recorded
from graph_toys.random_graphs import SETTINGS, graphs

from luthier.errors import RecordError
from luthier.graph import copy_graph, values
from luthier.graph.export.picture import to_svg

SVG = "{http://www.w3.org/2000/svg}"


def _texts(graph):
    root = ElementTree.fromstring(to_svg(graph))
    return [element.text for element in root.iter(f"{SVG}text")]


def _classes(graph, tag="path"):
    root = ElementTree.fromstring(to_svg(graph))
    return [element.get("class") for element in root.iter(SVG + tag)]


def test_it_shows_classes_values_and_the_fingerprint():
    texts = _texts(parts.experiment())
    assert texts[0] == "toy"
    assert any("12 nodes, 0 shared constants, fingerprint " in text for text in texts)
    assert {"Cosine", "peak #Rate", "0.001", "evaluations['long text']"} <= set(texts)


def test_the_three_kinds_of_lines():
    size = values.value(4, name="size")
    layer = fdl.Partial(parts.Layer, dim=size)
    graph = fdl.Config(recorded.Part, size=layer, rate=[layer], other=size)
    # The legend has one of each of the last two kinds.
    kinds = _classes(graph)
    assert [kinds.count(kind) for kind in ("held", "same", "uses", "end")] == [1, 2, 3, 1]
    plain = _classes(fdl.Config(recorded.Part, size=fdl.Config(parts.Layer)))
    assert plain == ["held"]


def test_text_is_escaped():
    graph = fdl.Config(
        recorded.Part, size='<script>"&\x00\udc80', other={"<b>": fdl.Config(parts.Layer)}
    )
    texts = _texts(graph)
    assert any(text.startswith("'<script>\"&") for text in texts)
    assert "other['<b>']" in texts
    assert "<script" not in to_svg(graph)


def test_it_stands_alone_and_knows_the_dark():
    text = to_svg(recorded.everything())
    assert "prefers-color-scheme: dark" in text
    assert "href" not in text
    assert "url(" not in text


@SETTINGS
@hypothesis.given(graphs())
def test_random_graphs_are_valid_and_always_the_same(graph):
    text = to_svg(graph)
    ElementTree.fromstring(text.encode())
    assert to_svg(copy_graph(graph)) == text


def test_large_graphs_stay_small():
    layers = [fdl.Partial(parts.Layer, dim=3) for _ in range(5000)]
    assert len(to_svg(fdl.Config(recorded.Part, size=layers))) < 6000


def test_there_is_no_picture_of_a_value():
    with pytest.raises(RecordError) as caught:
        to_svg(3)
    assert (
        str(caught.value)
        == "only nodes have a picture, and this is of type int; give the path of a node"
    )
