"""Measure luthier beside the trainers that people use, each in an environment of its own, on a CPU.

The same workload for all: a GPT-2 of 4 layers (d = 256, 4 heads, MLP 1024 with GELU, learned
positions, tied embeddings) on rows of 256 bytes of Shakespeare, 8 a step, AdamW with clipping,
float32. Each peer runs as its users run it: its own command line, trainer and input. Every process
is pinned to one core, and the sides take turns in each round, so that noise is shared.

* seconds per step: the time between the lines that a trainer prints for its steps; the median of a
  process, without its first five steps, and the median over rounds.
* first step: from the start of the process to the line of its first step, with files in memory and
  nothing compiled before. The row "second start" finds on the disk what luthier compiled at its
  first; the row "quick_compile" compiles with the options of `fiddler:quick_compile`.

luthier and MaxText run their layers in a loop, as they come; their rows "unrolled" do not.

`--large-pages` sets GLIBC_TUNABLES=glibc.malloc.hugetlb=1 for everybody: luthier does so for
itself, a peer does not.

Command: python tools/bench/peers.py --kauldron PYTHON --maxtext PYTHON --pax PYTHON
  --nanogpt PYTHON FOLDER [--rounds 3] [--steps 25] [--core 0] [--large-pages] [--json FILE]

Peers that are not named are left out. Their environments (each of its own):
  kauldron  Python 3.11, pip install kauldron
  maxtext   Python 3.12, pip install maxtext, and the requirements that it carries for TPUs, but
            for libtpu
  pax       Python 3.10, pip install paxml==1.4.0 praxis==1.4.0 jaxlib==0.4.26
  nanogpt   any Python with torch; FOLDER is a checkout of nanoGPT
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import pickle
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import report

FILES = Path(__file__).resolve().parent / "cpu_peers"
NUM_WARM_UP = 5  # steps that are not counted
TUNABLES = "glibc.malloc.hugetlb=1"
TIMEOUT = 600  # seconds of one process


@dataclasses.dataclass(frozen=True)
class Peer:
    """A trainer: how it is started, and how its lines name a step.

    Attributes:
      name: Of the row.
      command: The words that start it.
      line: Pattern of the line that it prints after a step; its group is the number of the step.
      environment: Variables that it needs.
      cache: Folder of compiled programs that stays from run to run; None is empty at each start.
      module: Its main module, imported right before each run: the system may have dropped the files
        of whoever did not run for some minutes.
    """

    name: str
    command: Sequence[str]
    line: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cache: Path | None = None
    module: str = ""


@dataclasses.dataclass(frozen=True)
class Run:
    """What one process took.

    Attributes:
      first_step: Seconds from the start of the process to its first step's line.
      steps: Seconds of each step that counts.
    """

    first_step: float
    steps: Sequence[float]


def prepare(folder: Path) -> Path:
    """Write the corpus for everybody into a folder; return the file of bytes."""
    from luthier import data

    plays = data.Shakespeare(split="train")
    content = b"".join(plays[number] for number in range(len(plays)))
    corpus = folder / "train.u8"
    corpus.write_bytes(content)
    text = content.decode(errors="replace")
    rows = [text[start : start + 250] for start in range(0, 2_000_000, 250)]
    with open(folder / "train.jsonl", "w", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"text": row}) + "\n" for row in rows)
    return corpus


def byte_tokenizer(folder: Path) -> Path:
    """Write a tokenizer of 256 bytes and an end for MaxText, as Hugging Face keeps one."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = sorted([chr(b) for b in printable] + [chr(256 + n) for n in range(len(others))])
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 256,
                "content": "<eos>",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letter: number for number, letter in enumerate(letters)},
            "merges": [],
        },
    }
    place = folder / "bytes"
    place.mkdir()
    (place / "tokenizer.json").write_text(json.dumps(content))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<eos>",
        "bos_token": "<eos>",
    }
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    return place


def luthier(steps: int) -> Peer:
    """Return ourselves, in the interpreter that runs this."""
    reference = "tools.bench.cpu_peers.luthier_lm"
    words = [
        "-m",
        "luthier",
        "train",
        reference,
        f"training.steps={steps}",
        "records.directory=runs",
    ]
    root = str(FILES.parents[2])
    return Peer(
        "luthier",
        [sys.executable, *words],
        r"^step (\d+)/",
        {"PYTHONPATH": os.pathsep.join([root, f"{root}/framework"])},
        module="luthier.trainer, grain, orbax.checkpoint",
    )


def kauldron(python: str, steps: int) -> Peer:
    """Return Kauldron's Trainer."""
    words = ["-m", "kauldron.main", f"--cfg={FILES / 'kauldron_config.py'}", "--cfg.workdir=out"]
    return Peer(
        "Kauldron",
        [python, *words, f"--cfg.num_train_steps={steps}"],
        r"\[(\d+)\] collection=train losses/",  # it tells texts of step 0 long before that step
        {"PYTHONPATH": str(FILES)},
        module="kauldron.kd, kauldron.main",
    )


