"""Bodies of calls, read."""

from __future__ import annotations

import json
from typing import Any

from extproc.openai.endpoints import Endpoint
from extproc.openai.requests import Call, read

GENERATING = (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.MESSAGES)


def call(endpoint: Endpoint = Endpoint.CHAT, **members: Any) -> Call:
    return read(endpoint, json.dumps(members).encode())
