from luthier.launch import LIVE, ProcessGroup, Resources


def test_a_layout_counts_its_processes():
    assert Resources().num_processes == 1
    assert Resources(hosts=3, processes_per_host=4).num_processes == 12


def test_every_process_of_a_group_has_a_log_of_its_own():
    group = ProcessGroup("study-0", ["-m", "luthier"], "/shared/launch/1", "/project")
    assert str(group.log_path(0)) == "/shared/launch/1/logs/study-0-rank-0.log"
    assert str(group.log_path("%t")) == "/shared/launch/1/logs/study-0-rank-%t.log"


def test_what_is_over_is_not_live():
    assert LIVE == ("waiting", "running")