def maxtext(python: str, steps: int, folder: Path, unrolled: bool) -> Peer:
    """Return MaxText with a model of GPT-3's kind."""
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    settings = {
        "run_name": "t",
        "base_output_directory": "out",
        "hardware": "cpu",
        "skip_jax_distributed_system": "true",
        "enable_checkpointing": "false",
        "steps": steps,
        "log_period": 1000,
        "learning_rate": 1e-3,
        "decoder_block": "gpt3",
        "base_emb_dim": 256,
        "base_num_query_heads": 4,
        "base_num_kv_heads": 4,
        "head_dim": 64,
        "base_mlp_dim": 1024,
        "base_num_decoder_layers": 4,
        "mlp_activations": "['gelu']",
        "normalization_layer_epsilon": 1e-5,
        "logits_via_embedding": "true",
        "trainable_position_size": 256,
        "use_iota_embed": "false",
        "vocab_size": 257,
        "max_target_length": 256,
        "per_device_batch_size": 8,
        "dtype": "float32",
        "weight_dtype": "float32",
        "attention": "dot_product",
        "remat_policy": "minimal",
        "scan_layers": str(not unrolled).lower(),
        "dataset_type": "hf",
        "hf_path": "json",
        "hf_train_files": folder / "train.jsonl",
        "tokenizer_type": "huggingface",
        "tokenizer_path": folder / "bytes",
        "packing": "true",
        "enable_goodput_recording": "false",
        "monitor_goodput": "false",
        "log_config": "false",
    }
    words = ["-m", "maxtext.trainers.pre_train.train", f"{site}/maxtext/configs/base.yml"]
    return Peer(
        "MaxText, unrolled" if unrolled else "MaxText",
        [python, *words, *(f"{name}={value}" for name, value in settings.items())],
        r"completed step: (\d+)",
        {"DECOUPLE_GCLOUD": "TRUE"},
        module="maxtext.trainers.pre_train.train",
    )


def pax(python: str) -> Peer:
    """Return Pax 1.4.0."""
    words = ["-m", "paxml.main", "--exp=pax_lm.LanguageModel", "--job_log_dir=out"]
    return Peer(
        "Pax",
        [python, *words, "--alsologtostderr"],
        r"step_i: (\d+)",
        {"PYTHONPATH": str(FILES)},
        module="paxml.main",
    )


def nanogpt(python: str, checkout: str, steps: int, folder: Path) -> Peer:
    """Return nanoGPT without compilation; its data stand where it looks for them."""
    import numpy as np

    place = Path(checkout).resolve() / "data" / "luthier_bench"
    place.mkdir(exist_ok=True)
    corpus = np.fromfile(folder / "train.u8", np.uint8).astype(np.uint16)
    for name in ("train.bin", "val.bin"):
        corpus.tofile(place / name)
    (place / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 256}))
    settings = {
        "dataset": "luthier_bench",
        "device": "cpu",
        "compile": False,
        "dtype": "float32",
        "eval_iters": 1,
        "eval_interval": 100_000,
        "log_interval": 1,
        "batch_size": 8,
        "block_size": 256,
        "n_layer": 4,
        "n_head": 4,
        "n_embd": 256,
        "dropout": 0.0,
        "bias": True,
        "max_iters": steps,
        "warmup_iters": 1,
        "lr_decay_iters": steps,
        "gradient_accumulation_steps": 1,
        "out_dir": "out",
    }
    root = Path(checkout).resolve()
    words = [str(root / "train.py"), str(root / "config" / "train_shakespeare_char.py")]
    words += [f"--{name}={value}" for name, value in settings.items()]
    # It looks for its data and its model below the working directory.
    start = f"import os, runpy, sys; os.chdir({str(root)!r}); sys.path.insert(0, {str(root)!r}); "
    start += f"sys.argv = {words!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    return Peer(
        "nanoGPT (torch, eager)", [python, "-c", start], r"^iter (\d+): loss", module="torch"
    )


