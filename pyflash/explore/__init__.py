"""A page on this machine for choosing a config: `pyflash explore`."""

# The first state, where nothing else is asked for; the config says the problem's dtype and d_head.
DEFAULT_ARCH = "sm_90"
DEFAULT_PROBLEM = "batch=4,heads=16,seqlen=4096,causal"
