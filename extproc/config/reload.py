"""What a running Tidegate can take over from a configuration file that has changed.

Rules this module keeps:

* All or nothing: where one thing would need a restart, nothing is taken over, and all such things are
  named.
* What is not said here to be taken over needs a restart: addresses, state, engines, what holds memory or
  files, and whatever Envoy is configured with, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from extproc.config.load import ConfigError, located
from extproc.config.model import Config

_RESTART = "is taken over by a restart only"
_ABSENT = object()


def refuse_fixed(running: Config, new: Config, file: Path) -> None:
    """Return if a running Tidegate can go over from one configuration to the other.

    Args:
        running: what it was started with, or has gone over to.
        new: what ``file`` says now.
        file: where problems are located.

    Raises:
        ConfigError: it would need a restart; each thing that does is named.
    """
    found = {
        path: "" if isinstance(value, Mapping) else repr(value)
        for path, value in _differing((), _fixed(running), _fixed(new))
    }
    if found:
        raise ConfigError(file, located(file, found, _RESTART))


def _fixed(config: Config) -> dict[str, Any]:
    """Return what only a restart changes, under the paths of the file."""
    data = config.model_dump(by_alias=True, mode="json")
    for section in ("tenants", "tasks", "fallback"):
        del data[section]
    data["identity"] = {"default_tenant": config.identity.default_tenant}
    # Lanes, modes and evictors are made by these, in this order.
    data["classes"] = {
        name: {"rank": rank, "strict": each.strict, "evictable": each.evictable}
        for rank, (name, each) in enumerate(config.classes.items())
    }
    # Somebody has to keep accounts: that comes with the first plan, a ledger with the first quota.
    quota = any(plan.quota is not None for plan in config.plans.values())
    data["plans"] = "with a quota" if quota else "without quotas" if config.plans else "none"
    for pool in data["pools"].values():
        for key in ("aliases", "max_concurrency"):
            del pool[key]
    if config.agents is not None:
        kept = ("identity", "merge_wait", "idle_after")
        data["agents"] = {key: data["agents"][key] for key in kept}
    return data


def _differing(
    path: tuple[str, ...], old: object, new: object
) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the paths of what differs, as deep as both are maps, with the new values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            yield from _differing((*path, key), old.get(key, _ABSENT), new.get(key, _ABSENT))
    elif old != new:
        yield path, "left out" if new is _ABSENT else new
