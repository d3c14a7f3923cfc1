"""Scripts of the generated Envoy configuration, and what they are told in front of them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

_ESCAPED = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("\r"): "\\r"}
_ESCAPED |= {code: f"\\{code:03d}" for code in (*range(32), 127) if code not in _ESCAPED}


def script(name: str, **told: Any) -> str:
    """Return a script with what it is told as locals before it, in capitals."""
    text = (files(__name__) / f"{name}.lua").read_text(encoding="utf-8")
    given = "".join(f"local {key} = {literal(value)}\n" for key, value in told.items())
    return f"{given}\n{text}"


def literal(value: Any) -> str:
    """Return a value as Lua writes it; in a table, what is None is left out."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return f'"{value.translate(_ESCAPED)}"'
    if isinstance(value, Mapping):
        pairs = (f"[{literal(key)}] = {literal(each)}" for key, each in value.items())
        return "{" + ", ".join(pairs) + "}"
    return "{" + ", ".join(map(literal, value)) + "}"
