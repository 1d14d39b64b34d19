"""The parsers that are fuzzed: what each is given, and how."""

from __future__ import annotations

import dataclasses
import json
import shutil
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
TOYS = ("graph_toys",)


@dataclasses.dataclass(frozen=True)
class Target:
    """A parser under test.

    Args:
      name: Its folder in the corpus.
      parse: Reads an input; may write below the folder that it is given.
      packages: What it may import beside the packages that every graph may name.
    """

    name: str
    parse: Callable[[bytes, Path], object]
    packages: Sequence[str] = TOYS

    def corpus(self) -> list[tuple[str, bytes]]:
        """Return the kept inputs by name; folders are one input a file."""
        files = sorted(path for path in (CORPUS / self.name).rglob("*") if path.is_file())
        return [(str(path.relative_to(CORPUS)), path.read_bytes()) for path in files]


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="surrogateescape")


def overrides(data: bytes, folder: Path) -> object:
    """Apply lines as overrides, each as on a command line."""
    from graph_toys import edited, parts

    from luthier import graph as graphs

    graph = parts.experiment() if len(data) % 2 else edited.template()
    words = _text(data).replace("\x00", "").splitlines() or [""]
    return graphs.apply(graph, words[:8], packages=TOYS)


def gin(data: bytes, folder: Path) -> object:
    """Lay a gin file over a graph."""
    from graph_toys import parts

    from luthier import graph as graphs

    path = folder / "fuzz.gin"
    path.write_bytes(data)
    return graphs.apply(parts.experiment(), [f"gin_file:{path}"], packages=TOYS)


def gin_graph(data: bytes, folder: Path) -> object:
    """Read a gin file as a whole graph."""
    from luthier.graph.formats.gin import from_gin

    return from_gin(_text(data), TOYS)


def json_graph(data: bytes, folder: Path) -> object:
    """Read a recorded graph."""
    from luthier import graph as graphs

    return graphs.from_json(_text(data), TOYS)


def history(data: bytes, folder: Path) -> object:
    """Read where values were set, for a recorded graph."""
    from graph_toys import parts

    from luthier.graph import restore_history
    from luthier.storage import read_json

    path = folder / "config.history.json"
    path.write_bytes(data)
    return restore_history(parts.experiment(), read_json(path))


def hydra(data: bytes, folder: Path) -> object:
    """Read YAML with `_target_`."""
    from luthier.graph import from_hydra

    return from_hydra(_text(data), TOYS)


def konfig(data: bytes, folder: Path) -> object:
    """Read JSON with `__qualname__`."""
    from luthier.graph import from_konfig

    return from_konfig(_text(data), TOYS)


def config_dict(data: bytes, folder: Path) -> object:
    """Lay a ConfigDict over a graph; its content comes as JSON."""
    from graph_toys import parts

    from luthier.graph.formats.config_dict import apply_config_dict

    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        content = {"extra": _text(data)}
    if not isinstance(content, dict):
        content = {"extra": content}
    return apply_config_dict(parts.experiment(), content, packages=TOYS)


def config_dict_file(data: bytes, folder: Path) -> object:
    """Load a Python file with `get_config`, which runs it: bad files are told by line.

    Powers are made products: a program may count for ever, and that is no fault of its reader.
    """
    from luthier.graph.formats.config_dict import load_config_dict

    path = folder / "fuzz_config.py"
    path.write_bytes(data.replace(b"**", b"*"))
    return load_config_dict(str(path))


def metrics(data: bytes, folder: Path) -> object:
    """Read metrics.jsonl in every way, and cut it back."""
    from luthier.errors import RunError
    from luthier.records import cut_back, events, read_events, read_last, read_metrics

    path = folder / "metrics.jsonl"
    path.write_bytes(data)
    refused = None
    for read in (
        lambda: list(read_events(path)),
        lambda: read_metrics(path),
        lambda: read_metrics(path, "held_out"),
        lambda: read_last(path, events.Step),
    ):
        try:
            read()
        except RunError as error:
            refused = error
    cut_back(path, 2)
    if refused is not None:
        raise refused
    return read_metrics(path)


