from __future__ import annotations

import socket

import pytest

from luthier.records.weights_and_biases import choose_mode, has_key, is_reachable, server


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"


@pytest.fixture
def closed():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    return f"http://127.0.0.1:{port}"


def test_the_server(tmp_path):
    assert server({}) == "https://api.wandb.ai"
    assert server({"WANDB_BASE_URL": "https://wandb.test"}) == "https://wandb.test"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"WANDB_API_KEY": "k"}, True),
        ({"WANDB_API_KEY": ""}, False),
        ({"WANDB_IDENTITY_TOKEN_FILE": "token"}, True),
    ],
)
def test_keys_of_the_environment(tmp_path, environment, expected):
    assert has_key({"HOME": str(tmp_path), **environment}) is expected


def test_keys_of_a_netrc_file(tmp_path):
    home = {"HOME": str(tmp_path)}
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password k\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert has_key(home)
    assert not has_key({**home, "WANDB_BASE_URL": "https://wandb.test"})
    assert not has_key({**home, "NETRC": str(tmp_path / "none")})
    (tmp_path / ".netrc").write_text("machine")
    assert not has_key(home)


def test_reaching_the_server(listener, closed):
    assert is_reachable({"WANDB_BASE_URL": listener})
    assert not is_reachable({"WANDB_BASE_URL": closed}, seconds=1.0)
    assert not is_reachable({"WANDB_BASE_URL": "http://"}, seconds=1.0)


def test_a_proxy_on_the_way(listener, closed):
    far = {"WANDB_BASE_URL": closed, "http_proxy": listener}
    assert is_reachable(far)
    assert is_reachable({**far, "http_proxy": listener.removeprefix("http://")})
    assert not is_reachable({**far, "NO_PROXY": "example.org, 127.0.0.1"}, seconds=1.0)
    assert not is_reachable({"WANDB_BASE_URL": listener, "HTTP_PROXY": closed}, seconds=1.0)


def test_the_mode(listener, closed, tmp_path):
    home = {"HOME": str(tmp_path)}
    assert choose_mode("online", home) == ("online", "")
    assert choose_mode("offline", home) == ("offline", "")
    assert choose_mode("auto", home) == ("offline", "no API key")
    keyed = {**home, "WANDB_API_KEY": "k", "WANDB_BASE_URL": closed}
    assert choose_mode("auto", keyed) == ("offline", f"{closed} cannot be reached")
    assert choose_mode("auto", {**keyed, "WANDB_BASE_URL": listener}) == ("online", "")
