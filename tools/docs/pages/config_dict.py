"""The page about ConfigDicts: commands over a small file with `get_config()`, and their answers."""

from __future__ import annotations

from answers import answered

FILES = {
    "small.py": """\
# small.py, in the manner of big_vision
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

A file with `get_config()` (big_vision, scenic, clu) overrides an experiment, at its position among
the OVERRIDEs:

```text
{FILES["small.py"]}```

`--config_dict FILE.py` or `--config_dict FILE.py:ARGUMENT` (such programs write `--config`, and
`--config.KEY=VALUE` for `config_dict:KEY=VALUE`, which works, too): every key sets the path of its
name. A table maps keys to other paths, to a list of paths, or to `false` to leave them out; it can
also be in the file itself, as the dict `RENAMES`:

```text
{FILES["names.toml"]}```

References stay live: change one, and all follow. A required placeholder becomes a required field.
`config_dict:KEY=VALUE` changes what a key set, and `--space 'config_dict:KEY=log(1e-4,1e-2)'`
sweeps it. The class of a node is under `class`, as `to_config_dict` writes it; another class there
replaces the node.
"""

END = """\
In Python:

```python
from luthier import graph

experiment = graph.apply_config_dict(experiment, config, renames={"steps": "training.steps"})
config = graph.to_config_dict(experiment)  # locked, and one reference for every constant
```

A ConfigDict may also be the argument of an experiment or of a fiddler
(`fiddler:my_project.resize("small.py:32")` with `graph.load_config_dict`). The graph of a run, all
defaults filled in, as a ConfigDict:

```python
from luthier import graph, records

config = graph.to_config_dict(graph.from_json(records.find("runs", ID).read_config()))
```
"""


def render() -> str:
    """Return the page."""
    return "\n".join([START, *(answered(command, FILES) for command in COMMANDS), END])
