from __future__ import annotations

import shutil

import pytest

from luthier.checkpoint import require_space
from luthier.errors import CheckpointError


def test_enough_space_is_no_error_also_where_nothing_is_yet(tmp_path):
    require_space(tmp_path / "runs" / "a" / "checkpoints", 1)
    assert list(tmp_path.iterdir()) == []


def test_too_little_says_how_much_and_what_to_do(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(CheckpointError, match=r"need \d+\.\d TiB and .* is free.*keep fewer"):
        require_space(tmp_path, free + (1 << 41))
