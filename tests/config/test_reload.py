"""Which changes of its configuration a running Tidegate can take over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.config import ConfigError, load, refuse_fixed

WRITTEN = """\
listen: {http: "127.0.0.1:9090"}
tenants:
  pay: {class: P0}
  service: {class: P1, plan: basic}
agents: {}
plans:
  basic: {requests_per_minute: 60}
pools:
  "*":
    endpoints: {static: ["10.0.0.1:8000"]}
    max_concurrency: 64
"""


@pytest.fixture
def problems(tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], None]], list[str]]:
    """Say what is wrong with taking over the configuration after a change to it."""

    def change(edit: Callable[[dict[str, Any]], None]) -> list[str]:
        file = tmp_path / "tidegate.yaml"
        file.write_text(WRITTEN)
        running = load(file)
        data = yaml.safe_load(WRITTEN)
        edit(data)
        file.write_text(yaml.safe_dump(data, sort_keys=False))
        try:
            refuse_fixed(running, load(file), file)
        except ConfigError as error:
            return [str(each) for each in error.problems]
        return []

    return change


TAKEN_OVER: list[Callable[[dict[str, Any]], Any]] = [
    lambda data: None,
    lambda data: data["tenants"].update(new={"class": "P2"}),
    lambda data: data["tenants"].pop("service"),
    lambda data: data.update(tasks={"extract": {"max_tokens": 9}}),
    lambda data: data.update(identity={"sources": [{"header": {"name": "x-who"}}]}),
    lambda data: data.update(fallback={"language": "en", "engine_statuses": [503]}),
    lambda data: data["agents"].update(depth=9, dependency_wait="1s"),
    lambda data: data["plans"].update(more={"tokens_per_minute": 600}),
    lambda data: data["pools"]["*"].update(max_concurrency=8, aliases=["qwen"]),
    lambda data: data.update(
        classes={
            "P0": {"strict": True, "max_wait": "9s"},
            "P1": {"weight": 2},
            "P2": {"concurrency": 0.1, "evictable": True},
        }
    ),
]


@pytest.mark.parametrize("edit", TAKEN_OVER)
def test_is_taken_over(
    problems: Callable[[Callable[[dict[str, Any]], Any]], list[str]],
    edit: Callable[[dict[str, Any]], Any],
) -> None:
    assert problems(edit) == []


RESTART = "is taken over by a restart only"
FIXED: list[tuple[Callable[[dict[str, Any]], Any], list[str]]] = [
    (
        lambda data: data["listen"].update(http="127.0.0.1:9999"),
        [f"line 2: listen.http = '127.0.0.1:9999': {RESTART}"],
    ),
    (
        lambda data: data["pools"]["*"]["endpoints"].update(static=["10.0.0.2:8000"]),
        [f"line 16: pools.*.endpoints.static = ['10.0.0.2:8000']: {RESTART}"],
    ),
    (
        lambda data: data["pools"].update(more={"endpoints": {"static": ["10.0.0.3:8000"]}}),
        [f"line 19: pools.more: {RESTART}"],
    ),
    (lambda data: data.pop("agents"), [f"agents = None: {RESTART}"]),
    (
        lambda data: (data.pop("plans"), data["tenants"]["service"].pop("plan")),
        [f"plans = 'none': {RESTART}"],
    ),
    (
        lambda data: data["plans"]["basic"].update(quota={"tokens": 5}),
        [f"line 10: plans = 'with a quota': {RESTART}"],
    ),
    (
        lambda data: data.update(identity={"default_tenant": "service"}, tickets={"window": "90s"}),
        [
            f"line 20: identity.default_tenant = 'service': {RESTART}",
            f"line 22: tickets.window = 90.0: {RESTART}",
        ],
    ),
    (
        lambda data: data.update(
            classes={"P0": {"strict": True}, "P1": {"evictable": True}, "P2": {"evictable": True}}
        ),
        [f"line 23: classes.P1.evictable = True: {RESTART}"],
    ),
    (
        lambda data: data.update(classes={"P0": {"strict": True}, "P1": {}}),
        [f"line 19: classes.P2 = 'left out': {RESTART}"],
    ),
]


@pytest.mark.parametrize(("edit", "expected"), FIXED)
def test_needs_a_restart(
    problems: Callable[[Callable[[dict[str, Any]], Any]], list[str]],
    edit: Callable[[dict[str, Any]], Any],
    expected: list[str],
) -> None:
    assert problems(edit) == expected