def run(peer: Peer, corpus: Path, steps: int, core: int, large_pages: bool) -> Run:
    """Run one process to its end; return what its steps took.

    Raises:
      RuntimeError: It failed, or did not print its steps.
    """
    left_out = ("GLIBC_TUNABLES", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "BENCH_CORPUS": str(corpus),
        "BENCH_STEPS": str(steps),
        "OMP_NUM_THREADS": "1",
        **peer.environment,
    }
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    if large_pages:
        environment["GLIBC_TUNABLES"] = TUNABLES
    warm_up = [peer.command[0], "-c", f"import {peer.module}"]
    subprocess.run(warm_up, env=environment, capture_output=True, check=True)
    times: dict[int, float] = {}
    printed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        environment["XDG_CACHE_HOME"] = str(peer.cache or folder)
        start = time.perf_counter()
        with subprocess.Popen(
            ["taskset", "-c", str(core), *peer.command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            for line in process.stdout:
                found = re.search(peer.line, line)
                if found:
                    times.setdefault(int(found.group(1)), time.perf_counter() - start)
                printed.append(line)
                if time.perf_counter() - start > TIMEOUT:
                    process.kill()
    if process.returncode or len(times) < NUM_WARM_UP + 5:
        raise RuntimeError(f"{peer.name}: exit {process.returncode}\n{''.join(printed[-30:])}")
    moments = [times[number] for number in sorted(times)]
    taken = [after - before for before, after in itertools.pairwise(moments)]
    return Run(moments[0], taken[NUM_WARM_UP - 1 :])


def products(python: str, core: int) -> str:
    """Return a line of what products of matrices reach with torch and with XLA on the core."""
    reached = {}
    for library, interpreter in {"torch": python, "xla": sys.executable}.items():
        command = ["taskset", "-c", str(core), interpreter, str(FILES / "products.py"), library]
        environment = os.environ | {"GLIBC_TUNABLES": TUNABLES}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        reached[library] = json.loads(done.stdout)["GFLOP/s"]
    return (
        "A step mostly consists of matrix products. In float32 on this core, they reach "
        f"{reached['torch']:.0f} GFLOP/s with torch and {reached['xla']:.0f} GFLOP/s with XLA "
        f"(ratio {reached['torch'] / reached['xla']:.2f}). Each rate is the best of many calls."
    )


def main() -> None:
    """Run all sides in turn and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kauldron", metavar="PYTHON")
    parser.add_argument("--maxtext", metavar="PYTHON")
    parser.add_argument("--pax", metavar="PYTHON")
    parser.add_argument("--nanogpt", nargs=2, metavar=("PYTHON", "FOLDER"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--large-pages", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        corpus = prepare(place)
        byte_tokenizer(place)
        ours = luthier(options.steps)
        again = dataclasses.replace(ours, name="luthier, second start", cache=place / "cache")
        words = [*ours.command, "fiddler:quick_compile"]
        quick = dataclasses.replace(ours, name="luthier, quick_compile", command=words)
        words = [*ours.command, "model.stack.unroll=4"]
        unrolled = dataclasses.replace(ours, name="luthier, unrolled", command=words)
        peers = [ours, unrolled, quick, again]
        if options.kauldron:
            peers.append(kauldron(options.kauldron, options.steps))
        if options.maxtext:
            peers.append(maxtext(options.maxtext, options.steps, place, unrolled=False))
            peers.append(maxtext(options.maxtext, options.steps, place, unrolled=True))
        if options.pax:
            peers.append(pax(options.pax))
        if options.nanogpt:
            peers.append(nanogpt(*options.nanogpt, options.steps, place))
        for peer in peers:  # Python compiles the modules of all once
            run(peer, corpus, options.steps, options.core, large_pages=True)
        runs: dict[str, list[Run]] = {}
        for number in range(options.rounds):
            for peer in peers if number % 2 else reversed(peers):
                taken = run(peer, corpus, options.steps, options.core, options.large_pages)
                runs.setdefault(peer.name, []).append(taken)
                print(
                    f"round {number + 1}: {peer.name}: first step {taken.first_step:.1f} s, "
                    f"step {statistics.median(taken.steps):.3f} s",
                    flush=True,
                )
    rows = [_row(peer.name, runs) for peer in peers]
    notes = [products(options.nanogpt[0], options.core)] if options.nanogpt else []
    settings = {
        "core": options.core,
        "steps": options.steps,
        "rounds": options.rounds,
        "large pages for all": options.large_pages,
    }
    found = report.Report("cpu_peers", settings, rows, notes)
    print(report.table(found))
    if options.json:
        report.write(found, options.json)


def _row(name: str, runs: Mapping[str, Sequence[Run]]) -> dict[str, object]:
    """Return the medians of a side, and the ratio of luthier's to them."""
    steps, ours = _steps(runs[name]), _steps(runs["luthier"])
    first = [run.first_step for run in runs[name]]
    our_first, quick_first = (
        statistics.median(run.first_step for run in runs[side])
        for side in ("luthier", "luthier, quick_compile")
    )
    unrolled = _steps(runs["luthier, unrolled"])
    return {
        "side": name,
        "s/step": statistics.median(steps),
        "spread": max(steps) - min(steps),
        "luthier / side": statistics.median(ours) / statistics.median(steps),
        "unrolled / side": statistics.median(unrolled) / statistics.median(steps),
        "first step, s": statistics.median(first),
        "first spread": max(first) - min(first),
        "luthier / side, first step": our_first / statistics.median(first),
        "quick_compile / side, first step": quick_first / statistics.median(first),
    }


def _steps(runs: Sequence[Run]) -> list[float]:
    return [statistics.median(run.steps) for run in runs]


if __name__ == "__main__":
    main()
