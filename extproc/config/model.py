"""The shape of ``tidegate.yaml``: keys, types, ranges and defaults.

Rules this module keeps:

* Every key has a default; an empty file is a valid configuration.
* Unknown keys, wrong types, values out of range and references to things that do not exist are
  refused.
* A configuration is immutable once loaded. A reload makes a new one or leaves the old one alone.
* A higher class is never held to a stricter mark than a lower one; otherwise it could be shed
  while the lower one is admitted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from extproc.config.agents import AgentLimits, AgentsConfig
from extproc.config.base import Section as _Model
from extproc.config.breaker import BreakerConfig
from extproc.config.control import ControlConfig, DecisionLogConfig
from extproc.config.envoy import EnvoyConfig
from extproc.config.identity import Identity
from extproc.config.tracing import TracingConfig
from extproc.config.values import (
    Address,
    ClassName,
    Count,
    DatabaseUrl,
    FilePath,
    FinishReason,
    Message,
    PoolName,
    Ratio,
    RedisUrl,
    Seconds,
    Size,
    StopOn,
    StopText,
    TenantName,
    TimeZone,
    UrlPath,
    is_local,
)
from extproc.core.reasons import REASONS, Reason, ReplyKind


class Listen(_Model):
    """Where Tidegate listens, and with how many processes.

    With ``workers``, each has an address of its own for Envoy, which spreads calls over them: sockets
    ``NAME-2.sock`` and so on beside that of ``processor``, or the ports that follow its port.
    Told to stop, it says so to Envoy's health checks and goes on to take new calls for ``withdraw``
    seconds, in which Envoys leave it for others.
    """

    processor: Address = "127.0.0.1:9002"
    workers: int = Field(default=1, ge=1, le=64)
    http: Address = "127.0.0.1:9090"
    control: Address = "127.0.0.1:9091"
    withdraw: Annotated[Seconds, Field(le=60)] = 2.0


class Watermark(_Model):
    """A class closes when the free ratio falls under ``close``, and opens again above ``open``."""

    close: Ratio
    open: Ratio

    @model_validator(mode="after")
    def _ordered(self) -> Watermark:
        if self.open < self.close:
            raise ValueError(f"open ({self.open}) must not be under close ({self.close})")
        return self


class ClassConfig(_Model):
    """One service class. ``max_wait`` in seconds, lengths in tokens.

    A call is refused where more than ``prefill_cap`` prompt tokens, its own included, would wait at
    an endpoint to be read. Without a cap that is what the endpoint reads in ``prefill_wait``
    seconds, as learned: so long a first token may be late. Strict classes are not held to it.
    """

    strict: bool = False
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    free_watermark: Watermark = Watermark(close=0.0, open=0.0)
    concurrency: Ratio = 1.0
    max_wait: Seconds = 0.0
    max_tokens: Count | None = None
    max_prompt_tokens: Count | None = None
    engine_priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    evictable: bool = False
    prefill_cap: Count | None = None
    prefill_wait: Annotated[Seconds, Field(gt=0)] = 2.0


class TenantConfig(_Model):
    """A tenant's class, plan and what differs for it."""

    class_: str = Field(alias="class")
    plan: str | None = None
    finish_reason: FinishReason | None = None
    language: Literal["zh", "en"] | None = None
    agents: AgentLimits | None = None


class TaskMatch(_Model):
    """Names a task by path or by model where no ``x-task-type`` header does."""

    path: UrlPath | None = None
    model: str | None = None


class TaskConfig(_Model):
    """What a call is for. A task lowers limits and class, it never raises them.

    ``stop`` and ``stop_on`` end its answers: at one of these texts, when the first JSON object or
    array is complete, when the text only repeats itself, when nothing but blanks come.
    """

    match: TaskMatch = TaskMatch()
    class_: str | None = Field(default=None, alias="class")
    max_tokens: Count | None = None
    max_prompt_tokens: Count | None = None
    stop: tuple[StopText, ...] = Field(default=(), max_length=16)
    stop_on: StopOn = ()


