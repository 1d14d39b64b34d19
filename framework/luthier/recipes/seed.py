"""All random streams of an experiment from one number, as a fiddler."""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import graph
from luthier.errors import BadInput, Problem
from luthier.graph.paths import Place
from luthier.recipes.selection import is_experiment

# The end of the range of `Experiment.seed`: without 64-bit types, JAX makes keys of 32 bits.
LARGEST = 2**32


def seed(experiment: fdl.Buildable, number: int) -> Any:
    """Set all seeds of an experiment from one number.

    The `seed` of the experiment determines initialization, dropout and data order, which use
    separate random streams. Other seeds, such as those of synthetic data and of the tokens that an
    evaluation masks, become the number plus 1, 2, and so on. Therefore, no two seeds are equal by
    accident. Seeds that had the same value in nodes of the same class remain equal to each other.
    All of them are computed from `seed`, so a later `seed=3` changes them, too.

        luthier train configs.lm.quickstart 'fiddler:seed(7)'

    Args:
      experiment: A graph of an experiment; it is not changed.
      number: The seed.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The number is not a valid seed, or the graph does not describe an experiment.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.seed(config, 7)
      >>> changed.seed
      7
    """
    if not is_experiment(experiment):
        raise BadInput(Problem("a model alone has no seed", remedy="give an experiment"))
    changed = graph.copy_graph(experiment)
    # The other seeds become arithmetic on the experiment's, which therefore becomes a shared value;
    # the offsets are in the order of the graph, so the same graph gets the same seeds.
    others = [place for place in graph.walk(changed, once=True) if _is_other_seed(place)]
    graph.set_value(changed, "seed", number)
    root = graph.get(changed, "seed")
    if others and not graph.is_value_node(root):
        root = graph.value(number, name="seed")
        graph.set_value(changed, "seed", root)
    offsets: dict[tuple[Any, ...], fdl.Config] = {}
    for place in others:
        alike = (place.owner.__fn_or_cls__, place.part, graph.evaluate(place.value))
        if alike not in offsets:
            offsets[alike] = graph.add(root, len(offsets) + 1)
        graph.set_value(changed, place.path, offsets[alike])
    # The greatest of the other seeds is the number plus their count: it has to be in range, too.
    greatest = LARGEST - 1 - len(offsets)
    if not 0 <= number <= greatest:
        remedy = f"write a whole number from 0 to {greatest}"
        raise BadInput(Problem(f"{number} is not a seed", "seed", "", remedy))
    return changed


def _is_other_seed(place: Place) -> bool:
    is_seed = place.part == "seed" or str(place.part).endswith("_seed")
    if not is_seed or place.path == "seed" or not isinstance(place.owner, fdl.Buildable):
        return False
    return type(graph.evaluate(place.value)) is int
