"""Comparisons made by hand, as the page gets them: every kind of change, and any size."""

KINDS = (
    *("changed", "added", "removed", "set", "reset", "default"),
    *("class", "moved", "shared", "unshared", "tags"),
)


def change(kind, path, before=None, after=None, **more):
    """Return a change; numbers in texts are its values."""
    values = {"value_before": _value(before), "value_after": _value(after)}
    numbers = all(isinstance(value, float) and value for value in values.values())
    ratio = values["value_after"] / values["value_before"] if numbers else None
    difference = values["value_after"] - values["value_before"] if numbers else None
    override = None if after is None or kind == "moved" else f"{path}={after}"
    return {
        "kind": kind,
        "path": path,
        "path_before": "",
        "before": before,
        "after": after,
        **values,
        "ratio": ratio,
        "difference": difference,
        "origin_before": "configs/lm/quickstart.py:41",
        "origin_after": "argument 1",
        "carried": [],
        "dropped": [],
        "gained": [],
        "same_as": "",
        "shared_as": "",
        "told": "",
        "effective": kind not in ("set", "tags"),
        "override": override,
        "no_override": None if override else "an element that moves has none",
        **more,
    }


def _value(text):
    try:
        return float(text)
    except (TypeError, ValueError):
        return text


def row(depth, path, before, after, number=None, opens=False, **more):
    """Return a row of the tree."""
    return {
        "depth": depth,
        "path": path if after is not None else "",
        "path_before": path if before is not None else "",
        "name": path.rpartition(".")[2],
        "before": before,
        "after": after,
        "change": number,
        "opens": opens,
        **more,
    }


def comparison(changes, rows, titles=("configs.lm.quickstart", "runs/quickstart/0123")):
    """Return a comparison of two sides."""
    sides = [
        {"title": title, "detail": detail, "fingerprint": mark * 64}
        for title, detail, mark in zip(titles, ("model.num_layers=4", ""), "ab", strict=True)
    ]
    words = [one["override"] for one in changes if one["override"]]
    unsayable = [
        {"path": one["path"], "reason": one["no_override"]}
        for one in changes
        if not one["override"]
    ]
    return {
        "version": 1,
        "sides": sides,
        "changes": changes,
        "rows": rows,
        "patch": "def change(graph):\n    graph.model.num_layers = 8\n    return graph\n",
        "overrides": words,
        "unsayable": unsayable,
    }


def small():
    """Return a comparison with six changes among some thirty settings."""
    changes = [
        change("changed", "model.num_layers", "4", "8"),
        change("class", "model.norm", "LayerNorm", "RMSNorm", carried=["dim"], dropped=["bias"]),
        change("removed", "model.norm.bias", "True", None),
        change("added", "model.head", None, "LinearHead", override="model.head:=LinearHead(dim=8)"),
        change("set", "optimizer.learning_rate.warmup_steps", "100", "100"),
        change("changed", "optimizer.learning_rate.peak", "0.003", "0.0003"),
        change("moved", "data.source", "TextFiles", "TextFiles", path_before="data.sources[0]"),
    ]
    rows = [
        row(0, "", "Experiment", "Experiment", opens=True),
        row(1, "name", "'quickstart'", "'quickstart'"),
        row(1, "seed", "0", "0"),
        row(1, "model", "Decoder", "Decoder", opens=True),
        row(2, "model.dim", "256", "256"),
        row(2, "model.num_layers", "4", "8", 0),
        row(2, "model.norm", "LayerNorm", "RMSNorm", 1, opens=True),
        row(3, "model.norm.dim", "256", "256"),
        row(3, "model.norm.bias", "True", None, 2),
        row(2, "model.head", None, "LinearHead", 3, opens=True),
        row(3, "model.head.dim", None, "8"),
        row(1, "optimizer", "Adam", "Adam", opens=True),
        *(row(2, f"optimizer.b{i}", "0.9", "0.9") for i in range(5)),
        row(2, "optimizer.learning_rate", "WarmupCosine", "WarmupCosine", opens=True),
        row(3, "optimizer.learning_rate.warmup_steps", "100", "100", 4),
        row(3, "optimizer.learning_rate.peak", "0.003", "0.0003", 5),
        row(1, "data", "TextData", "TextData", opens=True),
        row(2, "data.source", "TextFiles", "TextFiles", 6, path_before="data.sources[0]"),
    ]
    return comparison(changes, rows)


def large(nodes=5000, arguments=3):
    """Return a comparison of graphs with many nodes, of which every fiftieth differs."""
    changes, rows = [], [row(0, "", "Experiment", "Experiment", opens=True)]
    for number in range(nodes):
        path = f"model.layers[{number}]"
        rows.append(row(1, path, "Block", "Block", opens=True))
        for i in range(arguments):
            at, kind = f"{path}.argument_{i}", KINDS[number // 50 % len(KINDS)]
            if number % 50 == 0 and i == 0:
                changes.append(change(kind, at, str(number), str(number + 1)))
                rows.append(row(2, at, str(number), str(number + 1), len(changes) - 1))
            else:
                rows.append(row(2, at, str(i), str(i)))
    return comparison(changes, rows)


def effects():
    """Return what could follow from the changes of `small`."""
    steps = range(0, 1001, 10)
    curves = [(0, 3e-3), (1, 3e-4)]
    return {
        "quantities": [
            _quantity("parameters", "model", 4_200_000, 8_400_000, ""),
            _quantity("tokens per step", "training", 8192, 8192, "tokens"),
            _quantity("optimizer", "bytes per device", 33_600_000, 67_200_000, "bytes"),
            _quantity("gradients", "bytes per device", 16_800_000, 33_600_000, "bytes"),
            _quantity("dtype", "model", "float32", "bfloat16", ""),
        ],
        "charts": [
            {
                "title": "learning rate",
                "x_label": "step",
                "y_label": "learning rate",
                "log_y": False,
                "series": [
                    {
                        "side": side,
                        "name": "learning rate",
                        "points": [[s, peak * min(s / 100, 1 - s / 1200)] for s in steps],
                    }
                    for side, peak in curves
                ],
            }
        ],
        "verdicts": [
            {"name": "checkpoint", "text": "not compatible: 4 layers, 8 now", "severity": "warn"},
            {"name": "recompile", "text": "the same program", "severity": "ok"},
        ],
    }


def _quantity(name, group, before, after, unit, note=""):
    found = {"name": name, "group": group, "before": before, "after": after}
    return {**found, "unit": unit, "note": note}
