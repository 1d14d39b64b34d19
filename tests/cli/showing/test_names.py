"""Everything that a package exports has an entry in `luthier help`."""

from __future__ import annotations

import importlib

import pytest

from luthier import project
from luthier.cli.showing import entries, names

PACKAGES = sorted(names.exported())


def test_the_lists_that_are_read_from_the_source_are_those_of_the_packages():
    assert {"luthier", "luthier.graph", "luthier.recipes.decoders", "luthier.launch"} < set(
        PACKAGES
    )
    assert "luthier.recipes.fine_tuning" not in PACKAGES
    for package in PACKAGES:
        module = importlib.import_module(package)
        listed = getattr(module, "__all__", None)
        if listed is None:
            assert all(hasattr(module, name) for name in names.exported()[package])
        else:
            assert tuple(listed) == names.exported()[package]
    packages = {f"luthier.{name}" for name in importlib.import_module("luthier").__all__}
    modules = {
        name for name in packages if names.find(name)[0].value.__class__.__name__ == "module"
    }
    assert modules <= set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_has_an_entry(package):
    for name in names.exported()[package]:
        full = f"{package}.{name}"
        (symbol,) = names.find(full)
        text = entries.entry(symbol.name, symbol.value, 100)
        assert text.startswith(full), full
        first = " ".join(text.split("\n\n")[0].split())
        assert len(first) > len(full), f"{full} has no summary"


def test_every_fiddler_is_found_by_its_name():
    fiddlers = names.fiddlers(project.SHELVES)
    assert {"bf16", "fsdp", "lora", "tiny"} < set(fiddlers)
    for name, function in fiddlers.items():
        assert any(symbol.value is function for symbol in names.find(name)), name


def test_components_are_used_where_it_is_stated():
    from luthier import graph, layers

    usages = entries.usages(layers.GatedMlp)
    assert usages[0][:2] == ("configs.lm.quickstart", "model.block.mlp")
    changed = graph.apply(graph.resolve(usages[0][0]), [usages[0][2]])
    assert graph.get(changed, "model.block.mlp.hidden_dim") == 384
