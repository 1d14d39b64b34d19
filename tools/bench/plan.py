"""Compare the analytic model of memory with compilers, and tell what planning costs.

python tools/bench/plan.py                     # all that the installed compilers can do: an hour
python tools/bench/plan.py llama2_7b-h100:8    # one of them
python tools/bench/plan.py calibration         # small models: 13 to calibrate by, six held out
python tools/bench/plan.py random --seed 7     # 24 cases that are drawn at random, of eight kinds
python tools/bench/plan.py times --seed 7      # 20 programs: the least time of a step, and measured
python tools/bench/plan.py --named             # five plans, with what each phase takes
python tools/bench/plan.py search              # layouts beside those that were written by hand

Prints a table: what a step needs on each device by the compiler and by the model, how far they are
apart, the least time of a step, and processor seconds. What was compiled before is not compiled
again. Exit code 1 where the model is off by more than its limit, or a search finds nothing that is
no worse.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 0.1
FULL = "model.stack=luthier.layers.Scanned(remat=luthier.layers.FullRemat())"
DOTS = "model.stack=luthier.layers.Scanned(remat=luthier.layers.SaveProjections())"
BF16 = "model.dtype=bf16"

# Recipe, rows of a step, tokens of a row, slice, and what is changed.
CASES: dict[str, tuple[str, int, int, str, list[str]]] = {
    # The model's factors were chosen by these six.
    "pax_1b-v4-8": ("pax_1b", 128, 1024, "v4-8", [FULL, BF16]),
    "pax_1b-v4-8-float32": ("pax_1b", 128, 1024, "v4-8", [FULL]),
    "pax_1b-h100:8": ("pax_1b", 32, 1024, "h100:8", [BF16]),
    "llama2_7b-h100:8": ("llama2_7b", 16, 4096, "h100:8", [FULL, BF16]),
    "llama2_7b-h100:8-float32": ("llama2_7b", 16, 4096, "h100:8", [FULL]),
    "llama2_7b-h100:8-dots": ("llama2_7b", 16, 2048, "h100:8", [DOTS, BF16]),
    # They were not chosen by these.
    "llama2_7b-h100:8-tensor": (
        "llama2_7b", 16, 4096, "h100:8", [FULL, BF16, "parallelism.mesh.tensor=4"],
    ),
    "llama2_7b-h100:8-accumulation": (
        "llama2_7b", 64, 4096, "h100:8", [FULL, BF16, "training.accumulation=4"],
    ),
    "llama2_7b-h100:8-large": ("llama2_7b", 256, 4096, "h100:8", [FULL, BF16]),
    "pax_16b-v4-16": ("pax_16b", 128, 1024, "v4-16", [FULL, BF16]),
    "pax_16b-v4-64": (
        "pax_16b", 512, 1024, "v4-64",
        [FULL, BF16, "parallelism.mesh.tensor=2", "parallelism.rules.activations.embed=[tensor]"],
    ),
    "pax_gpt3_175b-v5p-1024": (
        "pax_gpt3_175b", 512, 2048, "v5p-1024",
        [FULL, BF16, "parallelism.mesh.tensor=8", "model.embedding.pad_to_multiple=128"],
    ),
}  # fmt: skip


# What each of them takes is told on the page of `luthier help plan`.
NAMED = (
    "llama2_7b-h100:8",
    "pax_1b-v4-8",
    "pax_1b-2xv4-8",
    "pax_gpt3_175b-v5p-1024",
    "pax_16b-v4-64",
)
TWO_SLICES = {
    "pax_1b-2xv4-8": (
        "pax_1b", 256, 1024, "2xv4-8", [FULL, BF16, "parallelism.mesh.across_slices.data=2"],
    ),
}  # fmt: skip


MESH = "parallelism.mesh."
SMALL = {"dim": 1024, "num_layers": 8, "num_heads": 16, "hidden_dim": 2816}
LARGE = {"dim": 2048, "num_layers": 12, "num_heads": 16, "hidden_dim": 5632}
CIRCULAR = "fiddler:luthier.recipes.pipeline(4, 8, luthier.layers.Circular(repeats=3))"
RING = "fiddler:luthier.recipes.ring(4)"

Case = tuple[dict[str, int] | None, int, int, int, str, list[str]]

# Model, experts, rows of a step, tokens of a row, slice, and what is changed. The model's rules
# were set by these thirteen.
CALIBRATION: dict[str, Case] = {
    "dense-h100": (LARGE, 0, 32, 2048, "h100:8", [FULL, BF16, f"{MESH}fsdp=8"]),
    "dense-h100-tensor": (
        LARGE, 0, 16, 2048, "h100:8", [BF16, f"{MESH}fsdp=2", f"{MESH}tensor=4"],
    ),
    "dense-v5e-accumulation": (
        LARGE, 0, 128, 2048, "v5e-16",
        [FULL, BF16, f"{MESH}fsdp=16", "training.accumulation=4"],
    ),
    "dense-2xv5e": (
        LARGE, 0, 128, 1024, "2xv5e-16",
        [DOTS, BF16, f"{MESH}fsdp=16", f"{MESH}across_slices.data=2", "training.accumulation=2"],
    ),
    "dense-cpu-tensor": (
        None, 0, 16, 512, "cpu:8",
        ["model.embedding.pad_to_multiple=128", f"{MESH}fsdp=4", f"{MESH}tensor=2"],
    ),
    "dense-cpu-accumulation": (
        {"dim": 512, "num_layers": 6, "num_heads": 8, "hidden_dim": 1536, "vocab_size": 8192},
        0, 32, 512, "cpu:8", [FULL, f"{MESH}fsdp=8", "training.accumulation=2"],
    ),
    "experts-h100": (SMALL, 8, 32, 2048, "h100:8", [FULL, BF16, f"{MESH}expert=8"]),
    "experts-v4": (
        SMALL, 8, 64, 2048, "v4-16", [FULL, BF16, f"{MESH}fsdp=2", f"{MESH}expert=4"],
    ),
    "experts-v5e": (
        SMALL, 4, 32, 1024, "v5e-8", [FULL, BF16, f"{MESH}fsdp=2", f"{MESH}expert=4"],
    ),
    "pipeline-h100": (LARGE, 0, 32, 2048, "h100:8", [FULL, BF16, f"{MESH}fsdp=2", CIRCULAR]),
    "pipeline-v4": (
        LARGE, 0, 64, 2048, "v4-16",
        [FULL, BF16, f"{MESH}fsdp=2", "fiddler:luthier.recipes.pipeline(4, 8)"],
    ),
    "ring-h100": (LARGE, 0, 8, 8192, "h100:8", [FULL, BF16, f"{MESH}fsdp=2", RING]),
    "ring-v5e": (LARGE, 0, 8, 8192, "v5e-16", [FULL, BF16, f"{MESH}fsdp=4", RING]),
}  # fmt: skip

# These were compiled only after the rules were set.
HELD_OUT: dict[str, Case] = {
    "dense-v5p": (
        LARGE, 0, 64, 1024, "v5p-16", [DOTS, BF16, f"{MESH}fsdp=4", f"{MESH}tensor=2"],
    ),
    "dense-a100-accumulation": (
        LARGE, 0, 64, 1024, "a100:8", [BF16, f"{MESH}fsdp=8", "training.accumulation=2"],
    ),
    "experts-h200": (
        SMALL, 16, 32, 1024, "h200:8", [BF16, f"{MESH}fsdp=2", f"{MESH}expert=4"],
    ),
    "pipeline-v6e": (
        LARGE, 0, 32, 1024, "v6e-8",
        [FULL, BF16, f"{MESH}fsdp=4", "fiddler:luthier.recipes.pipeline(2, 4)"],
    ),
    "ring-a100": (SMALL, 0, 8, 4096, "a100:8", [FULL, BF16, f"{MESH}fsdp=2", RING]),
    "ring-v4": (SMALL, 0, 8, 4096, "v4-16", [BF16, f"{MESH}fsdp=2", RING]),
}  # fmt: skip


# Experiment, slice, and what makes its layout one for that slice.
SEARCHES: dict[str, tuple[str, str, list[str]]] = {
    "search-1b-h100": ("configs.pax.c4", "h100:8", [f"{MESH}fsdp=8"]),
    "search-16b-v4": ("configs.pax.c4:decoder_16b", "v4-64", []),
}


def configuration(name: str) -> tuple[Any, str]:
    """Return the experiment of a named configuration, and its slice."""
    import fiddle as fdl

    from luthier import graph, layers
    from luthier.recipes import decoders

    settings, experts, rows, tokens, slice, words = (CALIBRATION | HELD_OUT)[name]
    made = graph.resolve("configs.lm.quickstart")
    model = decoders.gpt2_small()
    if settings:
        model = decoders.llama(**{"vocab_size": 32_000, **settings})
    if experts:
        capacity = fdl.Config(layers.Capacity)
        model = decoders.with_experts(model, num_experts=experts, k=2, dispatch=capacity)
    made.name, made.model, made.data.length = name, model, tokens
    made.training.global_batch_size = rows
    for evaluation in made.evaluations.values():
        evaluation.global_batch_size = rows
    return graph.apply(made, [f"{MESH}data=1", *words]), slice


KINDS = (
    *("odd", "experts", "long", "small"),
    *("pipeline", "windows", "encoder-decoder", "two slices"),
)
# How far the model may be off, for each random case that needs so many bytes, and in the median of
# all. The aims are 0.15 and 0.07. Smaller programs have no bound: of seed 3, one that needs 6 MiB
# is off by 70 %, and whether 5 MiB more fit decides nothing.
EACH, EACH_FROM, MEDIAN = 0.2, 64 * 2**20, 0.07


def drawn(seed: int, number: int = 24) -> list[tuple[str, Any, str]]:
    """Return names, experiments and slices that are drawn at random, of all kinds in turn.

    Args:
      seed: Whoever claims something of the model takes one that nobody has fitted the model to.
      number: How many.
    """
    return [_drawn(random.Random(f"{seed} {i}"), KINDS[i % len(KINDS)], i) for i in range(number)]


def _drawn(draw: random.Random, kind: str, index: int) -> tuple[str, Any, str]:
    import fiddle as fdl

    from luthier import graph, layers
    from luthier.recipes import decoders, encoders

    def of(*values: Any) -> Any:
        return draw.choice(values)

    slice, number = of("cpu:8", "h100:8", "a100:8", "v5e-8", "v4-16", "v6e-8"), 8
    words = [f"{MESH}data=-1", of(FULL, DOTS, "model.stack=luthier.layers.Scanned()")]
    words += of([BF16], [BF16], [])
    tensor, stages, parts = of(1, 1, 2, 4), 1, 1  # parts: devices that other axes than these take
    if kind in ("pipeline", "experts", "two slices"):
        tensor = 1
    heads, head_dim = tensor * draw.randint(2, 12 // tensor), of(32, 64, 80, 96, 128)
    sizes = {
        "num_layers": draw.randint(2, 12),
        "hidden_dim": 8 * draw.randint(40, 400),
        "vocab_size": draw.randint(1_000, 60_000),
    }
    tokens = 8 * draw.randint(16, 256)
    accumulation = of(1, 1, 2)
    if kind == "small":
        head_dim, heads, tokens = 16, 2 * tensor, 8 * draw.randint(4, 32)
        sizes = {"num_layers": of(1, 2, 4), "hidden_dim": 72 * tensor, "vocab_size": of(300, 999)}
    elif kind == "long":
        sizes["num_layers"] = draw.randint(2, 6)
        heads, tokens = tensor * draw.randint(1, 8 // tensor), 1024 * draw.randint(4, 12)
    elif kind == "pipeline":
        stages, accumulation = of(2, 4), 1
        parts, sizes["num_layers"] = stages, stages * draw.randint(1, 4)
        words.append(f"fiddler:luthier.recipes.pipeline({stages}, {stages * of(1, 2)})")
    elif kind == "experts":
        parts = of(2, 4)
        sizes["num_layers"] = draw.randint(2, 6)
        words.append(f"{MESH}expert={parts}")
    elif kind == "two slices":
        slice, number = of("2xv5e-8", "h100:8x2", "2xv4-16"), 16
        if slice.startswith("2x"):
            words.append(f"{MESH}across_slices.data=2")
    fsdp = of(*(size for size in (1, 2, 4, 8) if size * tensor * parts <= 8))
    words += [f"{MESH}fsdp={fsdp}", f"{MESH}tensor={tensor}"]
    words.append(f"training.accumulation={accumulation}")
    rows = number * accumulation * stages * of(1, 2, 3)
    sizes |= {"dim": heads * head_dim, "num_heads": heads}
    if not slice.startswith("cpu"):
        words.append("class:AutoAttention.kernels=True")
    if kind == "encoder-decoder":
        made = graph.resolve("configs.seq2seq.translation")
        sizes["vocab_size"] -= sizes["vocab_size"] % (8 * tensor)
        made.model = encoders.t5_gated(head_dim=head_dim, **sizes)
        words = [word for word in words if not word.startswith("model.stack=")]
        words += [f"data.{side}_length={min(tokens, 1024)}" for side in ("input", "target")]
    else:
        made = graph.resolve("configs.lm.quickstart")
        sizes |= {"pad_to_multiple": 8 * tensor}
        if kind == "windows":
            made.model = decoders.mistral(window=tokens // of(2, 4, 8), **sizes)
        else:
            made.model = decoders.llama(**sizes)
        if kind == "experts":
            capacity = fdl.Config(layers.Capacity)
            made.model = decoders.with_experts(
                made.model, num_experts=of(4, 8), k=2, dispatch=capacity
            )
        made.data.length = tokens
    made.name = f"{kind}-{index}".replace(" ", "-")
    made.training.global_batch_size = rows
    for evaluation in made.evaluations.values():
        evaluation.global_batch_size = rows
    return f"{kind} {index}", graph.apply(made, words, shelves=("luthier.recipes",)), slice


def experiment(recipe: str, rows: int, tokens: int, overrides: list[str]) -> Any:
    """Return an experiment with a model of a recipe, on the quickstart's data."""
    from luthier import graph
    from luthier.recipes import decoders

    made = graph.resolve("configs.lm.quickstart")
    made.name, made.model = recipe.replace("_", "-"), getattr(decoders, recipe)()
    made.data.length, made.training.global_batch_size = tokens, rows
    for evaluation in made.evaluations.values():
        evaluation.global_batch_size = rows
    return graph.apply(made, ["parallelism.mesh.fsdp=-1", "parallelism.mesh.data=1", *overrides])


