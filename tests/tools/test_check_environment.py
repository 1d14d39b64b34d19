"""The look over installed packages: what it finds, and that it finds nothing here."""

import base64
import hashlib
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

from tools import check_dependencies, check_environment

ROOT = Path(__file__).resolve().parents[2]
ADVISORY = {"id": "CVE-1", "package": "Some_Package", "fixed": "2.1", "what": "runs code"}


def _record(data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest},{len(data)}"


@pytest.fixture
def install(tmp_path):
    """Return what makes a package, and gives it as a distribution."""

    def make(name, version="1.0", *lines, code=b"VALUE = 1\n"):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (tmp_path / f"{name}.py").write_bytes(code)
        head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines]
        (folder / "METADATA").write_text("\n".join(head) + "\n")
        rows = [f"{name}.py,{_record(code)}", f"{folder.name}/METADATA,", f"{folder.name}/RECORD,,"]
        rows[1] += _record((folder / "METADATA").read_bytes())
        (folder / "RECORD").write_text("\n".join(rows) + "\n")
        return importlib.metadata.PathDistribution(folder)

    return make


def test_a_version_with_a_known_fault_is_named(install):
    found = {"some-package": install("some_package", "2.0")}
    (line,) = check_environment.faults(found, [ADVISORY], [])
    assert line == "some-package 2.0 is installed: CVE-1, runs code; fixed in 2.1"
    fixed = {"some-package": install("some_package", "2.1.0")}
    assert check_environment.faults(fixed, [ADVISORY], ["some.package>=2.1,<3"]) == []


def test_a_bound_that_allows_a_known_fault_is_named():
    (line,) = check_environment.faults(
        {}, [ADVISORY], ["some-package[a]>=2.0.9,<3; python_version > '3'"]
    )
    assert line.startswith("some-package>=2.0.9 in pyproject.toml allows: CVE-1, runs code")


def test_a_changed_and_a_missing_file_are_named(install, tmp_path):
    package = install("sound")
    known = check_environment.recorded([package])
    problems = lambda: check_environment.changed(package, known)
    assert problems() == []
    (tmp_path / "sound.py").write_bytes(b"VALUE = 2\n")
    assert problems() == ["sound: sound.py differs from what was installed"]
    (tmp_path / "sound.py").unlink()
    assert problems() == ["sound: sound.py is missing"]


def test_a_file_that_two_packages_bring_is_that_of_one_of_them(install, tmp_path):
    both = [install("first"), install("second", code=b"VALUE = 2\n")]
    record = tmp_path / "second-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text().replace("second.py,", "first.py,"))
    (tmp_path / "first.py").write_bytes(b"VALUE = 2\n")
    known = check_environment.recorded(both)
    assert [check_environment.changed(each, known) for each in both] == [[], []]
    (tmp_path / "first.py").write_bytes(b"VALUE = 3\n")
    assert all(check_environment.changed(each, known) for each in both)


def test_needs_that_are_not_met_are_named(install):
    needs = ("Requires-Dist: other>=2", "Requires-Dist: third; extra == 'more'")
    found = {"one": install("one", "1.0", *needs)}
    assert check_environment.unmet(found) == ["one needs other, which is not installed"]
    found["other"] = install("other", "1.9")
    assert check_environment.unmet(found) == ["one needs other>=2, not 1.9"]
    assert set(check_environment.below({**found, "third": install("third")}, "one")) == {
        *("one", "other", "third"),
    }


def test_licences_that_are_not_on_the_list_are_named(install):
    found = {
        "a": install("a", "1", "License-Expression: MIT"),
        "b": install("b", "1", "Classifier: License :: OSI Approved :: Apache Software License"),
        "c": install("c", "1", "License: GPL-3.0"),
        "d": install("d", "1"),
        "e": install("e", "1", "License: Commercial, no limits"),  # holds the letters of "mit"
    }
    lines = check_environment.unlicensed(found, ["mit", "apache"], ["e"])
    assert lines == ["c: gpl-3.0", "d: says nothing of its licence"]
    assert len(check_environment.unlicensed(found, ["mit", "apache"], [])) == 3


def test_the_table_can_be_read_and_says_when_it_was_looked_over():
    table = tomllib.loads(check_environment.TABLE.read_text())
    assert table["reviewed"].year >= 2026
    for advisory in table["advisory"]:
        assert set(advisory) == set(ADVISORY)
        Version(advisory["fixed"])
    names = [advisory["id"] for advisory in table["advisory"]]
    assert len(set(names)) == len(names)


def test_nothing_is_known_against_what_is_installed_here():
    command = [sys.executable, str(ROOT / "tools" / "check_environment.py")]
    done = subprocess.run(
        [*command, "faults", "bounds", "licences"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("nothing found") == 3


def test_each_requirement_has_a_lower_bound_that_is_a_version():
    lines = check_dependencies.chosen("lowest", check_dependencies.EXTRAS)
    assert any(line.startswith("jax==") for line in lines)
    assert "fiddle[flags]==0.3.1" in lines
    names = [check_dependencies.split(line)[0] for line in lines]
    assert {"pytest", "array-record", "cmaes", "qwix"} <= set(names)
    for line in lines:
        Version(line.partition("==")[2].partition(";")[0])


def test_a_requirement_without_a_lower_bound_is_refused():
    with pytest.raises(ValueError, match="no lower bound"):
        check_dependencies.pinned("jax<0.13")
    with pytest.raises(ValueError, match="no requirement"):
        check_dependencies.pinned(">=1")
    assert check_dependencies.pinned("a[b] >=1.2,<2; x == 'y'") == "a[b]==1.2; x == 'y'"


def test_extras_of_extras_are_unfolded():
    project = {
        "name": "p",
        "dependencies": ["a>=1"],
        "optional-dependencies": {"one": ["b>=2"], "all": ["p[one,two]"], "two": ["c>=3"]},
    }
    found = check_dependencies.requirements({"project": project}, ["all", "one"])
    assert sorted(found) == ["a>=1", "b>=2", "c>=3"]


@pytest.mark.full
def test_the_tests_may_follow_the_options(monkeypatch, tmp_path):
    commands = []

    def run(command, **named):
        commands.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(check_dependencies, "install", lambda *given: Path("python"))
    monkeypatch.setattr(subprocess, "run", run)
    words = ["check_dependencies.py", "highest", "--keep", str(tmp_path), "tests/graph"]
    monkeypatch.setattr(sys, "argv", words)
    assert check_dependencies.main() == 3
    assert commands[-1][-1] == "tests/graph"
    assert "tests/data" not in commands[-1]
