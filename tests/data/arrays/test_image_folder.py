import numpy as np
import pytest

from luthier.data import Classification, ImageFolder
from luthier.errors import DataError

image = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    pixels = {}
    for name, count in (("cat", 2), ("ape", 3)):
        (tmp_path / name).mkdir()
        for number in range(count):
            pixels[name, number] = random.integers(0, 256, (4, 5, 3), np.uint8)
            image.fromarray(pixels[name, number]).save(tmp_path / name / f"{number}.png")
    (tmp_path / "cat" / "notes.txt").write_text("")
    return tmp_path, pixels


def test_images_by_class(folder):
    path, pixels = folder
    source = ImageFolder(str(path), 4, 5)
    assert source.classes == ("ape", "cat")
    assert source.labels.tolist() == [0, 0, 0, 1, 1]
    expected = np.stack([pixels["cat", 1], pixels["ape", 0]]).astype(np.float32) / 255
    np.testing.assert_array_equal(source.inputs(np.array([4, 0])), expected)


def test_other_sizes_and_gray(folder):
    path, _ = folder
    source = ImageFolder(str(path), 8, 6, channels=1)
    found = source.inputs(np.arange(5))
    assert found.shape == (5, 8, 6, 1)
    assert 0 <= found.min() < found.max() <= 1


def test_it_feeds_classification(folder):
    data = Classification(ImageFolder(str(folder[0]), 4, 5), num_threads=2)
    batches = list(data.batches(global_batch_size=4))
    assert [batch["weights"].sum() for batch in batches] == [4, 1]
    next(data.iterator(global_batch_size=4, seed=0))


def test_a_damaged_image_is_named(folder):
    path, _ = folder
    (path / "ape" / "1.png").write_bytes((path / "ape" / "1.png").read_bytes()[:60])
    with pytest.raises(DataError, match=r"ape.1\.png: not an image that can be read"):
        ImageFolder(str(path), 4, 5).inputs(np.arange(3))


def test_the_digest_sees_changed_files(folder):
    path, _ = folder
    before = ImageFolder(str(path), 4, 5).digest
    assert ImageFolder(str(path), 4, 5).digest == before
    (path / "cat" / "0.png").rename(path / "cat" / "9.png")
    assert ImageFolder(str(path), 4, 5).digest != before


def test_folders_without_images(tmp_path):
    with pytest.raises(DataError, match="has no folders"):
        ImageFolder(str(tmp_path), 4, 4).labels  # noqa: B018
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="no images"):
        ImageFolder(str(tmp_path), 4, 4).labels  # noqa: B018
    with pytest.raises(DataError, match="cannot be read"):
        ImageFolder(str(tmp_path / "none"), 4, 4).labels  # noqa: B018
