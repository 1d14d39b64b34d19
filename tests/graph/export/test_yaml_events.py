from __future__ import annotations

import pytest

from luthier.graph.export.yaml import Entries, Items, YamlError, YamlReference, YamlScalar, read


def test_lines_and_references():
    root = read("a: 1\nb: &x\n  - '2'\nc: *x\n")
    assert isinstance(root, Entries)
    assert root.items["a"] == YamlScalar(1, 1)
    items = root.items["b"]
    assert items == Items([YamlScalar("2", 3)], 3, 1) or items.number == 1
    assert root.items["c"] == YamlReference(items, 4)


def test_strings_that_only_the_slow_parser_reads():
    assert read('a: "\\udc80"').items["a"].value == "\udc80"


def test_an_error_has_its_line():
    with pytest.raises(YamlError) as caught:
        read("a: 1\nb: [\n")
    assert caught.value.line == 3
    assert str(caught.value).startswith("it is not readable as YAML: ")
