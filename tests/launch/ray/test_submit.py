from luthier.errors import Problem, RunError
from luthier.launch import ray
from luthier.launch.engine import Job


def test_jobs_are_named(monkeypatch, tmp_path, capsys):
    asked = []

    def handed_over(path):
        asked.append(path)
        return [Job("ray", "lab-0-ab", "lab-0", ""), Job("ray", "lab-1-cd", "lab-1", "")]

    monkeypatch.setattr(ray, "submit_file", handed_over)
    assert ray.main([str(tmp_path / "groups.json")]) == 0
    assert asked == [tmp_path / "groups.json"]
    assert capsys.readouterr().out == "lab-0-ab\nlab-1-cd\n"


def test_what_the_cluster_refuses_is_one_line(monkeypatch, capsys):
    def refuse(path):
        raise RunError(Problem("the Ray cluster at auto does not answer"))

    monkeypatch.setattr(ray, "submit_file", refuse)
    assert ray.main(["groups.json"]) == 2
    assert capsys.readouterr().err == "luthier: the Ray cluster at auto does not answer\n"


def test_wrong_arguments_print_the_usage(capsys):
    assert ray.main([]) == 2
    assert capsys.readouterr().err.startswith("usage: python -m luthier.launch.ray ")
