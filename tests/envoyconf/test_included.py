"""An Envoy of one's own that includes the filter, the clusters and the endpoints by path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from extproc.config import Config, Endpoints
from extproc.envoyconf.forms import Form, write

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
World = Callable[..., Awaitable[Any]]


def including(directory: Path) -> Callable[[Config], str]:
    def write_files(config: Config) -> str:
        envoy = config.envoy.model_copy(update={"include_dir": directory})
        write(config.model_copy(update={"envoy": envoy}), directory)
        return (directory / "include.yaml").read_text(encoding="utf-8")

    return write_files


async def test_filter_and_clusters_by_path_serve(world: World, tmp_path: Path) -> None:
    envoy = await world(pools=2, write=including(tmp_path / "included"))
    envoy.processor.on_body(
        lambda response: response.dynamic_metadata.update({"tidegate": {"pool": "tiny-2"}})
    )
    status, _ = await envoy.post(CHAT, b"{}")
    assert status == 200
    assert envoy.processor.kinds == ["request_body", "response_headers"]
    assert [len(engine.seen) for engine in envoy.engines] == [0, 1]


async def test_a_new_file_of_endpoints_is_taken_up(world: World, tmp_path: Path) -> None:
    listed, directory = tmp_path / "pods.yaml", tmp_path / "included"
    kept: list[Config] = []

    def by_file(config: Config, served: list[str]) -> Config:
        listed.write_text(f'["{served[0]}"]', encoding="utf-8")
        pool = config.pools["tiny"].model_copy(update={"endpoints": Endpoints(file=listed)})
        kept.append(config.model_copy(update={"pools": {"tiny": pool}}))
        return kept[0]

    envoy = await world(pools=2, edit=by_file, write=including(directory))
    assert (await envoy.post(CHAT, b"{}"))[0] == 200
    listed.write_text(f"endpoints: ['{envoy.addresses[1]}']", encoding="utf-8")
    write(
        kept[0].model_copy(
            update={"envoy": kept[0].envoy.model_copy(update={"include_dir": directory})}
        ),
        directory,
        Form.EDS,
    )
    async with asyncio.timeout(10):
        while not envoy.engines[1].seen:
            assert (await envoy.post(CHAT, b"{}"))[0] == 200
            await asyncio.sleep(0.02)
