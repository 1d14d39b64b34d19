"""The page about ConfigDicts: commands over a small file with `get_config()`, and their answers."""

from __future__ import annotations

from answers import answered

FILES = {
    "small.py": """\
# small.py, in the style of big_vision
import ml_collections


def get_config(size="64"):
    config = ml_collections.ConfigDict()
    config.total_steps = 100
    config.model = dict(dim=int(size), num_layers=2)
    config.lr = 0.01
    config.schedule = dict(warmup=config.get_ref("total_steps") // 10)
    config.wd = config.get_ref("lr") * 0.1
    config.input = dict(batch_size=8)
    return config
""",
    "names.toml": """\
total_steps = "training.steps"
lr = "optimizer.learning_rate.peak"
"schedule.warmup" = "optimizer.learning_rate.warmup_steps"
wd = "optimizer.weight_decay"
"input.batch_size" = "training.global_batch_size"
""",
}
COMMANDS = (
    "show configs.lm.quickstart --config_dict small.py:32 --config_dict_rename names.toml "
    "optimizer",
    "show configs.lm.quickstart --config_dict small.py --config_dict_rename names.toml "
    "config_dict:lr=0.02 --why optimizer.weight_decay",
    "show configs.lm.quickstart --config_dict small.py",
)

START = f"""\
# ConfigDicts

In big_vision, scenic and clu, a config is a file that defines `get_config()`, a function that
returns a ConfigDict. You can use such a file to override an experiment. It takes effect at its
position among the overrides of the command:

```text
{FILES["small.py"]}```

Pass the file with `--config_dict FILE.py`, or with `--config_dict FILE.py:ARGUMENT` if
`get_config()` takes an argument. Each key of the ConfigDict sets the path of the same name. You can
also use the flags of those libraries: `--config FILE.py` is the same as `--config_dict FILE.py`,
and `--config.KEY=VALUE` is the same as `config_dict:KEY=VALUE`.

If a key has another name in luthier, map it to a path with `--config_dict_rename FILE.toml`. You
can also map a key to a list of paths, or to `false` to ignore it. Instead of a separate file, you
can define the same mapping in the file itself, as a dict with the name `RENAMES`. For example, this
is `names.toml` for the file above:

```text
{FILES["names.toml"]}```

References between keys are preserved, so if you change a value, the values that refer to it change
as well. A required placeholder becomes a required field. Use `config_dict:KEY=VALUE` to change a
value that the file sets, and `--space 'config_dict:KEY=log(1e-4,1e-2)'` to sweep over it.

In the output of `to_config_dict`, the key `class` contains the class of a node. To replace a node,
set this key to another class.

## Examples

The following commands apply the file to the quickstart, show the history of a value, and report an
error because the keys were not mapped:
"""

END = """\
## Use ConfigDicts in Python

You can apply a ConfigDict to an experiment, and convert an experiment to a ConfigDict:

```python
from luthier import graph

experiment = graph.apply_config_dict(experiment, config, renames={"steps": "training.steps"})
config = graph.to_config_dict(experiment)  # locked; each shared value is one reference
```

An experiment or a fiddler can also take a ConfigDict as an argument. For example,
`fiddler:my_project.resize("small.py:32")` can read the file with `graph.load_config_dict`.

To get the config of a run as a ConfigDict, with all defaults filled in, convert its record:

```python
from luthier import graph, records

config = graph.to_config_dict(graph.from_json(records.find("runs", ID).read_config()))
```
"""


def render() -> str:
    """Return the page."""
    return "\n".join([START, *(answered(command, FILES) for command in COMMANDS), END])
