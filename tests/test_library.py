"""Kernel libraries as they are built: what the config map says of them is what the configs say."""

import pyflash
from codegen.emit import canonical_configs
from pyflash import named_set
from pyflash.space import rank


def test_the_config_map_of_the_default_set(built_library, built_arch):
    configs = canonical_configs(named_set("all"))
    assert pyflash.load(built_library) == len(configs)
    built = pyflash.built_configs()
    for config in configs:
        assert built[config] == pyflash.BuiltConfig(
            config,
            sm_archs=(built_arch.sm,),
            ptx_arch=built_arch.sm,
            n_threads=config.n_threads,
            smem_bytes=config.smem_bytes,
            rank=rank(config),
        )


def test_build_adds_to_the_config_map_of_the_process(built_library, built_arch):
    """With objects that `built_library` has put into the cache."""
    config = named_set("prog")[0]
    twin = config.replace(mma_double_buffer_loads=True)
    assert twin.canonical() == config
    assert pyflash.build([config, twin], [built_arch]) == 1
    assert pyflash.build(twin, [built_arch]) == 1
    assert pyflash.built_configs()[config].sm_archs == (built_arch.sm,)
