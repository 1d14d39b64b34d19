"""The page of all environment variables that the package reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "framework" / "luthier"

_ENVIRONMENT = re.compile(r"(environ|environment|given|inherited|base|made)$")
_NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")

START = """\
# Environment variables

This page lists every environment variable that luthier reads itself. JAX, XLA, Weights & Biases and
the clients of object stores read further variables, which are described in their documentation.

Environment variables do not replace settings. The config of an experiment defines everything that
it computes. The only exception is rounding, which some options of XLA can change. luthier removes
the values of variables whose names end in `KEY`, `TOKEN`, `SECRET`, `PASSWORD` and the like from
records and logs ([Security](../explanation/security.md)).
"""

# By section: name, and what it does.
VARIABLES = {
    "luthier": {
        "LUTHIER_MIRROR": "A URL such as `gs://lab/runs`. luthier copies runs and trials of "
        "studies to this place while they train, and fetches them from it if they are missing "
        "locally ([Choose where to store runs](../how_to/storage.md)).",
        "LUTHIER_DATA_CACHE_BYTES": "The most bytes that pieces of prepared corpora in object "
        "stores take in the cache folder of a machine, by default 10 GiB "
        "([Prepare a corpus](../how_to/prepare_data.md)).",
        "LUTHIER_RUNS": "The default folder of runs, instead of `runs`. It is a path, or the URL "
        "of a folder in an object store, such as `gs://lab/runs`.",
        "LUTHIER_STORAGE": "The URL of a study's Optuna storage, including its password. A study "
        "does not record this URL.",
        "LUTHIER_TRUST": "Files, folders and URLs, separated by `:`, whose records may use your "
        "own packages, as with `--trust`. Processes that luthier starts inherit the variable.",
        "LUTHIER_JOIN_SECONDS": "The maximum time, in seconds, that a process waits for the other "
        "processes of its run.",
    },
    "Terminal": {
        "NO_COLOR": "Turns colors off if it has a non-empty value.",
        "FORCE_COLOR": "Turns colors on, even in a pipe, if it has a non-empty value.",
        "LUTHIER_PAGER": "The pager of `luthier help`. An empty value turns paging off. If the "
        "variable is not set, luthier uses `PAGER`.",
        "PAGER": "The pager of `luthier help`, by default `less`.",
        "TERM": "The value `dumb` turns off colors and the redrawing of lines.",
    },
    "Folders": {
        "XDG_CACHE_HOME": "The folder of caches, by default `~/.cache`. luthier uses the "
        "subfolder `luthier/` for compiled programs, plans, the index of completion, indices of "
        "data files, copies of remote data, and the folders of runs outside of a project.",
        "XDG_CONFIG_HOME": "The folder of settings, by default `~/.config`. Define your own sites "
        "for `--on` in `luthier/launch.toml` below it.",
        "HOME": "The home directory, in which luthier looks for `.netrc`.",
        "NETRC": "The file with passwords of servers, by default `~/.netrc`. luthier reads the key "
        "of Weights & Biases from it, and removes its passwords from records.",
        "PYTHONPATH": "The folders in which Python looks for modules. luthier passes the variable "
        "on to the processes that it starts.",
    },
    "Weights & Biases": {
        "WANDB_MODE": "The mode that `records.wandb.mode='auto'` selects: `online`, `offline` or "
        "`disabled`.",
        "WANDB_DISABLED": "The value `true` has the same effect as `WANDB_MODE=disabled`.",
        "WANDB_API_KEY": "The API key. With `auto` and without a key, luthier records a run "
        "offline.",
        "WANDB_IDENTITY_TOKEN_FILE": "A file with an identity token, which luthier accepts "
        "instead of a key.",
        "WANDB_BASE_URL": "The address of your own server.",
    },
    "Object stores": {
        "AWS_ENDPOINT_URL": "The address of an S3-compatible store, for `s3://` URLs of data, "
        "runs and mirrors.",
        "AWS_REGION": "The region of this store, by default `us-east-1`.",
        "AWS_ACCESS_KEY_ID": "The name of an access key for `s3://` URLs. Its secret is in "
        "`AWS_SECRET_ACCESS_KEY`. Otherwise, the credentials of the AWS tools are used.",
        "LUTHIER_STORE_SECONDS": "The maximum time, in seconds, that a save waits for an object "
        "store that does not respond, by default 300. The run then ends with exit code 75.",
        "TENSORSTORE_GCS_HTTP_URL": "The address that is used for `gs://` URLs instead of that of "
        "Google Cloud Storage, for example of an emulator.",
    },
    "Devices and compilation": {
        "XLA_FLAGS": "Options of XLA. On a CPU, luthier adds further options. If you set one of "
        "these options here, your value is used.",
        "JAX_COMPILATION_CACHE_DIR": "The folder of JAX's compilation cache. If the variable is "
        "set, even to an empty value, luthier does not configure the cache. If it is not set, "
        "luthier uses a folder below `XDG_CACHE_HOME`.",
        "GLIBC_TUNABLES": "Options of the C library. Commands that compute add "
        "`glibc.malloc.hugetlb=1` if the kernel provides large pages on request "
        "([Performance](performance.md)). If you set `glibc.malloc.hugetlb`, your value is used.",
        "CUDA_VISIBLE_DEVICES": "The NVIDIA GPUs that a process can see. A sweep splits them into "
        "its device groups.",
        "HIP_VISIBLE_DEVICES": "The AMD GPUs that a process can see. This variable takes "
        "precedence over `ROCR_VISIBLE_DEVICES`.",
        "ROCR_VISIBLE_DEVICES": "The AMD GPUs that a process can see, at a lower level.",
        "TPU_VISIBLE_CHIPS": "The chips of a TPU host that a process can see. A sweep splits them "
        "into its device groups.",
    },
    "Several hosts": {
        "JAX_COORDINATOR_ADDRESS": "The host and port of process 0 of a run.",
        "JAX_COORDINATOR_BIND_ADDRESS": "The address on which process 0 listens, by default all "
        "interfaces.",
        "JAX_NUM_PROCESSES": "The number of processes of a run.",
        "JAX_PROCESS_ID": "The index of this process, starting at 0.",
        "JAX_LOCAL_DEVICE_IDS": "The devices of this host that the process uses, separated by "
        "commas.",
        "SLURM_JOB_ID": "The id of the job. SLURM sets this variable and the next seven. Together "
        "with the id of the step, it determines a separate port for each run of an allocation.",
        "SLURM_STEP_ID": "The id of the job's step.",
        "SLURM_PROCID": "The index of this process in its step.",
        "SLURM_LOCALID": "The index of this process on its host.",
        "SLURM_STEP_NUM_TASKS": "The number of processes of the step.",
        "SLURM_STEP_TASKS_PER_NODE": "The number of processes on each host.",
        "SLURM_RESTART_COUNT": "The number of times that SLURM has requeued the job.",
        "SLURMD_NODENAME": "The name of this host.",
        "TPU_WORKER_ID": "The index of this host in its slice, on TPU hosts. It determines the "
        "order of the processes of a Ray job.",
    },
    "Between processes of luthier": {
        "LUTHIER_PROCESS": "The description of a process of a run. luthier sets this variable and "
        "the others in this table for the processes that it starts. Do not set them yourself.",
        "LUTHIER_NOTES": "The file in which a process leaves notes for its launcher.",
        "LUTHIER_RANK": "The index of a process among those of a launch.",
        "LUTHIER_RANKS": "The number of processes of a launch.",
        "LUTHIER_LOCAL_RANK": "The index of a process on its host.",
        "LUTHIER_START": "The start of the launch that a process belongs to.",
        "LUTHIER_WORDS": "The command line for which a shell requests completions.",
    },
}

END = """\

