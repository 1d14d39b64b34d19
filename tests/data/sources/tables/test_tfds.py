import io
import json

import numpy as np
import pytest
from array_record.python import array_record_module

from luthier.data import Tfds
from luthier.errors import DataError
from tests.data.sources.containers.test_tf_record import framed
from tests.data.sources.tables.test_tf_example import example

FEATURES = {
    "label": {"classLabel": {"numClasses": "3"}},
    "text": {"text": {}},
    "scores": {"tensor": {"shape": {"dimensions": ["2", "2"]}, "dtype": "float64"}},
    "words": {"sequence": {"feature": {"text": {}}}},
    "ids": {"sequence": {"feature": {"tensor": {"shape": {}, "dtype": "int32"}}}},
    "inner": {
        "featuresDict": {
            "features": {"flag": {"tensor": {"shape": {}, "dtype": "bool", "encoding": "none"}}}
        }
    },
}


def record(number):
    return example(
        label=[number % 3],
        text=[f"text {number}".encode()],
        scores=[0.0, 1.0, 2.0, float(number)],
        words=[b"a", b"b"][: number % 3],
        ids=[number] * 3,
        **{"inner/flag": [number % 2]},
    )


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(folder, kind, features=FEATURES, make=record):
    folder.mkdir(exist_ok=True)
    info = {"fileFormat": kind, "splits": [{"name": "train"}, {"name": "test"}]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text(json.dumps({"featuresDict": {"features": features}}))
    for split, count in (("train", 20), ("test", 6)):
        for shard in range(2):
            path = folder / f"toy-{split}.{kind}-{shard:05d}-of-00002"
            rows = [make(number) for number in range(shard * count // 2, (shard + 1) * count // 2)]
            if kind == "tfrecord":
                path.write_bytes(b"".join(map(framed, rows)))
            else:
                writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
                for row in rows:
                    writer.write(row)
                writer.close()
    return str(folder)


@pytest.mark.parametrize("kind", ["tfrecord", "array_record"])
def test_reading(tmp_path, kind):
    records = Tfds(write(tmp_path / "1.0.0", kind))
    assert len(records) == 20
    for number in (0, 7, 13, 19):
        found = records[number]
        assert found["label"] == number % 3
        assert found["text"] == f"text {number}".encode()
        np.testing.assert_array_equal(found["scores"], [[0.0, 1.0], [2.0, number]])
        assert found["scores"].dtype == np.float64
        assert found["words"] == [b"a", b"b"][: number % 3]
        np.testing.assert_array_equal(found["ids"], np.full(3, number, np.int32))
        assert found["inner"]["flag"] == bool(number % 2)
    assert len(Tfds(str(tmp_path / "1.0.0"), "test")) == 6
    assert records.name(10).endswith("00001-of-00002: record 0")


def test_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    buffer = io.BytesIO()
    image.fromarray(pixels).save(buffer, "png")
    features = {"image": {"image": {"shape": {"dimensions": ["4", "5", "3"]}}}}
    folder = write(
        tmp_path / "1.0.0", "tfrecord", features, lambda _: example(image=[buffer.getvalue()])
    )
    np.testing.assert_array_equal(Tfds(folder)[0]["image"], pixels)


def test_errors(tmp_path):
    folder = write(tmp_path / "1.0.0", "tfrecord")
    with pytest.raises(DataError, match=r"no split 'tran'; did you mean train"):
        len(Tfds(folder, "tran"))
    with pytest.raises(DataError, match="name the folder of a version"):
        len(Tfds(str(tmp_path)))
    write(tmp_path / "1.0.0", "tfrecord", {"more": {"text": {}}})
    with pytest.raises(DataError, match=r"record 3 does not fit features.json: no feature 'more'"):
        Tfds(folder)[3]
    write(tmp_path / "1.0.0", "tfrecord", {"text": {"pythonClassName": "a.b.Video", "video": {}}})
    with pytest.raises(DataError, match="a kind that cannot be read: Video"):
        Tfds(folder)[3]


def test_a_flipped_byte_is_found_and_named(tmp_path):
    folder = write(tmp_path / "1.0.0", "tfrecord")
    path = tmp_path / "1.0.0" / "toy-train.tfrecord-00001-of-00002"
    content = bytearray(path.read_bytes())
    content[40] ^= 4
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"toy-train\.tfrecord-00001-of-00002: record 0 is damaged"):
        Tfds(folder)[10]
