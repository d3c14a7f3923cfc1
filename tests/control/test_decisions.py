"""Decisions told through the API: listed, watched, explained and summed up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from msgspec import structs
from typer.testing import CliRunner

from extproc.cli import app as command
from extproc.control.pb import decisions_pb2 as pb
from extproc.control.pb.decisions_pb2_grpc import DecisionServiceStub
from extproc.core.controller import Action, Verdict
from extproc.core.reasons import Reason
from extproc.core.records import Decided
from extproc.edge.exchange import Request
from extproc.telemetry.decision_log import read
from extproc.telemetry.lines import encode


def ask(served: Any, tenant: str, number: int, text: str = "hi") -> None:
    """Send a chat call through the gates."""
    body = {"model": "qwen", "max_tokens": 9, "messages": [{"role": "user", "content": text}]}
    request = Request(
        "/v1/chat/completions",
        f"req-{number}",
        {"x-tenant-id": tenant, "x-task-type": "talk"},
        {},
        json.dumps(body).encode(),
    )
    served.tidegate.admission.judge(request, lambda _: None)


def recorded(served: Any, **more: Any) -> Decided:
    """Return the record of an admitted call."""
    load = served.tidegate.pools["qwen"].load(0.0)
    verdict = Verdict(Action.ADMIT, Reason.ADMITTED, load)
    return Decided("x", "", "qwen", "chat", "service", "P1", "", 9, 9, verdict, 1e-4, **more)


@pytest.fixture
def busy(served: Any) -> Any:
    """A Tidegate that has decided about six calls: four admitted, two of P2 shed."""
    for number, tenant in enumerate(
        ["marketing", "marketing", "marketing", "service", *["marketing"] * 2]
    ):
        ask(served, tenant, number)
    served.tidegate.recorder.turn()
    return served


async def test_decisions_are_listed_the_newest_first_and_in_pages(busy: Any) -> None:
    stub = DecisionServiceStub(await busy.as_("viewer"))

    first = await stub.ListDecisions(pb.ListDecisionsRequest(limit=4))
    rest = await stub.ListDecisions(pb.ListDecisionsRequest(before_id=first.decisions[-1].id))

    told = [(each.request_id, each.verdict, each.reason) for each in first.decisions]
    assert told == [
        ("req-5", "shed", "concurrency"),
        ("req-4", "shed", "concurrency"),
        ("req-3", "admit", "admitted"),
        ("req-2", "admit", "admitted"),
    ]
    assert [each.request_id for each in rest.decisions] == ["req-1", "req-0"]
    assert first.remembered_since == rest.decisions[-1].at
    shed = first.decisions[0]
    assert (shed.tenant, shed.service_class, shed.api, shed.pool) == (
        "marketing",
        "P2",
        "chat",
        "qwen",
    )
    assert (shed.value, shed.threshold, shed.in_flight) == (4, 3, 4)
    assert (shed.max_output_tokens, shed.choices, shed.HasField("free_observed")) == (9, 1, False)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"tenants": ["service"]}, ["req-3"]),
        ({"verdicts": ["shed"], "reasons": ["concurrency"]}, ["req-5", "req-4"]),
        ({"reasons": ["kv_demand"]}, []),
        ({"service_classes": ["P1", "P0"], "pools": ["qwen"]}, ["req-3"]),
        ({"tasks": ["other"]}, []),
        ({"until": {"seconds": 1}}, []),
        ({"since": {"seconds": 1}, "tenants": ["service"]}, ["req-3"]),
        ({"since": {"seconds": 1 << 40}}, []),
    ],
)
async def test_decisions_are_filtered(busy: Any, wanted: dict[str, Any], found: list[str]) -> None:
    stub = DecisionServiceStub(await busy.as_("viewer"))

    answer = await stub.ListDecisions(pb.ListDecisionsRequest(filter=pb.DecisionFilter(**wanted)))

    assert [each.request_id for each in answer.decisions] == found


async def test_the_calls_of_a_run_are_found_and_tell_its_tree(served: Any) -> None:
    served.tidegate.recorder.decided(recorded(served, run="r", run_task="a", run_parent="root"))
    served.tidegate.recorder.decided(recorded(served))
    served.tidegate.recorder.turn()
    stub = DecisionServiceStub(await served.as_("viewer"))

    wanted = pb.ListDecisionsRequest(filter=pb.DecisionFilter(runs=["r"]))
    [found] = (await stub.ListDecisions(wanted)).decisions

    assert (found.run, found.run_task, found.run_parent) == ("r", "a", "root")


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_page_has_a_bounded_length(busy: Any, limit: int) -> None:
    stub = DecisionServiceStub(await busy.as_("viewer"))

    with pytest.raises(aio.AioRpcError, match="limit must be from 1 to 1000"):
        await stub.ListDecisions(pb.ListDecisionsRequest(limit=limit))


async def test_a_watcher_hears_of_decisions_as_they_are_made_and_how_many_it_does_not(
    busy: Any,
) -> None:
    stub = DecisionServiceStub(await busy.as_("viewer"))
    filter_ = pb.DecisionFilter(tenants=["marketing"])
    watching: Any = stub.WatchDecisions(pb.WatchDecisionsRequest(filter=filter_, limit=2))
    assert await watching.read() == pb.WatchDecisionsResponse()

    ask(busy, "service", 10)
    busy.tidegate.recorder.turn()
    for number in range(11, 16):
        ask(busy, "marketing", number)
    busy.tidegate.recorder.turn()
    heard = await watching.read()
    watching.cancel()

    assert [each.request_id for each in heard.decisions] == ["req-11", "req-14"]
    assert heard.left_out == 3


async def test_a_decision_is_found_by_all_its_names_and_explained(busy: Any) -> None:
    stub = DecisionServiceStub(await busy.as_("viewer"))
    shed = (await stub.ListDecisions(pb.ListDecisionsRequest(limit=1))).decisions[0]

    for name in (shed.id, f"chatcmpl-promo-shedded-{shed.id}", "req-5", f" {shed.id}\n"):
        told = await stub.ExplainDecision(pb.ExplainDecisionRequest(id=name))
        assert told.decision == shed
        assert (
            "✗ Capacity: Too many calls are in flight for this class. (4, limit 3)" in told.text_en
        )
        assert "✗ 容量：在途请求数达到该等级的上限。（4，上限 3）" in told.text_zh
        assert [(step.gate, step.passed, step.skipped) for step in told.steps][-1] == (
            "capacity",
            False,
            False,
        )


@pytest.mark.parametrize("name", ["", "x", "req-99", "5", "x" * 300])
async def test_a_decision_that_is_not_remembered_is_not_found(busy: Any, name: str) -> None:
    stub = DecisionServiceStub(await busy.as_("viewer"))

    with pytest.raises(aio.AioRpcError) as refused:
        await stub.ExplainDecision(pb.ExplainDecisionRequest(id=name))

    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_decisions_are_summed_up(busy: Any) -> None:
    stub = DecisionServiceStub(await busy.as_("viewer"))
    tried = [
        pb.WhatIf(service_class="P2", concurrency=1.0),
        pb.WhatIf(service_class="P2", close=0.5),
    ]

    told = await stub.SummarizeDecisions(pb.SummarizeDecisionsRequest(what_if=tried))

    assert (told.decisions, told.admitted, told.refused) == (6, 4, 2)
    assert [(each.name, each.count, each.share) for each in told.bottlenecks] == [
        ("concurrency", 2, 1)
    ]
    assert [each.name for each in told.by_task] == ["–"]
    assert (told.what_if[0].what_if, told.what_if[0].same) == (tried[0], 5)
    assert told.what_if[1].same == 5
    assert told.text_en.startswith("6 decisions in")
    assert "瓶颈：并发 2 (100%)" in told.text_zh

    filter_ = pb.DecisionFilter(tenants=["nobody"])
    nothing = await stub.SummarizeDecisions(pb.SummarizeDecisionsRequest(filter=filter_))
    assert (nothing.decisions, nothing.HasField("since")) == (0, False)


# The commands, on a log.


@pytest.fixture
def log(busy: Any, tmp_path: Path) -> Path:
    """The decision log of the day above."""
    from extproc.telemetry.lines import line_of

    file = tmp_path / "decisions.jsonl"
    lines = [encode(line_of(each.record, each.at)) for each in busy.tidegate.recorder.newest()]
    file.write_bytes(b"\n".join(reversed(lines)) + b"\n")
    return file


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(command, list(arguments))
    return done.exit_code, done.output


def test_a_log_explains_a_call(log: Path) -> None:
    ident = list(read(log))[-1].id

    assert "shed: concurrency" in run("explain", ident, "--log", str(log))[1]
    assert "已降级：concurrency" in run("explain", ident, "--log", str(log), "--lang", "zh")[1]
    assert run("explain", "nobody", "--log", str(log)) == (
        1,
        f"{log} and the older ones beside it know no call nobody\n",
    )


def test_a_log_says_why(log: Path) -> None:
    english = run("why", "--log", str(log), "--last", "1h", "--concurrency", "P2=1.0")
    assert english[0] == 0
    assert "Bottleneck: concurrency 2 (100%)." in english[1]
    assert "With P2 concurrency 1: 0 refused calls" in english[1]
    chinese = run(
        "why", "--log", str(log), "--lang", "zh", "--tenant", "service", "--close", "P1=0.5"
    )
    assert "放行 1，未放行 0" in chinese[1]
    nobody = run("why", "--log", str(log), "--pool", "other")
    assert nobody == (0, "Nothing was decided.\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["why", "--last", "soon"], "write such as 90s"),
        (["why", "--close", "P2"], "write such as P2=0.1"),
        (["why", "--close", "P2=7"], "write such as P2=0.1"),
        (["why", "--log", "/nowhere/x"], "cannot be read: No such file"),
        (["explain", "x", "--log", "/nowhere/x"], "cannot be read: No such file"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: list[str], problem: str) -> None:
    code, text = run(*arguments)

    assert code == 2
    assert problem in text


def test_old_lines_are_left_out(log: Path) -> None:
    old = [encode(structs.replace(line, at=1e9)) for line in read(log)]
    log.write_bytes(b"\n".join(old))

    assert run("why", "--log", str(log), "--last", "1d") == (0, "Nothing was decided.\n")
