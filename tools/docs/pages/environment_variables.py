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

Read this page to find out what changes the behavior of luthier outside of a config and its command
line. It lists every variable that the package itself reads; JAX, XLA, Weights & Biases and the
clients of object stores read more.

A variable does not replace a setting: what an experiment computes is in its config, except for
rounding, which options of XLA can change. Values of variables whose names end in `KEY`, `TOKEN`,
`SECRET`, `PASSWORD` and the like are removed from records and logs
([Security](../explanation/security.md)).
"""

# By section: name, and what it does.
VARIABLES = {
    "luthier": {
        "LUTHIER_MIRROR": "A URL such as `gs://lab/runs`. Runs, and trials of studies, are copied "
        "below it while they train, and are fetched from it where they are missing "
        "([Where runs are kept](../how_to/storage.md)).",
        "LUTHIER_RUNS": "The default folder of runs in place of `runs`: a path, or the URL of a "
        "folder in an object store, such as `gs://lab/runs`.",
        "LUTHIER_STORAGE": "The URL of a study's Optuna storage with its password, which a study "
        "does not record.",
        "LUTHIER_TRUST": "Files and folders, separated by `:`, whose records may name your own "
        "packages, as `--trust` does. Processes that luthier starts inherit it.",
        "LUTHIER_JOIN_SECONDS": "The maximum time, in seconds, that a process waits for the other "
        "processes of its run.",
    },
    "Terminal": {
        "NO_COLOR": "Turns colors off if it is set to a non-empty value.",
        "FORCE_COLOR": "Turns colors on, also in a pipe, if it is set to a non-empty value.",
        "LUTHIER_PAGER": "The pager of `luthier help`; an empty value turns paging off. If it is "
        "not set, `PAGER` is used.",
        "PAGER": "The pager of `luthier help`, by default `less`.",
        "TERM": "`dumb` turns off colors, and lines that are redrawn.",
    },
    "Folders": {
        "XDG_CACHE_HOME": "The folder of caches, by default `~/.cache`. luthier uses `luthier/` "
        "in it: compiled programs, plans, the index of completion, indices of data files, copies "
        "of remote data, and the folders of runs outside of a project.",
        "XDG_CONFIG_HOME": "The folder of settings, by default `~/.config`. `luthier/launch.toml` "
        "in it has your own sites for `--on`.",
        "HOME": "The home directory, in which `.netrc` is looked up.",
        "NETRC": "The file with passwords of servers, by default `~/.netrc`: the key of Weights & "
        "Biases is looked up in it, and its passwords are removed from records.",
        "PYTHONPATH": "Folders of modules. luthier passes it on to the processes that it starts.",
    },
    "Weights & Biases": {
        "WANDB_MODE": "Decides what `records.wandb.mode='auto'` means: `online`, `offline` or "
        "`disabled`.",
        "WANDB_DISABLED": "`true` does the same as `WANDB_MODE=disabled`.",
        "WANDB_API_KEY": "The key. With `auto` and without a key, a run is recorded offline.",
        "WANDB_IDENTITY_TOKEN_FILE": "A file with a token, in place of a key.",
        "WANDB_BASE_URL": "The address of a server of your own.",
    },
    "Object stores": {
        "AWS_ENDPOINT_URL": "The address of a store that speaks the protocol of S3, for `s3://` "
        "URLs of data, runs and mirrors.",
        "AWS_REGION": "The region of such a store, by default `us-east-1`.",
    },
    "Devices and compilation": {
        "XLA_FLAGS": "Options of XLA. On a CPU, luthier adds options of its own to it; an option "
        "that is named here keeps the value that it has here.",
        "JAX_COMPILATION_CACHE_DIR": "The folder of JAX's compilation cache. If it is set, even "
        "to nothing, luthier leaves the cache as it is; otherwise it uses a folder below "
        "`XDG_CACHE_HOME`.",
        "GLIBC_TUNABLES": "Options of the C library. Commands that compute add "
        "`glibc.malloc.hugetlb=1` where the kernel gives large pages on request "
        "([Performance](performance.md)); a value of `glibc.malloc.hugetlb` that is set is kept.",
        "CUDA_VISIBLE_DEVICES": "The NVIDIA GPUs that a process can see. A sweep splits them into "
        "its device groups.",
        "HIP_VISIBLE_DEVICES": "The same for AMD GPUs; it takes precedence over "
        "`ROCR_VISIBLE_DEVICES`.",
        "ROCR_VISIBLE_DEVICES": "The same for AMD GPUs, at a lower level.",
        "TPU_VISIBLE_CHIPS": "The chips of a TPU host that a process can see. A sweep splits them "
        "into its device groups.",
    },
    "Several hosts": {
        "JAX_COORDINATOR_ADDRESS": "Host and port of process 0 of a run.",
        "JAX_COORDINATOR_BIND_ADDRESS": "The address on which process 0 listens, by default all "
        "interfaces.",
        "JAX_NUM_PROCESSES": "The number of processes of a run.",
        "JAX_PROCESS_ID": "The index of this process, from 0.",
        "JAX_LOCAL_DEVICE_IDS": "The devices of this host that the process uses, separated by "
        "commas.",
        "SLURM_JOB_ID": "Set by SLURM, like the next seven. With the step's id it gives each run "
        "of an allocation a port of its own.",
        "SLURM_STEP_ID": "The id of the job's step.",
        "SLURM_PROCID": "The index of this process in its step.",
        "SLURM_LOCALID": "The index of this process on its host.",
        "SLURM_STEP_NUM_TASKS": "The number of processes of the step.",
        "SLURM_STEP_TASKS_PER_NODE": "The number of processes on each host.",
        "SLURM_RESTART_COUNT": "How often SLURM has requeued the job.",
        "SLURMD_NODENAME": "The name of this host.",
        "TPU_WORKER_ID": "Set on TPU hosts: the index of the host in its slice, which orders the "
        "processes of a Ray job.",
    },
    "Between processes of luthier": {
        "LUTHIER_PROCESS": "Set by luthier for the processes that it starts, like the others of "
        "this table. Do not set them yourself. This one describes a process of a run.",
        "LUTHIER_NOTES": "The file in which a process leaves notes for its launcher.",
        "LUTHIER_RANK": "The index of a process among those of a launch.",
        "LUTHIER_RANKS": "The number of processes of a launch.",
        "LUTHIER_LOCAL_RANK": "The index of a process on its host.",
        "LUTHIER_START": "The start of a launch that a process belongs to.",
        "LUTHIER_WORDS": "The command line that a shell asks completions for.",
    },
}

END = """\

## In configs

Dicts of Hydra can read any variable with `${oc.env:NAME}` ([Dicts of Hydra](../how_to/hydra.md)).
The proxy variables `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, in upper or lower case,
are used to test whether the server of Weights & Biases can be reached.
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