def gib(size: float) -> str:
    """Return bytes as the page has them."""
    return f"{size / 2**30:.2f} GiB"


def absent(report: Any) -> list[str]:
    """Return the parts of a compiled plan that tell nothing."""
    memory, step = report.memory, report.step
    parts = {
        "parameters": report.subject.parameters,
        "bytes by kind": memory.bytes_per_device,
        "gradients": memory.gradient_bytes,
        "residuals": memory.residuals,
        "arrays at the peak": memory.live,
        "limit": memory.limit_bytes,
        "FLOPs in three conventions, and as it is run": len(report.flops) == 4,
        "collectives": report.collectives,
        "roofline": {"compute", "memory", "links"} <= set(step["seconds_by_term"]),
        "time": all(step.get(name) for name in ("mfu", "tokens_per_day", "run_seconds")),
        "sharding": all(row["reason"] for row in report.sharding),
    }
    return [name for name, part in parts.items() if not part]


def used() -> float:
    """Return the processor seconds of the processes that were started and have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def named(names: Sequence[str]) -> int:
    """Print what planning takes, and what the plans say; exit code 1 where a part is missing."""
    from luthier.planner import plan_apart

    is_partial = False
    print("| plan | slice | devices | trace | compile | CPU | needs | of | a step | bound by |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in names:
        recipe, rows, tokens, target, overrides = {**CASES, **TWO_SLICES}[name]
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            before = used()
            report = plan_apart(experiment(recipe, rows, tokens, overrides), target)
            seconds = used() - before
        compiling = report.timings["compile"]
        memory, step = report.memory, report.step
        cells = [name, target, str(report.subject.devices["count"])]
        cells += [f"{sum(report.timings.values()) - compiling:.0f} s", f"{compiling:.0f} s"]
        cells += [f"{seconds:.0f} s", gib(memory.needed_bytes or 0), gib(memory.limit_bytes or 0)]
        cells += [f"{step['step_seconds']:.3g} s", step["binding"]]
        print(f"| {' | '.join(cells)} |", flush=True)
        missing = absent(report)
        is_partial |= bool(missing)
        if missing:
            print(f"{name} does not tell: {', '.join(missing)}", file=sys.stderr)
    return int(is_partial)


def calibration(names: list[str]) -> int:
    """Print how far the model is from compilers; exit code 1 where a held-out one is too far."""
    sys.path.insert(0, str(ROOT))
    from luthier.planner import plan_apart, targets

    is_far = False
    print("| configuration | slice | used to | compiler | model | off by |")
    print("|---|---|---|---|---|---|")
    for name in names:
        made, slice = configuration(name)
        missing = targets.missing_compiler(targets.read(slice))
        if missing:
            print(f"{name}: {missing}", file=sys.stderr)
            continue
        memory = plan_apart(made, slice).memory
        off = memory.estimated_bytes / memory.needed_bytes - 1
        is_far |= name in HELD_OUT and abs(off) > LIMIT
        cells = ["calibrate" if name in CALIBRATION else "check", gib(memory.needed_bytes)]
        cells += [gib(memory.estimated_bytes), f"{off:+.1%}"]
        print(f"| {name} | {slice} | {' | '.join(cells)} |", flush=True)
    return int(is_far)


def at_random(seed: int, number: int) -> int:
    """Print how far the model is from compilers in random cases; exit code 1 where too far."""
    from luthier.planner import plan_apart, targets

    errors, large = [], []
    cases = drawn(seed, number)
    missing = {targets.missing_compiler(targets.read(slice)) for _, _, slice in cases}
    if any(missing):
        print(" ".join(sorted(filter(None, missing))), file=sys.stderr)
        return 2
    print("| case | slice | mesh | compiler | model | off by |")
    print("|---|---|---|---|---|---|")
    for name, made, slice in cases:
        report = plan_apart(made, slice)
        memory = report.memory
        if memory.is_estimated:  # far from fitting, so that it is not compiled
            print(f"| {name} | {slice} | - | - | {gib(memory.estimated_bytes)} | - |", flush=True)
            continue
        errors.append(memory.estimated_bytes / memory.needed_bytes - 1)
        large += [abs(errors[-1])] if memory.needed_bytes >= EACH_FROM else []
        mesh = " ".join(f"{axis}={size}" for axis, size in report.subject.mesh.items() if size > 1)
        cells = [name, slice, mesh, gib(memory.needed_bytes), gib(memory.estimated_bytes)]
        print(f"| {' | '.join(cells)} | {errors[-1]:+.1%} |", flush=True)
    sizes = sorted(map(abs, errors))
    median, most = statistics.median(sizes), max(large, default=0.0)
    print(f"seed {seed}: median {median:.1%}, largest {sizes[-1]:.1%}, from 64 MiB {most:.1%}")
    return int(most > EACH or median > MEDIAN)


def small_words(seed: int, index: int) -> tuple[list[str], str]:
    """Return overrides of the quickstart that are drawn at random, and CPU devices for it."""
    draw = random.Random(f"times {seed} {index}")
    heads, head_dim = draw.randint(1, 8), draw.choice((8, 16, 32, 40))
    slice = draw.choice(("cpu:1", "cpu:1", "cpu:2"))
    words = [
        f"model.dim={heads * head_dim}",
        f"model.num_layers={draw.randint(1, 6)}",
        f"model.block.attention.num_heads={heads}",
        f"model.block.attention.num_kv_heads={heads}",
        f"model.block.mlp.hidden_dim={8 * draw.randint(4, 100)}",
        f"data.length={8 * draw.randint(4, 100)}",
        f"training.global_batch_size={4 * draw.randint(1, 4)}",  # two devices, two microbatches
        draw.choice((FULL, DOTS, "model.stack=luthier.layers.Unrolled()", "seed=1")),
        draw.choice((BF16, "seed=2", "seed=2", "training.accumulation=2")),
        draw.choice(("optimizer=luthier.optim.muon(0.01)", "seed=3", "seed=3")),
        draw.choice(("fiddler:fsdp", "seed=4")),
    ]
    return words, slice


def timed(seed: int, index: int) -> tuple[str, str, float | None, float]:
    """Plan and train a small program on this machine.

    Returns:
      Its overrides, its devices, the least seconds of a step by the plan (None where it states
      none), and the measured median.
    """
    words, slice = small_words(seed, index)
    words += ["training.steps=40", "evaluations={}", "checkpoints=None", "records.wandb=None"]
    luthier = [sys.executable, "-m", "luthier"]
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | {"XDG_CACHE_HOME": folder}

        def run(*command: str) -> str:
            command = (*luthier, *command, "configs.lm.quickstart", *words)
            done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stderr)
            return done.stdout

        step = json.loads(run("plan", "--slice", slice, "--json"))["step"]
        run("train", "--devices", slice, "records.samples=None", "records.directory=runs")
        (path,) = pathlib.Path(folder, "runs").rglob("plan.json")
        measured = json.loads(path.read_text())["measured"]["step_seconds"]
    least = step["step_seconds"] if step["is_bound"] else None
    return " ".join(words[:-4]), slice, least, measured


def times(seed: int, number: int) -> int:
    """Print the least times of plans beside measured ones; exit code 1 where one is above."""
    is_above = False
    print("| case | devices | at least | measured | ratio |")
    print("|---|---|---|---|---|")
    for index in range(number):
        words, slice, least, measured = timed(seed, index)
        bound = "-" if least is None else f"{1e3 * least:.3g} ms"
        ratio = "-" if least is None else f"{least / measured:.2f}"
        print(f"| {words} | {slice} | {bound} | {1e3 * measured:.3g} ms | {ratio} |", flush=True)
        is_above |= least is not None and least > measured
    return int(is_above)


def searches(names: Sequence[str]) -> int:
    """Print what searches find beside layouts of people; exit code 1 where all of it is worse."""
    from luthier import graph
    from luthier.planner import plan_apart, targets

    is_worse = False
    print("| search | slice | layout | needs | a step | bound by | CPU |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        reference, slice, words = SEARCHES[name]
        missing = targets.missing_compiler(targets.read(slice))
        if missing:
            print(f"{name}: {missing}", file=sys.stderr)
            continue
        made, before = graph.apply(graph.resolve(reference), words), used()
        report = plan_apart(made, slice, search=True)
        seconds, own = used() - before, report.memory.needed_bytes
        step = report.step["step_seconds"], report.step["binding"]
        cells = [name, slice, "by hand", gib(own), f"{step[0]:.4g} s", step[1]]
        print(f"| {' | '.join(cells)} | {seconds:.0f} s |", flush=True)
        for row in report.proposals:
            cells = [" ".join(f"`{word}`" for word in row["overrides"])]
            cells += [gib(row["needed_bytes"]), f"{row['step_seconds']:.4g} s"]
            print(f"| | | {' | '.join(cells)} | | |", flush=True)
        best = report.proposals[0] if report.proposals else None
        is_worse |= best is None or best["needed_bytes"] > own or best["step_seconds"] > step[0]
        print("\n".join(report.notes), file=sys.stderr)
    return int(is_worse)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    known = [*CASES, *CALIBRATION, *HELD_OUT, *SEARCHES]
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"of {', '.join(known)}; or random"
    )
    parser.add_argument("--named", action="store_true", help="tell what planning takes")
    parser.add_argument("--seed", type=int, default=0, help="of random and times")
    parser.add_argument("--number", type=int, help="of cases: 24 and 20")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if options.named:
        return named(options.cases or NAMED)
    if options.cases == ["random"]:
        return at_random(options.seed, options.number or 24)
    if options.cases == ["times"]:
        return times(options.seed, options.number or 20)
    if options.cases == ["search"] or set(options.cases) & set(SEARCHES):
        return searches([*SEARCHES] if options.cases == ["search"] else options.cases)
    small = [*CALIBRATION, *HELD_OUT]
    if options.cases == ["calibration"] or set(options.cases) & set(small):
        return calibration(small if options.cases == ["calibration"] else options.cases)
    names = options.cases or list(CASES)
    from luthier.planner import plan_apart, targets

    worst = 0.0
    print("| case | slice | compiler | model | off by | a step | bound by | CPU |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        recipe, rows, tokens, target, overrides = CASES[name]
        missing = targets.missing_compiler(targets.read(target))
        if missing:
            print(f"{name}: {missing}", file=sys.stderr)
            continue
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        report = plan_apart(experiment(recipe, rows, tokens, overrides), target)
        seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        needed, estimated = report.memory.needed_bytes, report.memory.estimated_bytes
        off = estimated / needed - 1
        worst = max(worst, abs(off))
        cells = [gib(needed), gib(estimated), f"{off:+.1%}"]
        cells += [
            f"{report.step['step_seconds']:.3g} s",
            report.step["binding"],
            f"{seconds:.0f} s",
        ]
        print(f"| {name} | {target} | {' | '.join(cells)} |", flush=True)
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
