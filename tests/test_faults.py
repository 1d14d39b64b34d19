"""Tests of the classes of faults."""

import errno

import pytest

from luthier import errors, faults


def _raised_from(outer, inner):
    try:
        raise outer from inner
    except type(outer) as error:
        return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "place"),
        (OSError(errno.ESTALE, "Stale file handle"), "place"),
        (_raised_from(errors.RunError("cannot write"), OSError(errno.EIO, "EIO")), "place"),
        (ValueError("x: [Source locations: ...] OS error code: 28 No space left"), "place"),
        (RuntimeError("INTERNAL: NCCL operation ncclAllReduce failed"), "place"),
        (RuntimeError("INTERNAL: detail::cuda_graph_end_capture(s, &g) failed"), "place"),
        (RuntimeError("CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error"), "place"),
        (ConnectionResetError(), "place"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes"), "code"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "code"),
        (ValueError("boom in the model"), "code"),
        (errors.DataError("no file matches 'txt/*.txt'"), "data"),
        (errors.TrainingStopped("the loss is NaN"), "numeric"),
        (_raised_from(errors.CheckpointError("not saved"), errors.StoreError("403")), "place"),
        (errors.StoreUnavailable("no answer in 60 s"), "place"),
        (errors.VersionError("written by a later luthier"), "version"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_innermost_cause_decides_what_kind_of_fault_it_is(error, kind):
    assert faults.classify(error) is faults.Fault(kind)


def test_transient_faults_differ_from_permanent_ones():
    assert faults.is_transient(OSError(errno.EIO, ""))
    assert not faults.is_transient(OSError(errno.EROFS, ""))
    assert not faults.is_transient(ValueError("x"))


@pytest.mark.full
def test_chains_of_causes_end():
    error = ValueError("a")
    error.__cause__ = error
    assert list(faults.chain(error)) == [error]
