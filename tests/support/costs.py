"""Costs for tests of the model of time."""

# The costs on a GPU whose memory is never waited for.
FIGURES = {
    "launch": 2.0, "tile": 3.0, "step": 0.5, "share": 0.7, "rows": 0.0, "mask": 0.0, "capped": 1.0,
    "megabyte": 0.0, "merge": 3.0, "split": 0.06, "partial": 0.5,
}  # fmt: skip
