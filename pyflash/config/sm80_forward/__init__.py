"""The SM80 forward family: `mma.sync`, `ldmatrix` and `cp.async`."""
