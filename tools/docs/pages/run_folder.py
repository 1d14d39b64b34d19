"""The page of every file of a run's directory; tests/tools/test_documentation.py trains one."""

from __future__ import annotations

START = """\
# The directory of a run

luthier stores each run in the directory `runs/NAME/ID/`. This page describes the files in that
directory. Use this page to find a particular file, or to read the files from your own program. The
directory contains the complete record of the run, so you can archive a run by copying its
directory. To change the location of `runs`, set `records.directory`.

In most cases, you do not need to open these files, because `luthier runs ID` and
[`luthier.runs`](../how_to/runs.md) read them for you. Most files are JSON, or JSON lines with one
object per line. They contain only data, so reading a record never runs code
([Security](../explanation/security.md)).
"""

# By section: pattern of the path, and contents. `N` is a number, `STEP` a step.
FILES = {
    "The config": {
        "config.json": "The config that ran. `luthier show run:ID` rebuilds the config from it.",
        "config.txt": "The config as `luthier show` prints it.",
        "config.values.json": "The values of the config as nested plain data, for other programs.",
        "config.history.json": "The history of each value, from first to last. It names the file "
        "and line, the override or the fiddler that set the value. Print it with "
        "`luthier show run:ID --why PATH`.",
        "config.N.json, config.N.txt, config.values.N.json, config.history.N.json": "Earlier "
        "versions of these files, kept when a resume changes the config.",
        "operative_config.gin": "The config in Gin format, if the run was started with "
        "`--operative-gin`.",
    },
    "Code and machine": {
        "source.json": "The versions of Python and the libraries, the platform, the command line, "
        "and the git revision.",
        "source-SHA256.patch": "The uncommitted changes to files that git tracks.",
        "code.json": "The SHA-256 of every Python file in your packages.",
        "code/SHA256.py": "The Python files themselves. Each version is stored once.",
        "source.N.json, code.N.json": "Earlier versions of these files, kept when a resume runs "
        "different code.",
        "plan.json": "The predicted cost of the run (parameters, bytes, FLOPs and collectives), "
        "and the measurements taken during the run ([Plans](../how_to/plan.md)).",
    },
    "Progress": {
        "status.json": "The state (`created`, `running`, `finished`, ...), the step, and the last "
        "metrics. Every update replaces the whole file.",
        "metrics.jsonl": "Every step, evaluation, sample, image, histogram and notice "
        "([Runs](../how_to/runs.md)).",
        "goodput.jsonl": "How the run spent its time, over all of its starts. Print it with "
        "`luthier runs ID --goodput`.",
        "hosts.jsonl": "Timings of every host, every 100 steps, if a run has several processes.",
        "console.log": "The console output, as plain text.",
        "media/NAME/STEP.png": "Images.",
    },
    "State": {
        "checkpoints/STEP/arrays/": "The parameters, the optimizer state and the state of the "
        "[guard](../get_started/glossary.md#training), as arrays in Orbax's OCDBT format.",
        "checkpoints/STEP/iterator/": "The position in the data.",
        "checkpoints/STEP/commit.json": "The list of arrays and files with their checksums. It is "
        "written last, so a directory without it is an unfinished save. luthier deletes unfinished "
        "saves.",
        "checkpoints/STEP/commit_success.txt": "The marker by which Orbax recognizes a complete "
        "save.",
        "checkpoints/STEP/_CHECKPOINT_METADATA, checkpoints/STEP/orbax.checkpoint": "Orbax's "
        "metadata about the checkpoint.",
        "restored.txt": "The source of each initial parameter, if the run was started with "
        "[`restore=`](../how_to/checkpoints.md).",
        "restored.json": "The configuration files that came with the restored weights.",
        "tokenizer/": "The tokenizer that came with the restored weights.",
    },
    "Weights & Biases": {
        "wandb.json": "The project, name and id of the run in Weights & Biases.",
        "wandb/": "The files of the W&B client, and `mirror.log`, the log of the process that "
        "uploads the run.",
    },
    "Failures": {
        "crash/TIME.txt": "The report of an exception, with traceback, step, versions and memory.",
        "crash/native-process-N.txt": "The stack traces of a process that crashed in native code.",
        "stacks/process-N.txt": "The stack traces of all threads. The watchdog writes them if a "
        "run makes no progress.",
        "processes/process-N-of-N.log": "The output of each process, if luthier started several.",
        "profile/": "The trace of `luthier train --profile`.",
    },
    "Locks and moves": {
        "lock": "The lock of the process that writes the run. The file also identifies this "
        "process.",
        "moves.json": "All moves of the run with `luthier runs ID --move`, including its previous "
        "locations.",
        "moved_to.json": "The new location of a run that was moved. The old directory contains "
        "only this file and, in `.trash/`, the original files.",
    },
}

END = """\

luthier stores nothing about a run anywhere else, so you can rebuild the reports of `luthier runs`
and of W&B from these files. [Choose where to store runs](../how_to/storage.md) describes disks,
object stores and copies.
"""


def render() -> str:
    """Return the page."""
    parts = [START]
    for section, files in FILES.items():
        rows = [
            f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {text} |"
            for names, text in files.items()
        ]
        parts.append("\n".join([f"\n## {section}\n", "| file | contents |", "|---|---|", *rows]))
        parts.append("\n")
    return "".join([*parts, END])
