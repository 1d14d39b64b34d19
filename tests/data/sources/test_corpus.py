import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.data import Documents, Split, corpus
from luthier.errors import DataError


def parts(source, fraction=0.1):
    return [Split(source, split, fraction) for split in ("train", "held_out")]


def texts(source):
    return list(source.read(0, len(source)))


@given(st.integers(2, 60), st.floats(0.01, 0.99))
def test_every_document_is_in_one_part_and_both_keep_the_order(number, fraction):
    documents = [f"{index}".encode() for index in range(number)]
    train, held_out = (texts(part) for part in parts(Documents(documents), fraction))
    assert sorted(train + held_out, key=int) == documents
    assert train == sorted(train, key=int)
    assert len(held_out) == min(max(1, round(fraction * number)), number - 1)


def test_held_out_documents_are_the_last_of_equal_stretches():
    train, held_out = parts(Documents([f"{index}" for index in range(25)]), 0.2)
    assert texts(held_out) == [b"4", b"9", b"14", b"19", b"24"]
    assert [train[index] for index in (3, 4)] == [b"3", b"5"]
    assert (train.name(4), len(train)) == ("document 6", 20)
    assert list(train.read(2, 6)) == [b"2", b"3", b"5", b"6"]
    for index in (-1, 20):
        with pytest.raises(IndexError):
            train[index]


@given(st.text("ab\n\u00e9\u6f22", min_size=2, max_size=80), st.floats(0.05, 0.6))
def test_one_document_is_cut_without_a_loss_and_between_characters(text, fraction):
    document = text.encode()
    train, held_out = parts(Documents([document]), fraction)
    try:
        both = [train[0], held_out[0]]
    except DataError:
        return  # a single character is left
    assert b"".join(both) == document
    assert "".join(part.decode() for part in both) == text
    # A line break, or a character, may be up to as far before the cut as that is from the end.
    assert len(both[1]) <= 2 * max(1, round(fraction * len(document))) + 3


def test_the_end_of_one_document_is_held_out_from_a_line_break_on():
    document = "".join(f"line {number:02}\n" for number in range(50))
    train, held_out = parts(Documents([document]), 0.1)
    assert held_out[0].decode() == "".join(f"line {number:02}\n" for number in range(45, 50))
    assert texts(train)[0].endswith(b"line 44\n")
    with pytest.raises(DataError, match="document 1: 1 bytes are too few to hold out a part"):
        Split(Documents(["a"]), "train")[0]


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_kind_of_the_files_decides_how_they_are_read(tmp_path):
    rows = "".join(json.dumps({"id": n, "body": f"text {n}"}) + "\n" for n in range(10))
    write(tmp_path, notes_dot_txt="a\n" * 20, rows_dot_jsonl=rows)
    write(tmp_path, books__a_dot_txt="a", books__deep__b_dot_txt="b", books__README_dot_md="c")
    train, held_out = corpus(str(tmp_path / "notes.txt"))
    assert (train[0], held_out[0]) == (b"a\n" * 18, b"a\n" * 2)
    train, held_out = corpus(str(tmp_path / "books"))
    assert (texts(train), texts(held_out)) == ([b"a"], [b"b"])
    train, held_out = corpus(str(tmp_path / "rows.jsonl"), fraction=0.2)
    assert texts(held_out) == [b"text 4", b"text 9"]
    assert len(corpus(str(tmp_path / "*.jsonl"), "body")[0]) == 9


def test_files_that_are_named_after_splits_are_split_so(tmp_path):
    write(tmp_path, data__train_dot_jsonl='{"text": "a"}\n', data__test_dot_jsonl='{"text": "b"}\n')
    train, held_out = corpus(str(tmp_path))
    assert (texts(train), texts(held_out)) == ([b"a"], [b"b"])
    # Not where other files would be left out.
    write(tmp_path, data__more_dot_jsonl='{"text": "c"}\n')
    assert sum(map(len, corpus(str(tmp_path)))) == 3


def test_columns_of_parquet_files_and_of_saved_datasets(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    table = arrow.table({"id": list(range(20)), "body": [f"row {n}" for n in range(20)]})
    (tmp_path / "rows").mkdir()
    parquet.write_table(table, tmp_path / "rows" / "part-0.parquet")
    train, held_out = corpus(str(tmp_path / "rows"))
    assert texts(held_out) == [b"row 9", b"row 19"]
    assert len(train) == 18

    saved = tmp_path / "saved"
    for split, rows in (("train", table.slice(0, 15)), ("validation", table.slice(15))):
        (saved / split).mkdir(parents=True)
        path = str(saved / split / "data.arrow")
        with arrow.OSFile(path, "wb") as file, arrow.ipc.new_stream(file, rows.schema) as writer:
            writer.write_table(rows)
        features = {"id": {"dtype": "int64"}, "body": {"dtype": "string"}}
        files = [{"filename": "data.arrow"}]
        (saved / split / "state.json").write_text(json.dumps({"_data_files": files}))
        (saved / split / "dataset_info.json").write_text(json.dumps({"features": features}))
    (saved / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation"]}))
    train, held_out = corpus(str(saved))
    assert (len(train), texts(held_out)[0]) == (15, b"row 15")
    train, held_out = corpus(str(saved / "train"))
    assert (len(train), texts(held_out)) == (13, [b"row 6", b"row 14"])


@pytest.mark.parametrize(
    ("path", "field", "message"),
    [
        ("nots.txt", "", r"no file matches .*nots.txt'; did you mean notes.txt"),
        ("empty", "", r"has no files that end in .parquet, .* \(it has .csv\); name its files"),
        ("two.jsonl", "", r"two.jsonl has several fields of text: a, b; choose one with `field`"),
        ("none.jsonl", "", "none.jsonl has no field of text"),
        ("broken.jsonl", "", "broken.jsonl:1: not JSON: "),
    ],
)
def test_text_that_cannot_be_found_is_one_problem(tmp_path, path, field, message):
    write(tmp_path, notes_dot_txt="a", empty__a_dot_csv="a", two_dot_jsonl='{"a": "", "b": ""}')
    write(tmp_path, none_dot_jsonl='{"a": 1}', broken_dot_jsonl="{")
    with pytest.raises(DataError, match=message) as error:
        corpus(str(tmp_path / path), field)
    assert len(error.value.problems) == 1
