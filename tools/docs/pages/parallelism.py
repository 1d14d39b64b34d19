"""The page about parallelism: the axes of the mesh, the recipes, and what they lay out."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
EXPERIMENT = "configs.lm.quickstart"
NUM_DEVICES = 8
NAMES = ("data", "fsdp", "hsdp", "tensor", "expert", "sequence", "ring", "all_to_all", "pipeline")
WORDS = {
    "hsdp": "hsdp(replicas=2)",
    "tensor": "tensor(2)",
    "expert": "expert(2)",
    "sequence": "sequence(4)",
    "ring": "ring(4)",
    "all_to_all": "all_to_all(4)",
    "pipeline": "pipeline(stages=2, microbatches=4)",
}
KERNEL = "parameters/blocks.mlp.up.kernel"

START = """\
# Parallelism

Sharding is part of the config, separate from the model: a mesh with named axes, and rules that map
the dimensions of arrays to axes. The model does not change, and neither do its parameters,
gradients and losses, up to rounding: this is tested for every recipe below and for combinations of
them.

    luthier train configs.lm.quickstart 'fiddler:fsdp(4)' 'fiddler:tensor(2)'
    luthier show configs.lm.quickstart --devices cpu:8 'fiddler:fsdp(4)' --sharding

The second command needs no accelerator: it lists every array of the state with its sharding,
the reason, and the bytes on each device.

## Axes

The slowest axis comes first: neighbouring devices share the last. Sizes are 1, but for `data`,
which is -1 and fills the mesh.

"""

RECIPES = """
## Recipes

Recipes are fiddlers: they compose, and a sweep can choose among them:
`parallelism=choice(@fsdp, @tensor(2))` in a space. The table shows
each alone on {num_devices} devices: the batch's `inputs` [rows, length], the kernel of a
feed-forward layer [layers, embed, mlp], and the bytes of state on each device (*derived* from
shapes). The tests train with every recipe on virtual CPU devices (*emulated*).

"""

END = """
## Context parallelism

`sequence` splits the length of activations. Attention then needs the keys of whole rows, in
one of three ways, with the same result:

- Default: the compiler gathers keys and values on every device.
- `ring`: keys and values go round, and no device ever holds all of them. Memory falls with the
  size of the axis. Blocks that no query sees are skipped: for windows that saves whole ring steps.
  Causal rows are cut in zigzag (`order=Zigzag()`), so that every device has the same work; rows
  must then be a multiple of twice the axis. It does not work within a pipeline.
- `all_to_all`: parts of rows are exchanged for heads. Heads must be a multiple of the axis (times
  `tensor`); fewer key and value heads are repeated. Any core fits inside.

Packed documents never see each other, whichever way is taken: masks are made of positions and
segments, which travel with the keys.

## Uneven sizes

A dimension that a mesh axis does not divide is an error before anything is compiled, with the
parameter, the rule and the remedy. A vocabulary is padded by its own layer:
`model.embedding.pad_to_multiple=8`.

## Layers that declare no logical axes

`fsdp` also splits parameters that declare no logical axes, such as those of a plain `nnx.Linear`:
the largest dimension that it divides, and of several the first. They are gathered where their layer
is used. `luthier show ... --sharding` gives the reason, "no logical axes: largest dimension
divisible by fsdp=4", and where `fsdp` splits no parameter at all, `show`, `plan` and `train` print
a note. `tensor` and the other axes need names. There are three ways to give them:

- `luthier.layers.parameter(..., axes=("embed", "mlp"))`, as luthier's layers do;
- `nnx.Param(array, logical_axes=("embed", "mlp"))`;
- Flax's own annotation, `nnx.with_partitioning(initializer, ("embed", "mlp"))`.

A name is looked up in the rules. One that has no rule and is a mesh axis means this mesh axis, and
`None` keeps a dimension whole: `(None, None)` replicates a matrix. With explicit axes, parameters
without names stay whole. A rule that is not one of the defaults, for an axis that no parameter
has, is an error; such a rule for activations is noted by `plan` and `train`.

## Explicit sharding

With automatic axes, the default, the compiler inserts collectives as needed. With explicit axes the
program specifies every sharding, and a layer that leaves one open is an error at trace time:

    luthier train configs.lm.quickstart 'fiddler:fsdp(4)' 'fiddler:tensor(2)' \\
        parallelism.mesh.axis_type=EXPLICIT

Dense models train so, with the same results. A test inspects the traced step of each mesh: the only
arrays that are resharded are parameters that `fsdp` splits, where a layer uses them, and the keys
of sequences that `sequence` splits. In your own layer, use `luthier.parallel.result_sharding` for a
product that sums over a sharded dimension. Pipelines, dropless experts, `ring` and `all_to_all`
need automatic axes.

## Several slices

Within a slice devices are close; between slices the network is slow. An axis can extend across
slices: `parallelism.mesh.across_slices.data=2` doubles `data` over two slices. Its size is then
that within a slice times the number of slices. On CPUs a process counts as a slice.
"""


def render() -> str:
    """Return the page."""
    # The number of devices is fixed once JAX has started, so the table is made by itself.
    made = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    return START + _axes() + RECIPES.format(num_devices=NUM_DEVICES) + made.stdout + END


def _axes() -> str:
    from luthier import parallel

    descriptions = _arguments(parallel.Mesh)
    parameters, activations = parallel.parameter_rules(), parallel.activation_rules_table()
    rows: list[tuple[str, ...]] = [("axis", "devices that", "parameters", "activations")]
    for axis in parallel.AXES:
        uses = [
            ", ".join(f"`{name}`" for name, axes in table.items() if axis in axes)
            for table in (parameters, activations)
        ]
        rows.append(
            (f"`{axis}`", descriptions[axis].removeprefix("Devices that ").rstrip("."), *uses)
        )
    return _table(rows)


def _recipes() -> str:
    from luthier import recipes
    from luthier.parallel import format_bytes, format_spec

    rows: list[tuple[str, ...]] = [
        ("word", "what is split", "inputs", "kernel", "bytes per device")
    ]
    for name in NAMES:
        word = WORDS.get(name, name)
        program = _program(word)
        line = (inspect.getdoc(getattr(recipes, name)) or "").partition("\n")[0]
        state = sum(placement.bytes_per_device for placement in program.placements.values())
        rows.append(
            (
                f"`fiddler:{word}`",
                line.removeprefix("Return an experiment ").rstrip("."),
                f"`{format_spec(program.batch['inputs'].sharding.spec)}`",
                f"`{format_spec(program.placements[KERNEL].spec)}`",
                format_bytes(state),
            )
        )
    return _table(rows)


def _program(word: str) -> Any:
    sys.path.insert(0, str(ROOT))
    try:
        from luthier import graph, parallel, program

        parallel.configure(f"cpu:{NUM_DEVICES}")
        words = [f"fiddler:{word}"]
        changed = graph.apply(graph.resolve(EXPERIMENT), words, shelves=("luthier.recipes",))
        return program.make(changed, parallel.devices())
    finally:
        sys.path.remove(str(ROOT))


def _arguments(cls: type) -> dict[str, str]:
    """Return what the docstring of a class says about its arguments."""
    text = (inspect.getdoc(cls) or "").partition("Args:\n")[2].partition("\n\n")[0]
    lines = [line.strip().partition(": ") for line in text.splitlines() if line[:3].strip()]
    return {name: text for name, _, text in lines}


def _table(rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    print(_recipes(), end="")
