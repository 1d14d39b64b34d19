"""Corpora in object stores: prepared there, and read piece by piece."""

import functools
import json
import os
import pathlib

import numpy as np
import pytest

from luthier.data import (
    Bytes,
    Concatenate,
    Documents,
    FirstFit,
    Mixture,
    Prepared,
    SplitTokens,
    Stage,
    Verification,
    plan_layout,
    prepare,
    survey,
    verify,
)
from luthier.data.prepared import streaming
from luthier.errors import DataError, StoreUnavailable
from luthier.storage.bucket import Bucket
from tests import object_stores
from tests.data.prepared.test_prepared import TEXTS, assert_same, make

SIZES = np.random.default_rng(0).integers(1000, 9000, 400).tolist()
TALES = [np.random.default_rng(size).bytes(size) for size in SIZES]


class Store:
    """A bucket, what is read of it, and what it refuses."""

    def __init__(self, scheme):
        self.objects, self.reads = {}, []
        self.url = f"{scheme}://lab/corpora/tales"
        self.refused_read = self.before_write = lambda key: None

    def before_read(self, key, num_bytes):
        self.reads.append((key.removeprefix("corpora/tales/"), num_bytes))
        return self.refused_read(key)

    @property
    def token_reads(self):
        return [size for key, size in self.reads if key.endswith("/tokens.npy")]


@pytest.fixture(params=["gs", "s3"])
def store(request, tmp_path, monkeypatch):
    made = Store(request.param)
    with object_stores.serving(
        {"lab": made.objects},
        before_read=made.before_read,
        before_write=lambda key: made.before_write(key),
    ) as (address, _):
        for name, value in object_stores.environment(address).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield made


@pytest.fixture(scope="module")
def tales(tmp_path_factory):
    """The folder of a corpus of 2 million tokens, of 250 pieces, on a disk."""
    return make(tmp_path_factory.mktemp("prepared") / "tales", texts=TALES)


def copy(folder, store):
    """Copy a corpus from a disk, as the tools of a store do."""
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file() and "plans" not in path.parts:
            key = f"corpora/tales/{path.relative_to(folder).as_posix()}"
            store.objects[key] = path.read_bytes()


def rows(data, count, **settings):
    """Return the inputs of the first batches."""
    with_settings = {"global_batch_size": 4, "seed": 3, **settings}
    iterator = data.iterator(**with_settings)
    try:
        return np.stack([next(iterator)["inputs"] for _ in range(count)])
    finally:
        iterator.close()


def test_a_corpus_is_prepared_in_a_bucket_as_on_a_disk(store, tmp_path):
    folder = pathlib.Path(make(tmp_path / "disk"))
    make(store.url + "/")
    for path in folder.rglob("*"):
        if path.is_file():
            key = f"corpora/tales/{path.relative_to(folder).as_posix()}"
            assert store.objects.pop(key) == path.read_bytes()
    assert not store.objects


@pytest.mark.parametrize("packing", [Concatenate(), FirstFit(), SplitTokens()], ids=repr)
def test_batches_are_those_of_a_disk(store, tmp_path, packing):
    folder = make(tmp_path / "disk")
    copy(folder, store)
    disk = Prepared(folder, 16, packing, Bytes())
    streamed = Prepared(store.url, 16, packing, Bytes())
    assert_same(disk, streamed)
    assert streamed.rows.digest == disk.rows.digest
    assert streamed.describe() == disk.describe()
    assert verify(store.url) == verify(folder)
    (plan,) = (tmp_path / "cache" / "luthier" / "plans").iterdir()
    assert streamed.rows.plan.folder == str(plan)
    second = Prepared(store.url, 16, packing)
    del store.reads[:]
    assert second.num_rows == disk.num_rows
    assert "shard-00000/targets.npy" not in dict(store.reads)


@pytest.mark.parametrize("count", [1, 2])
def test_several_processes_and_a_resume_have_the_rows_of_a_disk(store, tales, count):
    copy(tales, store)
    disk = Prepared(tales, 1024, FirstFit())
    for index in range(count):
        share = {"global_batch_size": 4, "seed": 3}
        share |= {"process_index": index, "process_count": count}
        wanted = rows(disk, 30, **share)
        first = Prepared(store.url, 1024, FirstFit()).iterator(**share)
        found = [next(first)["inputs"] for _ in range(11)]
        state = first.get_state()
        first.close()
        again = Prepared(store.url, 1024, FirstFit()).iterator(**share)
        again.set_state(state)
        found += [next(again)["inputs"] for _ in range(19)]
        again.close()
        np.testing.assert_array_equal(np.stack(found), wanted)


def test_a_mixture_of_a_disk_and_a_bucket(store, tales, tmp_path):
    copy(tales, store)
    other = make(tmp_path / "other")
    shares = [Stage({"tales": 0.7, "other": 0.3})]
    parts = {"other": Prepared(other, 64, FirstFit())}
    streamed, disk = (
        Mixture({"tales": Prepared(place, 64, FirstFit()), **parts}, shares)
        for place in (store.url, tales)
    )
    assert streamed.rows.reads_ahead
    assert not disk.rows.reads_ahead
    np.testing.assert_array_equal(rows(streamed, 20), rows(disk, 20))


