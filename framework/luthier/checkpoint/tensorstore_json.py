"""Spares Orbax what TensorStore never frees: the Python dicts that it makes of JSON.

`KvStore.Spec.to_json` and `experimental_collect_matching_metrics` keep a reference to each key and
each value for ever (TensorStore 0.1.84 to 0.1.86). Orbax calls the first once for each array of a
save, to have the spec of a local folder that it has just written said back to it, and the second
twice for each save, to log a rate. No setting, leaf handler or type handler of Orbax comes between:
both stand in functions of one private module. That module is given a view of TensorStore which
answers these two calls from what is known; everything else goes to TensorStore itself.

Where a later Orbax has arranged itself otherwise nothing is changed, and
`tests/checkpoint/test_tensorstore_json.py` fails if its saves leak.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any


@functools.cache
def spare() -> None:
    """Give Orbax the view, for the rest of the process."""
    try:
        import tensorstore
        from orbax.checkpoint._src.serialization import tensorstore_utils as orbax
    except ImportError:
        return
    if getattr(orbax, "ts", None) is tensorstore:
        orbax.ts = _TensorStore(tensorstore)
    if callable(getattr(orbax, "get_tensorstore_raw_bytes", None)):
        orbax.get_tensorstore_raw_bytes = _RawBytes(tensorstore, orbax.get_tensorstore_raw_bytes)


class _TensorStore:
    """TensorStore, but for specs of key-value stores."""

    def __init__(self, tensorstore: Any):
        self._tensorstore = tensorstore
        self.KvStore = _KvStore(tensorstore.KvStore)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensorstore, name)


class _KvStore:
    """`tensorstore.KvStore`, whose specs know what they were made of."""

    def __init__(self, kv_store: Any):
        self._kv_store = kv_store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv_store, name)

    def Spec(self, json: Any) -> Any:
        return _Spec(json, self._kv_store.Spec(json))

    def open(self, spec: Any, **options: Any) -> Any:
        return self._kv_store.open(spec.own if isinstance(spec, _Spec) else spec, **options)


class _Spec:
    """A spec of TensorStore's own, and the JSON that it was made of."""

    def __init__(self, json: Any, own: Any):
        self._json = json
        self.own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def to_json(self, **options: Any) -> Any:
        """Return the JSON; that of a local folder is what was given, word for word."""
        if not options and _is_local(self._json):
            return dict(self._json)
        return self.own.to_json(**options)


def _is_local(json: Any) -> bool:
    """Return whether TensorStore, which took this spec, would say it back unchanged."""
    return (
        isinstance(json, Mapping)
        and json.keys() == {"driver", "path"}
        and json["driver"] == "file"
        and json["path"].startswith("/")
        and "\\" not in json["path"]  # becomes a slash
    )


class _RawBytes:
    """How many bytes TensorStore has written or read: a sum over its text, which it frees."""

    def __init__(self, tensorstore: Any, original: Any):
        self._tensorstore = tensorstore
        self.original = original

    def __call__(self, direction: Any = None) -> int:
        suffix = "_bytes_read" if getattr(direction, "value", None) == "read" else "_bytes_written"
        collect = self._tensorstore.experimental_collect_prometheus_format_metrics
        total = 0.0
        for line in collect("/tensorstore/kvstore/"):
            name, _, value = line.rpartition(" ")
            if not line.startswith("#") and name.partition("{")[0].endswith(suffix):
                total += float(value)
        return int(total)
