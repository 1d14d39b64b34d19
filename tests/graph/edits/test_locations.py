from __future__ import annotations

import threading

import fiddle as fdl
from fiddle import history as fiddle_history

from luthier.graph import apply, get, history, resolve, set_value


class Part:
    def __init__(self, size=1):
        self.size = size


def _entry(node, part="size"):
    return node.__argument_history__[part][-1]


def _callers(graph, path="size"):
    return history(graph)[path][-1].get("from", [])


def test_the_line_is_that_of_the_caller_of_the_package():
    node = fdl.Config(Part)
    set_value(node, "size", 2)
    location = _entry(node).location
    assert location.filename == __file__
    assert location.function_name == "test_the_line_is_that_of_the_caller_of_the_package"
    assert _callers(node) == []


def test_callers_of_a_recipe_are_recorded_out_to_the_function_of_the_reference():
    graph = resolve("configs.lm.families:gemma")
    location = _entry(graph.model, "dim").location
    assert location.filename.endswith("luthier/recipes/decoders/gemma.py")
    callers = [caller.rpartition("/")[2] for caller in _callers(graph, "model.dim")]
    assert [caller.split(":")[0] for caller in callers] == ["families.py"]


def test_of_a_recipe_that_is_called_directly_the_first_line_outside_is_recorded():
    from luthier.recipes import decoders

    model = decoders.llama(vocab_size=8, dim=8, num_layers=1, num_heads=1, hidden_dim=8)
    (caller,) = _callers(model, "dim")
    assert caller.startswith("tests/graph/edits/test_locations.py:")


def test_functions_of_one_file_are_recorded_once():
    graph = resolve("configs.lm.quickstart")
    assert _callers(graph, "model.dim") == []


def test_other_threads_record_their_own_lines():
    made = []
    thread = threading.Thread(target=lambda: made.append(fdl.Config(Part, size=3)))
    thread.start()
    thread.join()
    location = _entry(made[0]).location
    assert location.filename == __file__
    assert location.function_name == "<lambda>"


def test_a_location_of_fiddles_own_has_no_callers_and_no_run():
    with fiddle_history.custom_location(lambda: fiddle_history.Location("a", 1, None)):
        node = fdl.Config(Part, size=3)
    assert history(node)["size"] == [{"value": 3, "origin": "a:1", "order": 1}]


def test_arguments_are_recorded_as_before():
    graph = apply(fdl.Config(Part), ["size=4"])
    assert get(graph, "size") == 4
    assert _entry(graph).location.filename == "argument 1: size=4"
