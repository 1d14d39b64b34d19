import json
import pickle

import pytest

from luthier.data import Field, HuggingFace
from luthier.errors import DataError

pa = pytest.importorskip("pyarrow")
TEXTS = [f"text {number} " * (number % 7) for number in range(50)]


def write(folder, texts=TEXTS, **state):
    """Write what `datasets.Dataset.save_to_disk` writes."""
    folder.mkdir(parents=True)
    names = []
    for shard, part in enumerate((texts[:30], texts[30:])):
        name = f"data-{shard:05d}-of-00002.arrow"
        table = pa.table({"text": part, "label": [len(text) for text in part]})
        path = str(folder / name)
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
        names.append({"filename": name})
    content = {"_data_files": names, "_fingerprint": "f", "_split": None, **state}
    (folder / "state.json").write_text(json.dumps(content))
    info = {"features": {"text": {"dtype": "string", "_type": "Value"}}}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def test_reading(tmp_path):
    records = HuggingFace(str(write(tmp_path / "set")))
    assert len(records) == 50
    assert [records[index]["text"] for index in range(50)] == TEXTS
    assert records.name(41).endswith("data-00001-of-00002.arrow: row 11")
    assert records.features["text"]["dtype"] == "string"
    source = pickle.loads(pickle.dumps(Field(records)))
    assert list(source.read(0, 50)) == [text.encode() for text in TEXTS]


def test_splits(tmp_path):
    write(tmp_path / "set" / "train")
    write(tmp_path / "set" / "test", TEXTS[:31])
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert len(HuggingFace(str(tmp_path / "set"), "test")) == 31
    for split in ("", "tests"):
        with pytest.raises(DataError, match="it has train, test"):
            len(HuggingFace(str(tmp_path / "set"), split))


def test_a_split_where_there_is_none(tmp_path):
    with pytest.raises(DataError, match="leave `split` empty"):
        len(HuggingFace(str(write(tmp_path / "set")), "train"))


def test_rows_chosen_by_an_index_are_refused(tmp_path):
    write(tmp_path / "set", _indices_data_files=[{"filename": "indices.arrow"}])
    with pytest.raises(DataError, match="flatten_indices"):
        len(HuggingFace(str(tmp_path / "set")))


def test_other_folders(tmp_path):
    with pytest.raises(DataError, match="name a folder that `save_to_disk` wrote"):
        len(HuggingFace(str(tmp_path)))


def test_damage_is_named(tmp_path):
    folder = write(tmp_path / "set")
    path = folder / "data-00001-of-00002.arrow"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"data-00001-of-00002\.arrow: damaged from row \d+"):
        len(HuggingFace(str(folder)))
    path.write_bytes(b"\0" * 40)
    with pytest.raises(DataError, match=r"data-00001-of-00002\.arrow"):
        len(HuggingFace(str(folder)))
    path.unlink()
    with pytest.raises(DataError, match=r"data-00001-of-00002\.arrow: cannot be read"):
        len(HuggingFace(str(folder)))


def test_text_that_is_no_longer_text(tmp_path):
    folder = write(tmp_path / "set")
    path = folder / "data-00000-of-00002.arrow"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"text 16 ", b"tex\xff 16 "))
    with pytest.raises(DataError, match=r"data-00000-of-00002\.arrow: damaged from row \d+"):
        len(HuggingFace(str(folder)))
