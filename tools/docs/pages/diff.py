"""The page about `luthier diff`: what it takes, and what it answers for the quickstart."""

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

`luthier diff A B` compares two configs: the differences, what set each side, and the effects on
training.

A and B can be:

- an experiment: `configs.lm.quickstart`; with overrides and fiddlers, quoted as one argument,
  `'configs.lm.quickstart model.num_layers=8'`
- a run: its folder, or `run:` with its id, the beginning of it, NAME/ID or `last`
- a trial of a study: `study:NAME/7`; `study:NAME` alone is its base and all of its trials
- a `config.json`, or `-` for one on the standard input
- an offline folder of W&B: `runs/NAME/ID/wandb/offline-run-...`
- an experiment or a `config.json` of a git revision: `HEAD~1:configs.lm.quickstart`, or by its
  file, `HEAD~1:configs/lm/quickstart.py`

Runs, trials and files are read as data: nothing that they name is imported. A revision is checked
out into a temporary directory, and its experiment is built there by a separate process, with the
revision's own luthier if it has one; the working tree is not touched.
"""

EXAMPLES = [
    (
        "## Values and structure\n\n`--why` shows what set each side.",
        [QUICKSTART, f"{QUICKSTART} model.num_layers=8 training.steps=1800", "--why"],
    ),
    (
        "A swapped class is one change, which lists the arguments that were carried over:",
        [QUICKSTART, f"{QUICKSTART} fiddler:swap_optimizer(luthier.optim.lion)"],
    ),
    (
        "## Effects\n\n`--effects` shows the effects on training. No array is allocated: the model "
        "and its\noptimizer are evaluated abstractly, on as many virtual CPUs as the mesh has, or "
        "on those of\n`--devices`. Curves are overlaid: schedules, and the metrics of "
        "two runs. Records are\nbuilt for this, from the packages that a recorded config may "
        "name.",
        [QUICKSTART, f"{QUICKSTART} optimizer.learning_rate.peak=2e-3", "--effects"],
    ),
    (
        "## More than two\n\nMore than two configs are printed as a matrix against the first; a "
        "dot means equal. Runs\nand trials have their results on top.",
        [
            QUICKSTART,
            *(f"{QUICKSTART} optimizer.b2={b2} seed={n}" for n, b2 in ((1, 0.9), (2, 0.5))),
        ],
    ),
    (
        "## As overrides, as a fiddler\n\n`--overrides` prints the overrides that turn A into B, "
        "`--patch FILE` writes them as a\nfiddler (`fiddler:module:patch`).",
        [QUICKSTART, f"{QUICKSTART} model.num_layers=8 seed=3", "--overrides"],
    ),
]

END = """\
## A pull request

`luthier diff BASE..HEAD --markdown` compares all experiments in `configs/` at two git revisions,
those that `luthier list` prints. `BASE...HEAD` begins where both have parted, which is what a pull
request changes; `BASE..` ends in the working tree.

    luthier diff origin/main...HEAD --markdown

It prints Markdown: a table of the configs that changed, were added or removed, or do not resolve
at one of the revisions (with the error), with the parameters, the FLOPs of a step, and whether a
checkpoint of the first continues with the second. The changes and effects of each config are folded
below it. The text has at most 65,536 characters, the limit of GitHub; it names what it leaves out.
Effects are computed for the first 20 configs that changed. The code of a revision runs as that of
`HEAD~1:configs.lm.quickstart` does: in a process of its own, from a copy.

A workflow of GitHub that keeps one comment up to date:

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

`--markdown` also prints the comparison of two operands; add `--effects` there.

## More

- `--only changed` leaves out changes without an effect, such as a value that is set to its default;
  `--only values` and `--only structure` keep one kind of changes
- `--ignore '**.name'` leaves out paths and everything below them (can be repeated)
- `--json` prints everything; `--html FILE` writes a page that is one file, `--open` shows it
- `--exit-code` exits with 1 if there are differences, as `git diff` does
- `luthier runs ID ID --diff` compares runs, `luthier train ... --run ID` prints the changes
- the W&B run of a run with a parent (which it restored, or the base of its study) has an artifact
  of type `diff`
- in Python: `print(luthier.diff(a, b))`

## In git

`git diff` and `git log -p` can show records with one line for each value. Configure git:

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
