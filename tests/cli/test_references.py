from __future__ import annotations

import pytest

from luthier import errors
from luthier import graph as graphs
from luthier.cli import references

TINY = "trials.tiny"


def test_a_reference_names_an_experiment(importable_project):
    assert graphs.get(references.load_reference(TINY), "name") == "tiny"


def test_a_folder_with_a_record_is_a_reference(importable_project, tmp_path):
    graph = references.load_reference(TINY)
    (tmp_path / "config.json").write_text(graphs.to_json(graph))
    assert graphs.equal(references.load_reference(str(tmp_path)), graph)


def test_what_does_not_exist_is_refused(importable_project):
    with pytest.raises(errors.BadInput, match="tinny"):
        references.load_reference("trials.tinny")