def run_files(data: bytes, folder: Path) -> object:
    """Read the small files of a run's directory; the input stands in for each of them."""
    from luthier.errors import RunError
    from luthier.records import RunDirectory, account_of, read_spans, summarize

    run = RunDirectory(folder / "toy" / "a1")
    run.path.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "status.json", "goodput.jsonl", "lock", "source.json", "plan.json"):
        (run.path / name).write_bytes(data)
    refused = None
    for read in (run.read_status, run.read_source, run.read_plan, run.read_config, run.writer):
        try:
            read()
        except RunError as error:
            refused = error
    summarize(run)
    account_of(read_spans(run.goodput_path))
    if refused is not None:
        raise refused
    return None


def commit(data: bytes, folder: Path) -> object:
    """Read a checkpoint's own file, with the right checksum, so that all of it is looked at."""
    from luthier.checkpoint import Checkpoints, Store

    checkpoint = folder / "checkpoints" / "10"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "commit.json").write_bytes(_signed(data))
    with Store(checkpoint.parent, Checkpoints(keep_best=_Lowest())) as store:
        store.steps(), store.best(), store.newest_whole()
        store.notices(10)
        return store.read(10)


class _Lowest:
    name = "held_out/loss"

    def better(self, value: float, other: float) -> bool:
        return value < other


def _signed(data: bytes) -> bytes:
    """Return a commit file with the checksum of what it holds, where it is one."""
    try:
        content = json.loads(data)
        content.pop("checksum", None)
        checksum = zlib.crc32(json.dumps(content, sort_keys=True).encode())
        return json.dumps({"checksum": checksum, **content}).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return data


def checkpoint(data: bytes, folder: Path) -> object:
    """Restore a checkpoint of which one file is replaced: the first bytes say which."""
    from luthier.checkpoint import Store

    whole, broken = folder / "whole", folder / "broken"
    if not whole.exists():
        _save(whole)
    shutil.rmtree(broken, ignore_errors=True)
    shutil.copytree(whole, broken)
    files = sorted(path for path in (broken / "10").rglob("*") if path.is_file())
    victim = files[sum(data[:4]) % len(files)]
    victim.write_bytes(data)
    with Store(broken) as store:
        return store.restore(10, _ARRAYS())


def _ARRAYS() -> dict:
    import jax

    return {"w": jax.ShapeDtypeStruct((4, 2), "float32")}


def _save(folder: Path) -> None:
    import jax.numpy as jnp

    from luthier.checkpoint import Store

    with Store(folder) as store:
        store.save(10, {"w": jnp.ones((4, 2), jnp.float32)}, extra={"position": {}})


def shards(data: bytes, folder: Path) -> object:
    """Read a prepared corpus; the first bytes say which of its files the input replaces."""
    from luthier.data import FirstFit, Prepared
    from luthier.data.prepared import verify

    whole, broken = folder / "prepared", folder / "broken_shards"
    if not whole.exists():
        _prepare(whole)
    shutil.rmtree(broken, ignore_errors=True)
    shutil.copytree(whole, broken)
    if data.startswith(b"\x93NUMPY"):
        victim = ("shard-00000/tokens.npy", "shard-00001/targets.npy", "byte_lengths.npy")
        (broken / victim[len(data) % 3]).write_bytes(data)
    elif b'"bounds"' in data:
        (broken / "manifest.json").unlink()
        (broken / "layout.json").write_bytes(data)
    else:
        (broken / "manifest.json").write_bytes(data)
    prepared = Prepared(str(broken), 16, FirstFit())
    rows = prepared.num_rows
    prepared.byte_lengths, prepared.entropies(), prepared.prefix_bytes, prepared.fingerprint
    if rows:
        next(iter(prepared.batches(global_batch_size=2)))
    return verify(str(broken))


def _prepare(folder: Path) -> None:
    from luthier.data import Bytes, Documents, plan_layout, prepare, survey

    source, tokenizer = Documents([f"document {n} " * (n % 5 + 1) for n in range(12)]), Bytes()
    layout = plan_layout(source, tokenizer, survey(source, tokenizer), 2)
    prepare(source, tokenizer, str(folder), layout)


TARGETS = (
    Target("overrides", overrides),
    Target("gin", gin, (*TOYS, "gin")),
    Target("gin_graph", gin_graph, (*TOYS, "gin")),
    Target("json_graph", json_graph),
    Target("history", history),
    Target("hydra", hydra),
    Target("konfig", konfig),
    Target("config_dict", config_dict),
    Target("config_dict_file", config_dict_file, ("ml_collections",)),
    Target("metrics", metrics),
    Target("run_files", run_files),
    Target("commit", commit),
    Target("checkpoint", checkpoint),
    Target("shards", shards),
)
