import base64
import json as real
import sys

import pytest

from luthier import data
from luthier.data.requirements import require
from luthier.errors import DataError


def test_a_library_that_is_there():
    assert require("json", "never", "reading JSON") is real


def test_a_library_that_is_missing_is_one_line():
    with pytest.raises(DataError) as error:
        require("no_such_library.part", "parquet", "reading Parquet")
    (problem,) = error.value.problems
    assert "reading Parquet needs no_such_library" in problem.what
    assert problem.remedy == "pip install 'luthier[parquet]'"


SPECIALS = {"<|endoftext|>": 999}
RECORDS = data.Decoded(data.Documents(["a"]), lambda record: {"image": record, "label": 0})


@pytest.mark.parametrize(
    ("use", "module", "extra"),
    [
        (lambda path: len(data.Parquet(path)), "pyarrow", "parquet"),
        (lambda path: len(data.Bagz(path)), "bagz", "bagz"),
        (lambda path: len(data.ArrayRecord(path)), "array_record", "array-record"),
        (lambda path: data.SentencePiece(path).bos, "sentencepiece", "sentencepiece"),
        (lambda path: data.Tiktoken(path, "x", SPECIALS).encode("a"), "tiktoken", "tiktoken"),
        (lambda path: data.RecordExamples(RECORDS, (1, 1, 1), 1).digest, "PIL", "images"),
    ],
)
def test_each_reader_says_which_extra_it_needs(tmp_path, monkeypatch, use, module, extra):
    path = tmp_path / "file"
    path.write_bytes(b"".join(b"%s %d\n" % (base64.b64encode(bytes([b])), b) for b in range(256)))
    names = {name for name in sys.modules if name.partition(".")[0] == module}
    for name in names | {module}:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DataError) as error:
        use(str(path))
    (problem,) = error.value.problems
    assert f"needs {module}" in problem.what
    assert problem.remedy == f"pip install 'luthier[{extra}]'"
