"""What travels to a bare machine: the code, and wheels of what an interpreter there lacks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CODE = ("framework/luthier", "tools/gpu_hour.py", "tools/bench/gpu_hour", "tools/bench/__init__.py")
# What an interpreter with jax, flax and torch lacks; flax brings optax, Orbax and TensorStore.
WHEELS = ("fiddle", "grain", "gin-config", "ml-collections", "libcst", "pydantic")
WHEELS += ("pydantic-core", "annotated-types", "typing-inspection", "array-record", "dm-tree")
WHEELS += ("graphviz", "portpicker", "cloudpickle", "optuna", "colorlog", "sqlalchemy", "alembic")
WHEELS += ("mako", "tqdm", "safetensors", "tokenizers", "packaging")
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (28, 27, 24, 17)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64"]
LIMIT = 64 << 20  # bytes that travel to the machine


def pack(folder: Path) -> None:
    """Make the bundle, check its size, and print the commands."""
    for path in CODE:
        to = folder / path
        ignored = shutil.ignore_patterns("__pycache__", "results")
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, to, dirs_exist_ok=True, ignore=ignored)
        else:
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, to)
    (folder / "results").mkdir(exist_ok=True)
    named = [word for name in PLATFORMS for word in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:", "--no-deps"]
    command += ["--python-version", "3.12", "--implementation", "cp", *named]
    subprocess.run([*command, "-d", str(folder / "wheels"), *WHEELS], check=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > LIMIT:
        raise SystemExit(f"gpu_hour: {folder} has {size >> 20} MiB, more than {LIMIT >> 20} travel")
    print(f"{size / 2**20:.1f} MiB in {folder}. In {folder.name}, on the machine:\n")
    print("python3 -m pip install -q --no-index --no-deps --target /tmp/site wheels/*.whl")
    for stage in (1, 2, 3, 4):
        print(
            f"PYTHONPATH=/tmp/site python3 tools/gpu_hour.py stage {stage} --out OUT --deadline 560"
        )
    print(
        f"\nCopy what comes back in OUT into {folder / 'results'} before the next command, "
        "so that it is not measured again; then, here:\n"
    )
    print(f"python tools/gpu_hour.py merge {folder / 'results'}/*.jsonl")
