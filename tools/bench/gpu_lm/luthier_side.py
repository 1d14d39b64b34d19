"""The side of luthier: the compiled step of an experiment, as `luthier train` compiles it."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import serving
import shapes
import traces


def graph_of(settings: Mapping[str, Any]) -> Any:
    """Return the experiment: bf16 with parameters in float32, AdamW, chunked cross-entropy."""
    from luthier import graph as graphs

    shape, length = shapes.SHAPES[settings["shape"]], settings["length"]
    documents = shapes.MAX_DOCUMENTS if settings["packed"] else 1
    chunks = settings["chunks"]
    chunked = f"luthier.losses.Chunked({max(length // chunks, 1)})"
    chunking = chunked if chunks > 1 else "luthier.losses.Whole()"
    graph = graphs.resolve("configs.lm.quickstart")
    graph.model = _template(shape, length)
    words = [
        "evaluations={}",
        "checkpoints=None",
        "training.guard=None",
        "task.z_loss=None",
        f"data.length={length}",
        f"training.global_batch_size={settings['rows']}",
        f"task.chunking:={chunking}",
        "model.stack:=luthier.layers.Unrolled()",
        f"model.block.attention.core:=luthier.layers.CudnnAttention(max_documents={documents})",
        "fiddler:bf16",
        *settings["overrides"],
    ]
    return graphs.apply(graph, words, shelves=("luthier.recipes",))


def _template(shape: shapes.Shape, length: int) -> Any:
    import fiddle as fdl

    from luthier import layers
    from luthier.recipes.decoders.gpt2 import gpt2
    from luthier.recipes.decoders.llama import llama

    sizes = {
        "vocab_size": shape.vocab_size,
        "dim": shape.dim,
        "num_layers": shape.num_layers,
        "num_heads": shape.num_heads,
        "hidden_dim": shape.hidden_dim,
    }
    if shape.kind == "gpt2":
        return gpt2(**sizes, max_length=length, dropout_rate=None)
    tied = fdl.Partial(layers.TiedUnembedding)
    heads = {"num_kv_heads": shape.num_kv_heads, "rotary_base": 500_000.0}
    return llama(**sizes, **heads, unembedding=tied)


def batch_of(program: Any, packed: bool) -> dict[str, Any]:
    """Return a batch of random tokens on the device."""
    import jax
    import numpy as np

    generator = np.random.default_rng(0)
    rows, length = program.batch["inputs"].shape
    vocab_size = program.abstract_state["parameters/embedding.table"].shape[0]
    tokens = generator.integers(0, vocab_size, (rows, length + 1), np.int32)
    ends = [shapes.ends(length, row) if packed else [length] for row in range(rows)]
    places = np.arange(length)
    segments = np.stack([np.searchsorted(own, places, "right") + 1 for own in ends])
    starts = np.stack([np.asarray([0, *own])[s - 1] for own, s in zip(ends, segments, strict=True)])
    arrays = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "segments": segments}
    arrays |= {"positions": places - starts, "weights": np.ones((rows, length))}
    for name, entry in program.batch.items():
        found = arrays.get(name, np.ones(entry.shape))
        arrays[name] = jax.device_put(found.astype(entry.dtype), entry.sharding)
    return {name: arrays[name] for name in program.batch}


class Side:
    """A program with its state and a batch.

    Args:
      settings: `shape`, `length`, `rows`, `packed`, `chunks`, `overrides`.
    """

    def __init__(self, settings: Mapping[str, Any]):
        import jax

        from luthier import plan as plans
        from luthier.layers.declared import abstract_forms

        self.device = jax.devices()[0]
        # cuDNN is not on a CPU: there its abstract form runs, so that all else can be tried.
        is_absent = self.device.platform != "gpu"
        with abstract_forms() if is_absent else contextlib.nullcontext():
            start = time.perf_counter()
            self.plan = plans.make(graph_of(settings), [self.device])
            self.program = self.plan.program
            traced = self.program.traced_step
            self.trace_seconds = time.perf_counter() - start
            start = time.perf_counter()
            self.step = self.program.lower_and_compile(traced)
            self.compile_seconds = time.perf_counter() - start
        self.values = self.program.values()
        self.leaves = self.program.init(self.values)
        self.batch = batch_of(self.program, settings["packed"])

    def ready(self, _: int) -> dict[str, Any]:
        """Return what is known before the first step."""
        import jax

        flops, memory = self.plan.model_flops, self.step.memory_analysis()
        needed = memory.temp_size_in_bytes + memory.argument_size_in_bytes
        return {
            "device": self.device.device_kind,
            "versions": {"jax": jax.__version__},
            "trace_seconds": self.trace_seconds,
            "compile_seconds": self.compile_seconds,
            "parameters": self.plan.parameters,
            "flops": {"full": flops.full, "causal": flops.causal, "six_n": flops.six_n},
            "needed_bytes": needed,
        }

    def steps(self, number: int) -> dict[str, Any]:
        """Take steps; return the seconds of each, on average, and the last loss."""
        import numpy as np

        start, vector = time.perf_counter(), None
        for _ in range(number):
            self.leaves, vector = self.step(self.values, self.leaves, self.batch)
        scalars = np.asarray(vector)
        seconds = (time.perf_counter() - start) / number
        stats = self.device.memory_stats() or {}
        peak, loss = stats.get("peak_bytes_in_use"), float(scalars[0])
        return {"seconds": seconds, "peak_bytes": peak, "loss": loss}

    def profile(self, number: int) -> dict[str, Any]:
        """Take steps under the profiler; return where their time went."""
        import jax

        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                self.steps(number)
            events = traces.read(Path(folder))
        return {"shares": traces.shares(events), "longest": traces.longest(events)}

    def ceilings(self, size: int) -> dict[str, Any]:
        """Measure a square product of bfloat16, and a copy; return FLOPs and bytes a second.

        Args:
          size: Rows of the matrix; the copy is of 16 times as many bytes.
        """
        import jax
        import jax.numpy as jnp

        matrix = jnp.ones((size, size), jnp.bfloat16)
        many = jnp.ones((16, size, size), jnp.bfloat16)
        product, copy = jax.jit(jnp.matmul), jax.jit(lambda x: -x)
        best = {}
        for name, run in (
            ("matmul", lambda: product(matrix, matrix)),
            ("copy", lambda: copy(many)),
        ):
            jax.block_until_ready(run())
            times = []
            for _ in range(5):
                start = time.perf_counter()
                jax.block_until_ready([run() for _ in range(4)])
                times.append((time.perf_counter() - start) / 4)
            best[name] = min(times)
        return {
            "matmul_flops": 2 * size**3 / best["matmul"],
            "copy_bytes": 2 * many.nbytes / best["copy"],
        }


def make(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what answers."""
    side = Side(settings)
    names = ("ready", "steps", "profile", "ceilings")
    return {name: getattr(side, name) for name in names}


if __name__ == "__main__":
    serving.serve(make)