class Endpoints(_Model):
    """Where a pool's vLLM servers are; exactly one of static, dns, file."""

    static: tuple[Address, ...] | None = Field(default=None, min_length=1)
    dns: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,255}$")
    port: int | None = Field(default=None, ge=1, le=65535)
    file: FilePath | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Endpoints:
        if sum(kind is not None for kind in (self.static, self.dns, self.file)) != 1:
            raise ValueError("give exactly one of static, dns (with port), file")
        if (self.dns is None) != (self.port is None):
            raise ValueError("dns and port go together")
        for endpoint in self.static or ():
            if endpoint.startswith("unix://"):
                raise ValueError(f"{endpoint}: an engine is reached over TCP, write host:port")
        if self.static and len(set(self.static)) != len(self.static):
            raise ValueError("an endpoint is listed twice")
        return self


class Scrape(_Model):
    """How ``/metrics`` of an endpoint is read; all in seconds.

    Older than ``stale_after``, a reading loses credit linearly; older than ``unknown_after``, it
    counts for nothing and only concurrency limits the endpoint. Not ``enabled``: the pods report their
    load themselves, through the control API.
    """

    enabled: bool = True

    interval: Seconds = Field(default=0.2, ge=0.02)
    timeout: Seconds = Field(default=1.0, gt=0)
    stale_after: Seconds = Field(default=1.0, gt=0)
    unknown_after: Seconds = Field(default=30.0, gt=0)
    path: UrlPath = "/metrics"

    @model_validator(mode="after")
    def _ordered(self) -> Scrape:
        if self.stale_after < self.interval:
            raise ValueError("stale_after under interval would make every reading stale")
        if self.unknown_after <= self.stale_after:
            raise ValueError("unknown_after must be over stale_after")
        return self


class QueueConfig(_Model):
    """How many calls may wait for a pool, and how many bytes of bodies."""

    max_calls: int = Field(default=2048, ge=1)
    max_bytes: Size = 64 << 20


class PoolConfig(_Model):
    """The vLLM endpoints that serve one model.

    ``blocks`` and ``block_size`` (tokens) are those of one endpoint's KV cache, for engines whose
    metrics do not say.
    """

    endpoints: Endpoints
    aliases: tuple[PoolName, ...] = ()
    max_concurrency: Count = 512
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    balance: Literal["envoy", "pick"] = "envoy"
    blocks: Count | None = None
    block_size: Count | None = None
    scrape: Scrape = Scrape()
    queue: QueueConfig = QueueConfig()

    @model_validator(mode="after")
    def _measured(self) -> PoolConfig:
        if (self.blocks is None) != (self.block_size is None):
            raise ValueError("blocks and block_size go together")
        return self


class Override(_Model):
    """Another kind of reply for some refused calls: every selector given must match."""

    reason: Reason | None = None
    class_: str | None = Field(default=None, alias="class")
    tenant: str | None = None
    kind: ReplyKind
    status: Literal[400, 402, 403, 408, 409, 413, 422, 429, 500, 502, 503, 504] | None = None

    @model_validator(mode="after")
    def _selective(self) -> Override:
        if self.reason is self.class_ is self.tenant is None:
            raise ValueError("select by at least one of reason, class, tenant")
        if self.reason is not None and REASONS[self.reason].reply is None:
            raise ValueError(f"{self.reason} refuses nothing, there is no reply to it")
        if self.kind is ReplyKind.FALLBACK and self.status is not None:
            raise ValueError("status goes with kind: error")
        return self


class Messages(_Model):
    """The text of the fallback per language; ``{seconds}`` becomes the retry hint."""

    zh: Message = (
        "【大促服务提示】当前咨询人数较多，系统已为您优先保留排队位置。"
        "请等待 {seconds} 秒后重新提交。"
    )
    en: Message = (
        "We are very busy right now. Your place in the queue is kept: "
        "please resend in {seconds} seconds."
    )


class FallbackConfig(_Model):
    """The friendly answer to a shed call.

    It also takes the place of answers that only say "not now", of the engines or of Envoy in their
    stead: those with one of the ``engine_statuses``.
    """

    status: Literal[200] = 200
    finish_reason: FinishReason = "load_shedding_fallback"
    retry_after: Annotated[Seconds, Field(ge=1, le=60)] = 15.0
    language: Literal["zh", "en"] = "zh"
    message: Messages = Messages()
    structured: Literal["error", "refusal"] = "error"
    engine_statuses: tuple[Literal[429, 500, 502, 503, 504], ...] = (502, 503, 504)
    overrides: tuple[Override, ...] = ()


