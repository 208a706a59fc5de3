"""Costs for tests of the model of time."""

# Of a GPU whose memory and L2 are never waited for.
FIGURES = {
    "launch": 2.0, "tile": 3.0, "step": 0.5, "share": 0.7, "rows": 0.0, "mask": 0.0, "capped": 1.0,
    "memory": 1e6, "l2": 1e6, "cold": 0.0, "merge": 3.0, "split": 0.06,
}  # fmt: skip
