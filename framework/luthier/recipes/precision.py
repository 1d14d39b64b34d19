"""Precision as fiddlers: dtypes of stored arrays and of computations.

They compose: `fiddler:bf16 fiddler:fp8` multiplies in eight bits and does the rest in sixteen.
Rules of `experiment.precision` select by names of parameters (`luthier show --params`), compute
dtypes by paths of the model's graph (`luthier show`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import fiddle as fdl
import jax.numpy as jnp

from luthier import graph, layers, optim
from luthier.errors import BadInput, Problem
from luthier.graph import Graph, signatures
from luthier.graph.paths import Place
from luthier.layers.parameters import DType
from luthier.recipes.selection import is_experiment, is_selected

BLOCKS = r"(^|\.)block\b(?!.*\brouter\b)"
"""Pattern for the paths of linear maps within layers, except for routers of experts."""


def bf16(experiment_or_model: fdl.Buildable) -> Any:
    """Return a graph whose model computes in bfloat16; parameters stay as they are stored.

    Parameters in float32 are their own master weights: gradients reach them in float32, and no
    update is rounded away. Norms, softmax, logits and losses sum in float32 in any case.

        luthier show configs.lm.quickstart fiddler:bf16 --changes

    Args:
      experiment_or_model: A graph of an experiment or of a model; it is not changed.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The model has no setting `dtype`.

    Example:
      >>> import luthier
      >>> from luthier import graph, recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.bf16(config)
      >>> graph.text_of(changed.model.dtype)
      'jax.numpy.bfloat16'

    Source: Kalamkar et al. 2019, arXiv 1905.12322, section 3.
    """
    changed = graph.copy_graph(experiment_or_model)
    model = changed.model if is_experiment(changed) else changed
    if "dtype" not in _settings(model):
        raise BadInput(Problem("the model has no setting dtype", "model"))
    model.dtype = jnp.bfloat16
    return changed


def bf16_masters(experiment: fdl.Buildable, pattern: str = "") -> Any:
    """Return an experiment with bfloat16 parameters and float32 master weights in the optimizer.

    Beyond `bf16`, the parameters that layers read take half of the memory and, where they are
    gathered, half of the traffic; parameter and master weight together take 1.5 times the memory of
    a float32 parameter.

        luthier show configs.lm.quickstart fiddler:bf16_masters --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      pattern: A regular expression over names of parameters; empty for all of them.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The graph does not describe an experiment, or its model has no setting `dtype`.

    Example:
      >>> import luthier
      >>> from luthier import graph, recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.bf16_masters(config)
      >>> graph.text_of(changed.precision.parameters[0].dtype)
      'jax.numpy.bfloat16'
      >>> graph.text_of(changed.precision.masters[0].dtype)
      'jax.numpy.float32'

    Source: Micikevicius et al. 2017, arXiv 1710.03740, section 3.1.
    """
    # Three rules: layers compute in bfloat16, parameters are stored so, and the optimizer keeps
    # float32 master weights, from which the stored ones are rounded after each update.
    stored = store_parameters(bf16(experiment), jnp.bfloat16, pattern)
    return _with_rule(stored, "masters", jnp.float32, pattern)


def store_parameters(experiment: fdl.Buildable, dtype: DType, pattern: str = "") -> Any:
    r"""Return an experiment that stores parameters in a type; earlier rules give way.

    They are initialized as before, and then rounded.

        luthier show configs.lm.quickstart 'fiddler:store_parameters(bfloat16, "mlp")' --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      dtype: A floating point type of 16 bits or more.
      pattern: A regular expression over names of parameters, `norm\.scale$`; empty for all.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The graph does not describe an experiment.

    Example:
      >>> import jax.numpy as jnp
      >>> import luthier
      >>> from luthier import graph, recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.store_parameters(config, jnp.bfloat16, "mlp")
      >>> print(graph.render(changed.precision.parameters[0]))
      luthier.optim.StoredAs
        pattern = 'mlp'
        dtype = jax.numpy.bfloat16
    """
    return _with_rule(experiment, "parameters", dtype, pattern)


def store_optimizer(experiment: fdl.Buildable, dtype: DType, pattern: str = "") -> Any:
    """Return an experiment that stores the optimizer's state in a type; earlier rules give way.

    The optimizer still computes in float32: arrays are widened before a step and rounded after it.
    A bfloat16 moment ignores changes below 1/256 of its value: choose b2 below 0.99.

        luthier show configs.lm.quickstart 'fiddler:store_optimizer(bfloat16)' --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      dtype: A floating point type of 16 bits or more.
      pattern: A regular expression over names such as
        `stages/1/first_moment/blocks.mlp.up.kernel`; empty for all.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The graph does not describe an experiment.

    Example:
      >>> import jax.numpy as jnp
      >>> import luthier
      >>> from luthier import graph, recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.store_optimizer(config, jnp.bfloat16)
      >>> print(graph.render(changed.precision.optimizer[0]))
      luthier.optim.StoredAs
        pattern = ''
        dtype = jax.numpy.bfloat16
    """
    return _with_rule(experiment, "optimizer", dtype, pattern)


def sum_gradients(experiment: fdl.Buildable, dtype: DType, pattern: str = "") -> Any:
    """Return an experiment that sums gradients in a type; earlier rules give way.

    Without a rule that is float32. In bfloat16 the gradient of microbatches takes half of the
    memory, and depends on how a batch is cut: a sum loses terms below 1/256 of its value.

        luthier show configs.lm.quickstart 'fiddler:sum_gradients(bfloat16)' --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      dtype: A floating point type of 16 bits or more.
      pattern: A regular expression over names of parameters; empty for all.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The graph does not describe an experiment.

    Example:
      >>> import jax.numpy as jnp
      >>> import luthier
      >>> from luthier import graph, recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.sum_gradients(config, jnp.bfloat16)
      >>> print(graph.render(changed.precision.accumulation[0]))
      luthier.optim.StoredAs
        pattern = ''
        dtype = jax.numpy.bfloat16
    """
    return _with_rule(experiment, "accumulation", dtype, pattern)


def compute_in(experiment_or_model: fdl.Buildable, dtype: DType, target: str | type) -> Any:
    r"""Return a graph some of whose layers compute in a type of their own.

    `unembedding$` selects the operands of the logits, which are summed in float32 in any case.

        luthier show configs.lm.quickstart 'fiddler:compute_in(bfloat16, "mlp$")' --changes

    Args:
      experiment_or_model: A graph of an experiment or of a model; it is not changed.
      dtype: The type.
      target: The layers: a regular expression over paths of the model's graph (`attention$`,
        `norm$`), the class of their owner, or a tag.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: No layer with a setting `dtype` is selected.

    Example:
      >>> import jax.numpy as jnp
      >>> import luthier
      >>> from luthier import graph, recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.compute_in(config, jnp.bfloat16, "mlp$")
      >>> graph.text_of(changed.model.block.mlp.dtype)
      'jax.numpy.bfloat16'
    """
    return _swap(experiment_or_model, "dtype", target, "layer that sets a dtype", dtype)


def int8(
    experiment_or_model: fdl.Buildable,
    target: str | type = BLOCKS,
    gradient: DType | None = None,
) -> Any:
    r"""Return a graph whose linear maps multiply integers of eight bits.

    Inputs and kernels are rounded as they come, with a scale for each row and each column.
    Parameters, gradients and optimizer keep their types, so a checkpoint fits with and without. All
    maps share the node of the product: one override moves all. Needs `luthier[quantization]`.

        luthier show configs.lm.quickstart fiddler:int8 --changes

    Args:
      experiment_or_model: A graph of an experiment or of a model; it is not changed.
      target: The linear maps: a regular expression over paths of the model's graph
        (`attention`, `mlp\.up$`), the class of the layer that they belong to, or a tag. Those of
        the layers by default, but for routers; heads and logits stay as they are.
      gradient: Dtype that gradients are rounded to in the backward pass, such as `int8`; None
        leaves the backward pass as it is.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: No linear map is selected, or qwix is not installed.

    Source: Jacob et al. 2017, arXiv 1712.05877, section 2.1.
    """
    kinds: dict[str, DType] = {"inputs": jnp.int8, "kernel": jnp.int8}
    kinds |= {} if gradient is None else {"gradient": gradient}
    return _quantized(experiment_or_model, target, kinds)


def int8_weights(experiment_or_model: fdl.Buildable, target: str | type = BLOCKS) -> Any:
    """Return a graph whose linear maps have kernels that are rounded to integers of eight bits.

    Products are computed in the dtype of the layer. This shows the loss of quality when only the
    weights of a trained model are quantized.

        luthier evaluate last fiddler:int8_weights

    Args:
      experiment_or_model: A graph of an experiment or of a model; it is not changed.
      target: The linear maps; see `int8`.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: No linear map is selected, or qwix is not installed.
    """
    kinds = {"inputs": None, "kernel": jnp.int8}
    return _quantized(experiment_or_model, target, kinds)


def fp8(experiment_or_model: fdl.Buildable, target: str | type = BLOCKS) -> Any:
    """Return a graph whose linear maps multiply floating point numbers of eight bits.

    Inputs and kernels are rounded to E4M3, and in the backward pass gradients to E5M2, with a scale
    for each row and each column. Otherwise as `int8`.

        luthier show configs.lm.quickstart fiddler:bf16 fiddler:fp8 --changes

    Args:
      experiment_or_model: A graph of an experiment or of a model; it is not changed.
      target: The linear maps; see `int8`.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: No linear map is selected, or qwix is not installed.

    Source: Micikevicius et al. 2022, arXiv 2209.05433, section 3.
    """
    # E4M3 has the precision that activations and weights need, E5M2 the range that gradients need.
    e4m3, e5m2 = jnp.float8_e4m3fn, jnp.float8_e5m2
    return _quantized(
        experiment_or_model, target, {"inputs": e4m3, "kernel": e4m3, "gradient": e5m2}
    )


def without_quantization(experiment_or_model: fdl.Buildable) -> Any:
    """Return the graph with plain products in the place of quantized ones.

        luthier show configs.lm.quickstart fiddler:int8 fiddler:without_quantization --changes

    Args:
      experiment_or_model: A graph of an experiment or of a model; it is not changed.

    Returns:
      The changed copy of the config.
    """
    changed = graph.copy_graph(experiment_or_model)
    for place in list(graph.walk(changed, defaults=False, once=True)):
        if getattr(place.value, "__fn_or_cls__", None) is layers.QuantizedProduct:
            graph.set_value(changed, place.path, fdl.Config(layers.MatrixProduct))
    return changed


def _quantized(changed: fdl.Buildable, target: str | type, kinds: dict[str, Any]) -> Any:
    node = fdl.Config(layers.QuantizedProduct, **kinds)
    graph.build(node)  # raises at once if qwix is missing, not only when the model is built
    return _swap(changed, "product", target, "linear map", node)


def _with_rule(experiment: fdl.Buildable, field: str, dtype: DType, pattern: str) -> Any:
    if not is_experiment(experiment):
        remedy = "give an experiment, or set the model's param_dtype"
        raise BadInput(Problem("a model alone has no state to store", remedy=remedy))
    changed = graph.copy_graph(experiment)
    # The first rule that matches a name decides, so the new one goes in front.
    rule = fdl.Config(optim.StoredAs, pattern=pattern, dtype=dtype)
    rules = list(graph.get(changed, f"precision.{field}"))
    graph.set_value(changed, f"precision.{field}", [rule, *rules])
    return changed


def _swap(
    experiment_or_model: fdl.Buildable,
    setting: str,
    target: str | type,
    kind: str,
    value: Any,
) -> Any:
    """Return the graph with a setting changed in the selected templates that have it."""
    changed = graph.copy_graph(experiment_or_model)
    model = changed.model if is_experiment(changed) else changed
    found = list(_templates(model, setting))
    chosen = [place for place in found if is_selected(place, target)]
    if not chosen:
        paths = sorted({place.path for place in found})
        parts = {part for path in paths for part in path.split(".")}
        near = graph.nearest(target, sorted(parts | set(paths))) if isinstance(target, str) else []
        remedy = "" if near else f"the model has {', '.join(paths) or 'none'}"
        what = f"{getattr(target, '__name__', target)!r} selects no {kind}"
        raise BadInput(Problem(what, "", "", remedy, near))
    made: dict[int, fdl.Buildable] = {}
    for place in chosen:
        # A template that is used in many places stays one, so that one override moves all of them.
        if id(place.value) not in made:
            made[id(place.value)] = _with(place.value, **{setting: value})
        graph.set_value(model, place.path, made[id(place.value)])
    return changed


def _with(template: Any, **settings: Any) -> fdl.Buildable:
    """Return a template with further settings, as a node."""
    if isinstance(template, functools.partial):
        return fdl.Partial(template.func, *template.args, **template.keywords | settings)
    own = dict(getattr(template, "__arguments__", {}))
    return fdl.Partial(getattr(template, "__fn_or_cls__", template), **own | settings)


def _templates(model: Graph, setting: str) -> Iterator[Place]:
    """Yield the places of templates that have a setting, each once, outer ones first."""
    # With defaults: a template that the graph does not set, because its owner has it as a default,
    # can be selected too, and becomes set.
    seen: set[tuple[int, Any]] = set()
    for place in graph.walk(model):
        is_new = place.is_default or (id(place.owner), place.part) not in seen
        if is_new and setting in _settings(place.value):
            seen.add((id(place.owner), place.part))
            yield place


def _settings(template: Any) -> tuple[str, ...]:
    """Return the names of the settings of a template of a module; none for anything else."""
    target = getattr(template, "__fn_or_cls__", template)
    target = template.func if isinstance(template, functools.partial) else target
    if not signatures.is_module_class(target):
        return ()
    return tuple(signatures.arguments(target).names)
