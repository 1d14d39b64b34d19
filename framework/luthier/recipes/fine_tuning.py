"""Partial freezing and low-rank adapters, as fiddlers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from luthier import checkpoint, graph, layers, optim
from luthier.errors import BadInput, Problem
from luthier.graph import Graph
from luthier.graph.paths import Place
from luthier.recipes.selection import is_experiment, is_selected


def freeze(experiment: fdl.Buildable, pattern: str) -> Any:
    r"""Freeze the parameters that match a pattern, in addition to those already frozen.

        luthier show configs.lm.quickstart 'fiddler:freeze("^embedding")' --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      pattern: A regular expression over parameter names, as for `re.search`:
        `^embedding\.`, `^blocks\.`, `norm\.scale$`.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The pattern is not a regular expression, or `training.trainable` is a mask of one's
        own, which cannot be narrowed.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.freeze(config, "^embedding")
      >>> changed.training.trainable
      <Config[NotMatching(pattern='^embedding')]>
    """
    # Masks are patterns, so freezing more is a pattern, too: a union of what is excluded, or a
    # negative lookahead before what is included.
    _check(pattern)
    changed = graph.copy_graph(experiment)
    mask = changed.training.trainable
    if mask is None:
        new = fdl.Config(optim.NotMatching, pattern=pattern)
    elif getattr(mask, "__fn_or_cls__", type(mask)) is optim.NotMatching:
        new = fdl.Config(optim.NotMatching, pattern=f"(?:{mask.pattern})|(?:{pattern})")
    elif getattr(mask, "__fn_or_cls__", type(mask)) is optim.Matching:
        kept = f"^(?!.*(?:{pattern})).*(?:{mask.pattern})"
        new = fdl.Config(optim.Matching, pattern=kept)
    else:
        remedy = "give a mask of your own to training.trainable"
        raise BadInput(Problem("cannot be narrowed", "training.trainable", remedy=remedy))
    changed.training.trainable = new
    return changed


def train_only(experiment: fdl.Buildable, pattern: str) -> Any:
    """Train only the parameters that match a pattern.

        luthier show configs.lm.quickstart 'fiddler:train_only("norm")' --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      pattern: A regular expression over parameter names, as for `re.search`.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The pattern is not a regular expression.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.train_only(config, "norm")
      >>> changed.training.trainable
      <Config[Matching(pattern='norm')]>
    """
    _check(pattern)
    changed = graph.copy_graph(experiment)
    changed.training.trainable = fdl.Config(optim.Matching, pattern=pattern)
    return changed


def _check(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise BadInput(Problem(f"{pattern!r} is not a regular expression: {error}")) from error


# Low-rank adaptation.

ADAPTERS = r"\.lora_[ab]$"
"""Pattern that matches the names of adapters, and of no other parameters."""


def lora(
    experiment_or_model: fdl.Buildable,
    rank: int = 8,
    alpha: float = 16.0,
    target: str | type = "attention",
) -> Any:
    r"""Add low-rank adapters to linear layers, and train only the adapters.

    The fiddler replaces the templates of `Linear` by templates of `LoraLinear`. The rank and alpha
    are shared values (`lora_rank`, `lora_alpha`), so you can change them for all layers with one
    override. In an experiment, `training.trainable` selects only the adapters, and the rules of
    `restore` load all other parameters.

        luthier show configs.lm.quickstart 'fiddler:lora(rank=4)' --changes

    Args:
      experiment_or_model: A graph of an experiment or of a model; it is not changed.
      rank: The rank of the adapters.
      alpha: The output of an adapter is multiplied by `alpha / rank`.
      target: The linear layers to adapt. This is a regular expression over paths in the config of
        the model (`attention`, `mlp\.up$`), the class of the layer that contains them, or a tag.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: No linear layer is selected.

    Example:
      >>> import luthier
      >>> from luthier import graph, recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.lora(config, rank=4)
      >>> graph.head_text(changed.model.block.attention.projection)
      'partial luthier.layers.LoraLinear'
      >>> recipes.has_lora(changed), recipes.has_lora(config)
      (True, False)

    Source: Hu et al. 2021, arXiv 2106.09685.
    """
    changed = graph.copy_graph(experiment_or_model)
    _swap(changed.model if is_experiment(changed) else changed, rank, alpha, target)
    if is_experiment(changed):
        changed.training.trainable = fdl.Config(optim.Matching, pattern=ADAPTERS)
        _initialize_adapters(changed)
    return changed


def without_lora(experiment_or_model: fdl.Buildable) -> Any:
    """Replace linear layers that have adapters by plain linear layers.

    The parameters of the resulting model are those that `luthier.layers.merge_adapters` returns.
    The fiddler does not undo the changes that `lora` made outside of the model.

        luthier show configs.lm.quickstart fiddler:lora fiddler:without_lora --changes

    Args:
      experiment_or_model: A graph of an experiment or of a model; it is not changed.

    Returns:
      The changed copy of the config.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.without_lora(recipes.lora(config))
      >>> recipes.has_lora(changed)
      False
    """
    changed = graph.copy_graph(experiment_or_model)
    plain: dict[int, fdl.Buildable] = {}
    for place in _templates(changed, layers.LoraLinear):
        if id(place.value) not in plain:
            settings = dict(getattr(place.value, "__arguments__", {}))
            kept = {name: settings[name] for name in ("kernel", "bias") if name in settings}
            plain[id(place.value)] = fdl.Partial(layers.Linear, **kept)
        graph.set_value(changed, place.path, plain[id(place.value)])
    return changed


def has_lora(experiment_or_model: fdl.Buildable) -> bool:
    """Return whether a graph has linear layers with adapters.

    Args:
      experiment_or_model: A graph of an experiment or of a model.

    Returns:
      True if at least one template of a linear layer is a `LoraLinear`.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> recipes.has_lora(config), recipes.has_lora(recipes.lora(config))
      (False, True)
    """
    return next(iter(_templates(experiment_or_model, layers.LoraLinear)), None) is not None


def _swap(model: Graph, rank: int, alpha: float, target: str | type) -> None:
    found = list(_templates(model, layers.Linear))
    chosen = [place for place in found if is_selected(place, target)]
    if not chosen:
        paths = ", ".join(sorted({place.path for place in found})) or "none"
        what = f"{getattr(target, '__name__', target)!r} selects no linear map"
        raise BadInput(Problem(what, remedy=f"the model has {paths}"))
    settings = {
        "rank": graph.value(rank, name="lora_rank"),
        "alpha": graph.value(float(alpha), name="lora_alpha"),
    }
    made: dict[int, fdl.Buildable] = {}
    for place in chosen:
        # A template that is used in many places stays one.
        key = id(place.value)
        if key not in made:
            own = dict(getattr(place.value, "__arguments__", {}))
            made[key] = fdl.Partial(layers.LoraLinear, **settings, **own)
        graph.set_value(model, place.path, made[key])


def _templates(root: Any, target: type) -> Iterator[Place]:
    """Yield the places of templates of a class, each once, even below a shared node."""
    # All are found before the first is yielded: the caller changes the graph meanwhile.
    seen: set[tuple[int, Any]] = set()
    found = []
    for place in graph.walk(root):
        value = place.value
        is_one = value is target or getattr(value, "__fn_or_cls__", None) is target
        if is_one and (place.is_default or (id(place.owner), place.part) not in seen):
            seen.add((id(place.owner), place.part))
            found.append(place)
    yield from found


def _initialize_adapters(experiment: Graph) -> None:
    """Let a warm start initialize adapters, whatever its other rules are."""
    # A checkpoint of the base model has no adapters. The first rule that matches decides.
    restore = experiment.restore
    if not isinstance(restore, fdl.Buildable):
        return
    rules = restore.rules
    own = fdl.Config(checkpoint.Init, pattern=ADAPTERS)
    restore.rules = [own, *rules]
