"""Shortcuts of the tests of gin: a text over the toy experiment, and what is wrong with a text."""

from __future__ import annotations

from graph_toys import parts
from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.graph.formats.gin import apply_words

TOYS = ("graph_toys",)


def overlay(text, graph=None, *words):
    graph = parts.experiment() if graph is None else graph
    given = [f"gin_bindings:{text}", *words]
    return apply_words(graphs.copy_graph(graph), [(word, "given") for word in given], given, TOYS)


def problems(text, *words):
    try:
        overlay(text, None, *words)
    except BadInput as error:
        return [str(problem) for problem in error.problems]
    return []
