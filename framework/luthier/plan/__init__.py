"""Plans: what an experiment would cost, known before it runs.

`luthier.plan(graph, devices)` is this room called as a function (`luthier.plan.make`).
"""

from __future__ import annotations

import sys
import types
from typing import Any

from luthier.plan.device_facts import DeviceFacts, device_facts
from luthier.plan.flops import ModelFlops, model_flops
from luthier.plan.plan import Plan, make
from luthier.tasks.flops import Flops, count

__all__ = [
    "DeviceFacts",
    "Flops",
    "ModelFlops",
    "Plan",
    "count",
    "device_facts",
    "make",
    "model_flops",
]


class _CallableRoom(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Plan:
        return make(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableRoom
