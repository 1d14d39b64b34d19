"""Settings for a kind of accelerator, as fiddlers: for NVIDIA GPUs and for TPUs."""

from __future__ import annotations

from typing import Any

import fiddle as fdl
import jax.numpy as jnp

from luthier import graph, layers
from luthier.graph import Graph
from luthier.graph.paths import Place
from luthier.layers.parameters import DType
from luthier.recipes.parallelism import cores
from luthier.recipes.precision import bf16
from luthier.recipes.selection import is_experiment

_PLAIN = (layers.EinsumAttention, layers.FusedAttention, layers.AutoAttention)


def gpu(
    experiment: fdl.Buildable, max_documents: int = 16, logits_dtype: DType = jnp.bfloat16
) -> Any:
    """Return an experiment or a model with settings for an NVIDIA GPU.

    The model computes in bfloat16; attention is `AutoAttention` with kernels, which is cuDNN's
    wherever its kernel has the mask and is asked for neither caps, biases nor dropout of weights;
    queries, keys and values come from one product; logits are stored in bfloat16; and stacks
    without dropless experts have `unroll=auto`, which is all layers unless they are many or the
    remat policy saves more memory in a loop. An earlier form of these settings was measured on one
    H200, and these were not. Parameters keep their names, shapes and types, so checkpoints of
    either form restore into the other.

        luthier show configs.lm.quickstart fiddler:gpu --changes

    Args:
      experiment: A graph of an experiment or of a model; it is not changed.
      max_documents: Most documents of a row, for cuDNN's kernel: 1 where every row is one document,
        which is 5 % faster for GPT-2 on an H200 and runs on GPUs before Hopper.
      logits_dtype: Type in which logits are stored; `float32` for exact logits.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The model has no setting `dtype`.

    Example:
      >>> import luthier
      >>> from luthier import graph, recipes
      >>> changed = recipes.gpu(luthier.experiment("quickstart"))
      >>> changed.model.block.attention.core
      <Config[AutoAttention(kernels=True, max_documents=16)]>

    Source: docs/reference/performance.md, "On a GPU".
    """
    kernels = {"kernels": True, "max_documents": max_documents}
    changed, model = _accelerated(experiment, kernels, logits_dtype)
    # Unrolled, eight layers with dropless experts need 16 GiB on h100:8, and 8 as a loop.
    if not _of_class(model, layers.Dropless):
        for place in _of_class(model, layers.Scanned):
            _set(model, place, "unroll", "auto")
    return changed


def tpu(experiment: fdl.Buildable, logits_dtype: DType = jnp.bfloat16) -> Any:
    """Return an experiment or a model with settings for a TPU.

    The model computes in bfloat16; attention is `AutoAttention` with kernels, which is JAX's Splash
    wherever it has the mask and rows of a multiple of 128 tokens, and is asked for neither biases
    nor dropout of weights; queries, keys and values come from one product; and logits are stored in
    bfloat16. Stacks stay loops: unrolled, four layers of a Llama on v5e move 6 % fewer bytes and
    keep 14 % more. The settings follow from programs that were compiled for absent TPUs
    (`tools/check_budgets.py`); no TPU has run them. Parameters keep their names, shapes and types,
    so checkpoints of either form restore into the other.

        luthier show configs.lm.quickstart fiddler:tpu --changes

    Args:
      experiment: A graph of an experiment or of a model; it is not changed.
      logits_dtype: Type in which logits are stored; `float32` for exact logits.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The model has no setting `dtype`.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> changed = recipes.tpu(luthier.experiment("quickstart"))
      >>> changed.model.block.attention.core
      <Config[AutoAttention(kernels=True)]>

    Source: docs/reference/performance.md, "Compiled programs".
    """
    return _accelerated(experiment, {"kernels": True}, logits_dtype)[0]


def _accelerated(
    experiment: fdl.Buildable, kernels: dict[str, Any], logits_dtype: DType
) -> tuple[Any, Graph]:
    """Return a copy with the settings of every accelerator, and the model in it."""
    changed = bf16(experiment)
    model = changed.model if is_experiment(changed) else changed
    for place in list(cores(model)):
        core, path = graph.as_node(place.value), place.path
        if core.__fn_or_cls__ is layers.AllToAllAttention:
            # What it exchanges is attended to by a core of its own.
            core, path = graph.as_node(graph.get(core, "core")), f"{path}.core"
        if core.__fn_or_cls__ in _PLAIN:
            settings = {**core.__arguments__, **kernels}
            graph.set_value(model, path, fdl.Config(layers.AutoAttention, **settings))
    for place in _of_class(model, layers.Attention):
        _set(model, place, "joint", True)
    for place in _of_class(model, (layers.TiedUnembedding, layers.Unembedding)):
        _set(model, place, "logits_dtype", logits_dtype)
    return changed, model


def _of_class(model: Graph, kinds: type | tuple[type, ...]) -> list[Place]:
    found: dict[int, Place] = {}
    for place in graph.walk(model):
        made = _made(place)
        if isinstance(made, type) and issubclass(made, kinds):
            found.setdefault(id(place.value), place)  # a node that is shared is changed once
    return list(found.values())


def _set(model: Graph, place: Place, name: str, value: Any) -> None:
    if isinstance(place.value, type):  # a template without settings has no field to set
        graph.set_value(model, place.path, fdl.Partial(place.value, **{name: value}))
    else:
        graph.set_value(model, f"{place.path}.{name}", value)


def _made(place: Place) -> Any:
    if isinstance(place.value, type):
        return place.value
    return getattr(place.value, "__fn_or_cls__", type(place.value))
