"""The page about dicts that name what they build: of Hydra, of NeMo-Run and of Kauldron."""

from __future__ import annotations

from answers import answered

FILES = {
    "optimizer.yaml": """\
# optimizer.yaml, as `python APP.py --cfg job` prints it
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
# Use configs from Hydra, NeMo-Run and Kauldron

Hydra, NeMo-Run and Kauldron can store a config in a file as nested dicts, in which each dict
specifies the class or function that it configures. You can use such a file wherever a command
expects an experiment.

## Hydra and NeMo-Run

`hydra:FILE.yaml` reads a file with the keys `_target_`, `_partial_` and `_args_` of Hydra and
NeMo-Run. `hydra:FILE.yaml:KEY` reads only the part of the file under KEY:

```text
{FILES["optimizer.yaml"]}```

- `${{...}}` refers to another value. A plain value and all references to it become one shared
  value, so an override changes all of them. A reference to a node becomes a copy of the node.
- `???` becomes a required field, which you must set.
- You can omit `_partial_` where only a template is valid, for example for the layers that a model
  creates.
- `${{oc.env:NAME}}` is replaced by an environment variable when the file is read. Other resolvers
  are not supported.
- luthier does not compose files. If a config has a `defaults` list, print the composed config with
  Hydra first.

## Kauldron

`konfig:FILE.json` reads a JSON file that was written by `konfig`, the config library of Kauldron.
For example, `optimizer.json`:

```text
{FILES["optimizer.json"]}```

## Fiddle

luthier also reads Fiddle's own JSON format, which `fiddle.experimental.serialization.dump_json`
writes. To read such a file, pass it to a command in place of an experiment, as in
`luthier show FILE.json`, or use the `--fdl_config_file` flag. In Python, use
`luthier.graph.from_fiddle_json`.

## Limitations

The files can refer to objects of luthier, jax, flax, optax and similar libraries, and to objects of
your own packages. luthier can read the formats on this page, but cannot write them. You can save a
config in luthier's own JSON or YAML format or as Python instead (`--to json|py|yaml`), or pass it
to code that accepts a [ConfigDict](config_dict.md). In Python, use `luthier.graph.from_hydra` and
`luthier.graph.from_konfig`, which also accept dicts.

## Examples

The following commands use the files `optimizer.yaml` and `optimizer.json` shown above. They show a
part of a file, convert a file to Python, and report a misspelled key:
"""


def render() -> str:
    """Return the page."""
    return "\n".join([START, *(answered(command, FILES) for command in COMMANDS)])
