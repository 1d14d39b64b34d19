from luthier.checkpoint import Init, Restoration, Safetensors, Skip, Take


def test_the_table_says_where_everything_comes_from(toy, targets, tensors, write):
    folder = write(tensors)
    rules = (Init("head"), Skip(r"\.k$"), Take())
    wanted = targets(head=True)
    with Restoration(Safetensors(folder, toy, rules), wanted, {"vocab": 7}) as restoration:
        rows = {row.parameter: row for row in restoration.table}
        text = restoration.render()
        summary = restoration.summary
    assert rows["blocks.q"].source == "model.h.{0,1}.qk"
    assert rows["blocks.q"].shape == (2, 4, 3, 5)
    assert rows["blocks.q"].rule == "3 take"
    assert rows["blocks.k"].source == rows["head.kernel"].source == "init"
    assert rows["blocks.k"].rule == "2 skip"
    assert summary == f"2 parameters from {folder} (toy), 1 initialized, 1 skipped"
    lines = text.splitlines()
    assert lines[0] == f"# {summary}"
    assert lines[1].split() == ["parameter", "from", "shape", "dtype", "rule"]
    assert [line.split()[0] for line in lines[2:]] == sorted(wanted)


def test_the_tokenizer_that_lies_beside_is_noted_and_copied(toy, targets, tensors, write, tmp_path):
    folder = write(tensors)
    (tmp_path / "weights" / "tokenizer.json").write_text("{}")
    with Restoration(Safetensors(folder, toy), targets(), {"vocab": 7}) as restoration:
        assert restoration.notes == {"tokenizer": f"{folder}/tokenizer.json"}
        assert restoration.copy_tokenizer(tmp_path / "run") == ["tokenizer.json"]
    assert (tmp_path / "run" / "tokenizer.json").read_text() == "{}"
