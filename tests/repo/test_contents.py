"""What no file of the repository may hold, and what experiment files must."""

from __future__ import annotations

import ast
import re

import pytest

# Spelled in pieces, so that this file does not hold what it looks for.
MACHINE_FOLDERS = ("root", "work", "home", "Users", "opt")
MACHINE_PATHS = ["/" + folder + r"/\w" for folder in MACHINE_FOLDERS]
REGISTRIES = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "npm" + "js.org",
    "index" + "-url",
    "proxy.go" + "lang.org",
    "ghcr" + ".io",
]
TEXT = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".json", ".cfg", ".ini", ".sh", ""}

HEADER = ("Paper", "Command", "Hardware", "Expected")
EXPERIMENT_FILE_LINES = 120


def _search(files, root, patterns):
    found = []
    for path in files:
        if path.suffix not in TEXT:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if any(re.search(pattern, line) for pattern in patterns):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()[:100]}")
    return found


@pytest.mark.full
def test_no_machine_paths(repository_files, root):
    found = _search(repository_files, root, MACHINE_PATHS)
    assert not found, "paths of one machine:\n" + "\n".join(found)


@pytest.mark.full
def test_no_registry_hosts(repository_files, root):
    found = _search(repository_files, root, [re.escape(host) for host in REGISTRIES])
    assert not found, "hosts of registries (the user's own settings decide):\n" + "\n".join(found)


def test_no_large_or_binary_files(repository_files, root):
    large = [p for p in repository_files if p.stat().st_size > 200_000]
    # Runs and a study of an earlier version, which nothing can write any more.
    large = [p for p in large if p.name != "first_round.tar.xz"]
    assert not large, [str(p.relative_to(root)) for p in large]


def test_pre_commit_hooks_are_local(root):
    text = (root / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo:\s*(\S+)", text) == ["local"]
    assert "://" not in text


def _experiment_files(root):
    return [p for p in sorted((root / "configs").rglob("*.py")) if p.name != "__init__.py"]


def test_there_is_an_experiment(root):
    assert root / "configs" / "lm" / "quickstart.py" in _experiment_files(root)


def test_experiment_files_have_their_header(root):
    problems = []
    for path in _experiment_files(root):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        place = path.relative_to(root)
        problems += [
            f"{place}: no `{word}:` in the header"
            for word in HEADER
            if not re.search(rf"^\s*{word}\b[^:\n]*:", docstring, flags=re.MULTILINE)
        ]
        reference = ".".join(place.with_suffix("").parts)
        if reference not in docstring:
            problems.append(f"{place}: the header's command does not name {reference}")
    assert not problems, "\n".join(problems)


def test_experiment_files_are_short_and_plain(root):
    problems = []
    for path in _experiment_files(root):
        text = path.read_text()
        tree = ast.parse(text)
        if text.count("\n") > EXPERIMENT_FILE_LINES:
            problems.append(f"{path.name}: {text.count(chr(10))} lines > {EXPERIMENT_FILE_LINES}")
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        if "experiment" not in [function.name for function in functions]:
            problems.append(f"{path.name}: no function `experiment`")
        problems += [
            f"{path.name}:{function.lineno} {function.name}: no docstring"
            for function in functions
            if not function.name.startswith("_") and not ast.get_docstring(function)
        ]
        if any(isinstance(node, ast.ClassDef) for node in ast.walk(tree)):
            problems.append(f"{path.name}: defines a class (a graph may not point into configs)")
    assert not problems, "\n".join(problems)
