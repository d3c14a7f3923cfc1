"""Modes and thresholds through the API: in force at once, kept, audited, told to watchers."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from grpc import aio

from extproc import app
from extproc.config import ConfigError, Role
from extproc.control.audit import Audit, Entry
from extproc.control.auth import Caller
from extproc.control.operations import Operations
from extproc.control.pb import (
    audit_pb2,
    audit_pb2_grpc,
    modes_pb2,
    modes_pb2_grpc,
    state_pb2,
    state_pb2_grpc,
    thresholds_pb2,
    thresholds_pb2_grpc,
)
from extproc.control.settings import ModeSetting, Settings, SettingsFile, decode, encode
from extproc.core.modes import Mode
from extproc.edge.exchange import Request

ALICE = Caller("alice", Role.OPERATOR, "here")
RESET = thresholds_pb2.ResetThresholdsRequest(reason="enough")


def ask(served: Any, tenant: str) -> str:
    """Send a chat call through the gates and return the reason of its verdict."""
    body = json.dumps({"model": "qwen", "messages": [{"role": "user", "content": "hi"}]}).encode()
    request = Request("/v1/chat/completions", "r", {"x-tenant-id": tenant}, {}, body)
    judgement = served.tidegate.admission.judge(request, lambda _: None)
    return dict(judgement.reply.metadata)["reason"] if judgement.reply else "waiting"


def mode_request(mode: modes_pb2.Mode.ValueType, reason: str = "a peak") -> Any:
    return modes_pb2.SetModeRequest(mode=mode, reason=reason)


async def test_a_mode_is_in_force_when_the_call_returns(served: Any) -> None:
    stub = modes_pb2_grpc.ModeServiceStub(await served.as_("operator"))
    assert ask(served, "marketing") == "admitted"

    done = await stub.SetMode(mode_request(modes_pb2.MODE_TRANSACTIONS_ONLY))

    assert ask(served, "marketing") == "mode_transactions_only"
    assert ask(served, "service") == "mode_transactions_only"
    assert ask(served, "pay") == "admitted"
    assert done.before.mode == modes_pb2.MODE_NORMAL
    assert (done.after.mode, done.after.by) == (modes_pb2.MODE_TRANSACTIONS_ONLY, "the-operator")
    assert (done.after.reason, list(done.after.closed_classes)) == ("a peak", ["P1", "P2"])
    assert list(done.warnings) == []
    shown = await modes_pb2_grpc.ModeServiceStub(await served.as_("viewer")).GetMode(
        modes_pb2.GetModeRequest()
    )
    assert shown == done.after


async def test_a_mode_outlives_the_process(served: Any) -> None:
    stub = modes_pb2_grpc.ModeServiceStub(await served.as_("operator"))
    await stub.SetMode(mode_request(modes_pb2.MODE_PROTECT))

    again = app.build(served.tidegate.config)

    assert again.control is not None
    assert again.control.operations.settings.mode.mode is Mode.PROTECT
    assert again.control.operations.settings.mode.by == "the-operator"


@pytest.mark.parametrize(
    "request_",
    [
        mode_request(modes_pb2.MODE_UNSPECIFIED),
        modes_pb2.SetModeRequest(mode=99, reason="x"),  # type: ignore[arg-type]
        mode_request(modes_pb2.MODE_PROTECT, reason="  "),
        mode_request(modes_pb2.MODE_PROTECT, reason="x" * 1001),
    ],
)
async def test_a_change_names_a_mode_and_says_why(served: Any, request_: Any) -> None:
    stub = modes_pb2_grpc.ModeServiceStub(await served.as_("operator"))

    with pytest.raises(aio.AioRpcError) as refused:
        await stub.SetMode(request_)

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert served.room.operations.settings.revision == 0


async def test_every_change_is_audited(served: Any, caplog: pytest.LogCaptureFixture) -> None:
    operator = await served.as_("operator")
    modes, thresholds = (
        modes_pb2_grpc.ModeServiceStub(operator),
        thresholds_pb2_grpc.ThresholdServiceStub(operator),
    )
    with caplog.at_level(logging.INFO):
        await modes.SetMode(mode_request(modes_pb2.MODE_PROTECT))
        await thresholds.SetThresholds(class_request(concurrency=0.5))
        await thresholds.ResetThresholds(RESET)

    lines = (served.directory / "kept" / "audit.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    assert [(each["action"], each["before"], each["after"]) for each in told] == [
        ("mode.set", "normal", "protect"),
        ("thresholds.set", {}, {"classes": {"P2": {"concurrency": 0.5}}}),
        ("thresholds.reset", {"classes": {"P2": {"concurrency": 0.5}}}, {}),
    ]
    assert {(each["who"], each["role"]) for each in told} == {("the-operator", "operator")}
    assert [each["reason"] for each in told] == ["a peak", "too many", "enough"]
    logged = [record for record in caplog.records if record.message == "audit"]
    assert [vars(record)["action"] for record in logged] == [each["action"] for each in told]

    stub = audit_pb2_grpc.AuditServiceStub(await served.as_("viewer"))
    newest = await stub.ListAudit(audit_pb2.ListAuditRequest(limit=1))
    (entry,) = newest.entries
    assert (entry.action, entry.who, entry.after) == ("thresholds.reset", "the-operator", "{}")


def class_request(**fields: Any) -> thresholds_pb2.SetThresholdsRequest:
    classes = [thresholds_pb2.ClassThresholds(name="P2", **fields)]
    return thresholds_pb2.SetThresholdsRequest(classes=classes, reason="too many")


async def test_thresholds_are_in_force_when_the_call_returns_and_can_be_set_back(
    served: Any,
) -> None:
    stub = thresholds_pb2_grpc.ThresholdServiceStub(await served.as_("operator"))
    assert [ask(served, "marketing") for _ in range(2)] == ["admitted", "admitted"]

    done = await stub.SetThresholds(class_request(concurrency=0.5, max_output_tokens=7))

    assert ask(served, "marketing") == "concurrency"
    assert list(done.after.changed) == ["classes.P2.concurrency", "classes.P2.max_tokens"]
    assert done.before.classes[2].concurrency == 0.8
    assert (done.after.classes[2].concurrency, done.after.classes[2].max_output_tokens) == (0.5, 7)
    again = app.build(served.tidegate.config)
    assert again.control is not None
    assert again.control._levers.config.classes["P2"].concurrency == 0.5

    done = await stub.ResetThresholds(RESET)

    assert list(done.after.changed) == []
    assert done.after == (await stub.GetThresholds(thresholds_pb2.GetThresholdsRequest()))
    assert ask(served, "marketing") == "admitted"


async def test_a_pool_takes_as_many_calls_as_operators_say(served: Any) -> None:
    stub = thresholds_pb2_grpc.ThresholdServiceStub(await served.as_("operator"))
    request = thresholds_pb2.SetThresholdsRequest(reason="a pod more")
    request.pools.add(name="qwen", max_concurrency=100)

    done = await stub.SetThresholds(request)

    assert done.after.pools[0].max_concurrency == 100
    assert served.tidegate.pools["qwen"].limits.max_concurrency == 100


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"close": 0.01}, "under that of P1"),
        ({"close": 0.5}, "must not be under close"),
        ({"close": float("nan")}, "finite"),
        ({"concurrency": 1.5}, "less than or equal to 1"),
        ({"max_wait_seconds": 60.0}, "message_timeout"),
        ({"max_output_tokens": 0}, "greater than or equal to 1"),
        ({}, "no threshold is given"),
    ],
)
async def test_what_the_file_may_not_say_an_operator_may_not_either(
    served: Any, fields: dict[str, Any], why: str
) -> None:
    stub = thresholds_pb2_grpc.ThresholdServiceStub(await served.as_("operator"))
    before = await stub.GetThresholds(thresholds_pb2.GetThresholdsRequest())

    with pytest.raises(aio.AioRpcError, match=why) as refused:
        await stub.SetThresholds(class_request(**fields))

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await stub.GetThresholds(thresholds_pb2.GetThresholdsRequest()) == before


async def test_a_class_that_is_not_there_cannot_be_changed(served: Any) -> None:
    stub = thresholds_pb2_grpc.ThresholdServiceStub(await served.as_("operator"))
    request = thresholds_pb2.SetThresholdsRequest(reason="x")
    request.classes.add(name="P9", close=0.5)

    with pytest.raises(aio.AioRpcError, match="no such thing to adjust"):
        await stub.SetThresholds(request)


async def test_watchers_see_a_change_at_once(served: Any) -> None:
    viewer, operator = await served.as_("viewer"), await served.as_("operator")
    request = state_pb2.WatchStateRequest(interval_seconds=60)
    seen: list[state_pb2.State] = []
    watching: Any = state_pb2_grpc.StateServiceStub(viewer).WatchState(request)
    seen.append(await watching.read())

    await modes_pb2_grpc.ModeServiceStub(operator).SetMode(mode_request(modes_pb2.MODE_PROTECT))
    seen.append(await watching.read())
    served.room.drain()
    await modes_pb2_grpc.ModeServiceStub(operator).SetMode(mode_request(modes_pb2.MODE_NORMAL))
    seen.append(await watching.read())
    watching.cancel()

    assert [modes_pb2.Mode.Name(each.mode.mode) for each in seen] == [
        "MODE_NORMAL",
        "MODE_PROTECT",
        "MODE_NORMAL",
    ]
    assert [each.pools[0].classes[2].closed_by_mode for each in seen] == [False, True, False]
    assert [each.draining for each in seen] == [False, False, True]


async def test_the_state_tells_what_is_running_waiting_and_decided(served: Any) -> None:
    for tenant in ("marketing", *["service"] * 5):
        ask(served, tenant)
    served.room.recorder.turn()

    stub = state_pb2_grpc.StateServiceStub(await served.as_("viewer"))
    state = await stub.GetState(state_pb2.GetStateRequest())

    assert [(each.name, each.strict, each.evictable) for each in state.classes] == [
        ("P0", True, False),
        ("P1", False, False),
        ("P2", False, True),
    ]
    (pool,) = state.pools
    assert (pool.name, pool.in_flight, pool.max_concurrency, pool.queued) == ("qwen", 4, 4, 2)
    p1, p2 = pool.classes[1], pool.classes[2]
    assert (p1.in_flight, p1.queued, p2.in_flight, p2.queued) == (3, 2, 1, 0)
    assert p1.HasField("longest_wait_seconds")
    assert not p2.HasField("longest_wait_seconds")
    assert [(each.verdict, each.reason, each.count) for each in p1.decisions] == [
        ("admit", "admitted", 3)
    ]
    assert not pool.HasField("free_observed")
    assert [each.address for each in pool.endpoints] == ["e"]
    assert pool.endpoints[0].freshness == state_pb2.FRESHNESS_UNKNOWN


class Recording:
    """Levers that tell what was moved."""

    def __init__(self) -> None:
        self.moves: list[object] = []

    def switch(self, mode: Mode) -> int:
        self.moves.append(mode.value)
        return 2

    def evict(self) -> int:
        self.moves.append("evict")
        return 3

    def adjust(self, changes: Any) -> None:
        self.moves.append(changes)

    def going_over(self, written: Any, changes: Any) -> Callable[[], None]:
        return lambda: self.moves.append((written, changes))


@pytest.fixture
def operations(tmp_path: Path) -> Callable[..., tuple[Operations, Recording]]:
    """Make the operations of a Tidegate that keeps its settings in a folder."""

    def make(folder: Path = tmp_path) -> tuple[Operations, Recording]:
        levers = Recording()
        made = Operations(
            levers,
            file=SettingsFile(folder / "settings.json"),
            audit=Audit(folder / "audit.jsonl", lambda: 1000.0),
            wall_clock=lambda: 1000.0,
        )
        made.restore()
        return made, levers

    return make


async def test_a_full_disk_stops_no_operator(operations: Any, tmp_path: Path) -> None:
    made, levers = operations()
    for name in ("settings.new", "audit.jsonl"):
        (tmp_path / name).mkdir()

    changed = await made.set_mode(Mode.PROTECT, ALICE, "now")

    assert levers.moves == ["protect"]
    assert changed.effect.turned_away == 2
    assert [each.partition(":")[0] for each in changed.warnings] == [
        "a restart would forget this",
        f"the audit cannot be written to {tmp_path / 'audit.jsonl'}",
    ]


async def test_what_runs_is_ended_where_an_operator_says_so(operations: Any) -> None:
    made, levers = operations()

    changed = await made.set_mode(Mode.PROTECT, ALICE, "now", evict=True)
    assert (changed.effect.evicted, levers.moves) == (3, ["protect", "evict"])
    await made.set_mode(Mode.PROTECT, ALICE, "once more", evict=True)
    await made.set_mode(Mode.NORMAL, ALICE, "over")
    assert levers.moves == ["protect", "evict", "evict", "normal"]


async def test_a_change_that_has_begun_is_audited_though_its_caller_is_gone(
    operations: Any, tmp_path: Path
) -> None:
    made, _ = operations()
    task = asyncio.ensure_future(made.set_mode(Mode.PROTECT, ALICE, "now"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    await made.finish()

    assert task.cancelled()
    assert [
        each.action for each in await Audit(tmp_path / "audit.jsonl", lambda: 1000.0).newest(9)
    ] == ["mode.set"]
    assert SettingsFile(tmp_path / "settings.json").load().mode.mode is Mode.PROTECT


async def test_others_settings_are_taken_over_where_they_count_more(operations: Any) -> None:
    made, levers = operations()
    await made.set_mode(Mode.PROTECT, ALICE, "now")
    ours = made.settings
    later = ModeSetting(mode=Mode.SHADOW, by="bob", at=2000.0)

    await made.adopt(encode(Settings(revision=1, mode=ModeSetting(mode=Mode.NORMAL, at=999.0))))
    assert made.settings == ours
    await made.adopt(encode(msgspec.structs.replace(ours, mode=later)))
    assert (made.settings.mode, levers.moves) == (later, ["protect", "shadow"])

    again, levers = operations()
    assert (again.settings, levers.moves) == (made.settings, ["shadow"])


async def test_changes_by_many_are_made_one_after_the_other(operations: Any) -> None:
    made, levers = operations()

    await asyncio.gather(*(made.set_mode(mode, ALICE, "x") for mode in (Mode.PROTECT, Mode.NORMAL)))

    assert (made.settings.revision, levers.moves) == (2, ["protect", "normal"])


def test_settings_survive_their_way_to_disk() -> None:
    settings = Settings(revision=3, mode=ModeSetting(mode=Mode.SHADOW, by="a", at=1.5, reason="…"))

    assert decode(encode(settings)) == settings


def test_settings_that_cannot_be_read_keep_tidegate_from_starting(
    directory: Path, built: Any
) -> None:
    (directory / "kept" / "settings.json").write_text('{"mode": {"mode": "off"}}')

    with pytest.raises(ConfigError, match="remove it to start in normal mode"):
        app.build(built.config)


def test_changes_that_are_kept_and_no_longer_possible_keep_tidegate_from_starting(
    directory: Path, built: Any
) -> None:
    kept = '{"thresholds": {"changes": {"classes": {"P9": {"concurrency": 0.5}}}}}'
    (directory / "kept" / "settings.json").write_text(kept)

    with pytest.raises(ConfigError, match=r"classes\.P9: there is no such thing"):
        app.build(built.config)


async def test_the_audit_is_read_backwards_and_survives_half_a_line(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit = Audit(file, lambda: 1000.0)
    assert await audit.newest(5) == []
    for number in range(1200):
        entry = Entry(at=1.0, who="a", role="admin", peer="p", action=f"{number}", reason="r" * 90)
        audit._append(msgspec.json.encode(entry) + b"\n")
    with file.open("ab") as out:
        out.write(b'{"at": 1, "who')

    assert [each.action for each in await audit.newest(3)] == ["1199", "1198", "1197"]
    assert [each.action for each in await audit.newest(5000)] == [
        f"{n}" for n in range(1199, -1, -1)
    ]
