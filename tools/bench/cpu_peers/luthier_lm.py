"""The workload of `tools/bench/peers.py` in luthier: a GPT-2 of four layers on bytes.

Command: luthier train tools.bench.cpu_peers.luthier_lm
"""

from __future__ import annotations

import fiddle as fdl

from luthier import data, optim, parallel, program, records, tasks
from luthier.recipes import decoders


def experiment() -> fdl.Config[program.Experiment]:
    """Train 3.3 million parameters on rows of 256 bytes, eight a step, in float32."""
    return fdl.Config(
        program.Experiment,
        name="cpu_peers",
        seed=0,
        model=decoders.gpt2(
            vocab_size=258, max_length=256, dim=256, num_layers=4, num_heads=4, dropout_rate=None
        ),
        task=fdl.Config(tasks.LanguageModelling),
        data=fdl.Config(
            data.Packed,
            source=fdl.Config(data.Shakespeare, split="train"),
            tokenizer=fdl.Config(data.Bytes),
            length=256,
            packing=fdl.Config(data.Concatenate),
        ),
        optimizer=fdl.Config(
            optim.adamw, learning_rate=1e-3, b1=0.9, b2=0.99, weight_decay=0.1, clip_norm=1.0
        ),
        training=fdl.Config(program.Training, steps=40, global_batch_size=8),
        parallelism=fdl.Config(
            parallel.Parallelism,
            mesh=fdl.Config(parallel.Mesh),
            rules=fdl.Config(
                parallel.Rules,
                parameters=parallel.parameter_rules(),
                activations=parallel.activation_rules_table(),
            ),
        ),
        records=fdl.Config(
            records.Records, console=fdl.Config(records.Console, plain_every_steps=1)
        ),
    )
