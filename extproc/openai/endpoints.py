"""Which call of the engine a path is.

Rules:
- A path is what the engine's router makes of it, no more and no less. uvicorn cuts scheme and
  host, query and fragment, undoes one layer of percent-encoding and hands the rest to starlette,
  which compares it whole: case matters; double slashes, dot segments and ``;parameters`` stay and
  match nothing. starlette's pattern ends in ``$``, so one line feed at the end (``%0A``) does match.
- A trailing slash is not the same path: the engine answers it with a redirect to the plain one,
  which then comes back through us.
- ``None`` is a path that generates nothing (or nothing that JSON bounds): it passes untouched.
"""

from __future__ import annotations

from enum import StrEnum
from urllib.parse import unquote


class Endpoint(StrEnum):
    """A kind of call: one request shape, one way to answer in the engine's stead."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    """Everything that reads a prompt but generates no text: embeddings, scores, rerank, …"""
    GENERATE = "generate"
    """vLLM's tokens in, tokens out; its limits are inside ``sampling_params``."""
    COHERE = "cohere"
    """Cohere's chat, which vLLM serves where the cohere package is installed."""
    INVOCATIONS = "invocations"
    """SageMaker's one path for all: the body decides. ``requests.read`` resolves it."""


PATHS = {
    "/v1/chat/completions": Endpoint.CHAT,
    "/v1/chat/completions/batch": Endpoint.CHAT,
    "/v1/completions": Endpoint.COMPLETIONS,
    "/v1/responses": Endpoint.RESPONSES,
    "/v1/messages": Endpoint.MESSAGES,
    "/inference/v1/generate": Endpoint.GENERATE,
    "/cohere/v2/chat": Endpoint.COHERE,
    "/invocations": Endpoint.INVOCATIONS,
    "/v1/embeddings": Endpoint.EMBEDDINGS,
    "/v2/embed": Endpoint.EMBEDDINGS,
    "/pooling": Endpoint.EMBEDDINGS,
    "/classify": Endpoint.EMBEDDINGS,
    "/score": Endpoint.EMBEDDINGS,
    "/v1/score": Endpoint.EMBEDDINGS,
    "/rerank": Endpoint.EMBEDDINGS,
    "/v1/rerank": Endpoint.EMBEDDINGS,
    "/v2/rerank": Endpoint.EMBEDDINGS,
    "/generative_scoring": Endpoint.EMBEDDINGS,
    "/v1/systemone": Endpoint.EMBEDDINGS,
}
"""By the plain path, as all but the odd client write it."""


def endpoint_of(path: str) -> Endpoint | None:
    """Return what the engine would serve at ``path`` (a request target), ``None`` if no call."""
    endpoint = PATHS.get(path)
    if endpoint is not None:
        return endpoint
    target = path.partition("#")[0].partition("?")[0]
    if not target.startswith("/"):  # http://host/path, as a proxy is asked
        target = "/" + target.partition("://")[2].partition("/")[2]
    return PATHS.get(unquote(target).removesuffix("\n"))
