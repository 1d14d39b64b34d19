"""What each stage of `tools/gpu_hour.py` measures."""

from __future__ import annotations

import dataclasses

SIZES = {  # as in the experiment, which is not imported here: no parent holds a device
    False: {"name": "gpt2", "vocab": 50_304, "length": 1024, "heads": 12},
    True: {"name": "toy", "vocab": 512, "length": 64, "heads": 2},
}
CUDNN = "model.block.attention.core:=luthier.layers.CudnnAttention(max_documents={})"
EINSUM = "model.block.attention.core:=luthier.layers.EinsumAttention()"


@dataclasses.dataclass(frozen=True)
class Case:
    """One measurement.

    Attributes:
      name: Of the row.
      kind: Which function measures it.
      overrides: What it changes, as `luthier train` takes them.
      round: Of cases that take turns.
      seconds: Left of the stage, without which it is not started.
    """

    name: str
    kind: str
    overrides: tuple[str, ...] = ()
    round: int = 0
    seconds: int = 60

    @property
    def key(self) -> str:
        """What is skipped when it is recorded."""
        return f"{self.name}#{self.round}"


BASE = ("fiddler:gpu",)
VARIANTS = (  # one override each, the most telling first
    ("float32 logits", "model.unembedding.logits_dtype=float32"),
    ("three projections", "model.block.attention.joint=False"),
    ("max_documents=16", CUDNN.format(16)),
    ("64 rows", "training.global_batch_size=64"),
    ("no latency hiding", "compiler.gpu.xla_gpu_enable_latency_hiding_scheduler:=False"),
    ("guard", "training.guard:=luthier.optim.Guard()"),
    ("16 rows", "training.global_batch_size=16"),
    ("einsum attention", EINSUM),
    ("scanned", "model.stack:=luthier.layers.Scanned()"),
    ("no Triton products", "compiler.gpu.xla_gpu_enable_triton_gemm:=False"),
    ("no command buffers", "compiler.gpu.xla_gpu_enable_command_buffer:=''"),
    ("unrolled", "model.stack:=luthier.layers.Unrolled()"),
    ("fused loss", "task.chunking:=luthier.losses.Fused(256)"),
    ("chunked loss", "task.chunking:=luthier.losses.Chunked(256)"),
    ("uniform tokens", "data:=luthier.data.Synthetic({vocab}, {length})"),
)


def of_stage(stage: int, toy: bool) -> list[Case]:
    """Return the cases of a stage, the most valuable first."""
    if stage == 1:
        return [
            Case("versions", "versions", seconds=20),
            Case("three steps", "bare"),
            Case("ceilings", "ceilings"),
        ]
    if stage == 3:
        return [
            Case("luthier, 300 steps", "product", seconds=240),
            Case("nanoGPT, 300 steps", "torch", seconds=150),
        ]
    if stage == 4:
        return [
            Case("one trial", "sweep", ("1", "single"), seconds=120),
            Case("16 packed trials", "sweep", ("16", "vmap"), seconds=180),
            # Without loops, loaders and records: what the two above lose on the host.
            Case("step of 16 packed trials", "packed", ("16",)),
            Case("step of one trial", "packed", ("1",)),
        ]
    first, second = (
        [Case("base", "bare", round=turn), Case("nanoGPT", "torch", round=turn)] for turn in (0, 1)
    )
    changed = [
        Case(name, "bare", (override,), turn)
        for turn in (0, 1)
        for name, override in VARIANTS
        if not (toy and "Cudnn" in override)
    ]
    # Where the time goes says most about what to change: it comes before the changes.
    base = [*first, Case("profile", "profile"), *second]
    half = len(changed) // 2
    # The base again, between the rounds: what it has drifted by is no effect of a change.
    return [*base, *changed[:half], Case("base", "bare", round=2), *changed[half:]]
