"""JSON lines, atomic writes, locks and the format of bytes are implemented once."""

import re

# Where a file is put in its place by a rename of its own, and why.
RENAMES = {
    "checkpoint/files.py": "seals a checkpoint; below its own store",
    "checkpoint/directory.py": "renames whole checkpoints",
    "checkpoint/foreign/safetensors_folder.py": "a folder of several files appears at once",
    "cli/completion/index.py": "runs at each press of Tab and imports nothing",
    "data/prepared/plans.py": "a folder of several files appears at once",
    "data/prepared/shards.py": "arrays of many gigabytes, written in place",
    "data/sources/remote.py": "a download of many gigabytes",
    "launch/link.py": "a secret file with mode 0600",
    "launch/member.py": "a file for the parent process",
    "parallel/distributed/messages.py": "a note for the parent process",
    "records/media.py": "moves images that are whole",
    "records/directory.py": "a run's directory appears at once",
    "records/object_storage/home.py": "a file of a working copy, once all of it is here",
    "records/object_storage/mirror.py": "a run's directory appears at once",
    "trainer/moving.py": "renames a whole run",
    "study/driver/directory.py": "a copy of the source appears at once",
    "study/start.py": "renames a whole study",
}
# Lines of JSON that come through a pipe or a socket, or are a user's data: no files of records.
PIPES = {
    "data/sources/records.py",
    "parallel/distributed/rendezvous.py",
    "planner/process.py",
    "records/weights_and_biases/node.py",
    "study/engines/local.py",
    "study/engines/messages.py",
    "study/gate.py",
    "trainer/watchdog.py",
}


def _found(root, pattern):
    package = root / "framework" / "luthier"
    files = ((path, path.relative_to(package).as_posix()) for path in package.rglob("*.py"))
    return {
        name
        for path, name in files
        if not name.startswith(("storage/", "cli/template/"))
        and re.search(pattern, path.read_text())
    }


def test_files_are_replaced_by_the_one_atomic_write(root):
    assert _found(root, r"os\.replace\(|os\.rename\(|\.rename\(") == set(RENAMES)


def test_json_lines_of_files_are_read_and_written_by_the_one_module(root):
    assert _found(root, r"json\.loads\([^)]*line") == PIPES


def test_files_are_locked_by_the_one_lock(root):
    assert _found(root, r"fcntl\.(flock|lockf)|import fcntl") == set()


def test_bytes_are_formatted_by_the_one_function(root):
    # A difference needs more digits than a single amount.
    known = {"terminal.py", "view/diff/terminal.py"}
    assert _found(root, r"def \w*format_bytes|\"KiB\", \"MiB\"") == known
