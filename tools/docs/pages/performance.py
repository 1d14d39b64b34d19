"""The page about speed: every table that was measured, with its command, date and hardware."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tools.bench import report

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"

START = """\
# Performance

Every number here was measured by a command that anyone can run again; it prints medians, with both
sides in one run (the section on a GPU names its exceptions). Where a peer is named, it ran in an
environment of its own, through its own command line.
"""

CPU_PEERS = """
## Beside other trainers, on a CPU

    {command}

One GPT-2 of 4 layers (d = 256, MLP 1024) on rows of 256 bytes, 8 a step, AdamW, float32; every
process pinned to one core. Ratios are luthier's time over the side's: below 1 luthier is faster.
Peers run as they come; with the same variable as luthier's (below) they gain, too.

{table}

The first step is counted from the start of the process, with nothing compiled before. Most of
luthier's time before it is XLA's: the step is some 370 kernels of 170 kinds, each of which is
compiled on its own, at 30 ms, one at a time on one core. `fiddler:quick_compile` has them compiled
with less optimization (below); what initializes the state always is, as it runs once. Compiled
programs are cached, so that a second start ("second start") finds them, as does every later one.

Layers run in a loop, so that a model of 96 compiles as fast as one of 12 (below). On a CPU a step
of few layers takes less time with all of them in one turn of it: `model.stack.unroll=4` for four
("unrolled"), which leaves parameters and checkpoints as they are. MaxText has a row of the same;
Kauldron's layers are written out.

This processor's speed wandered by a fifth and more within minutes: the steps of the second start
are those of the first.

An earlier run of the same command, on two cores of an AMD EPYC (2026-11-22, jax 0.10.2, 3 rounds),
had these ratios of luthier's time for a step: 0.79 to Kauldron, 0.74 to MaxText, 0.52 to Pax and
0.95 to nanoGPT. The other core was busy in parts of that run.
"""

WHY = """
Why a plain JAX loop is slow on a CPU: XLA allocates the temporary memory of a step at every step,
the C library maps it from the system and gives it back, and the step touches each of its pages for
the first time. The step above takes 58 thousand page faults of 4 KiB, which cost 24 % of its
processor time; with large pages it takes 136. `luthier train`, `evaluate`, `generate` and `sweep`
start themselves again with `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` where the kernel gives large
pages to those who ask (`madvise` in /sys/kernel/mm/transparent_hugepage/enabled) and the variable
does not name the tunable. `glibc.malloc.hugetlb=0` in it leaves all as it is. A script of your own
that imports luthier needs the variable in its environment.
"""

STARTUP = """
## Start-up

    {command}

From the start of the process, pinned to one core. What is compiled is kept below
`~/.cache/luthier/compiled` (`XDG_CACHE_HOME`, or `JAX_COMPILATION_CACHE_DIR`), at most 8 GiB, for
each kind of processor; `JAX_ENABLE_COMPILATION_CACHE=0` does without.

{table}
"""

STEP = """
## What the loop adds to the step

    {command}

{table}
"""

DEPTH = """
## Depth and devices

    {command}

Tracing and compiling a scanned stack, in processor seconds:

{table}
"""

DEVICES = """
The host's work per step on virtual devices, one row of a tiny model each:

{table}
"""

INPUT = """
## Input

    {command}

{table}
"""

CHECKPOINT = """
## Checkpoints

    {command}

{table}
"""

COMPILE = """
## Compiling on a CPU

    {command}

`fiddler:quick_compile` against XLA's own options, seconds of compiling the step and milliseconds of
a step, on one core; after `break-even` steps it has cost what it saved:

{table}
"""

SWEEP = """
## Sweeps

    {command}

