"""GPT-2 on synthetic tokens of Zipf's law: the experiments and the study of `tools/gpu_hour.py`.

`python -m tools.bench.gpu_hour.experiment DIR SIZE STEPS` writes the initial weights (safetensors
under Hugging Face's names) and the batches that luthier and PyTorch both train on.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
from pathlib import Path
from typing import Any

import fiddle as fdl
import numpy as np
import optuna

from luthier import checkpoint, data, durations, metrics, optim, parallel, program, records, tasks
from luthier import study as studies
from luthier.graph import value
from luthier.recipes.decoders import gpt2


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes of a GPT-2 and of its batch; `packed` is the size of the packed trials."""

    dim: int
    num_layers: int
    num_heads: int
    length: int
    rows: int
    vocab_size: int


SIZES = {
    "gpt2": Size(768, 12, 12, 1024, 32, 50_304),
    "packed": Size(256, 4, 4, 256, 8, 8192),
    "toy": Size(64, 2, 2, 64, 4, 512),
    "packed-toy": Size(32, 2, 2, 32, 2, 128),
}
PEAK, WARMUP = 6e-4, 30  # learning rate, and the steps on which it rises
SEED = 0


@dataclasses.dataclass(frozen=True)
class ZipfRows:
    """Rows of uniform numbers, read as tokens whose frequency falls with their rank."""

    uniform: Any
    draws: int
    vocab_size: int

    @property
    def num_rows(self) -> int:
        """The rows of an epoch."""
        return self.uniform.num_rows

    @property
    def num_examples(self) -> int:
        """The largest number among `documents`."""
        return self.uniform.num_examples

    @property
    def digest(self) -> str:
        """A fingerprint of all rows."""
        return f"zipf-{self.vocab_size}-{self.uniform.digest}"

    @functools.cached_property
    def _tokens(self) -> np.ndarray:
        weights = 1 / (np.arange(self.vocab_size) + 2.7)  # Mandelbrot's offset for English
        cumulative = np.cumsum(weights / weights.sum())
        places = (np.arange(self.draws) + 0.5) / self.draws
        # Frequent tokens stand anywhere in the table, as in a vocabulary made of text.
        ranks = np.minimum(np.searchsorted(cumulative, places), self.vocab_size - 1)
        return np.random.default_rng(0).permutation(self.vocab_size).astype(np.int32)[ranks]

    def gather(self, rows: np.ndarray, visit: Any = None) -> dict[str, np.ndarray]:
        """Return rows as entries [B, L]; -1 is a row of padding."""
        batch = self.uniform.gather(rows, visit)
        is_real = batch["weights"] > 0
        drawn = {name: self._tokens[batch[name]] * is_real for name in ("inputs", "targets")}
        return {**batch, **drawn}


@dataclasses.dataclass(frozen=True)
class Zipf(data.Synthetic):
    """`Synthetic` with tokens of Zipf's law, which hit few rows of the embedding very often.

    Uniform tokens hide what the gradient of an embedding costs: no row is summed into often.
    """

    @functools.cached_property
    def rows(self) -> ZipfRows:
        """The rows by number."""
        draws = 1 << 20
        uniform = data.Synthetic(draws, self.length, self.num_rows, self.seed)
        return ZipfRows(uniform.rows, draws, self.vocab_size)


def experiment(size: str = "gpt2") -> fdl.Config[program.Experiment]:
    """Train a GPT-2 as nanoGPT does: AdamW, decay of all matrices and tables, cosine."""
    own = SIZES[size]
    steps = value(300, name="steps")
    tokens = {"vocab_size": own.vocab_size, "length": own.length}
    return fdl.Config(
        program.Experiment,
        name=f"gpu_hour_{size}",
        seed=SEED,
        model=gpt2(
            vocab_size=own.vocab_size,
            max_length=own.length,
            dim=own.dim,
            num_layers=own.num_layers,
            num_heads=own.num_heads,
            dropout_rate=None,
        ),
        task=fdl.Config(tasks.LanguageModelling, z_loss=None),
        data=fdl.Config(Zipf, **tokens),
        evaluations={
            "held_out": fdl.Config(
                program.Evaluation,
                data=fdl.Config(Zipf, **tokens, num_rows=4 * own.rows, seed=1),
                every=fdl.Config(durations.Steps, 100),
                global_batch_size=own.rows,
            )
        },
        optimizer=fdl.Config(
            optim.adamw,
            learning_rate=fdl.Config(
                optim.WarmupCosine, PEAK, warmup_steps=WARMUP, total_steps=steps, end=PEAK / 10
            ),
            decay_mask=fdl.Config(optim.Matching, r"(kernel|table)$"),
        ),
        training=fdl.Config(program.Training, steps=steps, global_batch_size=own.rows, guard=None),
        parallelism=fdl.Config(
            parallel.Parallelism,
            mesh=fdl.Config(parallel.Mesh),
            rules=fdl.Config(
                parallel.Rules,
                parameters=parallel.parameter_rules(),
                activations=parallel.activation_rules_table(),
            ),
        ),
        checkpoints=fdl.Config(checkpoint.Checkpoints, every=fdl.Config(durations.Steps, 100)),
        records=fdl.Config(records.Records, console=fdl.Config(records.Console), wandb=None),
    )


