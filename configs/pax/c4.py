"""Pax's decoders of C4: base model A of 1.10, 2.14, 16.5 and 32.5 billion parameters.

Paper: none; Paxml 1.4.0, `tasks/lm/params/c4.py`, whose public C4 runs these were.
Command: luthier train configs.pax.c4
Hardware: 4 chips of TPU v4 (v4-8).
Expected: not measured yet.

The files are those of MLPerf, `gs://mlperf-llm-public2`; `'fiddler:shared(folder="DIR")'` reads a
copy, and `python -m luthier.shipped.c4_shards DIR` writes a small one.

Pax published curves. The loss of this one, in nats per token, ends near 2.54 after 53,300 steps;
that of `decoder_16b` near 2.56 after 11,200 steps on 32 chips, after spikes at about 850, 2,000 and
2,450 steps. On TPU v4 it used 42.5% of the peak (16B) and 42.3% (32B). As in Pax, what layers hand
on is split along the axis of tensors where there is one, so that less is kept per device.

Pax caps the updates of the queries', keys' and values' kernels together, here each is capped by
itself. `base_1p3b` asks to keep the attention's projections, but Pax does so only where layers are
scanned, and there they are not; here they are, and it does. Pax's validation set declares 50,257
tokens: an id beyond 32,000 has no vector and no loss there, and is refused here.
"""

from __future__ import annotations

import fiddle as fdl
import jax.numpy as jnp

from luthier import checkpoint, durations, layers, models, parallel, program, records, tasks
from luthier.graph import value
from luthier.recipes import decoders, published

STEPS = 10_000_000  # as Pax has it where nobody says how long to train


def experiment(steps: int = STEPS) -> fdl.Config[program.Experiment]:
    """Train 1.10 billion parameters on 4 chips.

    Pax: C4Spmd1BAdam4Replicas
    Pax: C4Spmd1BAdam4ReplicasLimitSteps(steps=15_000)
    """
    return _train("pax-1b", decoders.pax_1b(), steps, rows=128, fsdp=4)


def decoder_2b() -> fdl.Config[program.Experiment]:
    """Train 2.14 billion parameters on 4 chips.

    Pax: C4Spmd2BAdam4Replicas
    """
    return _train("pax-2b", decoders.pax_2b(), STEPS, rows=128, fsdp=4)


def decoder_16b() -> fdl.Config[program.Experiment]:
    """Train 16.5 billion parameters on 32 chips.

    Pax: C4Spmd16BAdam32Replicas
    """
    return _train("pax-16b", decoders.pax_16b(), STEPS, rows=512, fsdp=16, tensor=2)


def decoder_32b() -> fdl.Config[program.Experiment]:
    """Train 32.5 billion parameters on 64 chips.

    Pax: C4Spmd32BAdam64Replicas
    """
    return _train("pax-32b", decoders.pax_32b(), STEPS, rows=512, fsdp=16, tensor=4)


def base_1p3b() -> fdl.Config[program.Experiment]:
    """Train the base of the others, 1.27 billion parameters, in float32 on 8 chips.

    Pax: C4SpmdAdam
    """
    graph = _train("pax-base-1p3b", decoders.pax(), STEPS, rows=8, fsdp=4, tensor=2)
    graph.model.dtype = jnp.float32
    kept = ["query", "key", "value", "attention_context", "attention_output"]
    graph.model.stack.remat = fdl.Config(layers.SaveNamed, names=kept)
    return graph


def _rules(tensor: int) -> dict[str, fdl.Config[parallel.Rules]]:
    if tensor == 1:
        return {}
    activations = {**parallel.activation_rules_table(), "embed": ("tensor",)}
    return {"rules": fdl.Config(parallel.Rules, activations=activations)}


def _train(
    name: str, model: fdl.Partial[models.Decoder], steps: int, rows: int, fsdp: int, tensor: int = 1
) -> fdl.Config[program.Experiment]:
    length, batch = value(1024, name="length"), value(rows, name="global_batch_size")
    folder = value("gs://mlperf-llm-public2", name="folder")
    model.dtype = jnp.bfloat16
    model.stack = fdl.Config(layers.Scanned, remat=fdl.Config(layers.FullRemat))
    return fdl.Config(
        program.Experiment,
        name=name,
        seed=9876,
        model=model,
        task=fdl.Config(tasks.LanguageModelling),
        data=published.c4_training(length=length, folder=folder),
        evaluations={
            "validation": fdl.Config(
                program.Evaluation,
                data=published.c4_validation(length=length, folder=folder),
                every=fdl.Config(durations.Steps, 100),
                global_batch_size=batch,
            )
        },
        optimizer=published.pax_c4_adam(),
        training=fdl.Config(program.Training, steps=steps, global_batch_size=batch),
        parallelism=fdl.Config(
            parallel.Parallelism,
            mesh=fdl.Config(parallel.Mesh, data=1, fsdp=fsdp, tensor=tensor),
            **_rules(tensor),
        ),
        checkpoints=fdl.Config(
            checkpoint.Checkpoints, every=fdl.Config(durations.Steps, 1000), keep_latest=10
        ),
        records=fdl.Config(records.Records, console=fdl.Config(records.Console)),
    )
