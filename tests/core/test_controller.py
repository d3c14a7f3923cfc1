"""Gates in order: the first that does not pass decides, and a refused call leaves nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.capacity import Pool, PoolLimits, Reading
from extproc.core.classes import Classification, ServiceClass
from extproc.core.controller import (
    UNSETTLED,
    Action,
    Candidate,
    Controller,
    RequestLimits,
    Verdict,
)
from extproc.core.outcomes import End, Outcome
from extproc.core.reasons import REASONS, Reason, ReplyKind, ReplyOverride, ReplyRules, ReplyStyle
from extproc.core.tokens import PromptParts

P0 = ServiceClass("P0", 0, strict=True, close=0.03, open=0.05, max_prompt=4096)
P1 = ServiceClass("P1", 1, close=0.08, open=0.12)
P2 = ServiceClass("P2", 2, close=0.15, open=0.20, concurrency=0.80)
CLASSES = {each.name: each for each in (P0, P1, P2)}


def controller(free: float | None = 1.0, *, endpoints: int = 1) -> Controller:
    pool = Pool("qwen", PoolLimits(10, stale_after=1.0, unknown_after=30.0), (P0, P1, P2))
    for number in range(endpoints):
        pool.join(f"e{number}")
        if free is not None:
            read = Reading(1.0 - free, 1000, 16, running=0, waiting=0, preemptions=0)
            pool.observe(f"e{number}", read, read_at=0.0, now=0.0)
    return Controller({"qwen": pool}, (RequestLimits(max_body=1000),))


def candidate(
    service_class: ServiceClass,
    *,
    number: int = 0,
    prompt: int = 10,
    body: int = 10,
    defect: str | None = None,
) -> Candidate:
    who = Classification("t", "", service_class, None, service_class.max_prompt, (), None, None)
    return Candidate(f"x{number}", who, prompt, body, defect)


def told(verdict: Verdict) -> tuple[str, str]:
    return verdict.action.value, verdict.reason.value


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (0.50, {"P0": "admitted", "P1": "admitted", "P2": "admitted"}),
        (0.14, {"P0": "admitted", "P1": "admitted", "P2": "kv_watermark"}),
        (0.07, {"P0": "admitted", "P1": "kv_watermark", "P2": "kv_watermark"}),
        (0.00, {"P0": "admitted", "P1": "kv_watermark", "P2": "kv_watermark"}),
        (None, {"P0": "admitted", "P1": "admitted", "P2": "admitted"}),
    ],
)
def test_p2_goes_first_then_p1_and_p0_never(free: float | None, expected: dict[str, str]) -> None:
    decided = {
        name: controller(free).decide(candidate(each), "qwen", 0.0).reason.value
        for name, each in CLASSES.items()
    }

    assert decided == expected


def test_p2_is_shed_at_eighty_percent_in_flight_p1_at_all_of_it_and_p0_not() -> None:
    asked = controller()
    for number in range(8):
        assert told(asked.decide(candidate(P2, number=number), "qwen", 0.0)) == (
            "admit",
            "admitted",
        )
    ninth = asked.decide(candidate(P2, number=8), "qwen", 0.0)
    assert told(ninth) == ("shed", "concurrency")
    assert (ninth.threshold, ninth.value, ninth.load.in_flight) == (8, 8, 8)

    for number in (9, 10):
        assert told(asked.decide(candidate(P1, number=number), "qwen", 0.0)) == (
            "admit",
            "admitted",
        )
    assert told(asked.decide(candidate(P1, number=11), "qwen", 0.0)) == ("shed", "concurrency")
    assert told(asked.decide(candidate(P0, number=12), "qwen", 0.0)) == ("admit", "admitted")
    assert asked.pools["qwen"].in_flight == 11


def test_a_verdict_names_the_mark_that_decided_and_the_number_against_it() -> None:
    asked = controller(0.10)
    below = asked.decide(candidate(P2), "qwen", 0.0)
    assert below.threshold == 0.15
    assert below.value == pytest.approx(0.10)

    read = Reading(0.83, 1000, 16, running=0, waiting=0, preemptions=0)
    asked.pools["qwen"].observe("e0", read, read_at=0.1, now=0.1)
    between = asked.decide(candidate(P2), "qwen", 0.1)
    assert between.threshold == 0.20
    assert between.value == pytest.approx(0.17)
    assert between.load.free == pytest.approx(0.17)


def test_without_an_endpoint_even_p0_is_shed() -> None:
    verdict = controller(endpoints=0).decide(candidate(P0), "qwen", 0.0)

    assert told(verdict) == ("shed", "no_endpoint")


@pytest.mark.parametrize(
    ("call", "reason", "threshold", "value"),
    [
        (candidate(P0, prompt=4096), "admitted", None, None),
        (candidate(P0, prompt=4097), "prompt_too_long", 4096, 4097),
        (candidate(P0, body=1001), "body_too_large", 1000, 1001),
        (candidate(P0, defect="no JSON"), "bad_request", None, None),
        (candidate(P2, prompt=10_000), "admitted", None, None),
    ],
)
def test_request_limits(
    call: Candidate, reason: str, threshold: int | None, value: int | None
) -> None:
    verdict = controller().decide(call, "qwen", 0.0)

    assert (verdict.reason.value, verdict.threshold, verdict.value) == (reason, threshold, value)


def test_request_limits_decide_before_capacity() -> None:
    verdict = controller(0.0).decide(candidate(P2, defect="no JSON"), "qwen", 0.0)

    assert told(verdict) == ("reject", "bad_request")


def test_a_refused_call_leaves_nothing_and_a_released_one_neither() -> None:
    asked = controller(0.0)
    asked.decide(candidate(P2), "qwen", 0.0)
    asked.decide(candidate(P0, prompt=9999), "qwen", 0.0)
    assert asked.pools["qwen"].in_flight == 0

    asked.decide(candidate(P0, number=1), "qwen", 0.0)
    asked.release("x1", "qwen")
    asked.release("x1", "qwen")
    assert asked.pools["qwen"].in_flight == 0


@given(
    free=st.floats(0, 1),
    calls=st.lists(st.sampled_from(["P0", "P1", "P2"]), max_size=40),
    readings=st.lists(st.floats(0, 1), max_size=40),
)
def test_no_class_is_shed_while_a_lower_one_is_admitted(
    free: float, calls: list[str], readings: list[float]
) -> None:
    asked = controller(free)
    now = 0.0
    for number, name in enumerate(calls):
        now += 0.1
        if number < len(readings):
            read = Reading(readings[number], 1000, 16, running=0, waiting=0, preemptions=0)
            asked.pools["qwen"].observe("e0", read, read_at=now, now=now)
        verdict = asked.decide(candidate(CLASSES[name], number=number), "qwen", now)
        if verdict.action is Action.SHED:
            for lower in (P0, P1, P2)[CLASSES[name].rank + 1 :]:
                probe = asked.decide(candidate(lower, number=10_000), "qwen", now)
                assert probe.action is Action.SHED


def test_every_reason_that_refuses_has_a_reply_and_words_in_both_languages() -> None:
    assert set(REASONS) == set(Reason)
    for entry in REASONS.values():
        assert entry.en.endswith(".")
        assert entry.zh.endswith("。")
    passing = [reason for reason, entry in REASONS.items() if entry.reply is None]
    assert passing == [Reason.ADMITTED, Reason.UNMANAGED, Reason.MERGED, Reason.WAITING]


def test_reply_rules_take_the_first_override_that_matches() -> None:
    rules = ReplyRules(
        (
            ReplyOverride(Reason.KV_WATERMARK, "P2", None, ReplyKind.ERROR, 429),
            ReplyOverride(None, None, "machine", ReplyKind.ERROR, None),
            ReplyOverride(Reason.PROMPT_TOO_LONG, None, None, ReplyKind.FALLBACK, None),
        )
    )

    assert rules.style(Reason.KV_WATERMARK, "P2", "t") == ReplyStyle(
        ReplyKind.ERROR, 429, "overloaded"
    )
    assert rules.style(Reason.KV_WATERMARK, "P1", "t").kind is ReplyKind.FALLBACK
    assert rules.style(Reason.CONCURRENCY, "P1", "machine") == ReplyStyle(
        ReplyKind.ERROR, 503, "overloaded"
    )
    assert rules.style(Reason.PROMPT_TOO_LONG, "P0", "t").kind is ReplyKind.FALLBACK
    assert rules.style(Reason.BAD_REQUEST, "P0", "t").status == 400
    with pytest.raises(ValueError, match="refuses nothing"):
        rules.style(Reason.ADMITTED, "P0", "t")


def test_where_we_choose_the_verdict_names_the_endpoint_and_the_books_follow_the_real_one() -> None:
    pool = Pool("qwen", PoolLimits(10, 1.0, 30.0, pick=True), (P0, P1, P2))
    for name, used in (("e0", 0.5), ("e1", 0.1)):
        pool.join(name)
        pool.observe(name, Reading(used, 1000, 16, 0, 0, 0), read_at=0.0, now=0.0)
    asked = Controller({"qwen": pool}, ())

    verdict = asked.decide(candidate(P2), "qwen", 0.0)
    assert verdict.endpoint == "e1"
    assert verdict.free == pytest.approx(0.9, abs=0.02)
    assert [len(state.promises) for state in pool.endpoints.values()] == [0, 1]

    asked.moved("x0", "qwen", "e0", 1.0)
    asked.moved("x0", "qwen", "e0", 1.0)
    asked.moved("nobody", "qwen", "e0", 1.0)
    held = pool.promise("x0")
    assert held is not None
    assert pool.generated(held, 1.0) == 25  # what it had generated went along
    assert [len(state.promises) for state in pool.endpoints.values()] == [1, 0]

    # An address under which we know nobody (the pool is configured by host names) corrects nothing.
    asked.moved("x0", "qwen", "elsewhere", 1.0)
    assert [len(state.promises) for state in pool.endpoints.values()] == [1, 0]
    assert pool.generated(held, 1.0) == 25
    asked.release("x0", "qwen")
    assert pool.in_flight == 0


@pytest.mark.parametrize("settled_first", [True, False])
def test_real_usage_teaches_lengths_and_tokens(settled_first: bool) -> None:
    asked = controller()
    parts = PromptParts(100, 0, 0)
    who = Classification("t", "chat", P2, None, None, (), None, None)
    assert asked.prompt_tokens(parts, "qwen") == 100
    for number in range(60):
        call = Candidate(f"x{number}", who, 100, 400, max_output=50, parts=parts)
        asked.decide(call, "qwen", float(number))
        end = End(Outcome.COMPLETED, prompt_tokens=200, completion_tokens=20, seconds=1.0)
        if settled_first:
            asked.settle(call.id, "qwen", end)
        asked.release(call.id, "qwen")
        if not settled_first:
            asked.settle(call.id, "qwen", end)
    asked.settle("never", "qwen", End(Outcome.COMPLETED))

    left = asked.pools["qwen"].lengths.left("P2", "chat", q=0.5, generated=0, limit=50)
    assert left == pytest.approx(20, rel=0.12)
    assert asked.prompt_tokens(parts, "qwen") == pytest.approx(195, abs=5)


def test_what_an_exchange_has_generated_follows_from_its_time_until_it_is_settled() -> None:
    asked = controller()
    call = candidate(P1)
    asked.decide(call, "qwen", 0.0)

    assert asked.output_in(call.id, "qwen", 4.0) == 100.0
    asked.release(call.id, "qwen")
    assert asked.output_in(call.id, "qwen", 4.0) == 100.0
    asked.pools["qwen"].leave("e0", 1.0)
    assert asked.output_in(call.id, "qwen", 4.0) == 100.0, "an endpoint that is gone had some pace"
    asked.settle(call.id, "qwen", End(Outcome.TIMEOUT))
    assert asked.output_in(call.id, "qwen", 4.0) == 0.0


def test_ends_that_are_never_reported_are_forgotten_in_time() -> None:
    asked = controller()
    for number in range(UNSETTLED + 1):
        asked.decide(candidate(P0, number=number), "qwen", 0.0)
        asked.release(f"x{number}", "qwen")

    lengths = asked.pools["qwen"].lengths
    asked.settle("x0", "qwen", End(Outcome.COMPLETED, completion_tokens=5))
    assert repr(lengths) == "<Lengths: 10 ends, 0 histories>"
    asked.settle("x1", "qwen", End(Outcome.COMPLETED, completion_tokens=5))
    assert repr(lengths) == "<Lengths: 11 ends, 2 histories>"
