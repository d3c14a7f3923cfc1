"""To Envoy several workers are several endpoints, and one that is gone is passed over."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from extproc.config import parse
from extproc.envoyconf.bootstrap import bootstrap

TEXT = """\
listen: {processor: '%s', workers: %d}
state: {redis: 'redis://r'}
pools: {m: {endpoints: {static: ['127.0.0.1:1']}}}
"""


def made(processor: str, workers: int) -> tuple[list[Any], dict[str, Any]]:
    """Return the endpoints of the processor, and how calls to it are retried."""
    resources = yaml.safe_load(bootstrap(parse(TEXT % (processor, workers))))["static_resources"]
    cluster = resources["clusters"][0]
    (listed,) = cluster["load_assignment"]["endpoints"]
    endpoints = [each["endpoint"]["address"] for each in listed["lb_endpoints"]]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    (ours,) = [each for each in manager["http_filters"] if each["name"] == "tidegate"]
    retries: dict[str, Any] = ours["typed_config"]["grpc_service"]["retry_policy"]
    return endpoints, retries


def test_sockets() -> None:
    endpoints, retries = made("unix:///run/e.sock", 2)
    assert endpoints == [{"pipe": {"path": f"/run/{name}.sock"}} for name in ("e", "e-2")]
    assert retries["retry_on"] == "cancelled,refused-stream,unavailable,connect-failure"
    (predicate,) = retries["retry_host_predicate"]
    assert predicate["name"] == "envoy.retry_host_predicates.previous_hosts"


@pytest.mark.parametrize(("workers", "ports"), [(1, [9002]), (3, [9002, 9003, 9004])])
def test_ports(workers: int, ports: list[int]) -> None:
    endpoints, _ = made("0.0.0.0:9002", workers)
    addresses = [each["socket_address"] for each in endpoints]
    assert [(each["address"], each["port_value"]) for each in addresses] == [
        ("127.0.0.1", port) for port in ports
    ]


def test_a_single_one_that_cannot_be_connected_to_is_not_tried_again() -> None:
    _, retries = made("unix:///run/e.sock", 1)
    assert retries["retry_on"] == "cancelled,refused-stream,unavailable"
    assert "retry_host_predicate" not in retries
