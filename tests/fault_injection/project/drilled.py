"""The experiment of the injections: it compiles at once, and does harm when it is told to.

Bytes in the text do harm to a step: 1 makes its loss not a number, 2 makes it a spike. Files in the
working directory do harm to the batches: `slow` holds seconds that each of them takes, `stuck-I`
keeps process I waiting for ever, `broken` makes the next one fail, `clock` holds seconds by which
the clock jumps.

Shapes: B rows, L length, V vocab.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from typing import Any, ClassVar

import fiddle as fdl
import jax
import jax.numpy as jnp
from flax import nnx

from luthier import checkpoint, data, durations, optim, parallel, program, records, tasks
from luthier.layers import DropoutKeys, Linear, create
from luthier.metrics import LOSS, NATS_PER_TOKEN, Metric, Ratio

VOCAB = 258
_TIME = time.time
ENTRIES = ("inputs", "targets", "weights", "documents", "positions")


class Bigram(nnx.Module):
    """Predicts each byte from the one before it."""

    INHERITED: ClassVar[tuple[str, ...]] = ("rngs",)

    def __init__(self, dim: int, *, rngs: nnx.Rngs):
        sizes = {"inputs": (VOCAB,), "input_axes": ("vocab",)}
        outputs = {"outputs": (dim,), "output_axes": ("embed",)}
        self.up = create(Linear, **sizes, **outputs, rngs=rngs)
        back = {"inputs": (dim,), "input_axes": ("embed",)}
        self.down = create(Linear, **back, outputs=(VOCAB,), output_axes=("mlp",), rngs=rngs)

    def __call__(self, inputs_BL: jax.Array) -> jax.Array:
        """Return logits [B, L, V]."""
        return self.down(jnp.tanh(self.up(jax.nn.one_hot(inputs_BL, VOCAB))))


@dataclasses.dataclass(frozen=True)
class Poisoned:
    """Language modelling in which some bytes do harm."""

    reduction: ClassVar[tasks.Additive] = tasks.Additive()
    loss_metrics: ClassVar[tuple[Metric, ...]] = (NATS_PER_TOKEN,)
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, NATS_PER_TOKEN)
    batch_axes: ClassVar[dict[str, tuple[str, ...]]] = dict.fromkeys(ENTRIES, ("batch", "length"))

    def loss(self, model: Any, batch: Any, key: jax.Array | None) -> tasks.LossSums:
        """Return the summed loss, with dropout on the weights so that keys count too."""
        weights_BL = batch["weights"]
        if key is not None:
            keys = DropoutKeys.of_tokens(key, batch["documents"], batch["positions"])
            weights_BL = weights_BL * (keys.uniform(()) < 0.9)
        nats = self._nats(model, batch, weights_BL)
        inputs_BL = batch["inputs"]
        harm = jnp.where(jnp.any(inputs_BL == 1), jnp.nan, 1.0)
        harm = harm * jnp.where(jnp.any(inputs_BL == 2), 1e4, 1.0)
        ratio = Ratio(nats, jnp.sum(weights_BL))
        return tasks.LossSums(Ratio(nats * harm, ratio.denominator), {NATS_PER_TOKEN: ratio})

    def evaluate(self, model: Any, batch: Any) -> dict[Metric, Ratio]:
        """Return the metrics of a batch."""
        weights_BL = batch["weights"]
        ratio = Ratio(self._nats(model, batch, weights_BL), jnp.sum(weights_BL))
        return {LOSS: ratio, NATS_PER_TOKEN: ratio}

    def count_tokens(self, batch: Any) -> Any:
        """Return the number of targets with non-zero weight."""
        return (batch["weights"] != 0).sum()

    def _nats(self, model: Any, batch: Any, weights_BL: jax.Array) -> jax.Array:
        logs_BLV = jax.nn.log_softmax(model(batch["inputs"]))
        found_BL = jnp.take_along_axis(logs_BLV, batch["targets"][..., None], -1)[..., 0]
        return -jnp.sum(found_BL * weights_BL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Troubled(data.Packed):
    """Packed text whose batches come slowly, late or never."""

    def iterator(self, *, process_index: int = 0, **others: Any) -> Any:
        """Return the batches of one process."""
        return _Batches(super().iterator(process_index=process_index, **others), process_index)


class _Batches:
    def __init__(self, batches: Any, process: int):
        self._batches = batches
        self._process = process

    def __next__(self) -> Any:
        if (slow := pathlib.Path("slow")).exists():
            time.sleep(float(slow.read_text()))
        while pathlib.Path(f"stuck-{self._process}").exists():
            time.sleep(0.05)
        if (clock := pathlib.Path("clock")).exists() and time.time is _TIME:
            time.time = lambda by=float(clock.read_text()): _TIME() + by
        if pathlib.Path("broken").exists():
            raise RuntimeError("the decoder of images has crashed")
        return next(self._batches)

    def get_state(self) -> Any:
        return self._batches.get_state()

    def set_state(self, state: Any) -> None:
        self._batches.set_state(state)


def experiment() -> fdl.Config[program.Experiment]:
    """Train on the text in the working directory."""
    return fdl.Config(
        program.Experiment,
        name="drilled",
        model=fdl.Partial(Bigram, dim=16),
        task=fdl.Config(Poisoned),
        data=fdl.Config(
            Troubled,
            source=fdl.Config(data.TextFiles, "text/*.txt"),
            tokenizer=fdl.Config(data.Bytes),
            length=32,
            packing=fdl.Config(data.Concatenate),
        ),
        optimizer=fdl.Config(optim.adamw, learning_rate=1e-2),
        training=fdl.Config(
            program.Training, steps=60, global_batch_size=8, guard=fdl.Config(optim.Guard)
        ),
        parallelism=fdl.Config(
            parallel.Parallelism,
            mesh=fdl.Config(parallel.Mesh),
            rules=fdl.Config(
                parallel.Rules,
                parameters=parallel.parameter_rules(),
                activations=parallel.activation_rules_table(),
            ),
        ),
        checkpoints=fdl.Config(checkpoint.Checkpoints, every=fdl.Config(durations.Steps, 10)),
        records=fdl.Config(records.Records, console=fdl.Config(records.Console)),
    )