Random learning rates of a decoder of one layer on bytes, 60 steps of 4 x 48 bytes for each trial,
evaluated on all of the held-out plays. `luthier sweep` is the command with all that a study has
(driver, sampler, gate, journal, a record and a checkpoint of each trial, report, Optuna's copy),
from an empty cache of compiled programs. `plain loop` is written by hand: Optuna's ask and tell, in
memory, around one jitted step in plain JAX and optax whose argument is the learning rate. It trains
and evaluates the same, has all batches on the device from the start, and records and saves nothing;
`vmapped` takes 8 trials at a time. `hydra -m` runs the same step from hydra's basic launcher.
Ratios are to the plain loop, for packed trials to the vmapped one.

The plain loop is faster where trials take about a second, as here: a study starts four processes
(driver, feasibility check, worker, Optuna's copy), and writes and syncs the files of each trial.
A trial of an hour costs no more of either. Evaluations of packed trials run one after another over
batches that stay on the device: `vmap` over 8 of them takes 2.6 times the processor time on a CPU.
In the lines below the table, planning includes compiling the program of packed trials.

{table}
"""

DRIVER = """
What the driver of a sweep takes, where trials take no time:

    {command}

{table}
"""

DRIVER_RUNGS_FEW = """
The same with rungs (`Asha`), where TPE learns from every rung, for 1,000 trials:

    {command}

{table}
"""

DRIVER_RUNGS = """
And for 10,000. TPE looks back on at most 2,000 settings, the newest and the best of them, so that
the time of a suggestion does not grow any further:

    {command}

{table}
"""

GPU_HOUR = """
## On a GPU

    {command}

GPT-2 of 124 million parameters in bfloat16 on an NVIDIA H200, 32 rows of 1,024 tokens of Zipf's
law, beside compiled nanoGPT (PyTorch); sixteen packed trials of another, small model beside one;
and the fastest product and copy, on random data. *Measured* on 2026-11-26 in two leases of a few
minutes: all the time on a GPU that this project has had. `python tools/gpu_hour.py pack DIR`
prints the commands (`stage 1` to `stage 4`); `merge` made the tables. Each row is one run unless
it has a spread; the milliseconds of luthier are medians of steps, those of nanoGPT means.

- `before` and its variants, the ceilings and two runs of nanoGPT are of the first lease, and of
  the code that met a GPU for the first time, with cuDNN's attention and unrolled layers. In its
  profile, 20 % of the time are two TF32 products; by their number and size, those of the gradient
  of the logits.
- `base` and its variants are of the second lease: cotangents of logits in bfloat16, logits stored
  in bfloat16, one product for queries, keys and values, and the normalizer of cross-entropy in
  one pass. `logsumexp in two passes` is without the last; `statistics of norms kept` is what
  norms do on GPUs now.
- **nanoGPT is faster**: by 3 % in the second lease (64.9 ms against 66.9 ms), and by 6 % if its
  median over both leases is taken. In the first lease it was faster by 27 %.
- **4 of 14 runs with cuDNN's attention failed at their third step**, the comparison over 300
  batches among them. The message points to cuDNN's kernels in CUDA graphs
  (https://github.com/jax-ml/jax/issues/27599); `compiler.gpu` leaves them out now. Neither this
  nor the lookup of targets, which came after these runs, has been measured, nor has `fiddler:gpu`
  as it is now, with its default of 16 documents in a row.
- **Packing did not pay**: a step of sixteen trials (d256, 4 layers, float32, 8 rows of 256
  uniform tokens) took 18 times as long as a step of one, so that they got 11 % less done in a
  second. The packed step was not profiled there. `gpu_hour` measures the packed step by
  itself from now on.

{table}
"""

UNMEASURED = "Not measured yet: no table of this command is on record."

_RUNGS = "python tools/bench/driver.py --scheduler asha"

SECTIONS = (
    ("cpu_peers", "python tools/bench/peers.py", CPU_PEERS + WHY),
    ("startup", "python tools/bench/startup.py", STARTUP),
    ("compile", "python tools/bench/compile.py", COMPILE),
    ("step", "python tools/bench/step.py", STEP),
    ("scaling.depth", "python tools/bench/scaling.py", DEPTH),
    ("scaling.devices", "python tools/bench/scaling.py", DEVICES),
    ("input", "python tools/bench/input.py", INPUT),
    ("checkpoint", "python tools/bench/checkpoint.py", CHECKPOINT),
    ("sweep", "python tools/bench/sweep.py", SWEEP),
    ("driver", "python tools/bench/driver.py", DRIVER),
    ("driver.rungs.few", f"{_RUNGS} --trials 1000", DRIVER_RUNGS_FEW),
    ("driver.rungs", _RUNGS, DRIVER_RUNGS),
)


def render() -> str:
    """Return the page, with a note for each table that was not measured."""
    parts = [START]
    for name, command, text in SECTIONS:
        path = RESULTS / f"{name}.json"
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            made = report.Report(
                content["name"], content["settings"], content["rows"], content["notes"]
            )
            parts.append(text.format(command=command, table=report.table(made)))
            parts.extend(f"\n{note}\n" for note in made.notes)
            parts.append(f"\n{_asked(made.settings)}{_where(content['environment'])}\n")
        else:
            parts.append(text.format(command=command, table=UNMEASURED))
    parts.append(_gpu_hour())
    return "".join(parts)


def _gpu_hour() -> str:
    """Return the section that `tools/gpu_hour.py merge` writes, or a note that it is missing."""
    path = RESULTS / "gpu_hour.md"
    table = path.read_text(encoding="utf-8").strip() if path.exists() else UNMEASURED
    return GPU_HOUR.format(command="python tools/gpu_hour.py merge FILE.jsonl ...", table=table)


def _asked(settings: dict) -> str:
    """Return the settings of the command, for the line below a table."""
    kept = {n: v for n, v in settings.items() if v is not None and v is not False}
    shown = {n: ", ".join(map(str, v)) if isinstance(v, list) else v for n, v in kept.items()}
    words = [f"{name.replace('_', ' ')} {value}" for name, value in shown.items()]
    return f"With {', '.join(words)}. " if words else ""


def _where(environment: dict) -> str:
    """Return the line below a table: date, hardware, versions."""
    versions = ", ".join(f"{n} {v}" for n, v in environment["versions"].items() if v)
    return (
        f"{environment['date']}; {environment['processor']}, {environment['cores']} cores; "
        f"Python {environment['python']}, {versions}."
    )
