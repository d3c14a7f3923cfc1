"""Two real vLLM servers for every test in this folder, started once for the whole run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.vllm.servers import Server, vllm_servers


@pytest.fixture(scope="session")
def engines() -> Iterator[list[Server]]:
    with vllm_servers(2) as servers:
        yield servers
