from luthier.checkpoint.foreign import copy_tokenizer, tokenizer_files


def test_files_of_a_tokenizer_travel(tmp_path):
    source, target = tmp_path / "source", tmp_path / "deep" / "target"
    source.mkdir()
    assert copy_tokenizer(source, target) == []
    assert not target.exists()
    for name in ("tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        (source / name).write_text(name)
    assert copy_tokenizer(source, target) == ["tokenizer.json", "tokenizer_config.json"]
    assert (target / "tokenizer.json").read_text() == "tokenizer.json"
    assert not (target / "model.safetensors").exists()


def test_they_are_found_beside_a_file(tmp_path):
    (tmp_path / "tokenizer.model").touch()
    (tmp_path / "model.safetensors").touch()
    assert tokenizer_files(tmp_path / "model.safetensors") == [tmp_path / "tokenizer.model"]
