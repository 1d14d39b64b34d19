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

If you have settings in gin files, you can apply them to an experiment with `--gin_file`. A gin file
works like a list of overrides, and takes effect at its position among the overrides of the command:

```text
{FILE}```

luthier supports the following syntax of gin. The order of the statements in a file does not matter.

- `Name.argument = value` sets the argument in every node of that class or function (see the
  [glossary](../get_started/glossary.md) for *node* and *template*). With a scope, as in
  `held_out/Packed.length`, it sets the argument only in nodes below `held_out`.
- `@Name()` creates a node, and `@Name` creates a template.
- `%NAME` refers to a macro. All references to a macro share one value, which you can change with
  `gin:NAME=VALUE` and sweep over with `--space 'gin:NAME=log(1e-4,1e-2)'`.

These flags are available:

- `--gin_file FILE` reads a file. You can repeat this flag.
- `--gin_search_paths DIR,DIR` adds folders in which luthier looks for files.
- `--gin_bindings 'Name.argument = value'` and `--gin.Name.argument=value` add a statement.
- `--gin_skip_unknown` ignores statements for names that luthier does not know.
- `--gin_root Name` selects the class that the files configure, if the command has no experiment.

The modules that a file imports must belong to your packages. luthier finds the functions and
classes that they register with `@gin.configurable`.

## Export a config to gin

`--to gin` writes a file that both `gin.parse_config` and `luthier show FILE.gin` accept. When
luthier reads this file, it creates a graph that is equal to the exported one. Comments that start
with `# luthier:` contain the parts that gin cannot express. `luthier train ... --operative-gin`
saves such a file as `operative_config.gin` in the directory of the run. It contains exactly the
values that the run uses.

## Sweep over a macro

To sweep over a macro, use `gin:NAME` in the search space. The trials share one compiled program if
the value of the macro can be an argument of that program. `luthier sweep best` prints overrides
that you can pass to `luthier train` together with the same file:

    luthier sweep configs.lm.quickstart --gin_file small.gin \\
        --space 'gin:LEARNING_RATE=log(1e-4,1e-2)' --trials 8
    luthier sweep best quickstart
    luthier train configs.lm.quickstart --gin_file small.gin gin:LEARNING_RATE=0.0021

## Use gin files of T5X

The gin files of T5X bind arguments of T5X's own classes, for which luthier has no nodes. You can
keep the values as macros, and bind these macros to the classes that `luthier show EXPERIMENT`
lists. With `--gin_skip_unknown`, luthier ignores the remaining statements, and lists them.
`import __main__` is ignored. If a file does not give a macro a value
(`TRAIN_STEPS = %gin.REQUIRED`), set the macro yourself, for example with
`--gin.TRAIN_STEPS=1000`. To set the sizes of T5X's models in luthier and to import their weights,
see [Import checkpoints](checkpoints.md#t5x).

## Examples

These commands use the file `small.gin` from the top of this page. They show the history of a value,
change a macro, report a misspelled argument, and export a part of the config:
"""


def render() -> str:
    """Return the page."""
    return "\n".join([START, *(answered(command, {"small.gin": FILE}) for command in COMMANDS)])
