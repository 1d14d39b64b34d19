from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from luthier.records import hash_package, read_source


def git(directory, *arguments):
    environment = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    command = ["git", "-c", "init.defaultBranch=trunk", *arguments]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, check=True)
    return done.stdout.decode().strip()


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / "inner").mkdir(parents=True)
    git(folder, "init")
    (folder / "model.py").write_text("dim = 8\n")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    return folder


def test_a_clean_repository(repository):
    source = read_source(directory=repository / "inner")
    assert source.git == {
        "root": str(repository.resolve()),
        "revision": git(repository, "rev-parse", "HEAD"),
        "branch": "trunk",
        "dirty": False,
        "untracked": [],
    }
    assert source.patch == ""
    assert list(source.files()) == ["source.json"]


def test_what_differs_from_the_revision_is_kept_as_a_patch(repository):
    (repository / "model.py").write_text("dim = 16  # größer\n")
    (repository / "new.py").write_text("")
    source = read_source(directory=repository)
    assert source.git["dirty"]
    assert source.git["untracked"] == ["new.py"]
    files = source.files()
    name = json.loads(files["source.json"])["git"]["patch"]
    assert set(files) == {"source.json", name}
    git(repository, "checkout", "model.py")
    (repository.parent / "changes").write_text(files[name], encoding="utf-8")
    git(repository, "apply", str(repository.parent / "changes"))
    assert (repository / "model.py").read_text() == "dim = 16  # größer\n"


def test_the_same_changes_have_the_same_hash(repository):
    hashes = set()
    for text in ("dim = 16\n", "dim = 32\n", "dim = 16\n"):
        (repository / "model.py").write_text(text)
        hashes.add(read_source(directory=repository).git["patch_sha256"])
    assert len(hashes) == 2


def test_a_repository_without_commits(tmp_path):
    git(tmp_path, "init")
    (tmp_path / "a.py").write_text("")
    source = read_source(directory=tmp_path)
    assert source.git["revision"] == ""
    assert source.git["untracked"] == ["a.py"]


def test_without_a_repository_or_without_git(tmp_path, monkeypatch):
    assert read_source(directory=tmp_path).git == {}
    monkeypatch.setenv("PATH", str(tmp_path))
    source = read_source(directory=tmp_path)
    assert source.git == {}
    assert source.versions["luthier"]


def test_a_git_that_hangs_is_given_up(tmp_path, monkeypatch):
    def hang(*arguments, timeout, **options):
        raise subprocess.TimeoutExpired("git", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert read_source(directory=tmp_path).git == {}


def test_a_repositorys_own_programs_are_not_run(repository):
    """Reading what the source is must not execute what it configures."""
    trap = repository.parent / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {repository.parent / 'sprung'}\n")
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "diff.external", "diff.tool.textconv"):
        git(repository, "config", key, str(trap))
    (repository / ".gitattributes").write_text("*.py diff=tool\n")
    (repository / "model.py").write_text("dim = 16\n")
    assert "dim = 16" in read_source(directory=repository).patch
    assert not (repository.parent / "sprung").exists()


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "my_experiments"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "models" / "a.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_a_packages_hash_changes_with_its_python_files_only(package):
    first = hash_package("my_experiments")
    assert len(first) == 64
    (package / "data.bin").write_bytes(b"1")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "a.py").write_text("")
    assert hash_package("my_experiments") == first
    (package / "models" / "a.py").write_text("x = 2\n")
    second = hash_package("my_experiments")
    (package / "models" / "a.py").rename(package / "models" / "b.py")
    assert len({first, second, hash_package("my_experiments")}) == 3
    assert "my_experiments" not in sys.modules


def test_packages_are_recorded_beside_luthier(package):
    source = read_source(["my_experiments", "no_such_package", "no_such.package"])
    assert set(source.packages) == {"luthier", "my_experiments"}
    assert json.loads(source.files()["source.json"])["arguments"] == sys.argv


def test_a_single_module_has_a_hash(package):
    (package.parent / "my_module.py").write_text("")
    assert len(hash_package("my_module")) == 64
    assert hash_package("..") == ""


def test_it_is_quick(repository):
    (repository / "model.py").write_text("dim = 16\n")
    read_source(directory=repository)
    begin = time.perf_counter()
    read_source(directory=repository)
    assert time.perf_counter() - begin < 1.0  # 0.1 s on an idle machine
