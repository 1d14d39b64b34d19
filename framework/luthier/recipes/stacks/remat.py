"""What is kept for the backward pass, as a fiddler: less memory for more FLOPs."""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import graph, layers
from luthier.errors import BadInput, Problem
from luthier.recipes.selection import is_experiment


def remat(
    experiment: fdl.Buildable, policy: layers.Remat | type[layers.Remat] = layers.FullRemat
) -> Any:
    """Return an experiment whose stacks of layers rematerialize: gradients stay the same.

    All stacks share the policy: one override moves all of them.

        luthier show configs.lm.quickstart 'fiddler:remat(luthier.layers.FullRemat)' --changes

    Args:
      experiment: A graph of an experiment or of a model; it is not changed.
      policy: What a layer keeps: a class of `luthier.layers` (`FullRemat`, `SaveProjections`,
        `NoRemat`), or a node of one: `SaveNamed(names=["query"])`, `OffloadNamed(names=["query"])`,
        `SaveWithin(bytes_per_layer=2**24)`.

    Raises:
      BadInput: The model has no stack of layers.

    Source: Chen et al. 2016, arXiv:1604.06174, section 4.
    """
    changed = graph.copy_graph(experiment)
    prefix = "model." if is_experiment(changed) else ""
    found = [
        place.path
        for place in graph.walk(changed)
        if place.path.startswith(prefix) and place.part == "remat"
    ]
    if not found:
        remedy = "the fiddler is for models of equal layers, such as Decoder"
        raise BadInput(Problem("the model has no stack of layers", "model", "", remedy))
    node = policy if isinstance(policy, fdl.Config) else fdl.Config(policy)
    for path in found:
        graph.set_value(changed, path, node)
    return changed
