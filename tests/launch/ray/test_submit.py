from luthier.errors import Problem, RunError
from luthier.launch.engine import Job
from luthier.launch.ray import submit


def test_jobs_are_named(monkeypatch, tmp_path, capsys):
    asked = []

    def handed_over(path):
        asked.append(path)
        return [Job("ray", "lab-0-ab", "lab-0", ""), Job("ray", "lab-1-cd", "lab-1", "")]

    monkeypatch.setattr(submit, "submit_file", handed_over)
    assert submit.main([str(tmp_path / "gangs.json")]) == 0
    assert asked == [tmp_path / "gangs.json"]
    assert capsys.readouterr().out == "lab-0-ab\nlab-1-cd\n"


def test_what_the_cluster_refuses_is_one_line(monkeypatch, capsys):
    def refuse(path):
        raise RunError(Problem("the Ray cluster at auto does not answer"))

    monkeypatch.setattr(submit, "submit_file", refuse)
    assert submit.main(["gangs.json"]) == 2
    assert capsys.readouterr().err == "luthier: the Ray cluster at auto does not answer\n"


def test_it_tells_how_it_is_called(capsys):
    assert submit.main([]) == 2
    assert capsys.readouterr().err.startswith("usage: python -m luthier.launch.ray.submit ")
