"""The page of every file of a run's directory; tests/tools/test_documentation.py trains one."""

from __future__ import annotations

START = """\
# The directory of a run

Read this page to find a record of a run, or to read one in a program. A run is a directory,
`runs/NAME/ID/` (`records.directory` sets the place of `runs`), and holds everything about it: to
archive a run, copy its directory.

`luthier runs ID` and [`luthier.runs`](../how_to/runs.md) read these files for you. Most are
JSON, or JSON lines: an object a line. Records are data, and reading one runs no code
([Security](../explanation/security.md)).
"""

# By section: pattern of the path, and contents. `N` is a number, `STEP` a step.
FILES = {
    "The config": {
        "config.json": "The config that ran, from which it is rebuilt: `luthier show run:ID`.",
        "config.txt": "The config as `luthier show` prints it.",
        "config.values.json": "The values of the config as nested plain data, for programs.",
        "config.history.json": "Where each value was set, first to last: files and lines, "
        "overrides, fiddlers: `luthier show run:ID --why PATH`.",
        "config.N.json, config.N.txt, config.values.N.json, config.history.N.json": "The same "
        "before a resume changed the config, where one did.",
        "operative_config.gin": "The statements of Gin files, where the config has any.",
    },
    "Code and machine": {
        "source.json": "Versions of libraries, Python, platform, command line, and the git "
        "revision with uncommitted changes.",
        "code.json": "The SHA-256 of every Python file of your packages.",
        "code/SHA256.py": "The files themselves, each once.",
        "source.N.json, code.N.json": "The same before a resume with other code.",
        "plan.json": "The predicted cost of the run: parameters, bytes, FLOPs, collectives "
        "([Plans](../how_to/plan.md)).",
    },
    "Progress": {
        "status.json": "The state (`created`, `running`, `finished`, ...), the step, and the last "
        "metrics. It is replaced as a whole.",
        "metrics.jsonl": "Every step, evaluation, sample, image, histogram and notice "
        "([Runs](../how_to/runs.md)).",
        "goodput.jsonl": "Where the time went, over all starts: `luthier runs ID --goodput`.",
        "hosts.jsonl": "Timings of every host, every 100 steps, where a run has several processes.",
        "console.log": "All that was printed on the console, as plain lines.",
        "media/NAME/STEP.png": "Images.",
    },
    "State": {
        "checkpoints/STEP/arrays/": "The parameters, the state of the optimizer and of the guard: "
        "arrays in the format of Orbax (OCDBT).",
        "checkpoints/STEP/iterator/": "The position in the data.",
        "checkpoints/STEP/commit.json": "The list of arrays and files with their checksums. It is "
        "written last: a directory without it is an unfinished save, and is deleted.",
        "checkpoints/STEP/commit_success.txt": "Orbax's mark of a complete save.",
        "checkpoints/STEP/_CHECKPOINT_METADATA, checkpoints/STEP/orbax.checkpoint": "Orbax's "
        "description of the checkpoint.",
        "restored.txt": "Where each initial parameter came from, for a run with "
        "[initial weights](../how_to/checkpoints.md).",
        "restored.json": "The settings that came with these weights.",
        "tokenizer/": "The tokenizer that came with these weights.",
    },
    "Weights & Biases": {
        "wandb.json": "The project, name and id of the run in Weights & Biases.",
        "wandb/": "Files of the client, and `mirror.log` of the process that uploads.",
    },
    "Failures": {
        "crash/TIME.txt": "The report of an exception: traceback, step, versions, memory.",
        "crash/native-process-N.txt": "Stack traces of a process that the system ended.",
        "stacks/process-N.txt": "Stack traces of all threads, written by the watchdog when a run "
        "makes no progress.",
        "processes/process-N-of-N.log": "The output of each process, where luthier started "
        "several.",
        "profile/": "The trace of `luthier train --profile`.",
    },
    "Locks": {
        "lock": "Locked by the process that writes the run, and named in it.",
    },
}

END = """\

The reports of `luthier runs`, and of W&B, can be rebuilt from these files: nothing is kept anywhere
else. [Choose where to store runs](../how_to/storage.md) describes disks, object stores and copies.
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
