import numpy as np
import pytest

from luthier.data import Concatenate, Documents, Packed, TrainedBpe, train_bpe
from luthier.errors import DataError

TEXT = "To be, or not to be: that is the question. Whether 'tis nobler in the mind, naïve 東京 🎻 "
SOURCE = Documents([TEXT * 20, b"\xff\xfe not text \xc3", "to suffer the slings and arrows"])


def test_it_is_the_vocabulary_that_would_be_written(tmp_path):
    written = train_bpe(SOURCE, 300, str(tmp_path / "bpe.json"))
    learned = TrainedBpe(SOURCE, 300)
    assert learned.vocab_size == written.vocab_size == len(learned.byte_lengths) == 300
    assert (learned.bos, learned.eos) == (written.bos, written.eos)
    assert learned.encode(TEXT) == written.encode(TEXT)
    np.testing.assert_array_equal(learned.byte_lengths, written.byte_lengths)


def test_each_process_learns_the_same():
    first, second = TrainedBpe(SOURCE, 290), TrainedBpe(SOURCE, 290)
    assert first == second
    assert first._pieces == second._pieces


def test_the_size_is_known_before_anything_is_read():
    assert TrainedBpe(Documents([]), 4000).vocab_size == 4000


def test_text_round_trips_and_is_shorter():
    learned = TrainedBpe(SOURCE, 320, bos_token="<a>", eos_token="<b>")
    assert learned.decode_bytes(learned.encode(b"\xff" + TEXT.encode())) == b"\xff" + TEXT.encode()
    assert len(learned.encode(TEXT)) < 0.6 * len(TEXT.encode())


def test_rows_count_every_byte():
    packed = Packed(SOURCE, TrainedBpe(SOURCE, 300), length=16, packing=Concatenate())
    total = sum(int(batch["target_bytes"].sum()) for batch in packed.batches(global_batch_size=4))
    assert total == sum(len(SOURCE[index]) for index in range(len(SOURCE)))


def test_a_size_beyond_the_text_is_one_line():
    with pytest.raises(DataError, match="the corpus has only enough for"):
        TrainedBpe(SOURCE, 4096).encode("a")
