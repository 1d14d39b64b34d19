"""The output of every command, to compare before and after a restructuring.

    python tests/repo/baseline/outputs.py           # print what differs; exit code 1 if so
    python tests/repo/baseline/outputs.py --record  # write outputs.txt

What is printed depends on the versions that are installed; `outputs.txt` names them. Where a
difference is meant, record again in the commit that means it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import difflib
import importlib.metadata
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
RECORD = pathlib.Path(__file__).with_name("outputs.txt")
ARCHIVE = ROOT / "tests" / "end_to_end" / "records" / "first_round.tar.xz"
PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "fiddle", "optuna")
HELP = (
    *("", "data", "data inspect", "data prepare", "diff", "doctor", "evaluate", "export"),
    *("generate", "help", "import", "init", "launch", "list", "plan", "runs", "show", "sweep"),
    *("sweep show", "train", "completion"),
)
IN_CLONE = (
    "list",
    "list pax",
    "help",
    "help luthier.optim.adamw",
    "show configs.lm.quickstart",
    "show configs.lm.quickstart --to table",
    "show configs.lm.quickstart --to json",
    "show configs.lm.quickstart --to py",
    "show configs.lm.quickstart --to yaml",
    "show configs.lm.quickstart --to gin",
    "show configs.lm.quickstart --params",
    "show configs.lm.quickstart --sharding --devices cpu:4 fiddler:fsdp",
    "show configs.lm.quickstart optimizer",
    "show configs.lm.quickstart model.num_layers=8 --why model.num_layers",
    "show configs.lm.quickstart model.num_layers=8 optimizer.b2=0.9 --changes",
    "show configs.lm.quickstart fiddler:lora --changes",
    "show configs.lm.quickstart model.num_layer=8",
    "show configs.lm.quickstar",
    "diff configs.lm.quickstart 'configs.lm.quickstart model.dim=64 optimizer.b2=0.9'",
    "diff configs.lm.quickstart 'configs.lm.quickstart model.dim=64' --json",
    "diff configs.lm.quickstart 'configs.lm.quickstart model.dim=64' --overrides",
    "diff configs.lm.quickstart 'configs.lm.quickstart model.dim=64' --effects",
    "diff configs.lm.quickstart configs.lm.bpe configs.vision.digits",
    "train configs.lm.quickstart --dry-run",
    "train configs.lm.quickstart training.steps=ten",
    "data inspect configs.lm.quickstart",
    "train configs.pax.lm.nothing",
)
IN_PROJECT = (
    "runs",
    "runs --json",
    "runs finished/3d2bf16a",
    "runs finished/3d2bf16a --goodput",
    "runs nothing",
    "show run:finished/3d2bf16a",
    "diff run:finished/3d2bf16a run:addition/3d2bf16a",
    "evaluate finished/3d2bf16a",
    "sweep show studies/half",
    "sweep best studies/half",
)


def output_of(command: str, folder: pathlib.Path) -> str:
    """Return what a command prints, and its exit code, without what differs between machines."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "framework"),
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-m", "luthier", *shlex.split(command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    text = f"{done.stdout}{done.stderr}\n(exit code {done.returncode})\n"
    text = text.replace(str(folder), "FOLDER").replace(str(ROOT), "CLONE")
    text = re.sub(r"\b\d+(\.\d+)? ?(ms|s|min)\b", "TIME", text)
    text = re.sub(r"\b\d+(\.\d+)? [KMG]iB (free|of)\b", r"SIZE \2", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?", "DATE", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def outputs() -> str:
    """Return the outputs of all commands, one after another."""
    with tempfile.TemporaryDirectory() as name, tarfile.open(ARCHIVE) as archive:
        folder = pathlib.Path(name)
        archive.extractall(folder, filter="data")
        asked = [(f"{command} --help".strip(), ROOT) for command in HELP]
        asked += [(command, ROOT) for command in IN_CLONE]
        asked += [(command, folder / "proj") for command in IN_PROJECT]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            printed = list(pool.map(lambda one: output_of(*one), asked))
    versions = " ".join(f"{name}=={importlib.metadata.version(name)}" for name in PACKAGES)
    parts = [f"# python{sys.version_info[0]}.{sys.version_info[1]} {versions}\n"]
    parts += [f"$ luthier {one}\n{text}" for (one, _), text in zip(asked, printed, strict=True)]
    return "\n".join(parts)


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help="write outputs.txt")
    options = parser.parse_args()
    now = outputs()
    if options.record:
        RECORD.write_text(now, encoding="utf-8")
        return 0
    before = RECORD.read_text(encoding="utf-8")
    difference = difflib.unified_diff(before.splitlines(), now.splitlines(), "before", "now", n=2)
    text = "\n".join(difference)
    print(text or "nothing differs")
    return int(bool(text))


if __name__ == "__main__":
    sys.exit(main())
