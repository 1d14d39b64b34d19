"""Real processes that train, are killed, and train again."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

TINY = (
    "configs.lm.quickstart",
    "model.dim=16",
    "model.num_layers=1",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=1",
    "model.block.mlp.hidden_dim=32",
    "model.block.dropout=partial:luthier.layers.Dropout(rate=0.1)",
    "data.length=32",
    "training.global_batch_size=8",
    "training.ema:=luthier.optim.Ema(decay=0.9)",
    "evaluations.held_out.num_batches=1",
    "evaluations.held_out.global_batch_size=8",
    "evaluations.held_out.every.count=25",
    "records.wandb=None",
)


def command(*arguments):
    return [sys.executable, "-m", "luthier", "train", *TINY, *arguments]


def environment():
    # The example experiments lie in the repository's root, like the package when it is not a wheel.
    return os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "default"}


def train(directory, *arguments, check=True):
    """Train to the end; return the finished process."""
    done = subprocess.run(
        command(*arguments),
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stderr[-3000:]
    return done


def train_until(directory, step, how, *arguments):
    """Train until a step is recorded and a checkpoint committed, then send a signal.

    SIGINT is sent twice within milliseconds, as by `timeout -s INT`.

    Returns the process when it has ended.
    """
    process = subprocess.Popen(
        command(*arguments),
        cwd=directory,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 600
    while process.poll() is None and time.monotonic() < deadline:
        if last_step(directory) >= step and committed(directory):
            process.send_signal(how)
            if how == signal.SIGINT:
                time.sleep(0.02)
                process.send_signal(how)
            break
        time.sleep(0.005)
    process.communicate(timeout=120)
    return process


def run_directory(directory):
    (found,) = pathlib.Path(directory).glob("runs/quickstart/*")
    return found


def lines(directory):
    """Return the whole lines of the metrics file, as they are on the disk."""
    found = list(pathlib.Path(directory).glob("runs/quickstart/*/metrics.jsonl"))
    if not found:
        return []
    rows = []
    for line in found[0].read_bytes().split(b"\n")[:-1]:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def last_step(directory):
    return max((row["step"] for row in lines(directory) if row["kind"] == "step"), default=0)


def committed(directory):
    return bool(list(pathlib.Path(directory).glob("runs/quickstart/*/checkpoints/*/commit.json")))


def losses(directory):
    """Return (step, loss) of every recorded step, in the order of the file."""
    return [
        (row["step"], row["values"]["loss"]) for row in lines(directory) if row["kind"] == "step"
    ]


def kill(directory, step, *arguments):
    return train_until(directory, step, signal.SIGKILL, *arguments)