def test_only_the_pieces_of_the_rows_are_read(store, tales):
    copy(tales, store)
    data = Prepared(store.url, 4096, Concatenate())
    tenth = data.num_rows // 10
    whole = sum(len(data) for key, data in store.objects.items() if key.endswith("tokens.npy"))
    found = rows(data, tenth, global_batch_size=1)
    assert len(np.unique(found[:, 0, :8], axis=0)) == tenth
    # Read ahead: those of eight batches, and those that Grain's thread has assembled.
    most = tenth + 8 + 4 + 1
    assert len(store.token_reads) <= most
    assert sum(store.token_reads) < most * 2 * (8192 + 16384)
    assert sum(store.token_reads) < whole / 2
    # Neighbours come in one request: a pass in order needs a request for a megabyte.
    del store.reads[:]
    assert (
        sum(len(batch["inputs"]) for batch in data.batches(global_batch_size=64)) >= data.num_rows
    )
    assert len(store.token_reads) < data.num_rows / 4


def test_the_cache_is_bounded_shared_and_survives(store, tales, tmp_path, monkeypatch):
    copy(tales, store)
    wanted = rows(Prepared(tales, 1024, Concatenate()), 100)
    folder = tmp_path / "cache" / "luthier" / "pieces"
    for limit, is_whole in ((1 << 20, False), (64 << 20, True)):
        monkeypatch.setenv("LUTHIER_DATA_CACHE_BYTES", str(limit))
        num_bytes = []
        for _ in range(2):
            del store.reads[:]
            data = Prepared(store.url, 1024, Concatenate())
            np.testing.assert_array_equal(rows(data, 100), wanted)
            (file,) = folder.iterdir()
            assert file.stat().st_size <= limit
            assert file.stat().st_blocks * 512 <= limit + 4096
            num_bytes.append(sum(store.token_reads))
        # But for what was on its way for the next batches when the first pass ended.
        assert (num_bytes[1] < num_bytes[0] / 4) == is_whole
    # In the full cache; the last bytes that were written are lost, as when a machine fails.
    os.truncate(file, file.stat().st_size // 2)
    np.testing.assert_array_equal(rows(Prepared(store.url, 1024, Concatenate()), 100), wanted)


def test_what_was_read_ahead_stays_in_a_small_cache_until_it_is_wanted(store, tales, monkeypatch):
    copy(tales, store)
    monkeypatch.setenv("LUTHIER_DATA_CACHE_BYTES", str(50 << 14))  # a fifth of the corpus
    steps, batch = 60, 8
    rows(Prepared(store.url, 2048, Concatenate()), steps, global_batch_size=batch)
    # A row of 4 KiB begins anywhere in a piece of 16 KiB, so it lies in 1.25 pieces on average.
    assert sum(store.token_reads) < 1.3 * steps * batch * (1 << 14)


def test_what_nobody_reads_any_more_does_not_stop_the_reading_ahead(store, tales, monkeypatch):
    """As after a jump of the position: another run of the same data begins elsewhere."""
    copy(tales, store)
    monkeypatch.setenv("LUTHIER_DATA_CACHE_BYTES", str(50 << 14))
    data = Prepared(store.url, 2048, Concatenate())
    for seed in range(5):
        rows(data, 3, global_batch_size=8, seed=seed)  # leaves what was read ahead
    chance, has_room = np.random.default_rng(0), []
    for _ in range(30):
        chosen = chance.choice(data.num_rows, 8, replace=False)
        has_room.append(data.rows.prefetch(chosen))
        data.rows.gather(chosen)
    assert sum(has_room[-15:]) > 10


@pytest.mark.parametrize("text", ["10G", "-1", "1e9"])
def test_a_bound_that_is_not_a_number_is_refused(store, tales, monkeypatch, text):
    copy(tales, store)
    monkeypatch.setenv("LUTHIER_DATA_CACHE_BYTES", text)
    with pytest.raises(DataError) as error:
        rows(Prepared(store.url, 1024, Concatenate()), 1)
    assert str(error.value) == (
        f"LUTHIER_DATA_CACHE_BYTES='{text}' is not a number of bytes; write a whole number, such "
        "as 10737418240"
    )


def test_without_a_cache_rows_are_read_again(store, tales, monkeypatch):
    copy(tales, store)
    monkeypatch.setenv("LUTHIER_DATA_CACHE_BYTES", "0")
    wanted = rows(Prepared(tales, 1024, Concatenate()), 20)
    np.testing.assert_array_equal(rows(Prepared(store.url, 1024, Concatenate()), 20), wanted)
    assert len(store.token_reads) <= (20 + 5) * 4


def test_a_store_that_fails_for_a_while_changes_nothing(store, tales, monkeypatch):
    copy(tales, store)
    monkeypatch.setattr(streaming, "_PAUSES", (0.01,))
    answers = iter([None, None, 403, None, 403, 403] * 5)
    wanted = rows(Prepared(tales, 1024, Concatenate()), 30)
    data = Prepared(store.url, 1024, Concatenate())
    assert data.num_rows
    store.refused_read = lambda key: next(answers, None)
    np.testing.assert_array_equal(rows(data, 30), wanted)
    assert next(answers, "all") == "all"


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda data: data[:500] + bytes(20000) + data[20500:], "differs from its checksums"),
        (lambda data: data[:500], "is shorter than the manifest has it"),
        (lambda data: None, "does not exist any more"),
    ],
    ids=["other", "short", "gone"],
)
def test_tokens_that_are_not_those_of_the_corpus_are_refused(store, tales, damage, what):
    copy(tales, store)
    data = Prepared(store.url, 1024, Concatenate())
    assert data.num_rows
    for key in [key for key in store.objects if key.endswith("tokens.npy")]:
        store.objects[key] = damage(store.objects[key])
        if store.objects[key] is None:
            del store.objects[key]
    with pytest.raises(DataError) as error:
        rows(data, 20)
    assert f"/tokens.npy {what}; prepare the corpus again" in str(error.value)
    assert error.value.exit_code == 2


