"""Who is named on the metrics page, and that nothing is lost of the others."""

from __future__ import annotations

from extproc.core.capacity import Load
from extproc.core.controller import Action, Verdict
from extproc.core.outcomes import Outcome
from extproc.core.reasons import Reason
from extproc.core.records import Decided, Ended
from extproc.telemetry.tenants import NAMED, OTHER, WINDOW, TenantCollector

ADMITTED = Verdict(Action.ADMIT, Reason.ADMITTED, Load(0.5, 1.0, 0, 1))
PASSED = Verdict(Action.PASS, Reason.UNMANAGED, Load(None, 1.0, 0, 0))


def call(tenants: TenantCollector, name: str, times: int = 1, verdict: Verdict = ADMITTED) -> None:
    for _ in range(times):
        tenants.decided(Decided("x", "", "qwen", "chat", name, "P1", "", 1, 1, verdict, 0.0))


def counted(tenants: TenantCollector) -> dict[tuple[str, str], float]:
    return {
        (
            sample.labels["tenant"],
            sample.labels.get("verdict") or sample.labels["kind"],
        ): sample.value
        for family in tenants.collect()
        for sample in family.samples
    }


def named(tenants: TenantCollector) -> set[str]:
    return {tenant for tenant, _ in counted(tenants)} - {OTHER}


def test_a_few_tenants_are_all_named() -> None:
    tenants = TenantCollector()
    call(tenants, "pay", 3)
    call(tenants, "pay", verdict=PASSED)
    tenants.ended(Ended("x", "pay", "P0", "qwen", Outcome.COMPLETED, 10, 20, 1.0))
    tenants.ended(Ended("y", "pay", "P0", "qwen", Outcome.CLIENT_GONE, None, None, 1.0))
    assert counted(tenants) == {
        ("pay", "admit"): 3,
        ("pay", "shed"): 0,
        ("pay", "reject"): 0,
        ("pay", "pass"): 1,
        ("pay", "prompt"): 10,
        ("pay", "output"): 20,
        (OTHER, "admit"): 0,
        (OTHER, "shed"): 0,
        (OTHER, "reject"): 0,
        (OTHER, "prompt"): 0,
        (OTHER, "output"): 0,
    }


def test_nobody_is_called_as_the_rest_is() -> None:
    tenants = TenantCollector()
    call(tenants, OTHER)
    assert named(tenants) == set()
    assert counted(tenants)[OTHER, "admit"] == 1


def test_a_busy_latecomer_takes_the_place_of_the_idlest_and_nothing_is_lost() -> None:
    tenants = TenantCollector()
    for index in range(NAMED):
        call(tenants, f"early{index}", 1 + index)
    before = sum(counted(tenants).values())
    call(tenants, "late", WINDOW)
    assert "late" in named(tenants)
    assert "early0" not in named(tenants)
    assert len(named(tenants)) == NAMED
    assert sum(counted(tenants).values()) == before + WINDOW
    call(tenants, "late", 5)
    assert counted(tenants)["late", "admit"] == 6


def test_those_who_call_once_take_nobodys_place() -> None:
    tenants = TenantCollector()
    for index in range(NAMED):
        call(tenants, f"early{index}", 5)
    for index in range(3 * WINDOW):
        call(tenants, f"passer-by{index}")
        if index % 50 == 0:
            for early in range(NAMED):
                call(tenants, f"early{early}")
    assert named(tenants) == {f"early{index}" for index in range(NAMED)}
    assert len(tenants._window) <= WINDOW
