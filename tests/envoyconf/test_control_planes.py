"""What control planes make of the Istio and Envoy Gateway files, put into a real Envoy.

No control plane runs here: a test does to the bootstrap what the file tells Istio, or Envoy Gateway,
to do to theirs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import yaml

from extproc.config import Config
from extproc.envoyconf.bootstrap import bootstrap
from extproc.envoyconf.istio import istio

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
LONGER = b'{"model":"tiny","max_tokens":512}'
World = Callable[..., Awaitable[Any]]


def patched(config: Config, patch: Callable[[dict[str, Any]], None]) -> str:
    """The bootstrap with a patched connection manager, routed by header as VirtualServices do."""
    document = yaml.safe_load(bootstrap(config))
    (chain,) = document["static_resources"]["listeners"][0]["filter_chains"]
    manager = chain["filters"][0]["typed_config"]
    first, _ = manager["route_config"]["virtual_hosts"][0]["routes"]
    (matched,) = first["match"].pop("dynamic_metadata")
    first["match"]["headers"] = [
        {"name": "x-tidegate-pool", "string_match": matched["value"]["string_match"]}
    ]
    patch(manager)
    return yaml.safe_dump(document)


def as_istio(config: Config) -> str:
    def patch(manager: dict[str, Any]) -> None:
        router = manager["http_filters"][-1]
        patches = yaml.safe_load(istio(config))["spec"]["configPatches"]
        inserted = [p["patch"]["value"] for p in patches if p["applyTo"] == "HTTP_FILTER"]
        manager["http_filters"] = [*inserted, router]

    return patched(config, patch)


def as_gateway(config: Config) -> str:
    def patch(manager: dict[str, Any]) -> None:
        (ext_proc,) = (each for each in manager["http_filters"] if each["name"] == "tidegate")
        router = manager["http_filters"][-1]
        del ext_proc["typed_config"]["request_attributes"]
        ext_proc["typed_config"]["processing_mode"]["request_header_mode"] = "SEND"
        manager["http_filters"] = [ext_proc, router]

    return patched(config, patch)


async def test_istio_routes_by_the_header_that_the_verdict_sets(world: World) -> None:
    # The route of the rest, tiny, comes last; the header leads to tiny-2.
    envoy = await world(pools=2, write=as_istio)
    await envoy.post(CHAT, b"{}", x_tidegate_pool="tiny-2")
    assert [len(engine.seen) for engine in envoy.engines] == [1, 0]

    def choose(response: Any) -> None:
        response.request_body.response.body_mutation.body = LONGER
        response.dynamic_metadata.update({"tidegate": {"pool": "tiny-2"}})

    envoy.processor.on_body(choose)
    await envoy.post(CHAT, b"{}")
    (seen,) = envoy.engines[1].seen
    assert (seen.body, seen.headers["content-length"]) == (LONGER, str(len(LONGER)))


async def test_envoy_gateway_sends_headers_and_takes_header_mutations(world: World) -> None:
    envoy = await world(pools=2, write=as_gateway)

    def choose(response: Any) -> None:
        common = response.request_body.response
        common.body_mutation.body = LONGER
        common.clear_route_cache = True
        for name, value in (("x-tidegate-pool", b"tiny-2"), ("content-length", b"33")):
            option = common.header_mutation.set_headers.add()
            option.header.key, option.header.raw_value = name, value
            option.append_action = option.OVERWRITE_IF_EXISTS_OR_ADD

    envoy.processor.on_body(choose)
    status, _ = await envoy.post(CHAT, b"{}")
    assert status == 200
    assert envoy.processor.kinds == ["request_headers", "request_body", "response_headers"]
    (seen,) = envoy.engines[1].seen
    assert (seen.body, seen.headers["content-length"]) == (LONGER, "33")


async def test_envoy_gateway_refuses_a_wrong_length(world: World) -> None:
    envoy = await world(pools=2, write=as_gateway)

    def choose(response: Any) -> None:
        response.request_body.response.body_mutation.body = LONGER

    envoy.processor.on_body(choose)
    status, _ = await envoy.post(CHAT, b"{}")
    assert status == 503  # status_on_error
    assert not any(engine.seen for engine in envoy.engines)