class TicketsConfig(_Model):
    """The places that are kept for shed calls that come again.

    A ticket is good for ``window`` seconds. At most the share ``reserve`` of a pool is kept back for
    those that are likely to come back. ``key_file`` holds the secret that tickets are signed with,
    at least 16 bytes: give the same to several Tidegates, or to one that is restarted; without it,
    tickets are good only with the process that gave them.
    """

    window: Seconds = Field(default=60.0, gt=0, le=3600)
    reserve: Ratio = 0.05
    key_file: FilePath | None = None


class Requests(_Model):
    """How bodies are read.

    ``max_body`` is what Envoy holds of any request, ``max_call`` what a call to an engine may have:
    reading it holds up everyone else, for about 2 ms per MiB. ``unreadable: pass`` sends what we
    cannot read on to the engine, unclamped. It is for callers that are trusted: we refuse some
    bodies that an engine accepts. ``faults`` says what becomes of a request that a fault of Tidegate's own
    code leaves without a verdict: it is refused (500, ``internal_error``), or passes untouched, past all gates.
    """

    max_body: Size = 32 << 20
    max_call: Size = 2 << 20
    unreadable: Literal["reject", "pass"] = "reject"
    faults: Literal["reject", "pass"] = "reject"


class Quota(_Model):
    """What a plan contains per period: from midnight to midnight, or month to month, in a time zone."""

    tokens: int = Field(ge=0, le=1 << 53)
    period: Literal["day", "month"] = "month"
    time_zone: TimeZone = "UTC"


class Plan(_Model):
    """Rates and quota that a tenant has bought; what is left out is unlimited.

    At once a tenant may send what its rates amount to in ``burst`` minutes.
    """

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    burst: Annotated[float, Field(ge=1, le=1440, allow_inf_nan=False)] = 1.0
    quota: Quota | None = None


class State(_Model):
    """Where shared and durable state lives.

    ``redis`` is a Redis or Valkey through which several Tidegates share rates, holds and promises:
    ``redis://[[user]:password@]host[:port][/database]``, ``rediss://…`` for TLS, or ``unix:///path``.
    Over TLS the server's certificate must be signed by somebody that the system trusts, or by a
    certificate in the file that the environment's ``SSL_CERT_FILE`` names.
    ``database`` holds the ledger of quotas. ``outbox`` is a file of this very Tidegate, in which
    charges wait while the database cannot be reached; it grows to ``outbox_limit``.
    """

    redis: RedisUrl | None = None
    database: DatabaseUrl = "sqlite:///tidegate.db"
    outbox: FilePath = Path("tidegate-outbox.db")
    outbox_limit: Annotated[Size, Field(ge=1 << 20)] = 1 << 30


DEFAULT_CLASSES: dict[str, ClassConfig] = {
    "P0": ClassConfig(
        strict=True,
        free_watermark=Watermark(close=0.03, open=0.05),
        max_wait=10.0,
        max_tokens=512,
        max_prompt_tokens=4096,
        engine_priority=0,
    ),
    "P1": ClassConfig(
        weight=3,
        free_watermark=Watermark(close=0.08, open=0.12),
        max_wait=3.0,
        max_tokens=2048,
        engine_priority=10,
    ),
    "P2": ClassConfig(
        free_watermark=Watermark(close=0.15, open=0.20),
        concurrency=0.80,
        max_tokens=2048,
        engine_priority=20,
        evictable=True,
    ),
}


