"""The file that lists a pool's endpoints, where ``endpoints: {file: …}`` names one.

Rule this module keeps: who scrapes the endpoints and who writes them for Envoy read the same list.
"""

from __future__ import annotations

import json
from typing import Any

import yaml
from pydantic import ValidationError

from extproc.config.model import Endpoints


class EndpointsError(ValueError):
    """The text lists no endpoints; the message says why, in one line."""


def parse_endpoints(text: bytes) -> tuple[str, ...]:
    """Return what a file says: a list of ``host:port``, or a mapping with it as ``endpoints``.

    Raises:
        EndpointsError: it is neither YAML nor JSON, or says something else.
    """
    try:
        content = _load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise EndpointsError(f"neither YAML nor JSON: {reason}") from error
    if isinstance(content, dict):
        content = content.get("endpoints")
    if not isinstance(content, list):
        raise EndpointsError("write a list of host:port, or endpoints: and it")
    try:
        return Endpoints.model_validate({"static": content}).static or ()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"[{part}]" for part in first["loc"][1:])
        reason = first["msg"].removeprefix("Value error, ")
        raise EndpointsError(f"endpoints{where}: {reason}") from error


def _load(text: bytes) -> Any:
    try:
        return json.loads(text)  # not all JSON is YAML: tabs
    except ValueError:
        return yaml.safe_load(text)
