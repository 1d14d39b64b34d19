"""Measure language models on one GPU: MFU and tokens a second, beside PyTorch and the hardware.

For every shape and length, sides take turns in each round, all of them on the same device:

* luthier: rows of one document each, and rows packed with 8 (`packed`); bfloat16 with parameters in
  float32, cuDNN attention, cross-entropy in chunks where the logits are large, layers one by one
  (not in a loop, which copies what it keeps for the way back), AdamW with clipping.
* what `--variant NAME=WORD,...` adds: the first with other settings, as `luthier train` takes them
  (`--variant 'no hiding=compiler.gpu.xla_gpu_enable_latency_hiding_scheduler:=False'`).
* torch: the same model, `torch.compile`, flash attention, in an interpreter of its own.

Seconds of a step are medians over rounds. MFU is in three conventions, each against the data sheet
of the chip and against the best product that was measured in the same run: PaLM (6 N + 12 L H Q T a
token), 6 N, and causal (three times the products of the forward pass, without masked pairs).

Command: python tools/bench_gpu_lm.py [--shapes gpt2-124m ...] [--lengths 1024 ...]
  [--torch-python PYTHON] [--rounds 5] [--steps 10] [--variant NAME=WORDS ...] [--json FILE]

Without a GPU, `--toy` is on: all of it runs, at a size that a CPU can do, and measures nothing that
matters. cuDNN's attention then stands by its abstract form.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.bench import report
from tools.bench.gpu_lm import shapes

FILES = Path(__file__).resolve().parent / "bench" / "gpu_lm"
ROOT = FILES.parents[2]
PROFILED = 3  # steps
SIZES = {False: 8192, True: 512}  # of the product that is the ceiling, and for a toy
TOYS, TOY_LENGTH = ("toy-gpt2", "toy-llama"), 256


class Failed(Exception):
    """A side ended, or could not do what it was asked."""


@dataclasses.dataclass(frozen=True)
class Side:
    """One row of the table.

    Attributes:
      name: Of the row.
      command: The words that start it, but for its settings.
      settings: What it runs.
    """

    name: str
    command: tuple[str, ...]
    settings: Mapping[str, Any]


class Process:
    """A side that runs.

    Args:
      side: What to start.
    """

    def __init__(self, side: Side):
        made = dict(os.environ) | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        paths = [str(ROOT / "framework"), str(ROOT), made.get("PYTHONPATH", "")]
        made["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        made.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        self._process = subprocess.Popen(
            [*side.command, json.dumps(side.settings)],
            env=made,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ready = self._answer()

    def ask(self, word: str, number: int) -> dict[str, Any]:
        """Return the answer to a question."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word} {number}\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        """Let it end, and wait for that."""
        with contextlib.suppress(OSError):
            self._process.communicate("end 0\n", timeout=60)
        self._process.kill()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise Failed(answer["failed"])
        return answer


def sides(arguments: argparse.Namespace, shape: str, length: int) -> list[Side]:
    """Return the rows of a shape and a length."""
    rows = max((arguments.tokens or shapes.SHAPES[shape].tokens) // length, 1)
    chunks = arguments.chunks or shapes.SHAPES[shape].chunks
    settings = {"shape": shape, "length": length, "rows": rows, "chunks": chunks}
    settings |= {"overrides": arguments.override, "packed": False}
    ours = (sys.executable, str(FILES / "luthier_side.py"))
    found = [
        Side("luthier", ours, settings),
        Side("luthier, packed", ours, settings | {"packed": True}),
    ]
    for variant in arguments.variant:
        name, _, words = variant.partition("=")
        overrides = [*arguments.override, *words.split(",")]
        found.append(Side(f"luthier, {name}", ours, settings | {"overrides": overrides}))
    if arguments.torch_python:
        own = {**settings, "compile": not arguments.toy}
        command = (arguments.torch_python, str(FILES / "torch_side.py"))
        found.append(Side("torch", command, own))
    return found


@contextlib.contextmanager
def started(asked: Sequence[Side], notes: list[str]) -> Iterator[dict[str, Process]]:
    """Start sides, one after another; what cannot start is told and left out."""
    running: dict[str, Process] = {}
    try:
        for side in asked:
            try:
                running[side.name] = Process(side)
            except Failed as error:
                told = f"{side.settings['shape']}, {side.settings['length']}, {side.name}: {error}"
                print(told, file=sys.stderr)
                notes.append(told)
        yield running
    finally:
        for process in running.values():
            process.end()


def measure(
    arguments: argparse.Namespace, shape: str, length: int, notes: list[str]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of a shape and a length; where the time of the first went, and versions."""
    asked = sides(arguments, shape, length)
    with started(asked, notes) as running:
        for process in running.values():
            process.ask("steps", 2)
        taken: dict[str, list[dict[str, Any]]] = {name: [] for name in running}
        for number in range(arguments.rounds):
            turn = list(running.items())
            for name, process in turn if number % 2 else reversed(turn):
                taken[name].append(process.ask("steps", arguments.steps))
        ours = running.get("luthier")
        profile = ours.ask("profile", PROFILED) if ours else {}
        ceilings = ours.ask("ceilings", SIZES[arguments.toy]) if ours else {}
        ready = {name: process.ready for name, process in running.items()}
    tokens = asked[0].settings["rows"] * length
    flops = {"palm": shapes.SHAPES[shape].palm_flops(length) * tokens}
    if ours:
        counted = ready["luthier"]["flops"]
        flops |= {"six_n": counted["six_n"], "causal": counted["causal"]}
    known = {"shape": shape, "length": length, "rows": asked[0].settings["rows"]}
    rows = [
        known | _row(name, taken[name], ready[name], tokens, flops, ceilings) for name in running
    ]
    told = {n: {key: r[key] for key in ("device", "versions")} for n, r in ready.items()}
    return rows, {"shape": shape, "length": length, **profile, **ceilings, "sides": told}


