from __future__ import annotations

import json

import pytest

from luthier.errors import RecordError
from luthier.records import find_secret, redact, require_none


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """Plant secrets, and variables that only look like some."""
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password netrc-pass-1\n")
    existing = tmp_path / "credentials.json"
    existing.write_text("{}")
    planted = {
        "HOME": str(tmp_path),
        "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
        "HF_TOKEN": 'hf_"quoted\\secret',
        "MY_PASSWORD": "päss-wörd-1",
        "MAX_TOKENS": "1000000000",
        "TOKENIZERS_PARALLELISM": "definitely",
        "GOOGLE_APPLICATION_CREDENTIALS": str(existing),
        "SHORT_TOKEN": "abc",
        "EDITOR": "my-editor-program",
    }
    monkeypatch.delenv("NETRC", raising=False)
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    return planted


@pytest.mark.parametrize(
    ("name", "shown"),
    [("WANDB_API_KEY", "WANDB_API_KEY"), ("HF_TOKEN", "HF_TOKEN"), ("MY_PASSWORD", "MY_PASSWORD")],
)
def test_values_of_the_environment(environment, name, shown):
    value = environment[name]
    assert redact(f"key={value};") == f"key=[{shown}];"
    assert value not in json.loads(redact(json.dumps({"a": value})))["a"]
    assert find_secret(f"a {value}") == f"the value of {name}"


@pytest.mark.parametrize(
    "name",
    [
        "MAX_TOKENS", "TOKENIZERS_PARALLELISM", "GOOGLE_APPLICATION_CREDENTIALS", "SHORT_TOKEN",
        "EDITOR",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(environment, name):
    assert redact(environment[name]) == environment[name]
    assert find_secret(environment[name]) == ""


def test_passwords_of_netrc():
    assert redact("with netrc-pass-1 in it") == "with [a password of netrc] in it"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("https://user:pw@host.org/a?b=c", "https://***@host.org/a?b=c"),
        ("s3://KEY:SECRET@bucket/x, y", "s3://***@bucket/x, y"),
        ("https://ghp_token@github.com/a.git", "https://***@github.com/a.git"),
        ("https://h/a?X-Amz-Signature=abc&b=1", "https://h/a?X-Amz-Signature=***&b=1"),
        ("https://h/a?access_token=abc#x", "https://h/a?access_token=***#x"),
        ("http://user:pw@proxy:80 http://b:c@d", "http://***@proxy:80 http://***@d"),
    ],
)
def test_urls(text, redacted):
    assert redact(text) == redacted
    assert find_secret(text)
    assert redact(redacted) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "gs://bucket/path@v2", "https://host/path?tokens=3", "user@host.org", "a://b", "x @ y",
        "luthier.optim.adamw(b2=0.95)", "https://h/a?page=2&keyboard=1",
    ],
)  # fmt: skip
def test_texts_that_hold_none(text):
    assert redact(text) == text
    assert find_secret(text) == ""


def test_values_that_must_be_kept_as_they_are(environment):
    require_none({"a": [1, "b", {"c": None}]}, "the run")
    values = {"data": {"url": "https://u:p@h/x"}, "tokens": ["x", environment["HF_TOKEN"]]}
    with pytest.raises(RecordError) as caught:
        require_none(values, "the record")
    first, second = str(caught.value).splitlines()
    assert first == (
        "data.url: holds a password in a URL, which the record would keep for all to read; leave "
        "it out, and give it by the environment or ~/.netrc where it is used"
    )
    assert second.startswith("tokens[1]: holds the value of HF_TOKEN, which")
    assert environment["HF_TOKEN"] not in str(caught.value)
