"""The page about `luthier diff`: its operands, and its output for the quickstart."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
QUICKSTART = "configs.lm.quickstart"
_LINE = re.compile(r"(set by \S+\.py):\d+")

START = """\
# Diff

`luthier diff A B` compares two configs. It shows what differs, where each value was set (`--why`),
and how training is affected (`--effects`).

A and B can be:

- an experiment: `configs.lm.quickstart`; with overrides and fiddlers, quoted as one argument,
  `'configs.lm.quickstart model.num_layers=8'`
- a run: its directory, or `run:` followed by an id, a unique id prefix, NAME/ID or `last`
- a trial of a study: `study:NAME/7`
- a `config.json`, or `-` to read one from standard input
- a W&B offline run directory: `runs/NAME/ID/wandb/offline-run-...`
- an experiment or a `config.json` at a git revision, by module (`HEAD~1:configs.lm.quickstart`) or
  by file (`HEAD~1:configs/lm/quickstart.py`)

`luthier diff study:NAME` compares the study's base config with all of its trials.

Runs, trials and files are read as data: without `--effects`, nothing that they name is imported. To
build an experiment at a git revision, luthier extracts the revision into a temporary directory and
starts a separate process there, with the revision's own version of luthier if it contains one. The
working tree is not touched.
"""

EXAMPLES = [
    (
        "## Values and structure\n\n`--why` shows where the value on each side was set.",
        [QUICKSTART, f"{QUICKSTART} model.num_layers=8 training.steps=1800", "--why"],
    ),
    (
        "A swapped class is one change, which lists the arguments that were carried over:",
        [QUICKSTART, f"{QUICKSTART} fiddler:swap_optimizer(luthier.optim.lion)"],
    ),
    (
        "## Effects\n\n`--effects` shows the effects on training. No array is allocated: the model "
        "and its\noptimizer are traced abstractly (`jax.eval_shape`), on one virtual CPU per mesh "
        "device, or on the\ndevices given by `--devices`. Schedules, and the metrics of two runs, "
        "are plotted one above the\nother, on the same scale. With `--effects`, recorded configs "
        "are built, so the trusted packages that\nthey name are imported "
        "([Security](../explanation/security.md#reading)).",
        [QUICKSTART, f"{QUICKSTART} optimizer.learning_rate.peak=2e-3", "--effects"],
    ),
    (
        "## More than two\n\nThree or more configs are printed as a table. A dot means that the "
        "value equals that of the first\nconfig. For runs and trials, the first rows show their "
        "results.",
        [
            QUICKSTART,
            *(f"{QUICKSTART} optimizer.b2={b2} seed={n}" for n, b2 in ((1, 0.9), (2, 0.5))),
        ],
    ),
    (
        "## Export a diff as overrides or a fiddler\n\n`--overrides` prints the overrides that "
        "turn A into B. `--patch FILE` writes a fiddler that makes\nthe same changes; apply it "
        "with `fiddler:module:patch`.",
        [QUICKSTART, f"{QUICKSTART} model.num_layers=8 seed=3", "--overrides"],
    ),
]

END = """\
## Review a pull request

`luthier diff BASE..HEAD --markdown` compares every experiment that `luthier list` finds in
`configs/` at two git revisions. `BASE...HEAD` starts at the merge base, as GitHub's pull-request
diff does; `BASE..` compares with the working tree.

    luthier diff origin/main...HEAD --markdown

The command prints Markdown. A table lists the configs that were changed, added or removed, and
those that fail to resolve at one of the revisions (with the error). For changed configs, its
columns are the parameter count, the model FLOPs per step, and whether a checkpoint from BASE can be
continued at HEAD. The changes and effects of each config are folded below the table. Effects are
computed for the first 20 changed configs only. The output is truncated to 65,536 characters,
GitHub's limit for a comment, and lists what was omitted. The configs of each revision are built in
a separate process, from a temporary copy of the revision.

This GitHub Actions workflow keeps a single comment up to date:

    on: pull_request
    permissions: {contents: read, pull-requests: write}
    jobs:
      configs:
        runs-on: ubuntu-latest
        steps:
          - uses: actions/checkout@v4
            with: {fetch-depth: 0}  # the history, for the base
          - uses: actions/setup-python@v5
            with: {python-version: "3.12"}
          - run: pip install -e .
          - run: luthier diff origin/${{ github.base_ref }}...HEAD --markdown > configs.md
          - env: {GH_TOKEN: "${{ github.token }}", PR: "${{ github.event.number }}"}
            run: gh pr comment $PR --edit-last --create-if-none --body-file configs.md

`--markdown` also works for `luthier diff A B`; add `--effects` to include the effects.

## More options

- `--only changed` leaves out changes without an effect, such as a value that is set to its default;
  `--only values` shows only values of arguments, and `--only structure` only the other changes,
  such as those of classes and of sharing
- `--ignore '**.name'` leaves out matching paths and everything below them (can be repeated)
- `--json` prints the whole comparison as JSON
- `--html FILE` writes a self-contained HTML page; `--open` opens it in the browser
- `--exit-code` exits with 1 if there are differences, as `git diff` does

## Diffs elsewhere

- `luthier runs ID ID --diff` compares runs.
- `luthier train ... --run ID` prints the changes to the config of the run that it resumes.
- If a run has a parent (the run it was restored from, or the base of its study), its W&B run
  includes an artifact of type `diff`.
- In Python, use `print(luthier.diff(a, b))`.

## In git

`git diff` and `git log -p` can show recorded configs with one line for each value. To configure
git:

    echo 'config.json diff=luthier' >> .gitattributes
    git config diff.luthier.textconv 'luthier diff --textconv'
    git config diff.luthier.cachetextconv true
"""


def render() -> str:
    """Return the page."""
    parts = [START]
    for text, words in EXAMPLES:
        command = f"    luthier diff {shlex.join(words)}"
        parts.append(f"{text}\n\n{command}\n\n{_answer(words)}")
    return "\n".join([*parts, END])


def _answer(words: list[str]) -> str:
    """Return what the command prints, indented; lines of files are left out, because they move."""
    from luthier.cli import main

    output = io.StringIO()
    sys.path.insert(0, str(ROOT))
    try:
        with contextlib.redirect_stdout(output):
            main(["diff", *words])
    finally:
        sys.path.remove(str(ROOT))
    text = _LINE.sub(r"\1", output.getvalue())
    return "".join(f"    {line}".rstrip() + "\n" for line in text.splitlines())