def study(size: str, num_trials: int, lanes: str, num_lanes: int) -> fdl.Config[studies.Study]:
    """Try learning rates, `num_lanes` at a time on one device."""
    base = experiment(size)
    base.evaluations["held_out"].every = None
    base.checkpoints = None
    base.optimizer.learning_rate = PEAK
    # Workers import luthier's own classes only, so these tokens are uniform.
    own = SIZES[size]
    base.data = fdl.Config(data.Synthetic, own.vocab_size, own.length)
    held_out = base.evaluations["held_out"]
    held_out.data = fdl.Config(data.Synthetic, own.vocab_size, own.length, 4 * own.rows, 1)
    selector = fdl.Config(metrics.Selector, "held_out", "nats_per_token", "lower")
    return fdl.Config(
        studies.Study,
        name=f"packed_{num_trials}",
        base=base,
        space=fdl.Config(studies.Space, {"optimizer.learning_rate": studies.Log(1e-4, 1e-2)}),
        objectives=[fdl.Config(studies.Measured, selector)],
        sampler=fdl.Config(optuna.samplers.RandomSampler),
        budget=fdl.Config(studies.Budget, trials=num_trials),
        engine=fdl.Config(studies.Local),
        packing=fdl.Config(
            studies.SharedPrograms,
            lanes=lanes,
            num_lanes=num_lanes,
            paths=["optimizer.learning_rate"],
        ),
        gate=fdl.Config(studies.ShapeGate),
    )


def weights(size: Size) -> dict[str, np.ndarray]:
    """Return the initial weights of nanoGPT under Hugging Face's names, kernels as (in, out)."""
    generator = np.random.default_rng(SEED)
    dim = size.dim

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (0.02 * scale * generator.standard_normal(shape)).astype(np.float32)

    found = {"transformer.wte.weight": normal(size.vocab_size, dim)}
    found["transformer.wpe.weight"] = normal(size.length, dim)
    norms = ["transformer.ln_f"]
    for layer in range(size.num_layers):
        place = f"transformer.h.{layer}"
        norms += [f"{place}.ln_1", f"{place}.ln_2"]
        outward = 1 / math.sqrt(2 * size.num_layers)
        for name, inputs, outputs, scale in (
            ("attn.c_attn", dim, 3 * dim, 1.0),
            ("attn.c_proj", dim, dim, outward),
            ("mlp.c_fc", dim, 4 * dim, 1.0),
            ("mlp.c_proj", 4 * dim, dim, outward),
        ):
            found[f"{place}.{name}.weight"] = normal(inputs, outputs, scale=scale)
            found[f"{place}.{name}.bias"] = np.zeros(outputs, np.float32)
    for name in norms:
        found |= {f"{name}.weight": np.ones(dim, np.float32)}
        found |= {f"{name}.bias": np.zeros(dim, np.float32)}
    return found


def write(folder: Path, name: str, num_steps: int) -> None:
    """Write `weights/` and `batches.npy`, int32 [steps, rows, length + 1], in training order."""
    from safetensors.numpy import save_file

    size = SIZES[name]
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    save_file(weights(size), folder / "weights" / "model.safetensors")
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    config |= {"vocab_size": size.vocab_size, "n_positions": size.length, "n_embd": size.dim}
    config |= {"n_layer": size.num_layers, "n_head": size.num_heads, "layer_norm_epsilon": 1e-5}
    config |= {"activation_function": "gelu_new", "tie_word_embeddings": True}
    (folder / "weights" / "config.json").write_text(json.dumps(config))
    rows = Zipf(size.vocab_size, size.length).iterator(global_batch_size=size.rows, seed=SEED)
    batches = (next(rows) for _ in range(num_steps))
    tokens = [np.concatenate([b["inputs"], b["targets"][:, -1:]], 1) for b in batches]
    np.save(folder / "batches.npy", np.stack(tokens).astype(np.int32))


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
