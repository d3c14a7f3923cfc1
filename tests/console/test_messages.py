"""Messages as JSON and back."""

from __future__ import annotations

import json

import pytest

from extproc.console.messages import UnreadableRequestError, plain, read
from extproc.control.pb import modes_pb2, state_pb2, thresholds_pb2


def test_json_has_the_protos_names_and_numbers_are_numbers() -> None:
    state = state_pb2.State(version="1")
    state.at.FromJsonString("2026-11-11T00:00:00.500Z")
    state.mode.mode = modes_pb2.MODE_PROTECT
    state.pools.add(name="qwen", in_flight=12, free_observed=0.25)

    told = plain(state)
    assert told["at"] == "2026-11-11T00:00:00.500Z"
    assert told["mode"]["mode"] == "MODE_PROTECT"
    assert told["mode"]["at"] is None
    (pool,) = told["pools"]
    assert (pool["in_flight"], pool["free_observed"], pool["free_predicted"]) == (12, 0.25, None)
    assert pool["classes"] == []


def test_what_is_told_can_be_read_again() -> None:
    asked = thresholds_pb2.SetThresholdsRequest(reason="peak")
    asked.classes.add(name="P2", close=0.2, max_output_tokens=64)
    again = read(json.loads(json.dumps(plain(asked))), thresholds_pb2.SetThresholdsRequest())
    assert again == asked


@pytest.mark.parametrize(
    "wrong", [{"mood": 1}, {"mode": "MODE_PANIC"}, {"reason": 5}, {"evict": "perhaps"}]
)
def test_what_no_field_takes_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UnreadableRequestError):
        read(wrong, modes_pb2.SetModeRequest())
