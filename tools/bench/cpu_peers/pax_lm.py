"""The workload of `tools/bench/peers.py` for Pax 1.4.0 (Python 3.10)."""

from __future__ import annotations

import os

import numpy as np
from jax import numpy as jnp
from paxml import experiment_registry
from paxml.tasks.lm import model_params
from praxis import base_input, layers, pax_fiddle, py_utils
from praxis.layers import activations


class Rows(base_input.BaseInput):
    """Rows of 256 bytes at random places of a file."""

    path: str = ""
    length: int = 256

    def __post_init__(self):
        super().__post_init__()
        self._bytes, self._random = np.fromfile(self.path, np.uint8), np.random.RandomState(0)

    def get_next(self):
        """Return a batch."""
        last = len(self._bytes) - self.length - 1
        starts = self._random.randint(0, last, self.batch_size)
        rows = np.stack([self._bytes[s : s + self.length + 1] for s in starts]).astype(np.int32)
        shape = (self.batch_size, self.length)
        return py_utils.NestedMap(
            ids=rows[:, :-1],
            labels=rows[:, 1:],
            paddings=np.zeros(shape, np.float32),
            weights=np.ones(shape, np.float32),
            segment_ids=np.ones(shape, np.int32),
            segment_pos=np.tile(np.arange(self.length, dtype=np.int32), (self.batch_size, 1)),
        )

    def reset(self):
        """Start over."""
        self._random = np.random.RandomState(0)


@experiment_registry.register
class LanguageModel(model_params.TransformerLmSpmdAdafactor):
    """Four layers of 256, in float32; Adafactor is what Pax had for SPMD."""

    NUM_LAYERS = 4
    VOCAB_SIZE = 256
    DIMS_PER_HEAD = 64
    NUM_HEADS = 4
    MODEL_DIMS = 256
    HIDDEN_DIMS = 1024
    FPROP_DTYPE = jnp.float32
    PACKED_INPUT = True
    USE_REPEATED_LAYER = True
    ACTIVATION_CLS = activations.GELU
    TRAINABLE_POSITION_EMB = True
    TRAINABLE_PE_MAX_SEQ_LEN = 256
    CHECKPOINT_POLICY = layers.AutodiffCheckpointType.SAVE_EVERYTHING
    ICI_MESH_SHAPE = [1, 1, 1]
    LEARNING_RATE = 1e-3

    def datasets(self):
        """Return the training data; `BENCH_CORPUS` names the bytes."""
        path = os.environ["BENCH_CORPUS"]
        return [pax_fiddle.Config(Rows, name="train", path=path, batch_size=8, is_training=True)]

    def task(self):
        """Return the task, with a line for each step."""
        task = super().task()
        task.train.num_train_steps = int(os.environ["BENCH_STEPS"])
        task.train.summary_interval_steps = 100_000
        task.train.save_interval_steps = 100_000
        task.train.eval_interval_steps = 100_000
        task.train.log_train_output_interval_steps = 1
        return task
