"""What costs are fitted to."""

from pyflash.config import DType, parse
from pyflash.tuner.costs import observations_of, of_built

PACKING = "(FP16, 128, 64, 64, 1): sm90+stages_2+overlap+persistent+pack_gqa"
LARGE = "(FP16, 128, 128, 128, 2): sm90+stages_2+overlap+persistent"
DROPPED = "(FP16, 128, 64, 64, 1): sm90+stages_3+overlap+pack_gqa"
PROBLEM = "fp16,batch=2,heads=4,seqlen_q=1,seqlen_k=4096,d_head=128"

AUDIT = {"kind": "run", "what": "audit"}


def audited(seconds, **more):
    return {"kind": "audit", "name": PROBLEM, "ratio": 1.0, "seconds": seconds, **more}


def test_times_of_configs_that_the_latest_audit_lacks_are_left_out():
    """Whatever the dtype: both have the same costs."""
    latest = audited({PACKING.replace("FP16", "BF16"): 2e-5, LARGE: 3e-5})
    failed = {"kind": "audit", "name": "not measured", "error": "no memory"}
    records = [AUDIT, audited({PACKING: 2e-5, DROPPED: 1e-5}), AUDIT, latest, failed]
    _, first, _, last, error = of_built(records)
    assert first["seconds"] == {PACKING: 2e-5}
    assert (last, error) == (latest, failed)
    assert of_built([AUDIT, failed]) == [AUDIT, failed]


def test_a_time_is_of_the_splits_that_the_record_tells():
    """Else of the rule's, for which 0 stands."""
    record = audited({PACKING: 2e-5, LARGE: 3e-5}, splits={PACKING: 7})
    found = observations_of([record])
    for config, splits in ((PACKING, 7), (LARGE, 0)):
        (observation,) = found[parse(config)]
        assert observation.problem.options["num_splits"] == splits
    assert {config.dtype for config in found} == {DType.FP16}
