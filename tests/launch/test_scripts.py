"""Scripts and manifests of all engines: what a folder is called is never run."""

import os
import shlex
import subprocess

import pytest
import yaml

from luthier.errors import BadInput
from luthier.launch import Here, Kubernetes, ProcessGroup, Ray, Slurm, TpuVm

ENGINES = [Here(), Slurm(), Kubernetes(image="i"), Ray(), TpuVm(tpu="t", zone="z")]
EVIL = ("a b$(touch PWN)", "a`touch PWN`", "a';touch PWN;'", "a|touch PWN;#", "a&&touch PWN")


def _group(directory, working_directory="/project", environment=()):
    return ProcessGroup("lab", ["-V"], directory, working_directory, dict(environment))


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("control", ["\ntouch PWN\n", "\rtouch PWN", "\x1b]0;", "\u2028"])
def test_folders_with_control_characters_are_refused(engine, control):
    evil, good = f"/runs/a{control}b", "/runs/ab"
    for directory, group in (
        (evil, _group(evil)),
        (good, _group(good, f"/project{control}")),
        (good, _group(good, environment={f"A{control}": "b"})),
    ):
        with pytest.raises(BadInput) as refusal:
            engine.files([group], directory)
        assert str(refusal.value).startswith(f"{engine.name}: ")
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("name", EVIL)
def test_folders_with_signs_of_shells_are_names(engine, name, tmp_path):
    """The rendered script, and the command that submits it, run nothing that a name says."""
    place = tmp_path / name
    (place / "logs").mkdir(parents=True)
    programs = tmp_path / "programs"
    programs.mkdir()
    for program in ("srun", "squeue", "scontrol", "gcloud", "kubectl", "sbatch", "setsid", "tee"):
        (programs / program).write_text("#!/bin/bash\nexit 0\n")
        (programs / program).chmod(0o755)
    group = _group(str(place), str(place), {"A": name})
    if engine.name == "slurm" and "'" in name:  # sbatch has quotes of its own
        with pytest.raises(BadInput, match="leave out quotes"):
            engine.files([group], str(place))
        return
    files = engine.files([group], str(place))
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    scripts = [shlex.join(engine.command(str(place)))]
    for text in files.values():
        if engine.name in ("local", "slurm", "tpu-vm"):
            scripts.append(text)
        elif engine.name == "kubernetes":
            (document,) = yaml.safe_load_all(text)
            (job,) = document["spec"]["replicatedJobs"]
            (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
            scripts.append(container["command"][2].replace("exec python", "exec true"))
            assert container["env"] == [{"name": "A", "value": name}]
            scripts.append(text.splitlines()[0].partition("by hand: ")[2])
    for script in scripts:
        subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert not list(tmp_path.rglob("PWN"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("comment", "a\n#SBATCH --wrap=x"),
        ("comment", 'a" --wrap="x'),
        ("wrap\nx", "1"),
        ("qos x", "1"),
    ],
)
def test_options_of_sbatch_are_one_line_each(name, value):
    with pytest.raises(BadInput, match=r"^slurm: the option .* of sbatch cannot be "):
        Slurm(options={name: value}).files([_group("/runs/ab")], "/runs/ab")
