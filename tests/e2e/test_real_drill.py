"""A drill of a few seconds in real time, through a real Envoy."""

from __future__ import annotations

import pytest

from extproc.sim.drill.lengths import LogNormal, Mix
from extproc.sim.drill.setting import Setting
from extproc.sim.engine_config import EngineConfig
from extproc.stand.real.rehearsal import Rehearsal

pytestmark = pytest.mark.e2e


def test_three_controllers_meet_the_same_calls() -> None:
    engine = EngineConfig(num_gpu_blocks=512, max_model_len=4096)
    setting = Setting(engine=engine, endpoints=1, warm_up=0.5, measured=2.0, tail=0.0)
    rehearsal = Rehearsal(setting, Mix(LogNormal(200), LogNormal(10)), rate=15.0)
    told: list[str] = []

    played = rehearsal.play(("none", "watermark", "tidegate"), told.append)

    assert told == ["none", "watermark", "tidegate"]
    offered = [[each.offered for each in measures.classes] for measures in played.values()]
    assert offered[0] == offered[1] == offered[2]
    for measures in played.values():
        assert not measures.errors
        assert measures.goodput > 0
    assert {each.shed for each in played["none"].classes} == {0.0}
    virtual = rehearsal.model(("tidegate",))["tidegate"]
    assert [each.offered for each in virtual.classes] == offered[0]
