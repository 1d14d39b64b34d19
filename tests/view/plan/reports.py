"""A report of a plan with every part, for tests of its views."""

from luthier.planner import Report


def report(**fields):
    """Return a report of a step that does not fit."""
    made = {
        "experiment": "x",
        "slice": "v5e-16",
        "level": "compile",
        "devices": {"count": 16, "kind": "TPU v5 lite", "slices": 1},
        "mesh": {"fsdp": 16},
        "parameters": {"total": 1000, "active": 500, "trained": 1000},
        "rows": {"per_step": 16, "per_device": 1, "accumulation": 1},
        "tokens_per_step": 128,
        "steps": 900,
        "bytes_per_device": {"parameters": 15 * 2**30, "temporaries": 2**31},
        "residuals": [{"name": "mlp_up", "bytes_per_device": 2**30}],
        "limit_bytes": int(15.75 * 2**30),
        "needed_bytes": 17 * 2**30,
        "estimated_bytes": 16 * 2**30,
        "checkpoint_bytes": 12_000,
        "flops": {"full": 640_000, "hardware": 840_000},
        "collectives": [
            {
                "kind": "all-gather",
                "axes": ["fsdp"],
                "count": 26,
                "num_bytes": 4096,
                "wire_bytes": 3840,
                "is_across_slices": True,
            }
        ],
        "pipelines": {"model.stack": {"stages": 4, "microbatches": 8, "bubble_fraction": 3 / 11}},
        "step": {
            "seconds_by_term": {"compute": 0.2, "links": 0.5},
            "binding": "links",
            "step_seconds": 0.5,
            "serial_seconds": 0.7,
            "bubble_fraction": 0.0,
            "is_bound": False,
            "ceilings": [
                {"of": "float32", "runs_as": "tfloat32", "per_second": 3.265e14},
                {"of": "memory", "runs_as": "memory", "per_second": 4.032e12},
            ],
            "grade": "measured",
            "mfu": {"full": 0.4},
            "tokens_per_day": 2.2e7,
            "run_seconds": 450.0,
        },
        "sharding": [
            {
                "name": "embedding.table",
                "shape": [8, 4],
                "dtype": "float32",
                "spec": "-, fsdp",
                "reason": "embed -> fsdp",
                "bytes_per_device": 128,
            }
        ],
        "live": [
            {
                "array": "f32[4,8]",
                "bytes_per_device": 2**30,
                "scope": "backward / dot_general",
                "opcode": "fusion",
            }
        ],
        "refusal": "Used 17G of 15.75G hbm",
        "proposals": [
            {
                "overrides": ["parallelism.mesh.fsdp=8", "training.accumulation=2"],
                "needed_bytes": 12 * 2**30,
                "step_seconds": 0.6,
                "is_compiled": False,
            }
        ],
        "notes": ["said once"],
    }
    return Report.of_fields(made | fields)
