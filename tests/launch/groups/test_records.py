from luthier.launch import Here, Job, Slurm, jobs, settings


def test_launches_are_numbered_and_kept(tmp_path):
    first, second = jobs.new_folder(tmp_path), jobs.new_folder(tmp_path)
    assert (first, second) == (tmp_path / "launch" / "1", tmp_path / "launch" / "2")
    assert (second / "logs").is_dir()
    engine = Slurm(nodes=2, options={"qos": "high"}, setup=["module load x"])
    job = Job("slurm", "12", "group", str(first))
    made = jobs.make_launch(first, engine, "luthier train x", ["nodes = 2  [--on]"], [job])
    jobs.make_launch(second, Here(), "luthier train x", [], [])
    found = jobs.launches(tmp_path)
    assert [launch.engine for launch in found] == ["slurm", "local"]
    assert found[0].jobs == (job,)
    assert found[0].of == tmp_path
    assert (found[0].command, found[0].settings) == (made.command, ["nodes = 2  [--on]"])
    assert settings.engine_of(found[0]) == engine


def test_a_launch_from_before_process_groups_had_their_name_is_read(tmp_path):
    path = jobs.new_folder(tmp_path)
    engine = Slurm(nodes=2, groups_per_job=2, setup=["module load x"])
    made = jobs.make_launch(path, engine, "luthier sweep x", [], [Job("slurm", "1", "a", "/d")])
    text = (path / jobs.JOBS).read_text()
    old = text.replace('"group"', '"gang"').replace('"groups_per_job"', '"gangs_per_job"')
    assert old != text
    (path / jobs.JOBS).write_text(old)
    (found,) = jobs.launches(tmp_path)
    assert found.jobs == made.jobs
    assert settings.engine_of(found) == engine


def test_a_run_that_was_never_launched(tmp_path):
    assert jobs.launches(tmp_path) == []
