"""Every model class of the installed transformers: equal to eager, or refused in words.

`python -m support.transformers_sweep --all` sweeps all classes, heads that share a model too; here
one class of each config.
"""

import collections

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from support.transformers_sweep import one_of_each_config, sweep

from pyflash.integrations import transformers as integration


@pytest.fixture(scope="module")
def outcomes():
    """By class."""
    integration.register()
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield {item: sweep(item) for _, item in one_of_each_config()}
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity(verbosity)


@pytest.mark.filterwarnings("ignore")
def test_no_model_differs_silently(outcomes):
    """Nor fails with words of something else."""
    wrong = {
        item.__name__: (outcome.errors, outcome.words)
        for item, outcome in outcomes.items()
        if outcome.kind in ("different", "failed")
    }
    assert wrong == {}


@pytest.mark.filterwarnings("ignore")
def test_models_that_do_not_declare_flash_attention_are_refused(outcomes):
    others = [item for item in outcomes if not item._supports_flash_attn]
    kinds = collections.Counter(outcomes[item].kind for item in others)
    assert kinds["refused"] + kinds["not made"] == len(others) > 100
    assert kinds["not made"] <= 10  # packages that are missing


@pytest.mark.filterwarnings("ignore")
def test_most_of_the_others_are_reached_and_run_pyflash(outcomes):
    """Others need packages, inputs or configs that tests/support/tiny_models.py does not make."""
    declared = [item for item in outcomes if item._supports_flash_attn]
    equal = [item for item in declared if outcomes[item].kind == "equal"]
    refused = [item for item in declared if outcomes[item].kind == "refused"]
    assert len(equal) + len(refused) > 0.78 * len(declared)
    assert sum(outcomes[item].n_calls > 0 for item in equal) > 0.95 * len(equal)
