import dataclasses

from luthier.launch.doctor import Examination, findings

WELL = Examination(0, "n0", "8 x TPU v5e", 1.5e14, 7e11, 9e10, 5e8, 6e8, True, 0.0, 0.0)


def _host(index, **changes):
    return dataclasses.replace(WELL, process=index, host=f"n{index}", **changes)


def test_hosts_that_are_alike_are_well():
    assert findings([WELL]) == []
    assert findings([WELL, _host(1, matmul_flops=1.4e14), _host(2, disk_read_bytes=5e8)]) == []


def test_what_is_ill_is_named_with_its_figures():
    hosts = [
        WELL,
        _host(1, matmul_flops=1.0e14),
        _host(2, memory_bytes=4e11, disk_write_bytes=1e8),
        _host(3, clock_skew_seconds=-3.21, clock_uncertainty_seconds=0.1, sees_directory=False),
        _host(4, clock_skew_seconds=1.05, clock_uncertainty_seconds=0.2),
        _host(5, clock_skew_seconds=61.0, clock_uncertainty_seconds=0.2),
    ]
    assert findings(hosts) == [
        "process 1 on n1: its product of matrices is slow: 100 TFLOP/s, the others 150",
        "process 2 on n2: its memory is slow: 400 GB/s, the others 700",
        "process 2 on n2: writing to its disk is slow: 100 MB/s, the others 500",
        "process 3 on n3: the directory is on a disk of its own, not on that of process 0",
        "process 3 on n3: its clock is 3.2 s behind that of process 0",
        "process 5 on n5: its clock is 61.0 s ahead of that of process 0",
    ]