class Config(_Model):
    """The whole file."""

    listen: Listen = Listen()
    identity: Identity = Identity()
    classes: dict[ClassName, ClassConfig] = Field(
        default_factory=lambda: dict(DEFAULT_CLASSES), min_length=1
    )
    tenants: dict[TenantName, TenantConfig] = Field(default_factory=dict)
    tasks: dict[str, TaskConfig] = Field(default_factory=dict)
    pools: dict[PoolName, PoolConfig] = Field(default_factory=dict)
    requests: Requests = Requests()
    fallback: FallbackConfig = FallbackConfig()
    tickets: TicketsConfig = TicketsConfig()
    agents: AgentsConfig | None = None
    breaker: BreakerConfig | None = None
    control: ControlConfig = ControlConfig()
    decision_log: DecisionLogConfig | None = None
    tracing: TracingConfig | None = None
    envoy: EnvoyConfig = EnvoyConfig()
    plans: dict[str, Plan] = Field(default_factory=dict)
    state: State = State()

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        problems = [*self._dangling(), *self._outwaited(), *self._disordered(), *self._exposed()]
        problems += self._unshared()
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _dangling(self) -> Iterator[str]:
        for name, tenant in self.tenants.items():
            if tenant.class_ not in self.classes:
                yield f"tenants.{name}.class: there is no class {tenant.class_}"
            if tenant.agents is not None and self.agents is None:
                yield f"tenants.{name}.agents: there is no section agents"
            if tenant.plan is not None and tenant.plan not in self.plans:
                yield f"tenants.{name}.plan: there is no plan {tenant.plan}"
        for name, task in self.tasks.items():
            if task.class_ is not None and task.class_ not in self.classes:
                yield f"tasks.{name}.class: there is no class {task.class_}"
        for index, override in enumerate(self.fallback.overrides):
            if override.class_ is not None and override.class_ not in self.classes:
                yield f"fallback.overrides.{index}.class: there is no class {override.class_}"
        yield from self._ambiguous_tasks()
        names = [alias for pool in self.pools.values() for alias in pool.aliases]
        for alias in sorted({a for a in names if names.count(a) > 1 or a in self.pools}):
            yield f"pools: the model name {alias} means two pools"

    def _ambiguous_tasks(self) -> Iterator[str]:
        for key in ("path", "model"):
            found = [getattr(task.match, key) for task in self.tasks.values()]
            for value in sorted({each for each in found if each and found.count(each) > 1}):
                yield f"tasks: the {key} {value} means two tasks"

    def _outwaited(self) -> Iterator[str]:
        name, longest = max(self.classes.items(), key=lambda item: item[1].max_wait)
        dependencies = 0.0 if self.agents is None else self.agents.dependency_wait
        if self.envoy.message_timeout <= longest.max_wait + dependencies:
            more = " and agents.dependency_wait together" if dependencies else ""
            yield f"envoy.message_timeout: must be over classes.{name}.max_wait{more}"
        idle = self.envoy.stream_idle_timeout
        if self.agents is not None and 0 < idle <= self.agents.merge_wait:
            yield "agents.merge_wait: must be under envoy.stream_idle_timeout"
        if self.tickets.window < self.fallback.retry_after:
            yield "tickets.window: must not be under fallback.retry_after"

    def _exposed(self) -> Iterator[str]:
        control, address = self.control, self.listen.control
        if control.enabled and not (control.tls or control.plaintext or is_local(address)):
            yield (
                f"listen.control: tokens would cross the network to {address} in the clear, so give "
                "control.tls, or say control.plaintext: true where a mesh encrypts"
            )

    def _unshared(self) -> Iterator[str]:
        workers, address = self.listen.workers, self.listen.processor
        if workers == 1:
            return
        if self.state.redis is None:
            yield (
                "listen.workers: several share rates, holds, modes and tickets through Redis, so give "
                "state.redis, or have one worker"
            )
        for name, pool in self.pools.items():
            if not pool.scrape.enabled:
                yield f"pools.{name}.scrape.enabled: load reports reach one of several workers only"
        if not address.startswith("unix://") and int(address.rpartition(":")[2]) + workers > 65536:
            yield f"listen.workers: there are not so many ports from {address} on"

    def _disordered(self) -> Iterator[str]:
        classes = list(self.classes.items())
        for (high, upper), (low, lower) in itertools.pairwise(classes):
            if lower.strict and not upper.strict:
                yield f"classes.{low}.strict: {high} above it is not strict"
            if lower.free_watermark.close < upper.free_watermark.close:
                yield f"classes.{low}.free_watermark.close: under that of {high} above it"
            if lower.free_watermark.open < upper.free_watermark.open:
                yield f"classes.{low}.free_watermark.open: under that of {high} above it"
            if lower.concurrency > upper.concurrency:
                yield f"classes.{low}.concurrency: over that of {high} above it"
            if not upper.strict and _cap(lower) > _cap(upper):
                yield f"classes.{low}.prefill_cap: over that of {high} above it"
            if not upper.strict and lower.prefill_wait > upper.prefill_wait:
                yield f"classes.{low}.prefill_wait: over that of {high} above it"


def _cap(service_class: ClassConfig) -> float:
    return math.inf if service_class.prefill_cap is None else service_class.prefill_cap