def test_checksums_are_needed(store, tales):
    copy(tales, store)
    key = "corpora/tales/shard-00000/shard.json"
    content = json.loads(store.objects[key])
    for pieces in (None, {"bytes": 7}, {**content["pieces"], "crc32": "00"}):
        store.objects[key] = json.dumps({**content, "pieces": pieces}).encode()
        with pytest.raises(DataError, match=r"shard\.json: has no valid checksums of pieces"):
            rows(Prepared(store.url, 1024, Concatenate()), 1)


def test_a_run_verifies_pieces_and_not_the_corpus(store, tales, tmp_path):
    copy(tales, store)
    data = Prepared(store.url, 1024, Concatenate())
    with Verification(data, tmp_path, duty=1.0) as verification:
        assert verification.start() == []
        verification.check()
    assert not store.token_reads


def test_an_interrupted_preparation_is_no_corpus_and_continues(store):
    store.before_write = lambda key: 403 if "shard-00003/targets" in key else None
    with pytest.raises(DataError) as error:
        make(store.url)
    assert "shard-00003/targets.npy: " in str(error.value)
    assert str(error.value).endswith("rerun the command: it continues")
    with pytest.raises(DataError, match="only 3 of 5 shards are prepared; run the same `luthier"):
        Prepared(store.url, 16, FirstFit()).num_rows  # noqa: B018
    with pytest.raises(DataError, match="tales holds shards of another corpus"):
        make(store.url, texts=[*TEXTS[1:], "another"])
    written = []
    store.before_write = written.append
    make(store.url)
    assert {key.split("/")[2] for key in written} == {
        "shard-00003",
        "shard-00004",
        "manifest.json",
    }
    del written[:]
    make(store.url)
    assert not written


def test_of_two_preparations_of_other_corpora_one_is_refused(store):
    def meanwhile(key):
        if key.endswith("/layout.json"):
            store.before_write = lambda key: None
            make(store.url, texts=["another corpus"] * 20)

    store.before_write = meanwhile
    with pytest.raises(DataError, match="tales holds shards of another corpus"):
        make(store.url)
    assert verify(store.url)["documents"] == 20


def test_a_folder_with_something_else_is_not_written(store):
    store.objects["corpora/tales/notes.txt"] = b"mine"
    with pytest.raises(DataError, match=r"tales is not empty: notes\.txt; choose a new folder"):
        make(store.url)
    with pytest.raises(DataError, match="tales: not a prepared corpus"):
        Prepared(store.url, 16, FirstFit()).num_rows  # noqa: B018
    assert list(store.objects) == ["corpora/tales/notes.txt"]


@pytest.mark.full
def test_processes_prepare_together(store):
    source = Documents(TEXTS)
    layout = plan_layout(source, Bytes(), survey(source, Bytes()), 3)
    manifest = prepare(source, Bytes(), store.url, layout, num_processes=2)
    assert verify(store.url) == manifest


# Last: TensorStore still repeats the requests of this one for a while.


def test_a_store_that_stays_away_is_one_line_and_asks_for_a_restart(store, tales, monkeypatch):
    copy(tales, store)
    monkeypatch.setattr(streaming, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(streaming, "_PAUSES", (0.05,))
    monkeypatch.setattr(streaming, "Bucket", functools.partial(Bucket, stall_seconds=0.5))
    data = Prepared(store.url, 1024, Concatenate())
    assert len(rows(data, 1))
    store.refused_read = lambda key: 503
    with pytest.raises(StoreUnavailable) as error:
        rows(data, 300)
    line = str(error.value)
    assert line.startswith(f"{store.url}/shard-0000")
    assert line.endswith("minutes now; rerun the command when the store can be reached again")
    assert "\n" not in line
    assert error.value.exit_code == 75
