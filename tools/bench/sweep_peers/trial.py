"""A training run written by hand: one jitted step, the learning rate a runtime argument.

Model and batches are luthier's, so that all ways train and evaluate the same; step, optimizer,
schedule and loop are plain JAX and optax, as somebody would write them who wants one sweep to be
fast. Training batches and the evaluation set are put on the device once for all trials, nothing is
saved unless that is wanted, and the scalars of the steps stay on the device until a trial is over.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from orbax.checkpoint import v1 as ocp

from luthier import program
from luthier.program.step import model_of


class Trainer:
    """Compiles a step and an evaluation at their first call, and runs trials with them.

    Args:
      experiment: A language model with AdamW and one evaluation, `held_out`.
      with_accuracy: Whether an evaluation counts the tokens that are predicted right, as luthier's
        does, and not only the loss.
    """

    def __init__(self, experiment: program.Experiment, with_accuracy: bool = False):
        self._with_accuracy = with_accuracy
        training, held_out = experiment.training, experiment.evaluations["held_out"]
        schedule = experiment.optimizer.learning_rate
        self._num_steps, self._seed = training.steps, experiment.seed
        self._warmup, self._end = schedule.warmup_steps, schedule.end
        self._transform = optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.scale_by_adam(b1=0.9, b2=0.98),
        )
        self._make_model = functools.partial(model_of, experiment)
        self._structure = nnx.split(nnx.eval_shape(self._make_model))[0]
        rows = experiment.data.iterator(
            global_batch_size=training.global_batch_size, seed=experiment.seed
        )
        self._batches = [jax.device_put(next(rows)) for _ in range(self._num_steps)]
        held = list(held_out.data.batches(global_batch_size=held_out.global_batch_size))
        self._held_out = jax.tree.map(lambda *arrays: jnp.asarray(np.stack(arrays)), *held)
        # The functions of K trials are those of one, mapped: rates and states have a leading axis
        # of K, and all trials see the same batches.
        self._init = jax.jit(self._first_state)
        self._step = jax.jit(self._next_state, donate_argnums=1)
        self._evaluate = jax.jit(self._sums_over)
        self._steps = jax.jit(
            jax.vmap(self._next_state, in_axes=(0, 0, None, None)), donate_argnums=1
        )
        self._evaluates = jax.jit(jax.vmap(self._sums_over, in_axes=(0, None)))

    def run(self, peak: float, checkpoint: pathlib.Path | None = None) -> float:
        """Train one trial; return its nats per token on the evaluation set.

        Args:
          peak: The highest learning rate.
          checkpoint: Where Orbax saves the last state; None saves nothing.
        """
        state = self._init()
        for step, batch in enumerate(self._batches):
            state, _ = self._step((peak, DECAY), state, step, batch)
        nats, tokens, *_ = jax.device_get(self._evaluate(state[0], self._held_out))
        loss = float(nats) / float(tokens)
        if checkpoint is not None:
            ocp.save_pytree(checkpoint, jax.tree.leaves(state))
        return loss

    def losses(self, peak: float, decay: float, every: int, num_batches: int) -> Iterator[float]:
        """Train one trial; yield its nats per byte after each `every` steps.

        Args:
          peak: The highest learning rate.
          decay: The weight decay.
          every: The number of steps between two evaluations.
          num_batches: Batches of an evaluation; the last one takes the whole set.
        """
        state = self._init()
        few = jax.tree.map(lambda x: x[:num_batches], self._held_out)
        for step, batch in enumerate(self._batches, 1):
            state, _ = self._step((peak, decay), state, step - 1, batch)
            if step % every == 0:
                batches = few if step < self._num_steps else self._held_out
                nats, _, num_bytes, _ = self._evaluate(state[0], batches)
                yield float(nats) / float(num_bytes)

    def run_together(self, peaks: Sequence[float]) -> list[float]:
        """Train trials side by side in one program; return the nats per token of each."""
        rates, state = (jnp.asarray(peaks), jnp.full(len(peaks), DECAY)), self._init()
        states = jax.tree.map(lambda x: jnp.repeat(x[None], len(peaks), 0), state)
        for step, batch in enumerate(self._batches):
            states, _ = self._steps(rates, states, step, batch)
        nats, tokens, *_ = self._evaluates(states[0], self._held_out)
        return np.asarray(nats / tokens).tolist()

    def _first_state(self) -> Any:
        parameters = nnx.split(self._make_model())[1]
        return parameters, self._transform.init(parameters)

    def _next_state(self, rates: Any, state: Any, step: Any, batch: Any) -> tuple[Any, Any]:
        def loss_of(parameters: Any) -> Any:
            nats, squares, weight, *_ = self._sums(parameters, batch)
            return (nats + 1e-4 * squares) / weight

        (peak, decay), (parameters, memory) = rates, state
        loss, gradient = jax.value_and_grad(loss_of)(parameters)
        update, memory = self._transform.update(gradient, memory, parameters)
        update = jax.tree.map(
            lambda u, x, decayed: u + decay * x if decayed else u,
            update,
            parameters,
            _is_decayed(parameters),
        )
        rate = self._rate(peak, step)
        parameters = jax.tree.map(lambda x, u: x - rate * u, parameters, update)
        return (parameters, memory), loss

    def _rate(self, peak: Any, step: Any) -> Any:
        done = (step - self._warmup) / (self._num_steps - self._warmup)
        cosine = self._end + (peak - self._end) * (1 + jnp.cos(jnp.pi * done)) / 2
        return jnp.where(step < self._warmup, peak * step / self._warmup, cosine)

    def _sums(self, parameters: Any, batch: Any) -> tuple[Any, Any, Any, Any, Any]:
        model = nnx.merge(self._structure, parameters)
        logits_BLV = model(
            batch["inputs"], positions_BL=batch["positions"], segments_BL=batch["segments"]
        )
        normalizer_BL = jax.nn.logsumexp(logits_BLV, -1)
        target_BL = jnp.take_along_axis(logits_BLV, batch["targets"][..., None], -1)[..., 0]
        weights_BL = batch["weights"]
        nats = jnp.sum((normalizer_BL - target_BL) * weights_BL)
        num_bytes = jnp.sum(batch["target_bytes"] * weights_BL)
        correct_BL = jnp.argmax(logits_BLV, -1) == batch["targets"]
        num_correct = jnp.sum(correct_BL * weights_BL)
        squares = jnp.sum(normalizer_BL**2 * weights_BL)
        return nats, squares, jnp.sum(weights_BL), num_bytes, num_correct

    def _sums_over(self, parameters: Any, batches: Any) -> Any:
        """Return the nats, tokens and bytes of all batches, and the tokens predicted right."""

        def add(total: Any, batch: Any) -> tuple[Any, None]:
            nats, _, weight, num_bytes, num_correct = self._sums(parameters, batch)
            # XLA leaves out the comparison where its sum is not used.
            found = (nats, weight, num_bytes, num_correct if self._with_accuracy else 0.0)
            return jax.tree.map(jnp.add, total, found), None

        return jax.lax.scan(add, (0.0, 0.0, 0.0, 0.0), batches)[0]


DECAY = 0.1
"""Of trials whose weight decay is not searched."""


def _is_decayed(parameters: Any) -> Any:
    """Return which parameters decay: not embeddings, norms and biases."""
    kept = ("embedding", "norm", "bias")

    def is_decayed(path: Any, _: Any) -> bool:
        name = jax.tree_util.keystr(path)
        return not any(word in name for word in kept)

    return jax.tree_util.tree_map_with_path(is_decayed, parameters)
