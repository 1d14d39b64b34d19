"""Nothing that luthier reads can run code: the calls that could are listed, with why they may."""

import ast

import pytest

MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "_pickle"}
UNSAFE = {"load", "load_all", "full_load", "unsafe_load"}  # of yaml, where no safe loader is named
ALLOWED = {
    "graph/formats/config_dict/loading.py": "a ConfigDict's file is Python, as the manual says",
}


def _package(root):
    package = root / "framework" / "luthier"
    return {path.relative_to(package).as_posix(): path for path in sorted(package.rglob("*.py"))}


def _dangers(tree):
    """Yield a line for each import and call that may run what a file holds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [(node.module or "").partition(".")[0]]
        else:
            names = []
        yield from (f"line {node.lineno} imports {name}" for name in MODULES.intersection(names))
        if isinstance(node, ast.Call):
            yield from _dangerous_call(node)


def _dangerous_call(node):
    words = {word.arg: word.value for word in node.keywords}
    called = node.func
    if isinstance(called, ast.Name) and called.id in ("eval", "exec"):
        yield f"line {node.lineno} calls {called.id}"
    if "allow_pickle" in words:
        given = words["allow_pickle"]
        if not (isinstance(given, ast.Constant) and given.value is False):
            yield f"line {node.lineno} allows pickle"
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        if called.value.id == "yaml" and called.attr in UNSAFE:
            yield f"line {node.lineno} calls yaml.{called.attr}"
        if called.value.id == "torch" and called.attr == "load":
            yield f"line {node.lineno} calls torch.load"
        if called.value.id == "os" and called.attr in ("system", "popen"):
            yield f"line {node.lineno} calls os.{called.attr}"
    if isinstance(words.get("shell"), ast.Constant) and words["shell"].value is True:
        yield f"line {node.lineno} starts a shell"


@pytest.mark.full
def test_no_module_reads_what_may_run_code(root):
    found = {
        name: list(_dangers(ast.parse(path.read_text(encoding="utf-8"))))
        for name, path in _package(root).items()
    }
    assert {name: lines for name, lines in found.items() if lines and name not in ALLOWED} == {}
    assert all(found[name] for name in ALLOWED), "an exception that is not needed any more"


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from joblib import load",
        "import cloudpickle as c",
        "eval(text)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=allowed)",
        "yaml.load(text, Loader=yaml.Loader)",
        "torch.load(path)",
        "os.system(text)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_it_would_be_seen(code):
    assert list(_dangers(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    ["import json", "np.load(path, allow_pickle=False)", "yaml.safe_load(text)", "model.eval(x)"],
)
def test_harmless_code_is_not_reported(code):
    assert not list(_dangers(ast.parse(code)))
