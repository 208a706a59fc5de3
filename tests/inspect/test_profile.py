"""What ncu measured beside what was predicted, with a stand-in for its Python module."""

from __future__ import annotations

import json

import pytest
from support.listings import BASE, BEST

from pyflash.emulator import Counts, Report
from pyflash.inspect.profile import REGISTERS, UTILISATION, profile, profile_of

SYMBOL = (
    "void pyflash::flash_forward_kernel<FlashForwardKernelConfig{(DType)5, 128, 64, 64, 4, true, "
    "false, false, 0, 0, 0, false, false}, ForwardFeatures{}>(pyflash::ForwardParams)"
)


class Metric:
    """A number, or one for each instruction."""

    def __init__(self, value, instances=()):
        self.value, self.instances = value, instances

    def as_double(self, i=None):
        return self.value if i is None else self.instances[i][1]

    def num_instances(self):
        return len(self.instances)

    def has_correlation_ids(self):
        return bool(self.instances)

    def correlation_ids(self):
        return self

    def as_uint64(self, i):
        return self.instances[i][0]


class Action:
    def __init__(self, name=SYMBOL):
        executed = Metric(0, ((0x10, 1024.0), (0x20, 512.0)))
        self.metrics = {
            "inst_executed": executed,
            REGISTERS: Metric(202.0),
            UTILISATION["tensor pipe"]: Metric(41.5),
        }
        self._name = name

    def name(self):
        return self._name

    def metric_names(self):
        return list(self.metrics)

    def metric_by_name(self, name):
        return self.metrics[name]

    def sass_by_pc(self, address):
        return {0x10: "HMMA.16816.F32 R1, R2, R3, R4 ;", 0x20: "@P0 LDSM.16.M88.4 R1, [R2] ;"}[
            address
        ]


def report(**counts) -> Report:
    names = ("mma", "ldmatrix", "shuffles", "warp_syncs", "barriers", "cp_async",
             "cp_async_commits", "cp_async_waits", "exponentials", "reciprocals")  # fmt: skip
    values = dict.fromkeys(names, 0) | counts
    return type(
        "Emulated",
        (),
        {"config": str(BASE), "sites": {}, "counts": Counts(**values)},
    )()


def test_predicted_beside_measured():
    result = profile_of(Action(), report(mma=1024, ldmatrix=500))
    assert result.config == BASE
    assert result.counts["mma"] == (1024, 1024)
    assert result.counts["ldmatrix"] == (500, 512)
    assert result.wrong == ["ldmatrix"]
    assert result.resources["registers"] == (BASE.resources(90).registers, 202)
    assert result.utilisation == {"tensor pipe": 41.5}
    assert result.stalls == {}
    assert json.loads(result.to_json())["counts"]["mma"] == [1024, 1024]
    assert [table.title for table in result.tables()][:2] == ["counts", "resources"]


def test_another_kernel_is_refused():
    with pytest.raises(ValueError, match=r"ncu measured .* emulated was"):
        profile_of(Action(SYMBOL.replace("64, 64, 4", "64, 32, 4")), report())


def test_without_ncu(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(
        "pyflash.inspect.inspection.emulated_traffic", lambda config, seqlen: report()
    )
    with pytest.raises(RuntimeError, match="ncu not found"):
        profile(BEST)
