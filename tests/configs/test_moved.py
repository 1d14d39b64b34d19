"""Old references of modules that were moved keep resolving."""

from __future__ import annotations

import importlib

import pytest

import configs
from luthier import graph as graphs
from luthier.cli import find_experiment
from luthier.errors import UnknownReference


@pytest.mark.parametrize("old", configs.MOVED)
def test_an_old_module_resolves_to_the_new_one(old):
    new = configs.MOVED[old]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(old)
    assert graphs.fingerprint(graphs.resolve(old)) == graphs.fingerprint(graphs.resolve(new))


def test_functions_and_arguments_of_an_old_module_resolve():
    old = graphs.resolve("configs.pax.c4:experiment(steps=7)")
    assert old.training.steps == 7
    assert find_experiment("lm.pax_c4.decoder_2b") == "configs.pax.c4:decoder_2b"
    assert find_experiment("pax_c4:decoder_2b") == "configs.pax.c4:decoder_2b"


def test_an_unknown_function_of_an_old_module_names_the_new_one():
    with pytest.raises(UnknownReference, match=r"did you mean configs\.pax\.c4:decoder_2b"):
        graphs.resolve("configs.pax.c4:decoder_2bb")
