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
# Dicts of Hydra, NeMo-Run and Kauldron

Where a command takes an experiment, it also takes a file of dicts that name what they build.
`hydra:FILE.yaml` reads `_target_`, `_partial_` and `_args_`, as Hydra and NeMo-Run write them;
`hydra:FILE.yaml:KEY` a part of it:

```text
{FILES["optimizer.yaml"]}```

A value that `${{...}}` refers to is one constant at all its places; `???` is a field that must be
set. `_partial_` need not be written for the parts of a layer, which the layer makes itself.
`${{oc.env:NAME}}` is a variable of the environment, read with the file; other resolvers
are refused. Hydra composes files with `defaults`: print the composed config first.
`konfig:FILE.json` reads what
Kauldron's konfig writes:

```text
{FILES["optimizer.json"]}```

A file can name objects of luthier, jax, flax, optax and similar libraries, and of your packages.
This is an import only: keep the config as JSON, Python or YAML (`--to json|py|yaml`), or pass it to
code that takes a ConfigDict (`luthier help config_dict`). In Python: `luthier.graph.from_hydra` and
`from_konfig`, which take dicts too.

Fiddle's own JSON, the output of `fiddle.experimental.serialization.dump_json`, is read by its name,
`luthier show FILE.json`, after `--fdl_config_file`, and by `luthier.graph.from_fiddle_json`.
"""


def render() -> str:
    """Return the page."""
    return "\n".join([START, *(answered(command, FILES) for command in COMMANDS)])
