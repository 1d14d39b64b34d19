"""The shell of a page: data, style and program in one HTML file that makes no requests.

The data of a page may come from anyone. It is embedded as escaped JSON, the program inserts it as
text (`textContent` only), and a content security policy lets the browser run this one program only.
Programs and styles are plain JavaScript and CSS from `assets`; there is no build step.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
import math
from collections.abc import Sequence
from typing import Any

_ASSETS = "assets"
_SHARED = ("page.css", "page.js", "charts.js")
_UNSAFE = {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_TABLE = str.maketrans(_UNSAFE)

_TEMPLATE = """<!doctype html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="luthier">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div class="page" id="page"><noscript>{without_script}</noscript></div>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def document(title: str, data: Any, files: Sequence[str], without_script: str) -> str:
    """Return a page as the text of one HTML file.

    Args:
      title: The title of the window.
      data: The data of the page, as plain JSON; NaN and infinities become strings.
      files: Names of the scripts and styles in `assets` that make the page, in their order; the
        shared ones come first.
      without_script: The text that is shown where scripts are switched off.
    """
    names = [*_SHARED, *files]
    style = "".join(_read(name) for name in names if name.endswith(".css"))
    program = "".join(_read(name) for name in names if name.endswith(".js"))
    script = f'"use strict";\n(() => {{\n{program}}})();\n'
    # The hashes of this program and style: the browser runs nothing else, also where data should
    # ever get into the page as markup.
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return _TEMPLATE.format(
        policy=policy,
        title=_as_text(title),
        style=style,
        script=script,
        data=encode(data),
        without_script=_as_text(without_script),
    )


def encode(data: Any) -> str:
    """Return data as JSON for a script element, which it can neither end nor open another one.

    Args:
      data: Plain JSON; numbers that are not finite become the strings `nan`, `inf` and `-inf`.
    """
    # HTML ends a script element at `</script`, even inside of a JSON string; so `<`, `>` and `&`
    # are written as escapes of JSON. U+2028 and U+2029 were line ends in older JavaScript.
    text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    return text.translate(_TABLE)


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else str(data)
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list | tuple) else data


def _as_text(text: str) -> str:
    """Return text escaped for HTML, with lone surrogates, which UTF-8 cannot hold, as `?`."""
    return html.escape(text.encode("utf-8", "replace").decode())


def _digest(text: str) -> str:
    found = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(found).decode()}"


def _read(name: str) -> str:
    place = importlib.resources.files(__package__) / _ASSETS / name
    return place.read_text(encoding="utf-8")
