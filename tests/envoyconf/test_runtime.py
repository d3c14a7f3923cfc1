"""Envoy's runtime in the forms that have a bootstrap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from extproc.config import Config
from extproc.envoyconf.bootstrap import bootstrap
from extproc.envoyconf.include import example

GRACEFUL = {"envoy.reloadable_features.ext_proc_graceful_grpc_close": True}


def layers(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(text)["layered_runtime"]["layers"]
    return found


@pytest.mark.parametrize("form", [bootstrap, example])
def test_streams_end_gracefully_and_who_operates_has_the_last_word(
    form: Callable[[Config], str], sample: Callable[..., Config]
) -> None:
    assert layers(form(sample(a=["e:1"]))) == [
        {"name": "streams", "static_layer": GRACEFUL},
        {"name": "admin", "admin_layer": {}},
    ]


@pytest.mark.parametrize("form", [bootstrap, example])
def test_the_valve_has_a_layer_between(
    form: Callable[[Config], str], sample: Callable[..., Config]
) -> None:
    names = [each["name"] for each in layers(form(sample("envoy: {valve: {}}", a=["e:1"])))]
    assert names == ["streams", "tidegate", "admin"]
