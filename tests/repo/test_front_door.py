"""The front door opens: the command, the README and CI say and do the same things."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml


def _code_blocks(text: str) -> list[str]:
    return re.findall(r"^```(?:bash|sh|console)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def _commands(text: str) -> list[str]:
    lines = "\n".join(_code_blocks(text)).replace("\\\n", " ").splitlines()
    lines = [re.sub(r"\s+#.*", "", line).strip() for line in lines]
    return [part.strip() for line in lines for part in line.split("&&") if part.strip()]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["train", "--help"]])
def test_python_dash_m_luthier(arguments):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "luthier", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "luthier" in done.stdout
    assert not done.stderr


def test_the_readme_opens_with_the_two_commands(root):
    text = (root / "README.md").read_text()
    assert [block.strip() for block in _code_blocks(text)[:2]] == [
        "pip install -e '.[examples]' && luthier train configs.lm.quickstart",
        "pip install -e '.[test]' && pytest",
    ]
    assert len(text.splitlines()) <= 150


def test_ci_runs_the_readme_commands(root):
    """CI runs them as they are printed, in a fresh environment, before it installs anything."""
    first = [b.strip() for b in _code_blocks((root / "README.md").read_text())[:2]]
    lines = [line.strip() for line in (root / ".ci" / "run").read_text().splitlines()]
    places = [lines.index(f"run_as_printed {shlex.quote(command)}") for command in first]
    assert places == sorted(places)
    does = [i for i, line in enumerate(lines) if line.startswith(("pip install", "apt-get"))]
    assert does
    assert places[-1] < min(does)


def test_workflows_call_the_scripts_of_ci(root):
    """What runs on a server can be run on a desk: workflows only call `.ci/`."""
    workflows = sorted((root / ".github" / "workflows").glob("*.yml"))
    assert len(workflows) == 2
    for path in workflows:
        jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
        commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
        assert commands
        for command in commands:
            assert re.fullmatch(r"\.ci/\w+( --\w+)*", command), f"{path.name}: {command}"
            assert os.access(root / command.split()[0], os.X_OK)


def test_a_virtual_environment_in_the_clone_is_not_the_repositorys(files_below, tmp_path):
    for command in (["init", "-q"], ["config", "core.excludesFile", "none"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    for name in ("ours.py", "env-of-mine/pyvenv.cfg", "env-of-mine/lib/site-packages/theirs.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert files_below(tmp_path) == [tmp_path / "ours.py"]
    shutil.rmtree(tmp_path / ".git")
    assert files_below(tmp_path) == [tmp_path / "ours.py"]


def test_the_readme_names_commands_and_options_that_exist(root):
    from luthier.cli import COMMANDS, flag_names, parser_of

    documents = [root / "README.md", root / "CONTRIBUTING.md"]
    commands = [c for document in documents for c in _commands(document.read_text())]
    ours = [c.split() for c in commands if c.startswith("luthier ")]
    assert ours
    for words in ours:
        assert words[1] in COMMANDS, words
        parser = parser_of(words[1])
        known = {option for action in parser._actions for option in action.option_strings}
        known |= set(flag_names())
        used = {word.split("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)}
        assert used <= known, f"{' '.join(words)}: {used - known}"


def test_the_readme_names_files_that_exist(root):
    for document in ("README.md", "CONTRIBUTING.md"):
        links = re.findall(r"\]\(([^)#:]+)\)", (root / document).read_text())
        gone = [link for link in links if not (root / link).exists()]
        assert not gone, f"{document} points to {gone}"


def test_every_extra_that_is_named_exists(root):
    settings = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    text = "".join((root / d).read_text() for d in ("README.md", "CONTRIBUTING.md"))
    named = {e for group in re.findall(r"\.\[([a-z,-]+)\]", text) for e in group.split(",")}
    assert named <= set(settings["optional-dependencies"])


def test_the_version_is_written_once(root):
    import luthier

    settings = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert luthier.__version__ == settings["version"]
    assert settings["version"] in (root / "CHANGELOG.md").read_text()
    citation = yaml.safe_load((root / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (settings["version"], settings["license"])
    assert citation["authors"] == settings["authors"]


def test_ci_is_executable_and_strict(root):
    script = root / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()


def test_the_licence_is_apache(root):
    text = (root / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
