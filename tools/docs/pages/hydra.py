"""The page about dicts that name what they build: of Hydra, of NeMo-Run and of Kauldron."""

from __future__ import annotations

from answers import answered

FILES = {
    "optimizer.yaml": """\
# optimizer.yaml, as `python APP.py --cfg job --resolve` prints it
steps: 100
optimizer:
  _target_: luthier.optim.adamw
  learning_rate:
    _target_: luthier.optim.WarmupCosine
    peak: 0.01
    warmup_steps: 10
    total_steps: ${steps}
  weight_decay: ???
""",
    "optimizer.json": """\
{"__qualname__": "optax:adamw",
 "learning_rate": {"__qualname__": "optax:constant_schedule", "0": 0.01},
 "b2": 0.95}
""",
}
COMMANDS = (
    "show hydra:optimizer.yaml:optimizer",
    "show konfig:optimizer.json b2=0.99 --to py",
    "show hydra:optimizer.yaml:optimiser",
)

START = f"""\
# Configs of Hydra, NeMo-Run and Kauldron

Hydra, NeMo-Run and Kauldron write configs as nested dicts, in which each dict specifies the class
or function that it configures. You can use such a file wherever a command expects an experiment.

## Hydra and NeMo-Run

`hydra:FILE.yaml` reads a file with the keys `_target_`, `_partial_` and `_args_` of Hydra and
NeMo-Run. `hydra:FILE.yaml:KEY` reads only the part of the file under KEY:

```text
{FILES["optimizer.yaml"]}```

- `${{...}}` refers to another value. Both become one shared value, so an override changes both.
- `???` becomes a required field, which you must set.
- You can omit `_partial_` for the parts of a layer that the layer creates itself.
- `${{oc.env:NAME}}` is replaced by an environment variable when the file is read. Other resolvers
  are not supported.
- luthier does not compose files. If a config has a `defaults` list, print the composed config with
  Hydra first.

## Kauldron

`konfig:FILE.json` reads a config that Kauldron's konfig has written:

```text
{FILES["optimizer.json"]}```

## Fiddle

luthier also reads Fiddle's own JSON format, which `fiddle.experimental.serialization.dump_json`
writes. Use `luthier show FILE.json`, the flag `--fdl_config_file`, or
`luthier.graph.from_fiddle_json`.

## Limitations

The files can refer to objects of luthier, jax, flax, optax and similar libraries, and to objects of
your own packages. luthier can read these formats, but cannot write them. Save the config as JSON,
Python or YAML instead (`--to json|py|yaml`), or pass it to code that accepts a
[ConfigDict](config_dict.md). In Python, use `luthier.graph.from_hydra` and
`luthier.graph.from_konfig`, which also accept dicts.

## Examples

These commands use the files `optimizer.yaml` and `optimizer.json` from above. They show a part of a
file, convert a file to Python, and report a misspelled key:
"""


def render() -> str:
    """Return the page."""
    return "\n".join([START, *(answered(command, FILES) for command in COMMANDS)])
