"""Who is calling, what for, and which class and limits follow from it.

Rules this module keeps:

* The tenant decides the class. A task or an untrusted claim can lower it; nothing raises it.
* Limits combine by the smallest: what the class, the task and the client allow.
* An unknown tenant keeps its name (for accounting) and has the default tenant's class and plan.
* Who is not believed pays as the default tenant: nobody spends what is another's, and inventing
  names is no way to more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from extproc.core.limits import Plan

LONGEST_TENANT = 256
"""Characters of a tenant's name."""


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """One class of service.

    Attributes:
        name: as configured, such as ``P0``.
        rank: 0 is the highest class.
        strict: admitted without regard to watermarks and concurrency.
        close: the class closes when the free ratio falls under this, 0..1.
        open: the class opens again when the free ratio is above this, 0..1, >= close.
        concurrency: share of the pool's concurrency at which the class closes, 0..1.
        max_output: longest output in tokens per choice, or None.
        max_prompt: longest prompt in tokens, or None.
        engine_priority: vLLM's ``priority``; lower runs first.
        prefill_cap: prompt tokens that may wait at an endpoint, its own included, or None.
        prefill_wait: where there is no ``prefill_cap``, seconds that reading them may take.
        evictable: running exchanges may be cut for higher classes.
        weight: share of what strict classes leave, where several wait; > 0.
        max_wait: longest time in the queue, in seconds; 0: the class does not wait.
    """

    name: str
    rank: int
    strict: bool = False
    close: float = 0.0
    open: float = 0.0
    concurrency: float = 1.0
    max_output: int | None = None
    max_prompt: int | None = None
    engine_priority: int = 0
    prefill_cap: int | None = None
    prefill_wait: float = math.inf
    evictable: bool = False
    weight: float = 1.0
    max_wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Tenant:
    """A configured tenant; None means that the product's default holds, and without plan no limit."""

    name: str
    service_class: ServiceClass
    finish_reason: str | None = None
    language: str | None = None
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class Payer:
    """Whose buckets and quota a call draws on: the tenant's ``account``, by its ``plan``."""

    account: str
    plan: Plan


@dataclass(frozen=True, slots=True)
class Task:
    """What calls are for, with the limits that follow.

    ``ceiling`` is the highest class it may have; ``stop_on`` names what ends its answers early.
    """

    name: str
    ceiling: ServiceClass | None = None
    max_output: int | None = None
    max_prompt: int | None = None
    stop: tuple[str, ...] = ()
    stop_on: tuple[str, ...] = ()


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Who a caller says it is, and how far that is believed.

    Attributes:
        tenant: the name, or None where no source answered.
        trusted: False: the class may not rise above the default tenant's.
        ambiguous: several names arrived where one belongs: the lowest class.
    """

    tenant: str | None
    trusted: bool = True
    ambiguous: bool = False


class Classification(msgspec.Struct, frozen=True, gc=False):
    """The outcome: tenant, task, class, the limits in tokens, and who pays (None: nobody)."""

    tenant: str
    task: str
    service_class: ServiceClass
    max_output: int | None
    max_prompt: int | None
    stop: tuple[str, ...]
    finish_reason: str | None
    language: str | None
    stop_on: tuple[str, ...] = ()
    payer: Payer | None = None


NO_TASK = Task("")


@dataclass(frozen=True)
class Catalog:
    """Everything that classification knows; built once from the configuration.

    Attributes:
        classes: highest first, ranks 0, 1, 2, …
        tenants: by name.
        default_tenant: who callers are that no source names.
        tasks: by name.
        task_by_path: task names by request path.
        task_by_model: task names by the model as the client wrote it.
    """

    classes: Sequence[ServiceClass]
    tenants: Mapping[str, Tenant]
    default_tenant: Tenant
    tasks: Mapping[str, Task]
    task_by_path: Mapping[str, str]
    task_by_model: Mapping[str, str]

    def classify(
        self,
        claim: Claim,
        *,
        task: str,
        path: str,
        model: str,
        root: ServiceClass | None = None,
    ) -> Classification:
        """Return class and limits for a call.

        Args:
            claim: what the identity sources said.
            task: the task header, or "" where there is none; an unknown task is no task.
            path: the request's path without its query.
            model: the model as the client wrote it.
            root: the class of the agent's run that the call is part of, or None. It takes the place
                of the task's; the tenant's own is never exceeded.
        """
        tenant, service_class = self._tenant(claim)
        purpose = self._task(task, path, model)
        ceiling = root or purpose.ceiling
        if ceiling is not None:
            service_class = _lower(service_class, ceiling)
        return Classification(
            tenant=claim.tenant or self.default_tenant.name,
            task=purpose.name,
            service_class=service_class,
            max_output=_least(service_class.max_output, purpose.max_output),
            max_prompt=_least(service_class.max_prompt, purpose.max_prompt),
            stop=purpose.stop,
            finish_reason=tenant.finish_reason,
            language=tenant.language,
            stop_on=purpose.stop_on,
            payer=self._payer(claim, tenant),
        )

    def _payer(self, claim: Claim, tenant: Tenant) -> Payer | None:
        if claim.tenant is None or not claim.trusted or claim.ambiguous:
            tenant, account = self.default_tenant, self.default_tenant.name
        else:
            account = claim.tenant
        return None if tenant.plan is None else Payer(account, tenant.plan)

    def _tenant(self, claim: Claim) -> tuple[Tenant, ServiceClass]:
        if claim.ambiguous:
            return self.default_tenant, self.classes[-1]
        tenant = self.tenants.get(claim.tenant or "", self.default_tenant)
        if claim.trusted:
            return tenant, tenant.service_class
        return tenant, _lower(tenant.service_class, self.default_tenant.service_class)

    def _task(self, task: str, path: str, model: str) -> Task:
        for name in (task, self.task_by_path.get(path), self.task_by_model.get(model)):
            if name and name in self.tasks:
                return self.tasks[name]
        return NO_TASK


def _lower(one: ServiceClass, other: ServiceClass) -> ServiceClass:
    return one if one.rank >= other.rank else other


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)
