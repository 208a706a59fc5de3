"""The tests of test_transformers.py and of test_padding.py, on a GPU."""

import pytest
from test_padding import (  # noqa: F401
    test_a_step_over_a_cache_reads_the_mask_once,
    test_keys_in_a_cache_are_attended_as_gathered_ones,
    test_padded_attention,
)
from test_transformers import (  # noqa: F401
    test_a_mask_is_looked_at_once_in_a_forward,
    test_a_training_steps_gradients,
    test_autocast,
    test_compiles,
    test_generates_the_same_tokens,
    test_logits,
    test_logits_with_a_cache,
    test_packed_rows_of_a_batch,
    test_packed_sequences_do_not_see_each_other,
    test_the_attention_of_pyflash_is_what_runs,
)

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> str:
    return "cuda"
