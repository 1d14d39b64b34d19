"""A task whose model has experts: its loss, and the auxiliary losses of routing.

Shapes: N layers with experts, E experts; A parts of a batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from luthier.errors import BadInput, Problem
from luthier.layers.experts import RoutingSums, by_site, observing
from luthier.losses import load_balance, router_z
from luthier.metrics import (
    DROPPED_FRACTION,
    LARGEST_LOAD,
    LOAD_BALANCE,
    ROUTER_Z,
    SMALLEST_LOAD,
    Metric,
    Ratio,
)
from luthier.tasks.task import (
    Additive,
    Batch,
    BatchCoupled,
    CountCoupled,
    CoupledTask,
    LossSums,
    Reduction,
    Task,
)

_METRICS = (LOAD_BALANCE, ROUTER_Z, DROPPED_FRACTION, LARGEST_LOAD, SMALLEST_LOAD)


@dataclasses.dataclass(frozen=True)
class Routed:
    r"""A task with the routing losses of the model's experts added to its own.

    $$ L + \sum_n (\alpha\, E \sum_e f_{ne} P_{ne} + \beta\, \overline{(\log Z_n)^2}) $$

    over the layers n with experts. The shares f, and all means, are over the tokens of the whole
    batch, also where a step is cut into microbatches: the trainer counts the choices of all of them
    first, in one more forward pass.

    Reported are the means over layers of `load_balance` (1 = balanced) and `router_z`, the
    `dropped_fraction` of choices that found no place, and the `largest_load` and `smallest_load` of
    an expert in any layer, in units of the mean load. The losses are in the loss of training only.
    A task that runs its model several times, on two views say, has as many times the layers.

    Args:
      task: The task of the model.
      load_balance: Weight of the load-balance loss, α; None leaves the term out.
      router_z: Weight of the router's z-loss, β; None leaves the term out.

    Source: Fedus et al. 2021, arXiv:2101.03961, section 2.2 (α = 0.01); Zoph et al. 2022,
      arXiv:2202.08906, equation 6 (β = 0.001).
    """

    RANGES: ClassVar[dict[str, str]] = {"load_balance": "0 <= x", "router_z": "0 <= x"}

    task: Task
    load_balance: float | None = 0.01
    router_z: float | None = 0.001

    @property
    def reduction(self) -> Reduction:
        """Coupled by the counts of choices, and by whatever couples the task itself."""
        # Load shares are counts, so one more forward pass is enough (`CountCoupled`), unless the
        # task itself is coupled by statistics with a derivative.
        own = self.task.reduction
        return CountCoupled("shares of the load") if isinstance(own, Additive) else own

    @property
    def loss_metrics(self) -> Sequence[Metric]:
        """The keys of `loss(...).metrics`."""
        return (*self.task.loss_metrics, *_METRICS)

    @property
    def metrics(self) -> Sequence[Metric]:
        """The keys of what `evaluate` returns."""
        return (*self.task.metrics, *_METRICS)

    @property
    def batch_axes(self) -> Any:
        """The logical axes of every entry of a batch."""
        return self.task.batch_axes

    def statistics(self, model: Any, batch: Batch, key: jax.Array | None) -> dict[str, Any]:
        """Return the statistics of these rows that the loss of other rows depends on.

        Args:
          model: As for `loss`.
          batch: As for `loss`.
          key: As for `loss`.

        Returns:
          `weight`, the sum of the loss's weights; `layers`, counts of tokens and choices; `task`,
          the statistics of the task itself, if it is coupled.
        """
        # The loss is computed for the routing it causes; its value is not used, and the compiler
        # removes the unembedding and all else behind the last router.
        with observing() as seen:
            weight = self.task.loss(model, batch, key).loss.denominator
        statistics = {"weight": weight, "layers": [_counts(by_site(sums)) for sums in seen]}
        own = _coupled(self.task)
        if own is None:
            return statistics
        return statistics | {"task": own.statistics(model, batch, key)}

    def loss(
        self, model: Any, batch: Batch, key: jax.Array | None, statistics: Any = None
    ) -> LossSums:
        """Return the summed loss of these rows over their summed weights.

        Args:
          model: A model with experts, under the trace.
          batch: A batch of the task.
          key: Key of this step's randomness, the same for every part of the batch; None for none.
          statistics: Those of all parts of the batch, with a leading dimension A; None where this
            is the whole batch.

        Returns:
          Numerator and weight of the loss, scalars, with the sums of the metrics of training.
        """
        # The load-balance loss is E sum_e f_e P_e with f and P over the whole batch. Given the
        # counts of the whole batch, f is a constant and P a sum over tokens, so each microbatch
        # adds its own part, and the parts add up to the loss, and its gradient, of the whole.
        parts = {} if statistics is None else dict(statistics)
        others = (parts.pop("task"),) if "task" in parts else ()
        with observing() as seen:
            sums = self.task.loss(model, batch, key, *others)
        layers = _layers(seen)
        weight = sums.loss.denominator
        if statistics is None:
            whole = {"weight": weight, "layers": [_counts(layer) for layer in layers]}
        else:
            whole = jax.tree.map(lambda x: x.sum(0), parts)
        # `extra` is a mean over the whole batch already, and the step will divide the sum of the
        # numerators by the whole weight: hence times that weight, and not times the part's own.
        extra, metrics = self._routing(layers, whole, weight)
        loss = Ratio(sums.loss.numerator + whole["weight"] * extra, weight)
        return LossSums(loss, {**sums.metrics, **metrics}, sums.updates)

    def evaluate(self, model: Any, batch: Batch) -> dict[Metric, Ratio]:
        """Return the metrics of the task and of the routing, for a batch without randomness.

        Args:
          model: The model, under the trace.
          batch: A batch of the task.

        Returns:
          Sums of each metric over the batch, scalars.
        """
        # `evaluate` returns metrics without the sum of the loss's weights, so the number of tokens
        # that were routed weights the means over batches here. It is that of the first layer, as
        # the layers of a stack route the same tokens, and the weight only compares batches.
        with observing() as seen:
            metrics = self.task.evaluate(model, batch)
        layers = _layers(seen)
        weight = layers[0].tokens[0]
        whole = {"weight": weight, "layers": [_counts(layer) for layer in layers]}
        return {**metrics, **self._routing(layers, whole, weight)[1]}

    def count_tokens(self, batch: Batch) -> Any:
        """Return the number of targets that count.

        Args:
          batch: A batch of the task.

        Returns:
          An integer scalar of the batch's array type.
        """
        return self.task.count_tokens(batch)

    def _routing(
        self, layers: Sequence[RoutingSums], whole: dict[str, Any], weight: jax.Array
    ) -> tuple[Any, dict[Metric, Ratio]]:
        """Return these rows' part of the routing losses of the batch, and the metrics."""
        # A stack reports once, with a leading dimension of layers, or each layer does; `by_site`
        # has given all a leading dimension, and `concatenate` makes one list of layers, [N].
        every = whole["layers"]
        balance_N = jnp.concatenate(
            [
                load_balance(all_["choices"], layer.probabilities_E, all_["tokens"])
                for layer, all_ in zip(layers, every, strict=True)
            ]
        )
        z_N = jnp.concatenate(
            [
                router_z(layer.squared_log_z, all_["tokens"])
                for layer, all_ in zip(layers, every, strict=True)
            ]
        )
        # The loss is a sum over layers, so that a coefficient means the same for each layer of deep
        # and shallow models. The metrics are means, which can be compared between depths.
        extra: Any = 0.0
        if self.load_balance is not None:
            extra = extra + self.load_balance * balance_N.sum()
        if self.router_z is not None:
            extra = extra + self.router_z * z_N.sum()
        loads = [_loads(all_["choices"]) for all_ in every]
        largest = jnp.max(jnp.stack([load.max() for load in loads]))
        smallest = jnp.min(jnp.stack([load.min() for load in loads]))
        dropped = sum(layer.dropped.sum() for layer in layers)
        wanted = sum(layer.wanted.sum() for layer in layers)
        # Sums of parts: those of the losses add up, and the loads are the same in every part.
        return extra, {
            LOAD_BALANCE: Ratio(whole["weight"] * balance_N.mean(), weight),
            ROUTER_Z: Ratio(whole["weight"] * z_N.mean(), weight),
            DROPPED_FRACTION: Ratio(dropped, wanted),
            LARGEST_LOAD: Ratio(weight * largest, weight),
            SMALLEST_LOAD: Ratio(weight * smallest, weight),
        }


def _coupled(task: Any) -> CoupledTask | None:
    """Return the task if its rows see each other and it says how."""
    is_coupled = isinstance(task.reduction, BatchCoupled) and isinstance(task, CoupledTask)
    return task if is_coupled else None


def _layers(seen: Sequence[RoutingSums]) -> list[RoutingSums]:
    if not seen:
        remedy = "use the inner task alone, or replace an mlp by layers.Experts"
        raise BadInput(Problem("no layer of the model has experts", "task", remedy=remedy))
    return [by_site(sums) for sums in seen]


def _counts(layer: RoutingSums) -> dict[str, jax.Array]:
    """Return the sums that have no derivative."""
    return jax.lax.stop_gradient({"tokens": layer.tokens, "choices": layer.choices_E})


def _loads(choices_NE: jax.Array) -> jax.Array:
    """Return the loads of experts in units of the mean load of their layer."""
    mean_N1 = choices_NE.mean(-1, keepdims=True)
    return choices_NE / jnp.where(mean_N1 > 0, mean_N1, 1)
