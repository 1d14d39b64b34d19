from __future__ import annotations

import pytest

from luthier.graph.export.yaml import Entries, Items, Reference, Scalar, Unreadable, read


def test_lines_and_references():
    root = read("a: 1\nb: &x\n  - '2'\nc: *x\n")
    assert isinstance(root, Entries)
    assert root.items["a"] == Scalar(1, 1)
    items = root.items["b"]
    assert items == Items([Scalar("2", 3)], 3, 1) or items.number == 1
    assert root.items["c"] == Reference(items, 4)


def test_strings_that_only_the_slow_parser_reads():
    assert read('a: "\\udc80"').items["a"].value == "\udc80"


def test_an_error_has_its_line():
    with pytest.raises(Unreadable) as caught:
        read("a: 1\nb: [\n")
    assert caught.value.line == 3
    assert str(caught.value).startswith("it is not readable as YAML: ")
