"""Words and sums about decisions: why one call was decided so, and why many were."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.core.controller import Action
from extproc.core.reasons import REASONS, Reason
from extproc.telemetry.explanation import explain
from extproc.telemetry.lines import Found, Line, Met, Rules
from extproc.telemetry.summary import WhatIf, in_chinese, in_english, summarize

P2 = Rules(2, close=0.15, open=0.2, concurrency=0.8)


def line(**more: Any) -> Line:
    told: dict[str, Any] = {
        "at": 1_796_099_284.0,
        "id": "x1",
        "verdict": Action.SHED,
        "reason": Reason.KV_WATERMARK,
        "pool": "qwen",
        "api": "chat",
        "tenant": "marketing",
        "service_class": "P2",
        "rules": P2,
        "threshold": 0.15,
        "value": 0.1,
        "prompt": 400,
        "max_output": 256,
        "free": 0.1,
        "predicted": 0.08,
        "in_flight": 26,
        "endpoints": 2,
        "seconds": 80e-6,
        "met": Met(2, 26, 64, 0.0, 0.08, 0.1, 1.0, own=0.9, unmet=0.15),
        "found": Found(Reason.KV_WATERMARK, 0.15, 0.1, 0.08, 0.08, 0.1),
    }
    return Line(**(told | more))


def admitted(**more: Any) -> Line:
    plain = {"verdict": Action.ADMIT, "reason": Reason.ADMITTED, "threshold": None, "value": None}
    met = Met(2, 26, 64, 0.0, 0.5, 0.5, 1.0, own=0.9, unmet=None)
    found = Found(after=0.45, free=0.5, observed=0.5)
    return line(
        **(plain | {"met": met, "found": found, "free_after": 0.45, "predicted": 0.5} | more)
    )


def test_a_shed_call_is_explained_gate_by_gate() -> None:
    told = explain(line(task="campaign"))

    assert told.en == (
        "2026-12-01 04:28:04 UTC: a chat call of tenant marketing (class P2, task campaign) to pool "
        "qwen was shed: kv_watermark.\n"
        "  ✓ Operator mode: passed\n"
        "  ✓ Limits of the request: passed\n"
        "  ✓ Agent run: passed\n"
        "  ✓ Output breaker: passed\n"
        "  ✓ Rate: passed\n"
        "  ✓ Quota: passed\n"
        "  ✗ Capacity: Too little KV cache is free for this class. (10.0% free, 15.0% needed)\n"
        "Prompt about 400 tokens, output up to 256 tokens, 1 choice. KV cache free 10.0% observed, "
        "8.0% predicted; 26 calls in flight on 2 endpoints. Decided in 80 µs."
    )
    assert "✗ 容量：剩余 KV 缓存低于该等级的水位线。（剩余 10.0%，需要 15.0%）" in told.zh
    assert "租户 marketing（等级 P2，任务 campaign）" in told.zh


@pytest.mark.parametrize(
    ("told", "en", "zh"),
    [
        (
            admitted(waited=1.25),
            ["✓ Capacity: 50.0% of the KV cache free as predicted, 45.0% with this call; 26 in flight",
             "✓ Queue: waited 1.25 s"],
            ["✓ 容量：预测剩余 KV 缓存 50.0%，计入本请求后 45.0%；在途 26", "✓ 排队：等待 1.25 秒"],
        ),
        (
            admitted(predicted=None, free=None, free_after=None, max_output=None, endpoints=1),
            ["nothing is known of the engines' memory; 26 in flight", "– Queue: did not wait",
             "output unlimited", "free unknown observed", "on 1 endpoint."],
            ["推理节点显存未知；在途 26", "– 排队：无需排队", "输出不限", "观测 未知"],
        ),
        (
            line(reason=Reason.QUEUE_DEADLINE, value=3.2, threshold=3.0, waited=3.2),
            ["– Capacity: Too little KV cache is free for this class. (10.0% free, 15.0% needed)",
             "✗ Queue: No capacity came free within the longest wait of this class. (3.2 s, limit 3 s)"],
            ["✗ 排队：在该等级的最长排队时间内没有空出容量。（3.2 秒，上限 3 秒）"],
        ),
        (
            line(reason=Reason.PREDICTED_WAIT, value=None, held_up=True, found=None),
            ["– Capacity: others waited before it",
             "✗ Queue: The wait would be longer than this class may wait.\n"],
            ["– 容量：前面已有请求排队"],
        ),
        (
            line(reason=Reason.MODE_PROTECT, value=None, threshold=None, shadow=True, tightening=1.5),
            ["Shadow mode: this was decided, not done", "✗ Operator mode: An operator has switched",
             "marks were raised to 1.50 times"],
            ["影子模式", "✗ 运维模式", "水位线提高到 1.50 倍"],
        ),
        (
            line(verdict=Action.REJECT, reason=Reason.PROMPT_TOO_LONG, value=5000, threshold=4096),
            ["was rejected: prompt_too_long", "✗ Limits of the request", "(5000, limit 4096)"],
            ["已拒绝", "（5000，上限 4096）"],
        ),
    ],
)  # fmt: skip
def test_what_an_explanation_says(told: Line, en: list[str], zh: list[str]) -> None:
    explained = explain(told)

    assert [each for each in en if each not in explained.en] == []
    assert [each for each in zh if each not in explained.zh] == []


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_can_be_explained_and_ends_with_the_gate_that_decided(reason: Reason) -> None:
    entry = REASONS[reason]
    action = Action.SHED if entry.reply is not None else Action.ADMIT

    steps = explain(line(reason=reason, verdict=action)).steps

    refusals = [step.gate for step in steps if step.passed is False]
    assert refusals == ([entry.gate] if entry.reply is not None else [])
    assert entry.reply is None or steps[-1].gate == entry.gate


DAY = [
    admitted(at=100.0, prompt=8000),
    line(at=101.0),
    line(at=102.0, tenant="chat", task="talk", prompt=1600),
    line(at=103.0, reason=Reason.PREDICTED_WAIT, held_up=True, found=None, service_class="P1"),
    line(at=104.0, verdict=Action.REJECT, reason=Reason.RATE_LIMITED, found=None, met=None),
    line(
        at=110.0,
        reason=Reason.CONCURRENCY,
        value=51,
        threshold=51,
        met=Met(2, 51, 64, 0.0, 0.5, 0.5, 1.0, own=0.9, unmet=None),
        found=Found(Reason.CONCURRENCY, 51, 51),
    ),
]  # fmt: skip


def test_a_call_that_was_merged_says_so() -> None:
    told = explain(line(reason=Reason.MERGED, verdict=Action.MERGE, run="r"))
    assert [(step.gate, step.passed) for step in told.steps] == [("agent run", True)]
    assert "this one got its answer" in told.en
    assert "共享其答复" in told.zh


def test_a_summary_counts_what_was_refused_and_what_there_was_too_little_of() -> None:
    told = summarize(DAY)

    assert (told.since, told.until) == (100.0, 110.0)
    assert (told.decisions, told.admitted, told.refused) == (6, 1, 5)
    rows = [(each.name, each.count, each.share) for each in told.by_reason]
    assert rows[0] == ("kv_watermark", 2, 0.4)
    assert [(each.name, each.count) for each in told.bottlenecks] == [
        ("kv_cache", 3),
        ("rate", 1),
        ("concurrency", 1),
    ]
    assert [(each.name, each.prompt_tokens) for each in told.by_tenant] == [
        ("marketing", 1600),
        ("chat", 1600),
    ]
    assert [each.name for each in told.by_task] == ["–", "talk"]
    assert told.long_context_share == pytest.approx(8000 / 11200)


def test_a_summary_says_what_other_thresholds_would_have_done() -> None:
    tried = [
        WhatIf("P2", close=0.05),
        WhatIf("P2", concurrency=1.0),
        WhatIf("P2", close=0.48),
        WhatIf("P9", close=0.5),
    ]

    told = summarize(DAY, tried)

    counted = [(each.admitted_instead, each.refused_instead, each.same) for each in told.what_if]
    assert counted == [(2, 0, 3), (1, 0, 4), (0, 1, 4), (0, 0, 0)]


def test_a_summary_in_words() -> None:
    told = summarize(DAY, [WhatIf("P2", close=0.05, concurrency=1.0)])

    assert in_english(told) == (
        "6 decisions in 10 s: 1 admitted, 5 refused.\n"
        "Bottleneck: kv_cache 3 (60%), rate 1 (20%), concurrency 1 (20%).\n"
        "Why: kv_watermark 2 (40%), predicted_wait 1 (20%), rate_limited 1 (20%), "
        "concurrency 1 (20%).\n"
        "Class: P2 4 (80%), P1 1 (20%).\n"
        "Tenant: marketing 4 (80%), chat 1 (20%).\n"
        "Task: – 4 (80%), talk 1 (20%).\n"
        "Prompts of 4096 tokens or more made 71% of all prompt tokens.\n"
        "With P2 close 0.05, P2 concurrency 1: 3 refused calls of the class would have been admitted, "
        "0 admitted ones refused, 2 decided the same.\n"
        "(Call by call, as things stood then; what more calls would have taken is not counted.)"
    )
    chinese = in_chinese(told)
    assert chinese.startswith("10 秒内共 6 次判定：放行 1，未放行 5。\n瓶颈：KV 缓存 3 (60%)")
    assert "若P2 close 0.05, P2 concurrency 1：该等级有 3 个被拒请求会被放行" in chinese


def test_where_nothing_was_decided_or_refused_little_is_said() -> None:
    nothing, fine = summarize([]), summarize([admitted()])

    assert (in_english(nothing), in_chinese(nothing)) == (
        "Nothing was decided.",
        "这段时间没有判定。",
    )
    assert in_english(fine).splitlines()[0] == "1 decisions in 0 s: 1 admitted, 0 refused."
    assert len(in_english(fine).splitlines()) == len(in_chinese(fine).splitlines()) == 2


def test_a_long_table_is_cut_in_words() -> None:
    many = [line(tenant=f"t{number}") for number in range(12)]

    assert "t9 1 (8%), …." in in_english(summarize(many))
