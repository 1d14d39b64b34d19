from __future__ import annotations

from luthier.cli.completion import building, index


def entries(kind: str, beginning: str = "") -> dict[str, tuple[str, tuple[str, ...]]]:
    found = index.load("configs.toy").starting(kind, beginning)
    return {entry.word: (entry.text, entry.values) for entry in found}


def test_paths_with_their_values(indexed):
    found = entries("path")
    assert found["optimizer"] == (".", ())
    assert found["optimizer.learning_rate.value"] == ("0.001", ())
    assert found["precision.matmul"][1] == ("DEFAULT", "HIGH", "HIGHEST")
    assert found["model"] == ("not set", ())
    assert found["training.stop"] == ("None", ("None",))


def test_constants_by_name(project):
    file = project / "configs" / "toy.py"
    text = file.read_text().replace(
        "import fiddle as fdl\n", "import fiddle as fdl\nfrom luthier.graph import value\n"
    )
    file.write_text(text.replace("steps=3", 'steps=value(3, name="steps")'))
    building.build("configs.toy")
    assert entries("constant") == {"steps": ("3", ())}


def test_classes_and_fiddlers(indexed):
    assert entries("class", "Constant") == {"Constant": (".", ()), "Constant.value": ("", ())}
    assert entries("class", "adamw.learning_rate") == {"adamw.learning_rate": (".", ())}
    assert "train_only" in entries("fiddler")


def test_the_files_of_the_project_make_it_stale(indexed):
    files = index.load("configs.toy").header["files"]
    assert str(indexed / "configs" / "toy.py") in files
    assert all(file.startswith(str(indexed)) for file in files)


def test_a_broken_experiment_is_tried_again_when_it_has_changed(project):
    (project / "configs" / "toy.py").write_text("def experiment(:\n")
    assert index.claim(index.name_of("configs.toy"))
    building.build("configs.toy")
    found = index.load("configs.toy")
    assert found.is_fresh()
    assert list(found.starting("path")) == []
    assert index.claim(index.name_of("configs.toy"))  # the claim was given up
    (project / "configs" / "toy.py").write_text("def experiment():\n    pass\n")
    assert not found.is_fresh()
