"""The C4 data of Pax: its files, its vocabulary, and its rules of rows.

Paxml 1.4.0, `tasks/lm/params/c4.py` (`C4UnsupervisedDataset`).
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import data
from luthier.graph import add

FOLDER = "gs://mlperf-llm-public2"


def c4_training(
    *, length: Any, folder: Any = FOLDER, documents_per_group: Any = 4096
) -> fdl.Config[data.Packed]:
    """Return the training rows of C4 as Pax cuts them.

    The text is read and tokenized when training begins, which suits small corpora. Prepare a large
    one with `luthier data prepare DIR --experiment REF`, and let `data.Prepared` take the place of
    `data.Packed`, with the same packing.

    Args:
      length: Tokens of a row.
      folder: Holds `c4/en/3.0.4`, as TFDS writes it with split `train2`, and the vocabulary.
      documents_per_group: Documents that are joined before they are cut.

    Source: paxml 1.4.0, `c4_lm_v301_gpt` and `C4UnsupervisedDataset`.
    """
    records = fdl.Config(data.Tfds, folder=add(folder, "/c4/en/3.0.4"), split="train2")
    shift = fdl.Config(data.ShiftLeft, end=1)
    return fdl.Config(
        data.Packed,
        source=fdl.Config(data.Field, records=records, field="text"),
        tokenizer=c4_vocabulary(folder),
        length=length,
        packing=fdl.Config(data.SplitTokens, shift=shift, documents_per_group=documents_per_group),
    )


def c4_validation(*, length: Any, folder: Any = FOLDER) -> fdl.Config[data.Pretokenized]:
    """Return the validation rows of C4, whose records are tokens: one a row, not packed.

    Args:
      length: Tokens of a row; what is beyond is left out.
      folder: Holds `c4/en/3.0.5`, as TFDS writes it with split `validation_tokenized_5662seqs`,
        and the vocabulary.

    Source: paxml 1.4.0, `c4_lm_v301_gpt_eval_tokenized` and `C4UnsupervisedDataset`.
    """
    split = "validation_tokenized_5662seqs"
    return fdl.Config(
        data.Pretokenized,
        records=fdl.Config(data.Tfds, folder=add(folder, "/c4/en/3.0.5"), split=split),
        tokenizer=c4_vocabulary(folder),
        length=length,
        packing=fdl.Config(data.TrimTokens, shift=fdl.Config(data.ShiftLeft, end=1)),
        field="ids",
    )


def c4_vocabulary(folder: Any = FOLDER) -> fdl.Config[data.SentencePiece]:
    """Return the vocabulary of Pax's C4: 0 is padding, 1 the end of a text.

    Args:
      folder: Holds `vocab/c4_en_301_5Mexp2_spm.model`.
    """
    path = add(folder, "/vocab/c4_en_301_5Mexp2_spm.model")
    return fdl.Config(data.SentencePiece, path=path, bos_token="</s>", eos_token="</s>")