## In configs

A Hydra config can read any variable with `${oc.env:NAME}` ([Dicts of Hydra](../how_to/hydra.md)).

To test whether the server of Weights & Biases can be reached, luthier uses the proxy variables
`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, in upper or lower case.
"""


def render() -> str:
    """Return the page."""
    parts = [START]
    for section, variables in VARIABLES.items():
        rows = [f"| `{name}` | {text} |" for name, text in variables.items()]
        parts.append("\n".join([f"\n## {section}\n", "| variable | meaning |", "|---|---|", *rows]))
        parts.append("\n")
    return "".join([*parts, END])


def read_variables() -> set[str]:
    """Return the names of the variables that the source of the package reads."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if "template" not in path.parts:
            found |= set(_reads(ast.parse(path.read_text(encoding="utf-8"))))
    return found


def _reads(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module looks up in an environment."""
    texts: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        # `NAME = "..."`, `NAMES = ("...", ...)`, and `for name in ("...", ...)`.
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            texts.setdefault(node.targets[0].id, []).extend(_texts(node.value, texts))
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.comprehension)) and isinstance(node.target, ast.Name):
            texts.setdefault(node.target.id, []).extend(_texts(node.iter, texts))
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=place, slice=key, ctx=ast.Load()):
                pass
            case ast.Call(func=ast.Attribute(value=place, attr="get"), args=[key, *_]):
                pass
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[place]):
                pass
            case ast.Call(func=ast.Name(id="_among"), args=[_, key, place]):
                pass  # of study.engines.local: the devices among those that are visible
            case _:
                continue
        if _ENVIRONMENT.search(ast.unparse(place)):
            yield from (text for text in _texts(key, texts) if _NAME.fullmatch(text))


def _texts(node: ast.AST, names: dict[str, list[str]]) -> list[str]:
    """Return the texts that an expression can be."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [text for part in parts for text in _texts(part, names)]
        case ast.Name(id=name):
            return names.get(name, [])
        case ast.IfExp(body=body, orelse=other):
            return _texts(body, names) + _texts(other, names)
        case ast.JoinedStr(values=[ast.FormattedValue(value=first), *rest]):
            ends = [text for part in rest for text in _texts(part, names)]
            return [text + "".join(ends) for text in _texts(first, names)]
    return []
