from __future__ import annotations

import json

import pytest

from luthier.cli import main


@pytest.fixture
def generate(trained, monkeypatch, capsys):
    """Runs `luthier generate last ...` and returns what it prints."""
    monkeypatch.chdir(trained)

    def run(*words: str) -> str:
        assert main(["generate", "last", "--max-new-tokens", "8", *words]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.full
def test_it_prints_the_prompt_and_its_continuation(generate):
    assert generate("--prompt", "the quick").startswith("the quick")


@pytest.mark.full
def test_the_seed_decides(generate):
    words = ["--prompt", "the", "--seed"]
    assert generate(*words, "1") == generate(*words, "1")
    assert generate(*words, "1") != generate(*words, "2")


@pytest.mark.full
def test_several_samples_of_several_prompts(generate):
    out = generate("--prompt", "the", "--prompt", "fox", "--num-samples", "2", "--json")
    samples = json.loads(out)
    assert [sample["prompt"] for sample in samples] == ["the", "the", "fox", "fox"]
    assert samples[0]["text"] != samples[1]["text"]


@pytest.mark.full
def test_all_the_options(generate):
    words = ["--temperature", "0", "--top-k", "3", "--top-p", "0.9", "--stop", "e", "--step", "2"]
    samples = json.loads(generate("--prompt", "the", "--json", *words))
    assert "e" not in samples[0]["text"]
