"""Whether Weights & Biases can be reached: a key and a way to its server."""

from __future__ import annotations

import netrc
import os
import pathlib
import socket
import urllib.parse
from collections.abc import Mapping

_SERVER = "https://api.wandb.ai"


def server(environment: Mapping[str, str] = os.environ) -> str:
    """Return the address of the W&B server."""
    return environment.get("WANDB_BASE_URL") or _SERVER


def has_key(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether there are credentials for the server; whether they are right is not tried."""
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urllib.parse.urlsplit(server(environment)).hostname or ""
    named = environment.get("NETRC")
    home = pathlib.Path(environment.get("HOME") or pathlib.Path.home())
    for path in [pathlib.Path(named)] if named else [home / ".netrc", home / "_netrc"]:
        try:
            if netrc.netrc(path).hosts.get(host) is not None:
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def is_reachable(environment: Mapping[str, str] = os.environ, seconds: float = 3.0) -> bool:
    """Return whether the server, or the proxy on the way to it, takes a connection.

    Args:
      environment: Names the server and the proxy.
      seconds: Longest wait for the connection.
    """
    address = urllib.parse.urlsplit(server(environment))
    lower = {name.lower(): value for name, value in environment.items()}
    proxy = lower.get(f"{address.scheme}_proxy") or lower.get("all_proxy")
    if proxy and not _bypasses(address.hostname or "", lower.get("no_proxy", "")):
        address = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        with socket.create_connection((address.hostname or "", port), timeout=seconds):
            return True
    except (OSError, UnicodeError):
        return False


def _bypasses(host: str, no_proxy: str) -> bool:
    names = [name.strip().lstrip(".") for name in no_proxy.split(",") if name.strip()]
    return any(name == "*" or host == name or host.endswith("." + name) for name in names)


def choose_mode(mode: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Return `online` or `offline`, and why it is offline where that was not asked for.

    Args:
      mode: `auto`, `online` or `offline`.
      environment: Names the server, the proxy and the key.
    """
    if mode != "auto":
        return mode, ""
    if not has_key(environment):
        return "offline", "no API key"
    if not is_reachable(environment):
        return "offline", f"{server(environment)} cannot be reached"
    return "online", ""
