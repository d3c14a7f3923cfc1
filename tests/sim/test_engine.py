"""What one engine does, step by step, with numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.sim.engine import Engine, EngineBusyError, Request, StepResult
from extproc.sim.engine_config import EngineConfig, Policy, StepCost


def small(**changes: Any) -> Engine:
    """Eight usable blocks of four tokens, four sequences, sixteen tokens a step."""
    sizes: dict[str, Any] = {
        "num_gpu_blocks": 9,
        "block_size": 4,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "cost": StepCost(base=1.0, prefill=0.01, decode=0.1),
    }
    return Engine(EngineConfig(**(sizes | changes)))


def step(engine: Engine) -> tuple[float, list[str], list[str], list[str]]:
    """Step once; the duration is rounded so that it can be compared."""
    duration, emitted, finished, preempted = engine.step()
    return round(duration, 6), emitted, finished, preempted


def run(engine: Engine) -> list[StepResult]:
    results = []
    while not engine.idle:
        results.append(engine.step())
        assert len(results) < 1000
    return results


def test_idle_engine_does_nothing() -> None:
    engine = small()
    assert engine.idle
    assert engine.step() == StepResult(0.0, [], [], [])
    assert (engine.kv_usage, engine.running, engine.waiting, engine.free_blocks) == (0.0, 0, 0, 8)


def test_prompt_yields_the_first_token_and_each_step_one_more() -> None:
    engine = small()
    engine.submit(Request("a", 6, 3), 0.0)
    assert (engine.waiting, engine.running) == (1, 0)
    assert step(engine) == (1.06, ["a"], [], [])
    assert (engine.waiting, engine.running, engine.kv_usage) == (0, 1, 0.25)
    assert step(engine) == (1.1, ["a"], [], [])
    assert step(engine) == (1.1, ["a"], ["a"], [])
    assert (engine.idle, engine.kv_usage) == (True, 0.0)
    assert (engine.prompt_tokens_total, engine.generation_tokens_total) == (6, 3)


def test_blocks_are_taken_as_tokens_arrive() -> None:
    engine = small()
    engine.submit(Request("a", 3, 4), 0.0)
    held: list[tuple[str, int, int]] = []
    for _ in range(3):
        engine.step()
        held += engine.held()
    assert held == [("a", 3, 1), ("a", 4, 1), ("a", 5, 2)]
    assert engine.step().finished == ["a"]


def test_long_prompt_is_prefilled_in_chunks_beside_decoding_ones() -> None:
    engine = small(max_num_batched_tokens=8)
    engine.submit(Request("short", 2, 9), 0.0)
    engine.submit(Request("long", 20, 1), 0.0)
    assert step(engine) == (1.08, ["short"], [], [])
    assert list(engine.held()) == [("short", 2, 1), ("long", 6, 2)]
    assert step(engine) == (1.17, ["short"], [], [])
    assert list(engine.held()) == [("short", 3, 1), ("long", 13, 4)]
    assert step(engine) == (1.17, ["short", "long"], ["long"], [])


def test_sequences_that_get_no_tokens_of_the_budget_are_left_out_of_the_step() -> None:
    engine = small(max_num_batched_tokens=2)
    for name in "abc":
        engine.submit(Request(name, 1, 2), 0.0)
    assert [result.emitted for result in run(engine)] == [
        ["a", "b"],
        ["a", "b"],
        ["c"],
        ["c"],
    ]


def test_sequences_beyond_the_limit_wait() -> None:
    engine = small(max_num_seqs=2)
    for name in "abc":
        engine.submit(Request(name, 1, 2), 0.0)
    assert engine.step().emitted == ["a", "b"]
    assert (engine.running, engine.waiting, engine.queue()) == (2, 1, ["c"])
    assert engine.step().finished == ["a", "b"]
    assert engine.step().emitted == ["c"]


def test_prompt_is_admitted_only_if_all_of_it_fits() -> None:
    engine = small(max_num_batched_tokens=4)
    engine.submit(Request("a", 20, 3), 0.0)
    for _ in range(5):
        engine.step()
    assert engine.free_blocks == 3
    engine.submit(Request("b", 13, 1), 0.0)
    engine.step()
    assert (engine.running, engine.queue()) == (1, ["b"])


def test_fcfs_queue_ignores_priority() -> None:
    engine = small()
    engine.submit(Request("first", 1, 1, priority=9), 2.0)
    engine.submit(Request("second", 1, 1, priority=0), 1.0)
    assert engine.queue() == ["first", "second"]


def test_priority_queue_is_by_priority_then_arrival_then_order() -> None:
    engine = small(policy=Policy.PRIORITY)
    for name, priority, arrival in (
        ("d", 5, 1.0),
        ("c", 0, 2.0),
        ("f", 5, 2.0),
        ("b", 0, 1.0),
        ("e", 5, 1.0),
        ("a", -3, 9.0),
    ):
        engine.submit(Request(name, 1, 1, priority), arrival)
    assert engine.queue() == ["a", "b", "c", "d", "e", "f"]


def test_waiting_never_preempts_running_whatever_its_priority() -> None:
    engine = small(policy=Policy.PRIORITY, max_num_seqs=1)
    engine.submit(Request("low", 1, 5, priority=9), 0.0)
    engine.step()
    engine.submit(Request("high", 1, 1, priority=0), 1.0)
    assert [result.emitted for result in run(engine)] == [["low"]] * 4 + [["high"]]
    assert engine.preemptions_total == 0


def test_fcfs_preempts_the_last_admitted_and_admits_none_in_that_step() -> None:
    engine = small()
    for name in "abcd":
        engine.submit(Request(name, 4, 8), 0.0)
    for _ in range(5):
        assert engine.step().preempted == []
    assert engine.free_blocks == 0
    # Each wants a third block: d's two go to a and b, and c finds none but its own.
    assert step(engine) == (1.2, ["a", "b"], [], ["d", "c"])
    assert (engine.queue(), engine.free_blocks, engine.preemptions_total) == (["c", "d"], 2, 2)
    run(engine)
    assert engine.generation_tokens_total == 32


def test_victim_later_in_the_order_is_left_out_of_the_step() -> None:
    engine = small(num_gpu_blocks=7)
    for name in "abc":
        engine.submit(Request(name, 4, 8), 0.0)
    for _ in range(5):
        assert engine.step().preempted == []
    assert step(engine) == (1.2, ["a", "b"], [], ["c"])  # c's two blocks went to a and b
    assert engine.free_blocks == 0


def test_priority_preempts_the_worst_priority_then_the_latest() -> None:
    engine = small(policy=Policy.PRIORITY)
    engine.submit(Request("p9", 7, 9, priority=9), 0.0)
    engine.submit(Request("p0", 7, 9, priority=0), 0.0)
    engine.submit(Request("p5late", 1, 9, priority=5), 2.0)
    engine.submit(Request("p5", 1, 9, priority=5), 1.0)
    preempted = [name for result in run(engine) for name in result.preempted]
    assert preempted == ["p9", "p5late"]


def test_victim_that_was_scheduled_already_gives_its_tokens_back() -> None:
    engine = small(policy=Policy.PRIORITY)
    engine.submit(Request("low", 15, 9, priority=9), 0.0)
    engine.step()
    engine.submit(Request("high", 12, 9, priority=0), 1.0)
    engine.step()
    # The last free block is taken by low; high, later in the order, takes low's away.
    result = engine.step()
    assert (result.emitted, result.preempted) == (["high"], ["low"])
    assert result.duration == pytest.approx(1.1)


def test_preempted_sequence_computes_its_tokens_again_and_keeps_its_output() -> None:
    engine = small(policy=Policy.PRIORITY, max_num_batched_tokens=32)
    engine.submit(Request("low", 14, 10, priority=9), 0.0)
    engine.submit(Request("high", 14, 10, priority=0), 0.0)
    results = run(engine)
    assert results[3].preempted == ["low"]
    assert results[9].finished == ["high"]
    assert results[10].duration == pytest.approx(1.17)  # 14 and the 3 generated
    assert sum(result.emitted.count("low") for result in results) == 10
    assert engine.prompt_tokens_total == 28  # what is computed again does not count again


def test_shared_prefix_is_computed_once_and_counts_once() -> None:
    engine = small()
    engine.submit(Request("a", 9, 4, prefix=("p0", "p1")), 0.0)
    assert engine.step().duration == pytest.approx(1.09)
    engine.submit(Request("b", 9, 4, prefix=("p0", "p1")), 0.0)
    assert engine.step().duration == pytest.approx(1.2)  # one token of b's prompt is left
    assert engine.free_blocks == 8 - 2 - 1 - 1
    assert (engine.prefix_queries_total, engine.prefix_hits_total) == (18, 8)


def test_unreferenced_prefix_counts_as_free_and_can_be_hit_again() -> None:
    engine = small()
    engine.submit(Request("a", 9, 1, prefix=("p0", "p1")), 0.0)
    engine.step()
    assert (engine.idle, engine.kv_usage, engine.free_blocks) == (True, 0.0, 8)
    engine.submit(Request("b", 9, 1, prefix=("p0", "p1")), 1.0)
    engine.step()
    assert engine.prefix_hits_total == 8


def test_last_prompt_token_is_computed_even_if_all_blocks_are_cached() -> None:
    engine = small()
    for name in "ab":
        engine.submit(Request(name, 8, 1, prefix=("p0", "p1")), 0.0)
        engine.step()
    assert engine.prefix_hits_total == 4


def test_unreferenced_prefix_is_evicted_oldest_and_tail_first() -> None:
    engine = small()
    for name in ("old", "new"):
        engine.submit(Request(name, 9, 1, prefix=(f"{name}0", f"{name}1")), 0.0)
        engine.step()
    engine.submit(Request("big", 20, 1), 0.0)  # five blocks, of which four are blank
    run(engine)
    engine.submit(Request("old again", 9, 1, prefix=("old0", "old1")), 0.0)
    run(engine)
    assert engine.prefix_hits_total == 4
    engine.submit(Request("new again", 9, 1, prefix=("new0", "new1")), 0.0)
    run(engine)
    assert engine.prefix_hits_total == 4 + 8


def test_equal_prompts_computed_at_the_same_time_are_not_merged() -> None:
    engine = small()
    for name in "ab":
        engine.submit(Request(name, 5, 3, prefix=("p0",)), 0.0)
    engine.step()
    assert engine.free_blocks == 4
    engine.submit(Request("c", 5, 3, prefix=("p0",)), 0.0)
    engine.step()
    assert engine.free_blocks == 3
    run(engine)
    assert engine.free_blocks == 8


def test_usage_grows_as_was_measured_on_vllm() -> None:
    """Measured: 128 blocks of 32, a prompt of 1,000 tokens: 32 / 127, then a block each 32 tokens."""
    engine = small(num_gpu_blocks=128, block_size=32, max_num_batched_tokens=2048)
    engine.submit(Request("a", 1000, 400), 0.0)
    usage: list[float] = []
    while not engine.idle:
        engine.step()
        usage.append(round(engine.kv_usage, 4))
    assert sorted(set(usage[:-1]))[:3] == [0.2520, 0.2598, 0.2677]
    assert usage.count(0.2598) == 32
    assert max(usage) == 0.3465  # 44 blocks


def test_full_cache_goes_as_was_measured_on_vllm() -> None:
    """Measured: six of 600 + 400 tokens fill 127 blocks, then one of higher priority arrives.

    Three preemptions; the late one overtakes all; the six end in the order of their arrival.
    """
    engine = small(
        num_gpu_blocks=128,
        block_size=32,
        max_num_seqs=8,
        max_num_batched_tokens=2048,
        policy=Policy.PRIORITY,
    )
    for index in range(6):
        engine.submit(Request(f"low{index}", 600, 400, priority=10), float(index))
    while engine.running < 6:
        engine.step()
    while engine.preemptions_total == 0:
        engine.step()
    engine.submit(Request("high", 600, 95, priority=0), 9.0)
    results = run(engine)
    assert engine.preemptions_total == 3
    finished = [name for result in results for name in result.finished]
    assert finished == ["high", "low0", "low1", "low2", "low3", "low4", "low5"]


def test_abort_frees_running_and_waiting() -> None:
    engine = small(max_num_seqs=1)
    engine.submit(Request("a", 5, 5), 0.0)
    engine.submit(Request("b", 5, 5), 0.0)
    engine.step()
    assert engine.abort("b")
    assert (engine.running, engine.waiting) == (1, 0)
    assert engine.abort("a")
    assert (engine.idle, engine.free_blocks) == (True, 8)
    assert not engine.abort("a")


def test_bound_on_unfinished_requests_counts_running_ones_too() -> None:
    engine = small(max_num_queued_reqs=2)
    engine.submit(Request("a", 1, 9), 0.0)
    engine.step()
    engine.submit(Request("b", 1, 9), 0.0)
    with pytest.raises(EngineBusyError, match="2 requests of 2 are unfinished"):
        engine.submit(Request("c", 1, 9), 0.0)
    engine.abort("a")
    engine.submit(Request("c", 1, 9), 0.0)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (Request("a", 1, 1), "in use"),
        (Request("b", 0, 1), "at least 1"),
        (Request("b", 1, 0), "at least 1"),
        (Request("b", 30, 3), "longer than 32"),
    ],
)
def test_impossible_requests_are_refused(request_: Request, why: str) -> None:
    engine = small()
    engine.submit(Request("a", 1, 1), 0.0)
    with pytest.raises(ValueError, match=why):
        engine.submit(request_, 0.0)


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_gpu_blocks": 1},
        {"block_size": 0},
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": 0},
        {"max_model_len": 33},
        {"max_model_len": 1},
    ],
)
def test_impossible_sizes_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        small(**sizes)
