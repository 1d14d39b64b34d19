"""The page about speed: every table that was measured, with its command, date and hardware."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from luthier.parallel import format_bytes
from tools import check_budgets
from tools.bench import report

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"

START = """\
# Performance

This page lists the measured speed of luthier, and the command behind every table, so that you can
repeat a measurement on your own machine. Unless a section states otherwise, the numbers are
medians, and both sides of a comparison ran in turn within one run of the command. Every other
trainer ran in a separate environment and through its own command line. The
[section on a GPU](#on-a-gpu) lists its exceptions.
"""

CPU_PEERS = """
## Comparison with other trainers on a CPU

    {command}

All trainers run the same workload in float32: a GPT-2 of 4 layers (d = 256, MLP 1024) with AdamW,
on batches of 8 rows of 256 bytes. Every process is pinned to one core. A ratio is the time of
luthier divided by the time of the other side, so luthier is faster where the ratio is below 1.
luthier sets the variable `GLIBC_TUNABLES` for itself, as described below the table. The other
trainers run with their defaults; they also gain if you set this variable for them.

{table}

The time of the first step includes the start of the process, and nothing is compiled in advance.
luthier spends most of this time in XLA. The step consists of about 370 kernels of 170 kinds. XLA
compiles each kind separately, which takes about 30 ms, and one core compiles only one kind at a
time. With `fiddler:quick_compile`, XLA spends less time on optimization (see [Compiling on a
CPU](#compiling-on-a-cpu)). The program that initializes the state is always compiled this way,
because it runs only once. luthier caches compiled programs, so every later start finds them
("second start").

luthier runs layers in a loop. Therefore, a model of 96 layers compiles as fast as a model of 12
(see [Depth and devices](#depth-and-devices)). For a model of few layers, a step is faster on a CPU
when a single iteration of the loop runs all layers. For a model of four layers, set
`model.stack.unroll=4` ("unrolled"). This setting does not change parameters or checkpoints. The
table also has an unrolled row for MaxText. Kauldron does not run its layers in a loop.

The speed of this processor varied by 20 % or more within minutes. For example, the second start
runs the same compiled step as the first, and its time per step still differs.

An earlier run of the same command used two cores of an AMD EPYC (2026-11-22, jax 0.10.2, 3 rounds).
In that run, the time per step of luthier was 0.79 times that of Kauldron, 0.74 times that of
MaxText, 0.52 times that of Pax and 0.95 times that of nanoGPT. The other core was busy during parts
of that run. """

WHY = """
A plain JAX loop is slow on a CPU because XLA allocates the temporary memory of a step at every
step. The C library maps this memory from the system and returns it afterwards, so every step
touches all of its pages for the first time. The step above takes 58 thousand page faults of 4 KiB,
which cost 24 % of its processor time. With large pages, it takes 136 page faults.

`luthier train`, `evaluate`, `generate` and `sweep` restart themselves with
`GLIBC_TUNABLES=glibc.malloc.hugetlb=1` if the kernel provides large pages on request (`madvise` in
/sys/kernel/mm/transparent_hugepage/enabled) and the variable does not set this tunable. To turn
large pages off, set `GLIBC_TUNABLES=glibc.malloc.hugetlb=0`. If you import luthier in your own
script, set the variable in the environment of the script.
"""

STARTUP = """
## Start-up

    {command}

All times are from the start of the process, which is pinned to one core. "cold" starts with an
empty cache of compiled programs, and "warm" with the cache of the previous run. The rows "imports"
and "part" are the time that a warm start cannot avoid, measured in a separate process. The goal is
the time of the imports plus 1.5 times the other parts.

luthier caches compiled programs below `~/.cache/luthier/compiled`, with at most 8 GiB for each kind
of processor. Set `XDG_CACHE_HOME` or `JAX_COMPILATION_CACHE_DIR` to use another folder, or
`JAX_ENABLE_COMPILATION_CACHE=0` to turn the cache off.

{table}
"""

STEP = """
## Overhead of the training loop

    {command}

This command compares the training loop of luthier with a loop that is written by hand. "model"
compares the wall time of both loops for the same model, optimizer and guard. "1003 leaves" compares
the host time per step with a bare call of the compiled step, for a state of about 1,000 arrays. The
row "outside / in the call" divides the host time outside of the compiled call by the time in the
call. The two sides take turns in short blocks, and the ratio is the median over pairs of blocks.

{table}
"""

DEPTH = """
## Depth and devices

    {command}

The first table lists the processor time, in seconds, to trace, lower and compile the step of a
scanned stack. "to 12 layers" is the time to trace and compile, relative to a stack of 12 layers.

{table}
"""

DEVICES = """
The second table lists the host time per step on virtual devices. Each device processes one row of a
tiny model. The other side is a bare call of the same compiled program.

{table}
"""

INPUT = """
## Input

    {command}

"step" is the rate at which the training step of configs.lm.quickstart consumes tokens. "assemble"
is the rate at which one thread orders tokens and packs them into rows, per second of CPU time.
"iterate" is the rate at which Grain's thread delivers tokens to the training loop, per second of
wall time. "times the step" is a rate divided by that of the step. The rows "prepared" measure how a
run starts on a prepared corpus of 1 GB or 100 GB of text. They list the time to assign documents to
rows, the time to the first batch (also with a check of the files' sizes and of the digest of the
corpus), and the growth of memory (at its peak, and at the end without memory-mapped files).

{table}
"""

CHECKPOINT = """
## Checkpoints

    {command}

This table compares saves of luthier with those of plain Orbax. It lists the time for which a save
blocks the training loop, and the memory of the process over many saves.

{table}
"""

BUCKET = """
## Checkpoints in object stores

    {command}

The store is an emulator in a process of its own on the same machine (*emulated*), so the table
shows what luthier adds to Orbax, and not how fast a real store is. With several processes, each
holds a part of every array, and the slowest one counts. The requests are those of `luthier train`
with one process. Resident memory still grows during the first 50 saves. Over 120 saves it stays
flat: 263 MiB in the second quarter and 260 MiB in the last one (S3, `--saves 120`, 2026-11-28).

{table}
"""

BUCKET_S3 = """
The same with the protocol of S3:

    {command}

{table}
"""

COMPILE = """
## Compiling on a CPU

    {command}

This table compares `fiddler:quick_compile` ("quickly") with the default options of XLA on one core.
It lists the time to compile the step and the time per step. After "break-even" steps, the slower
steps have used up the time that the faster compilation saved.

{table}
"""

SWEEP = """
## Sweeps

    {command}

Each trial draws a random learning rate, trains a decoder of one layer on bytes for 60 steps of
4 x 48 bytes, and evaluates it on all of the held-out plays. The table compares these ways to run
the trials:

- `luthier sweep` is the complete command, with an empty cache of compiled programs. It includes the
  driver, the sampler, the feasibility check, the journal, the record and the checkpoint of each
  trial, the report, and the copy of the study for Optuna. `checkpoints=None` saves no checkpoints.
- `plain loop` is written by hand. It calls Optuna's ask and tell in memory around one jitted step
  in plain JAX and optax, which takes the learning rate as an argument. It trains and evaluates the
  same model, has all batches on the device from the start, and neither records nor saves anything.
- `plain loop, accuracy` also computes the accuracy in its evaluation, as `luthier sweep` does.
- `plain loop, saving` also saves the last state of each trial with Orbax.
- `vmapped` is the plain loop with 8 trials at a time.
- `hydra -m` runs the step of the plain loop from Hydra's basic launcher, and `Ray Tune` runs it in
  an actor that is reused for all trials. The CPU time of this actor is not counted.
- `luthier train, separate` runs each trial in a process of its own, from an empty cache. Each round
  measures 3 trials and scales their time.

Ratios are medians over the rounds. They are relative to the plain loop, or to the vmapped loop for
packed trials. Rounds of the same row differ by up to 27 %.

Trials are short here: they train for 0.1 s (d=32) or 0.25 s (d=128), and their evaluation takes
0.4 or 1.9 s. With 64 trials, `luthier sweep` takes 1.48 (d=32) and 1.25 (d=128) times as long as
the plain loop. The difference is the start of the command, which takes about 5 s, about 0.2 s per
trial to open its run and to write its files, and the accuracy, which the plain loop does not
compute. The costs of the start and of the files do not depend on the length of a trial, so they are
negligible for trials that take minutes. Compared with the loop that computes the accuracy,
`luthier sweep` takes 1.03 and 1.05 times as long with 64 trials, and 1.17 and 1.05 times as long
with 12. This loop uses `argmax`, which XLA does not vectorize on CPUs; `luthier sweep` computes the
same accuracy faster, with two plain reductions.

- `hydra -m` and Ray Tune compute no accuracy either. `luthier sweep` takes 1.07 to 1.27 times as
  long as `hydra -m`, and 0.88 to 1.19 times as long as Ray Tune.
- W&B in offline mode adds 7 to 14 %. In the single round for d=128 with 64 trials, the study with
  W&B was the faster one.
- Automatic packing (`lanes=auto`) takes 0.91 to 1.08 times as long as single trials, and 0.91 to
  1.00 times as long as packed trials.
- Packed trials take 0.71 to 0.85 times as long as the vmapped loop. On these CPUs, neither is
  faster than single trials. Packed trials are evaluated one after another over batches that stay on
  the device, because `vmap` over 8 evaluations takes 2.6 times the processor time on a CPU.
- Separate processes take 3.0 to 5.5 times as long as `luthier sweep`.

In the lines below the table, planning includes the time to compile the program of packed trials.

{table}
"""

SCHEDULERS = """
## Schedulers of sweeps

    {command}

The command runs three studies of `sweeps/rungs.py` for the same device time: a language model
(`rungs`), a vision transformer on digits and a translation model. All ways of `luthier sweep` draw
the same settings in the same order for a seed. Every study starts from an untuned learning rate.

- `ASHA` pauses trials at rungs, and promotes the best third of them from their checkpoints.
- `random search` trains every trial to its full length.
- `Hyperband (Optuna)` is a pruner, which ends trials at the same steps for good.
- `ASHA (Ray Tune)` also ends trials for good. It draws its own settings, and trains with a step
  that is written by hand. Its time excludes the compilation, which that of the others includes.

Only complete trials count. "as good after" is the device time after which a way was as good as
random search of the same seed at its end, and the ratio relates it to the whole device time of
random search.

![The best loss over device seconds, median of the seeds, for each study](../images/schedulers.svg)

{table}
"""

DRIVER = """
The next table measures only the driver of a sweep, with trials that take no time:

    {command}

{table}
"""

DRIVER_RUNGS_FEW = """ With rungs (`Asha`), TPE learns from every rung. The following table is for a
study of 1,000 trials:

    {command}

{table}
"""

DRIVER_RUNGS = """ The following table is for a study of 10,000 trials. TPE considers at most 2,000
observations, the most recent and the best ones, so the time per suggestion stops growing:

    {command}

{table}
"""

GPU_HOUR = """
## On a GPU

    {command}

The first table compares the training step of GPT-2 with 124 million parameters in bfloat16 on an
NVIDIA H200 with compiled nanoGPT (PyTorch). A batch is 32 rows of 1,024 tokens, which are drawn
from a Zipf distribution. The second table compares sixteen packed trials of another, small model
with a single trial. The third table lists the highest throughput of matrix products of several
shapes, and of a copy, on random data.

The numbers were *measured* on 2026-11-26 in two sessions of a few minutes, which is all the GPU
time that this project has had. `python tools/gpu_hour.py pack DIR` prints the commands (`stage 1`
to `stage 4`), and `merge` writes the tables. Each row is a single run unless it has a spread. The
times of luthier are medians over steps, and those of nanoGPT are means. Raw file:
`tools/bench/results/gpu_hour.json`.

- `before` and its variants, the third table and two runs of nanoGPT are from the first session. The
  code had never run on a GPU before. It used the attention of cuDNN and unrolled layers. In its
  profile, two TF32 products take 20 % of the time. Their number and size suggest that they belong
  to the gradient of the logits.
- `base` and its variants are from the second session. They compute the cotangents of the logits in
  bfloat16, store the logits in bfloat16, use one product for queries, keys and values, and compute
  the normalizer of the cross-entropy in one pass. `logsumexp in two passes` omits the last of these
  changes. `statistics of norms kept` stores the statistics of the normalization layers for the
  backward pass, which is now the default on GPUs.
- **nanoGPT is faster**. It was faster by 4 to 6 % in the second session (means of 64.9 ms, and of
  67.3 to 68.5 ms; 7 % for the variant with `logsumexp` in two passes). In the first session, it was
  faster by 27 %.
- **4 of 14 runs with cuDNN's attention failed at their third step**, including the comparison over
  300 batches. The error message points to cuDNN's kernels in CUDA graphs
  (https://github.com/jax-ml/jax/issues/27599), so `compiler.gpu` now excludes these kernels from
  CUDA graphs. This change has not been measured. Two later changes have not been measured either: a
  faster way to select the logits of the targets in the cross-entropy, and the current
  `fiddler:gpu`, with its default of 16 documents per row.
- **Packing did not pay off**. A step of sixteen trials (d256, 4 layers, float32, 8 rows of 256
  uniform tokens) took 18 times as long as a step of one trial, so the packed trials did 11 % less
  work per second. The packed step was not profiled. `gpu_hour` now measures it separately.

{table}
"""

COMPILED = """
## Compiled programs

    {command}

XLA compiles programs for GPUs and TPUs on machines that have none. This table describes the
training step of GPT-2 with 124 million parameters (`configs.lm.gpt2_124m`), of a Llama with 368
million parameters (`configs.lm.llama_350m`), and of a mixture of eight experts in each of its
layers, with `fiddler:gpu` or `fiddler:tpu`. The numbers are counts on one device, and not times: no
step was run.

| program | slice | temporaries | memory traffic | kernels | scatters | collectives | exposed | \
float32 products |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{table}

- Memory traffic is an upper bound ([Plans](../how_to/plan.md)). Kernels of attention are not
  counted, and their traffic is what they declare.
- `gpt2-h100` is `configs.lm.gpt2_124m:cudnn`, which keeps all activations. With the remat policy of
  `configs.lm.gpt2_124m`, which computes those of the MLPs again, a step moves 7 % more bytes and
  needs 5 % less memory.
- Collectives are *exposed* if no matrix product runs meanwhile. On H100s under `fiddler:fsdp`,
  these are the first gather of parameters, the last reduction of gradients, and the exchange of
  token embeddings. On TPUs, a third of the gathers and all reductions of gradients are exposed. By
  default, XLA for TPUs would not gather the parameters of `llama-v5e`, but multiply by one of their
  parts at a time; luthier rules that out (`compiler.tpu`), because it moves 478 GB in 55,973
  kernels. The exchange of tokens between experts is exposed, because the experts need the tokens.
- Scatters compute the gradients of embeddings, and the routing of tokens to experts. The gradient
  of GPT-2's embeddings took less than 0.1 ms of a step of 67 ms on an H200 (*measured* with JAX
  0.11.2).
- The only products in float32 are those of the routers of experts.

Each row is a file in `tests/planner/budgets/`. `python tools/check_budgets.py` reports every
program that has become worse, with the quantity that has grown; continuous integration compiles two
of them, with two layers each, for every change (with JAX 0.10.2). Compiled with {versions}.
"""

UNMEASURED = "This has not been measured yet."

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
    ("schedulers", "python tools/bench/schedulers.py", SCHEDULERS),
    ("bucket.gs", "python tools/bench/bucket.py", BUCKET),
    ("bucket.s3", "python tools/bench/bucket.py --scheme s3", BUCKET_S3),
)
PICTURED = ("schedulers",)
"""Sections with a picture of their table: they are left out until there is one."""


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
            where = _where(content["environment"], _asked(made.settings))
            parts.append(f"\n{where} Raw file: `tools/bench/results/{path.name}`.\n")
        elif name not in PICTURED:
            parts.append(text.format(command=command, table=UNMEASURED))
    parts.append(_gpu_hour())
    parts.append(_compiled())
    return "".join(parts)


def _gpu_hour() -> str:
    """Return the section that `tools/gpu_hour.py merge` writes, or a note that it is missing."""
    path = RESULTS / "gpu_hour.md"
    table = path.read_text(encoding="utf-8").strip() if path.exists() else UNMEASURED
    return GPU_HOUR.format(command="python tools/gpu_hour.py merge FILE.jsonl ...", table=table)


def _compiled() -> str:
    """Return the section about compiled programs, from the budgets that are recorded."""
    rows, versions = [], {}
    for name in check_budgets.ACCELERATED_PROGRAMS:
        kept = json.loads((check_budgets.BUDGETS / f"{name}.json").read_text(encoding="utf-8"))
        versions |= {k: kept[k] for k in check_budgets.VERSIONED if k in kept}
        work = kept["work"]
        sent = sum(row["num_bytes"] for row in kept["collectives"].values())
        share = work["float32_flops"] / kept["flops"]["hardware"]
        cells = [
            f"`{name}`",
            kept["slice"],
            format_bytes(kept["bytes_per_device"]["temporaries"]),
            format_bytes(work["bytes_moved"]),
            f"{work['kernels']:,}",
            f"{work['scatters']:,}",
            format_bytes(sent) if sent else "-",
            format_bytes(work["exposed_bytes"]) if sent else "-",
            f"{share:.2%}" if share else "0",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    command = "python tools/check_budgets.py"
    return COMPILED.format(command=command, table="\n".join(rows), versions=named)


def _asked(settings: dict) -> str:
    """Return the settings of the command, for the line below a table."""
    kept = {n: v for n, v in settings.items() if v is not None and v is not False}
    shown = {n: ", ".join(map(str, v)) if isinstance(v, list) else v for n, v in kept.items()}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())


def _where(environment: dict, settings: str) -> str:
    """Return the line below a table: date, settings, hardware, versions."""
    versions = ", ".join(f"{n} {v}" for n, v in environment["versions"].items() if v)
    return (
        f"Measured on {environment['date']} on a machine with {environment['cores']} cores "
        f"({environment['processor']}). {f'Settings: {settings}. ' if settings else ''}"
        f"Versions: Python {environment['python']}, {versions}."
    )
