"""What the stand runs: addresses, the configuration, the commands.

Rules this module keeps:

* Nothing is started here; a plan is data.
* Everything listens on loopback only: the stand trusts a tenant header, which no real listener
  reachable by others may do.
"""

from __future__ import annotations

import secrets
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from extproc.config import Config, parse
from extproc.stand.ports import free_ports, probe

EMULATED_MODEL = "qwen-72b-instruct"
SMALL_ENGINE = (*("--blocks", "512", "--max-num-seqs", "32", "--scheduling-policy", "priority"),)
"""Options of an engine so small that a peak is easily made."""

_DEMO = """\
identity:
  sources:
    - header: {name: x-tenant-id, trusted: true}   # only because this stand listens on loopback
plans:
  enterprise: {quota: {tokens: 1000000000}}
  business:   {quota: {tokens: 50000000}}
  free:       {quota: {tokens: 10000000, period: day}}
tenants:
  pay:       {class: P0, plan: enterprise}
  service:   {class: P1, plan: business}
  marketing: {class: P2, plan: free}
  anonymous: {class: P2, plan: free}
tasks:
  extract_json: {max_tokens: 512}
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything is and what the configuration says.

    Attributes:
        directory: for logs, sockets and generated files.
        envoy: where clients connect, ``host:port``.
        engines: the vLLM endpoints, ``host:port``.
        emulated: the ports of the engines that the stand itself must start.
        config: the configuration, as text and parsed.
        token: an admin's, for the control API.
        console: where browsers find the console, ``host:port``.
        console_token: the console's own, a viewer's.
        engine_options: of the engines that it starts.
        redis: the socket of the Redis that the stand itself must start, or None.
    """

    directory: Path
    envoy: str
    engines: tuple[str, ...]
    emulated: tuple[int, ...]
    text: str
    config: Config
    token: str = field(repr=False)
    console: str
    console_token: str = field(repr=False)
    engine_options: tuple[str, ...]
    redis: Path | None = None

    @property
    def metrics_url(self) -> str:
        """Return where Tidegate's metrics are."""
        return f"http://{self.config.listen.http}/metrics"

    @property
    def token_file(self) -> Path:
        """Return where the token is put down, for those who may read it."""
        return self.directory / "control.token"

    @property
    def console_token_file(self) -> Path:
        """Return where the console's token is put down."""
        return self.directory / "console.token"

    def emulator_command(self, port: int) -> list[str]:
        """Return the command of an emulated engine."""
        where = ["--port", str(port), "--model", EMULATED_MODEL]
        return [*tidegate(), "emulate", *where, *self.engine_options]

    def serve_command(self) -> list[str]:
        """Return the command of the processor."""
        return [*tidegate(), "serve", "--config", str(self.directory / "tidegate.yaml")]

    def console_command(self) -> list[str]:
        """Return the command of the console."""
        reach = ["--control", self.config.listen.control, "--token-file"]
        return [
            *tidegate(), "console", "--listen", self.console, *reach, str(self.console_token_file)
        ]  # fmt: skip


def tidegate() -> list[str]:
    """Return the command of this very installation."""
    return [sys.executable, "-m", "extproc"]


def make_plan(
    directory: Path,
    *,
    port: int,
    engines: tuple[str, ...],
    config: Path | None = None,
    emulate: int = 2,
    engine_options: tuple[str, ...] = SMALL_ENGINE,
    workers: int | None = None,
) -> Plan:
    """Return the plan; emulated engines where no engine is given.

    Args:
        directory: an existing folder for what the stand writes.
        port: where Envoy listens on loopback; 0 for any free port.
        engines: ``host:port`` of running vLLM servers.
        config: a configuration of the user's own. Its addresses are replaced, and its pools by one
            for all models, with the first one's settings and the stand's endpoints.
        emulate: how many engines are emulated.
        engine_options: of those.
        workers: processes of Tidegate; None for what the configuration says. Where several would
            have no Redis to share through, the stand has one of its own.

    Raises:
        ConfigError: the user's configuration cannot be used.
        OSError: the port is taken.
    """
    if port:
        probe(port)
    listener, http, control, admin, console, *emulated = free_ports(5 + (0 if engines else emulate))
    endpoints = list(engines or [f"127.0.0.1:{each}" for each in emulated])
    settings = yaml.safe_load(config.read_text(encoding="utf-8") if config else _DEMO) or {}
    envoy = f"127.0.0.1:{port or listener}"
    for source in settings.get("identity", {}).get("sources", ()):
        if config is not None and "api_key" in source:  # the file moves, what it names does not
            keys = source["api_key"]
            keys["file"] = str(config.parent.absolute() / keys["file"])
    settings["listen"] = {
        "processor": f"unix://{directory / 'processor.sock'}",
        "http": f"127.0.0.1:{http}",
        "control": f"127.0.0.1:{control}",
        "workers": workers or settings.get("listen", {}).get("workers", 1),
        "withdraw": 0,  # there is nobody else for Envoy to go to
    }
    settings["control"] = {
        "tokens": str(directory / "control-tokens.yaml"),
        "directory": str(directory / "control"),
    }
    settings["state"] = {  # a trial charges nobody
        **settings.get("state", {}),
        "database": f"sqlite:///{directory / 'ledger.db'}",
        "outbox": str(directory / "outbox.db"),
    }
    redis: Path | None = None
    if settings["listen"]["workers"] > 1 and not settings["state"].get("redis"):
        redis = directory / "redis.sock"
        settings["state"]["redis"] = f"unix://{redis}"
    settings["decision_log"] = {"file": str(directory / "decisions.jsonl")}
    settings["envoy"] = {
        **settings.get("envoy", {}),
        "listener": envoy,
        "processor": None,  # where `listen` says: no other host's Tidegate
        "admin": f"127.0.0.1:{admin}",
    }
    policy = "priority" if emulated else "fcfs"
    defaults = {"max_concurrency": 32 * len(endpoints), "scheduling_policy": policy}
    first: dict[str, Any] = next(iter(settings.get("pools", {}).values()), {})
    settings["pools"] = {"*": {**defaults, **first, "endpoints": {"static": endpoints}}}
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    parsed = parse(text, file=config or directory / "tidegate.yaml")
    return Plan(
        directory,
        envoy,
        tuple(endpoints),
        tuple(emulated),
        text,
        parsed,
        token=secrets.token_urlsafe(32),
        console=f"127.0.0.1:{console}",
        console_token=secrets.token_urlsafe(32),
        engine_options=engine_options,
        redis=redis,
    )
