"""Thresholds changed while serving: the file's own words, laid over what the file says.

Rule this module keeps: what the file may not say, a change may not either; it is checked by the same
rules, as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from extproc.config.model import Config

Changes = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Such as ``{"classes": {"P2": {"concurrency": 0.5}}, "pools": {"*": {"max_concurrency": 64}}}``."""

_ADJUSTABLE: Mapping[str, Mapping[str, frozenset[str] | None]] = {
    "classes": {
        "free_watermark": frozenset(("close", "open")),
        "concurrency": None,
        "max_wait": None,
        "max_tokens": None,
        "max_prompt_tokens": None,
        "weight": None,
    },
    "pools": {"max_concurrency": None},
}


class AdjustmentError(ValueError):
    """The thresholds may not be so; the text says which and why."""


def adjusted(config: Config, changes: Changes) -> Config:
    """Return the configuration with changes laid over it.

    Raises:
        AdjustmentError: something may not be changed, or not to this.
    """
    data = config.model_dump(by_alias=True)
    for path, value in named(changes):
        section, name, *keys = path
        target = data[section].get(name) if section in _ADJUSTABLE else None
        if target is None:
            raise AdjustmentError(f"{section}.{name}: there is no such thing to adjust")
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise AdjustmentError("; ".join(_told(error))) from None


def named(changes: Changes) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the value of each change.

    Raises:
        AdjustmentError: something may not be changed while serving.
    """
    for section, things in changes.items():
        for name, values in things.items():
            for key, value in values.items():
                allowed = _ADJUSTABLE.get(section, {})
                inner = allowed.get(key)
                if key not in allowed or (inner is not None and not isinstance(value, Mapping)):
                    raise AdjustmentError(f"{section}.{name}.{key}: cannot be changed live")
                if inner is None:
                    yield (section, name, key), value
                    continue
                for part, number in value.items():
                    if part not in inner:
                        raise AdjustmentError(
                            f"{section}.{name}.{key}.{part}: cannot be changed live"
                        )
                    yield (section, name, key, part), number


def laid_over(older: Changes, newer: Changes) -> dict[str, dict[str, dict[str, Any]]]:
    """Return changes that do what both do; where both say something, the newer counts."""
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for path, value in (*named(older), *named(newer)):
        target: dict[str, Any] = out
        for key in path[:-1]:
            target = target.setdefault(key, {})
        target[path[-1]] = value
    return out


def _told(error: ValidationError) -> Iterator[str]:
    for detail in error.errors(include_url=False, include_input=False):
        where = ".".join(str(part) for part in detail["loc"])
        reason = detail["msg"].removeprefix("Value error, ")
        yield f"{where}: {reason}" if where else reason