def _row(
    name: str,
    taken: Sequence[Mapping[str, Any]],
    ready: Mapping[str, Any],
    tokens: int,
    flops: Mapping[str, int],
    ceilings: Mapping[str, float],
) -> dict[str, Any]:
    seconds = [one["seconds"] for one in taken]
    median, peak = statistics.median(seconds), _peak(ready["device"])
    row: dict[str, Any] = {"side": name, "ms": 1e3 * median}
    row["spread %"] = 100 * (max(seconds) - min(seconds)) / median
    row["tokens/s"] = tokens / median
    for convention in ("palm", "six_n", "causal"):
        rate = flops[convention] / median if convention in flops else None
        row[f"MFU {convention} %"] = 100 * rate / peak if rate and peak else None
    best = ceilings.get("matmul_flops")
    row["palm of measured %"] = 100 * flops["palm"] / median / best if best else None
    bytes_ = taken[-1]["peak_bytes"] or ready.get("needed_bytes")
    row["peak GiB"] = bytes_ / 2**30 if bytes_ else None
    row["compile s"] = ready["compile_seconds"]
    row["loss"] = taken[-1]["loss"]
    return row


def _peak(device: str) -> float | None:
    from luthier.plan.device_facts import PEAK_FLOPS

    return PEAK_FLOPS.get(device)


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what matters of a shape: speed against torch, and packed against one document."""
    speed = {row["side"]: row["tokens/s"] for row in rows}
    ours, told = speed.get("luthier"), []
    for other, what in (("torch", "of torch's"), ("luthier", "of that of one document a row")):
        mine = ours if other == "torch" else speed.get("luthier, packed")
        if mine and other in speed:
            whose = "luthier's" if other == "torch" else "packed"
            told.append(f"{whose} tokens/s are {mine / speed[other]:.3f} {what}")
    return told


def main() -> None:
    """Measure, and print tables."""
    arguments = _arguments()
    rows: list[dict[str, Any]] = []
    profiles: list[dict[str, Any]] = []
    notes: list[str] = []
    for shape in arguments.shapes:
        for length in arguments.lengths:
            found, profile = measure(arguments, shape, length, notes)
            rows += found
            profiles.append(profile)
            notes += [f"{shape}, {length}: {told}" for told in ratios(found)]
            _print(found, profile)
    made = report.Report("gpu_lm", {**vars(arguments), "json": None}, rows, notes)
    print(f"\n{report.table(made)}\n")
    print("\n".join(notes))
    print(json.dumps(report.environment()))
    if arguments.json:
        text = json.dumps({**made.to_dict(), "profiles": profiles}, indent=2)
        arguments.json.write_text(text + "\n", encoding="utf-8")


def _print(rows: Sequence[Mapping[str, Any]], profile: Mapping[str, Any]) -> None:
    for row in rows:
        print(f"{row['shape']}, {row['length']}, {row['side']}: {row['ms']:.2f} ms", flush=True)
    shares = " ".join(f"{name} {100 * x:.1f}%" for name, x in profile.get("shares", {}).items())
    print(f"  where the time of luthier goes: {shares}")
    for category, name, share in profile.get("longest", ())[:8]:
        print(f"    {100 * share:5.1f}%  {category:10} {name}")
    print(f"  {json.dumps(profile['sides'])}")
    if "matmul_flops" in profile:
        product, copy = profile["matmul_flops"] / 1e12, profile["copy_bytes"] / 1e9
        print(f"  measured here: {product:.3g} TFLOP/s of a product, {copy:.4g} GB/s of a copy")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    big = [name for name in shapes.SHAPES if name not in TOYS]
    parser.add_argument("--shapes", nargs="+", choices=[*shapes.SHAPES])
    parser.add_argument("--lengths", nargs="+", type=int)
    parser.add_argument("--tokens", type=int, help="in a batch; by shape if not given")
    parser.add_argument(
        "--chunks", type=int, help="of the loss, in each row; by shape if not given"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--override", action="append", default=[], help="for all of luthier's rows")
    parser.add_argument("--variant", action="append", default=[], help="NAME=WORD,...")
    parser.add_argument("--torch-python", help="an interpreter that has torch")
    parser.add_argument("--toy", action="store_true", help="the default where no GPU is")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.toy = arguments.toy or shutil.which("nvidia-smi") is None
    arguments.shapes = arguments.shapes or ([*TOYS] if arguments.toy else big)
    arguments.lengths = arguments.lengths or ([TOY_LENGTH] if arguments.toy else [1024])
    return arguments


if __name__ == "__main__":
    main()
