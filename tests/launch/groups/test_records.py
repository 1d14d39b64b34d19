from luthier.launch import Here, Job, Slurm, engine_of, launches, make_launch, new_folder


def test_launches_are_numbered_and_kept(tmp_path):
    first, second = new_folder(tmp_path), new_folder(tmp_path)
    assert (first, second) == (tmp_path / "launch" / "1", tmp_path / "launch" / "2")
    assert (second / "logs").is_dir()
    engine = Slurm(nodes=2, options={"qos": "high"}, setup=["module load x"])
    job = Job("slurm", "12", "group", str(first))
    made = make_launch(first, engine, "luthier train x", ["nodes = 2  [--on]"], [job])
    make_launch(second, Here(), "luthier train x", [], [])
    found = launches(tmp_path)
    assert [launch.engine for launch in found] == ["slurm", "local"]
    assert found[0].jobs == (job,)
    assert found[0].of == tmp_path
    assert (found[0].command, found[0].settings) == (made.command, ["nodes = 2  [--on]"])
    assert engine_of(found[0]) == engine


def test_a_launch_from_before_process_groups_had_their_name_is_read(tmp_path):
    path = new_folder(tmp_path)
    engine = Slurm(nodes=2, groups_per_job=2, setup=["module load x"])
    made = make_launch(path, engine, "luthier sweep x", [], [Job("slurm", "1", "a", "/d")])
    text = (path / "jobs.json").read_text()
    old = text.replace('"group"', '"gang"').replace('"groups_per_job"', '"gangs_per_job"')
    assert old != text
    (path / "jobs.json").write_text(old)
    (found,) = launches(tmp_path)
    assert found.jobs == made.jobs
    assert engine_of(found) == engine


def test_a_run_that_was_never_launched(tmp_path):
    assert launches(tmp_path) == []
