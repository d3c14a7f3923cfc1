from __future__ import annotations

import pytest

from extproc.openai.endpoints import Endpoint, endpoint_of


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/chat/completions", Endpoint.CHAT),
        ("/v1/chat/completions/batch", Endpoint.CHAT),
        ("/v1/completions", Endpoint.COMPLETIONS),
        ("/v1/responses", Endpoint.RESPONSES),
        ("/v1/messages", Endpoint.MESSAGES),
        ("/v1/embeddings", Endpoint.EMBEDDINGS),
        ("/rerank", Endpoint.EMBEDDINGS),
        ("/inference/v1/generate", Endpoint.GENERATE),
        ("/invocations", Endpoint.INVOCATIONS),
        ("/cohere/v2/chat", Endpoint.COHERE),
    ],
)
def test_the_calls_of_the_engine(path: str, endpoint: Endpoint) -> None:
    assert endpoint_of(path) is endpoint


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions?",
        "/v1/chat/completions?a=/v1/models",
        "/v1/chat/completions#x",
        "/v1%2Fchat/completions",
        "/v1%2fchat%2Fcompletions?x=%0A",
        "/%761/chat/%63ompletions",
        "http://engine:8000/v1/chat/completions?x",
        "/v1/chat/completions%0A",
    ],
)
def test_what_the_engine_routes_as_chat_is_chat(path: str) -> None:
    assert endpoint_of(path) is Endpoint.CHAT


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "*",
        "engine:8000",
        "http://engine:8000",
        "/x://engine/v1/chat/completions",
        "/v1/models",
        "/v1/messages/count_tokens",
        "/v1/chat/completions/render",
        "/v1/responses/resp_1/cancel",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1/./chat/completions",
        "/V1/chat/completions",
        "/v1/chat/completions;a=b",
        "/v1/chat%252Fcompletions",
        "/v1/chat/completions%0A%0A",
        "/v1/chat/completions%20",
        "/v1/audio/transcriptions",
    ],
)
def test_what_the_engine_does_not_route_passes(path: str) -> None:
    assert endpoint_of(path) is None
