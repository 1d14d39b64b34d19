"""The page of errors: cases that the tests run, and every message in the source."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from tools.docs import messages
from tools.docs.messages import Message

TESTS = Path(__file__).resolve().parents[3] / "tests" / "end_to_end"

START = """\
# Errors

Use this page to look up an error message of luthier. It shows common mistakes and the error that
luthier prints for each of them, errors in your own code, and an index of all messages.

An error is a single line. It starts with the path in the config and the problem, followed by the
place that set the value, and a remedy or the nearest valid names. luthier checks everything before
it starts or writes anything, and reports all problems of a command together. The
[exit code](exit_codes.md) is 2. The index lists the messages without the path and the place, which
differ from case to case. To search the index in a terminal, use `grep`:

```bash
luthier help errors | grep -A 1 '^- .*cannot be divided'
```

## Mistakes

Other frameworks silently accept the following mistakes. luthier prints an error and does not train
or write anything. The tests run all of these commands.
"""

CODE = """\
## Errors in your code

If your own code raises an exception, luthier prints the path of the node whose code failed, the
innermost lines of your files, and the arguments of the call. Arrays are shown by their types, as in
JAX. The exit code is 1. To print the complete traceback, add `--debug`. In these examples,
`my_parts` is a package of the project.
"""

INDEX = """\
## Index of messages

This index contains every message in the source, by subject. Upper-case names and `...` are
placeholders for parts that differ from case to case. A remedy that depends on the case is printed
with the message, but it is not listed here.
"""

# By subject: the packages of the source, and pages that explain the subject.
SUBJECTS: dict[str, tuple[tuple[str, ...], str]] = {
    "Configs and overrides": (
        ("graph", "project"),
        "[Overrides](overrides.md), [Why a config graph](../explanation/config_graph.md), "
        "[Gin](../how_to/gin.md), [ConfigDict](../how_to/config_dict.md), "
        "[Hydra](../how_to/hydra.md)",
    ),
    "Commands and options": (("cli", "view", "shipped"), "[Command line](cli.md)"),
    "Data": (
        ("data",),
        "[Prepare data](../how_to/prepare_data.md), "
        "[Write a data source](../how_to/write_a_data_source.md), "
        "[Mix and pack](../how_to/mix_and_pack.md)",
    ),
    "Models, tasks and metrics": (
        ("models", "layers", "metrics", "tasks", "recipes", "contrib"),
        "[Model zoo](model_zoo.md), [Pretrained models](../how_to/pretrained.md), "
        "[Write a layer](../how_to/write_a_layer.md), "
        "[Write a task and a metric](../how_to/write_a_task_and_metric.md)",
    ),
    "Optimizers and schedules": (
        ("optim",),
        "[Write an optimizer](../how_to/write_an_optimizer.md)",
    ),
    "Training": (
        ("program", "trainer"),
        "[From the config to the step](../explanation/from_config_to_step.md), "
        "[Debug a run](../how_to/debug_a_run.md)",
    ),
    "Checkpoints": (
        ("checkpoint",),
        "[Extend a run](../how_to/extend_a_run.md), "
        "[Checkpoints of other frameworks](../how_to/checkpoints.md)",
    ),
    "Meshes and sharding": (
        ("parallel",),
        "[Parallelism](../how_to/parallelism.md), "
        "[How a sharding is decided](../explanation/sharding.md)",
    ),
    "Runs and records": (
        ("records", "storage"),
        "[Runs](../how_to/runs.md), [Choose where to store runs](../how_to/storage.md), "
        "[The directory of a run](run_folder.md)",
    ),
    "Plans": (("planner",), "[Plans](../how_to/plan.md)"),
    "Sweeps": (("study",), "[Sweeps](../how_to/sweeps.md)"),
    "Clusters": (("launch",), "[Launch](../how_to/launch.md)"),
}


def render() -> str:
    """Return the page."""
    parts = [START]
    for case in _read("mistakes.toml")["mistake"]:
        lines = [f"$ luthier {shlex.join(case['words'])}", f"luthier: {case['says']}"]
        if "recorded" in case:
            lines.insert(0, f"# taken/config.json contains {case['recorded']}")
        answer = f"*Accepted by {case['accepted_by']}.* {case['how']}"
        parts.append(f"### {case['mistake']}\n\n{answer}\n\n{_block(lines)}")
    parts.append(CODE)
    for case in _read("user_errors.toml")["case"]:
        command = shlex.join(["train", "configs.lm.quickstart", *case["overrides"]])
        lines = [f"$ luthier {command}", *(f"luthier: {line}" for line in case["lines"])]
        parts.append(f"### {case['name'].capitalize()}\n\n{_block(lines)}")
    parts.append(INDEX)
    anchors: Counter[str] = Counter()
    for subject, (packages, pages) in SUBJECTS.items():
        found = [one for one in messages.messages() if one.package in packages]
        entries = [_entry(one, anchors) for one in sorted(found, key=_order)]
        parts.append(f"### {subject}\n\nSee also: {pages}.\n\n" + "\n".join(entries) + "\n")
    return "\n".join(parts)


def _order(message: Message) -> tuple[str, ...]:
    return (_slug(message.pattern), message.pattern)


def _slug(pattern: str) -> str:
    """Return the fixed part of a message as a name for links."""
    fixed = messages.PLACEHOLDER.sub(" ", pattern)
    return "-".join(re.findall(r"[a-z0-9]+", fixed.lower())[:8])


def _entry(message: Message, anchors: Counter[str]) -> str:
    slug = _slug(message.pattern)
    anchors[slug] += 1
    anchor = slug if anchors[slug] == 1 else f"{slug}-{anchors[slug]}"
    remedy = f"\\\n  Remedy: {_code(message.remedy)}" if message.remedy else ""
    return f'- <a id="error-{anchor}"></a>{_code(message.pattern)}{remedy}'


def _code(text: str) -> str:
    """Return a text as code, whatever backticks are in it."""
    text = " ".join(text.split())
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((TESTS / name).read_text(encoding="utf-8"))


def _block(lines: list[str]) -> str:
    return "\n".join(["```text", *lines, "```", ""])
