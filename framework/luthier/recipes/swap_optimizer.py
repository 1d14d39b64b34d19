"""Another optimizer as a fiddler: arguments that both have are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fiddle as fdl

from luthier import graph, optim
from luthier.errors import BadInput, Problem
from luthier.graph import signatures


def swap_optimizer(experiment: fdl.Buildable, recipe: optim.Optimizer | Callable[..., Any]) -> Any:
    """Replace the optimizer, and keep the arguments that have the same name in both.

    All recipes use the same names for the learning rate, the weight decay with its mask, and
    clipping. Therefore, these values do not change, and they keep their tags, sharing and history.
    The fiddler drops arguments that the new recipe does not take. All other arguments of the new
    recipe have their defaults. `--changes` lists the arguments that are kept, dropped and new.
    A good value for one optimizer can be a bad value for another. For example, Lion needs a
    learning rate that is several times smaller.

        luthier show configs.lm.quickstart 'fiddler:swap_optimizer(luthier.optim.lion)' --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      recipe: A recipe of `luthier.optim`, or a node of a recipe. The arguments of a node take
        precedence.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The new recipe needs an argument that the old one does not have.

    Example:
      >>> import luthier
      >>> from luthier import graph, optim, recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.swap_optimizer(config, optim.lion)
      >>> graph.head_text(changed.optimizer)
      'luthier.optim.lion'
    """
    changed = graph.copy_graph(experiment)
    given = dict(recipe.__arguments__) if isinstance(recipe, fdl.Config) else {}
    target: Any = recipe.__fn_or_cls__ if isinstance(recipe, fdl.Config) else recipe
    node = changed.optimizer
    # Fiddle changes the class in place, so that tags, sharing and history of arguments are kept; a
    # new node with the same values would lose them.
    fdl.update_callable(node, target, drop_invalid_args=True)
    for name, value in given.items():
        graph.set_value(changed, f"optimizer.{name}", value)
    known = signatures.arguments(target)
    missing = [part for part in known.required if part not in node.__arguments__]
    if missing:
        name, lacks = getattr(target, "__name__", str(target)), map(known.name_of, missing)
        what = f"{name} needs {', '.join(lacks)}, which the optimizer before it does not have"
        arguments = ", ".join("..." if isinstance(p, int) else f"{p}=..." for p in missing)
        remedy = f"write swap_optimizer(luthier.optim.{name}({arguments}))"
        raise BadInput(Problem(what, "optimizer", "", remedy))
    return changed
