"""The page about gin files: commands over a small file of gin, and their answers."""

from __future__ import annotations

from answers import answered

FILE = """\
# small.gin
DIM = 64
LEARNING_RATE = 0.01

Decoder.dim = %DIM
GatedMlp.hidden_dim = %DIM
held_out/Packed.length = 32
WarmupCosine.peak = %LEARNING_RATE
Training.steps = 100
"""
COMMANDS = (
    "show configs.lm.quickstart --gin_file small.gin --gin.LEARNING_RATE=0.02 "
    "--why optimizer.learning_rate.peak",
    "show configs.lm.quickstart --gin_file small.gin gin:DIM=32 model.dim",
    "show configs.lm.quickstart --gin_file small.gin --gin.Decoder.dims=3",
    "show configs.lm.quickstart optimizer --to gin",
)

START = f"""\
# Gin files

A gin file overrides an experiment, at its position among the OVERRIDEs:

```text
{FILE}```

`Name.argument = value` sets every node of that class or function; a scope before it
(`held_out/Packed.length`) keeps to the nodes below that name. `@Name()` makes a node, `@Name` a
template, `%NAME` is a macro: one constant for all its places, which `gin:NAME=VALUE` changes and
`--space 'gin:NAME=log(1e-4,1e-2)'` sweeps. Statement order does not matter. Flags:
`--gin_file` (also several), `--gin_search_paths`, `--gin_bindings 'Name.argument = value'`,
`--gin.Name.argument=value`, `--gin_skip_unknown`, and `--gin_root Name` where there is no
experiment. Modules that a file imports must belong to your packages; what they register with
`@gin.configurable` is found.

`--to gin` writes a file that `gin.parse_config` accepts and `luthier show FILE.gin` reads to an
equal graph. Anything that gin cannot express is written in comments that start with `# luthier:`.
`luthier train ... --operative-gin` keeps such a file with the run, as `operative_config.gin`: all
that is used, and nothing else.

To sweep a macro, name it; trials share one compiled program where the macro can be hoisted, and
`luthier sweep best` prints overrides that `luthier train` takes with the same file:

    luthier sweep configs.lm.quickstart --gin_file small.gin \\
        --space 'gin:LEARNING_RATE=log(1e-4,1e-2)' --trials 8
    luthier sweep best quickstart
    luthier train configs.lm.quickstart --gin_file small.gin gin:LEARNING_RATE=0.0021

Files of T5X bind classes of T5X, which have no node here: keep the values, as macros, and bind them
to the classes that `luthier show EXPERIMENT` lists; `--gin_skip_unknown` passes over the rest, and
lists it. `import __main__` is ignored, and a macro that is left open
(`TRAIN_STEPS = %gin.REQUIRED`) is asked for by its name. The sizes of its models:
`luthier help checkpoints`, which also describes how to import their weights.
"""


def render() -> str:
    """Return the page."""
    return "\n".join([START, *(answered(command, {"small.gin": FILE}) for command in COMMANDS)])
