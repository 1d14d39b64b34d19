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
# Compare configs

Use `luthier diff A B` to find out how two configs differ. Add `--why` to see where each value was
set, and `--effects` to see how the differences affect training.

You can compare any of the following:

- an experiment, such as `configs.lm.quickstart`; to add overrides and fiddlers, quote all of them
  as one argument, as in `'configs.lm.quickstart model.num_layers=8'`
- a run, given by its directory, or by `run:` and an id, a unique prefix of an id, NAME/ID or `last`
- a trial of a study, such as `study:NAME/7`
- a `config.json`, or `-` to read one from standard input
- the directory of a W&B offline run, such as `runs/NAME/ID/wandb/offline-run-...`
- an experiment or a `config.json` at a git revision, given by its module
  (`HEAD~1:configs.lm.quickstart`) or by its file (`HEAD~1:configs/lm/quickstart.py`)

To compare the base config of a study with all of its trials, use `luthier diff study:NAME`.

Runs, trials and files are read as data, so the command does not import the code that they refer to
unless you add `--effects`. To build an experiment at a git revision, luthier extracts the revision
into a temporary directory and starts a separate process in it. If the revision contains a version
of luthier, the process uses that version. Your working tree does not change.
"""

EXAMPLES = [
    (
        """\
## Compare values and structure

With `--why`, the output shows where the value on each side was set:
""",
        [QUICKSTART, f"{QUICKSTART} model.num_layers=8 training.steps=1800", "--why"],
    ),
    (
        """\
If you replace a class, the output shows a single change, which lists the arguments that the new
class keeps:
""",
        [QUICKSTART, f"{QUICKSTART} fiddler:swap_optimizer(luthier.optim.lion)"],
    ),
    (
        """\
## Show the effects on training

`--effects` compares the state, compute, schedules and checkpoints that follow from the configs. It
does not allocate any arrays. Instead, it traces the model and its optimizer abstractly
(`jax.eval_shape`), with one virtual CPU for each device of the mesh, or on the devices that you
choose with `--devices`. Schedules are plotted one above the other on the same scale, and so are the
metrics of two runs.

Because `--effects` builds recorded configs, it imports the trusted packages that they refer to
([Security](../explanation/security.md#reading)).
""",
        [QUICKSTART, f"{QUICKSTART} optimizer.learning_rate.peak=2e-3", "--effects"],
    ),
    (
        """\
## Compare more than two configs

Three or more configs are printed as a table, in which a dot marks a value that is the same as in
the first config. For runs and trials, the first rows show the results.
""",
        [
            QUICKSTART,
            *(f"{QUICKSTART} optimizer.b2={b2} seed={n}" for n, b2 in ((1, 0.9), (2, 0.5))),
        ],
    ),
    (
        """\
## Export a diff as overrides or a fiddler

Use `--overrides` to print the overrides that change A into B. Use `--patch FILE` to write a fiddler
that makes the same changes, and apply it with `fiddler:module:patch`.
""",
        [QUICKSTART, f"{QUICKSTART} model.num_layers=8 seed=3", "--overrides"],
    ),
]

END = """\
## Review a pull request

To see how a pull request affects your experiments, compare two git revisions with
`luthier diff BASE..HEAD --markdown`. The command compares every experiment that `luthier list`
finds in `configs/`. With `BASE...HEAD`, the comparison starts at the merge base, like the diff of a
pull request on GitHub. With `BASE..`, it compares BASE with your working tree.

    luthier diff origin/main...HEAD --markdown

The command prints Markdown that you can post as a comment. It starts with a table of the configs
that were changed, added or removed. The table also lists configs that fail to resolve at one of the
revisions, with the error. For each changed config, it shows the number of parameters, the model
FLOPs per step, and whether you can continue training at HEAD from a checkpoint of BASE.

Below the table, a folded section for each config lists its changes and their effects. The effects
are computed for the first 20 changed configs only. Because GitHub limits a comment to 65,536
characters, the output is truncated to this length, and lists what was omitted. The configs of each
revision are built in a separate process, from a temporary copy of the revision.

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

You can also use `--markdown` with `luthier diff A B`. Add `--effects` to include the effects.

## More options

- `--only changed` hides changes that have no effect, such as a value that is set to its default.
  `--only values` shows only changes of argument values, and `--only structure` shows only the other
  changes, such as changes of classes and of shared values.
- `--ignore '**.name'` hides all paths that match and everything below them. You can repeat this
  option.
- `--json` prints the complete comparison as JSON.
- `--html FILE` writes a self-contained HTML page, which `--open` opens in the browser.
- `--exit-code` makes the command exit with code 1 if there are differences, like `git diff`.

## Diffs in other commands

- `luthier runs ID ID --diff` compares runs.
- `luthier train ... --run ID` prints how your command changes the config of the run that it
  resumes.
- If a run has a parent, its W&B run includes an artifact of type `diff`. The parent is the run that
  it was restored from, or the base of its study.
- In Python, call `print(luthier.diff(a, b))`.

## Use diff in git

You can configure `git diff` and `git log -p` to show recorded configs with one line for each value:

    echo 'config.json diff=luthier' >> .gitattributes
    git config diff.luthier.textconv 'luthier diff --textconv'
    git config diff.luthier.cachetextconv true
"""


def render() -> str:
    """Return the page."""
    parts = [START]
    for text, words in EXAMPLES:
        command = f"    luthier diff {shlex.join(words)}"
        parts.append(f"{text}\n{command}\n\n{_answer(words)}")
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
