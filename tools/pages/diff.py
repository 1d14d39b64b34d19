"""The page about `luthier diff`: what it takes, and what it answers for the quickstart."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = "configs.lm.quickstart"
_LINE = re.compile(r"(set by \S+\.py):\d+")

START = """\
# What differs

`luthier diff A B` tells what is different between two graphs, what set it, and what follows.

A and B may be:

- an experiment: `configs.lm.quickstart`; with overrides and fiddlers in one word of the shell,
  `'configs.lm.quickstart model.num_layers=8'`
- a run: its folder, or `run:` with its id, the beginning of it, NAME/ID or `last`
- a trial of a study: `study:NAME/7`; `study:NAME` alone is its base and all of its trials
- a `config.json`, or `-` for one on the standard input
- an offline folder of W&B: `runs/NAME/ID/wandb/offline-run-...`
- an experiment or a `config.json` of a git revision: `HEAD~1:configs.lm.quickstart`

Runs, trials and files are read as data: nothing that they name is imported. A revision is laid out
in a temporary folder, and its experiment is made there by a process of its own, with the luthier
of the revision where it has one; the working tree is not touched.
"""

EXAMPLES = [
    (
        "## Values and structure\n\n`--why` tells what set both sides.",
        [QUICKSTART, f"{QUICKSTART} model.num_layers=8 training.steps=1800", "--why"],
    ),
    (
        "A swapped class is one change, which says what was carried over:",
        [QUICKSTART, f"{QUICKSTART} fiddler:swap_optimizer(luthier.optim.lion)"],
    ),
    (
        "## Effects\n\n`--effects` tells what follows for training. No array is made: the model "
        "and its\noptimizer are evaluated abstractly, on as many virtual CPUs as the mesh has, or "
        "on those of\n`--devices`. Curves are laid over each other: schedules, and the metrics of "
        "two runs. Records are\nbuilt for this, from the packages that any recorded graph may "
        "name.",
        [QUICKSTART, f"{QUICKSTART} optimizer.learning_rate.peak=2e-3", "--effects"],
    ),
    (
        "## Many at once\n\nMore than two are a matrix against the first; a dot is the same as "
        "there. Runs and trials have\nwhat they came to on top.",
        [
            QUICKSTART,
            *(f"{QUICKSTART} optimizer.b2={b2} seed={n}" for n, b2 in ((1, 0.9), (2, 0.5))),
        ],
    ),
    (
        "## As words, as a fiddler\n\n`--overrides` prints the words that make the first the "
        "second, `--patch FILE` writes a fiddler\nthat does (`fiddler:module:patch`).",
        [QUICKSTART, f"{QUICKSTART} model.num_layers=8 seed=3", "--overrides"],
    ),
]

END = """\
## More

- `--only changed` leaves out what has no effect, such as a value that is set to its default;
  `--only values` and `--only structure` keep one kind of changes
- `--ignore '**.name'` leaves out paths with what is below them (may be repeated)
- `--json` prints everything; `--html FILE` writes a page that is one file, `--open` shows it
- `--exit-code` exits with 1 where something differs, as `git diff` does
- `luthier runs ID ID --diff` compares runs, `luthier train ... --run ID` tells what is changed
- the W&B run of a run with a parent (which it restored, or the base of its study) has an artifact
  of type `diff`
- in Python: `print(luthier.diff(a, b))`

## In git

`git diff` and `git log -p` show records as a line for each value, where git is told so:

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
