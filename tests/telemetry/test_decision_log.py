"""The decision log's files: complete, rotated by size, and never in the way of a decision."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from extproc.core.capacity import Load
from extproc.core.controller import Action, Verdict
from extproc.core.outcomes import Outcome
from extproc.core.reasons import Reason
from extproc.core.records import Decided, Ended, WaitEnd
from extproc.telemetry import handover
from extproc.telemetry.decision_log import DecisionLog, read
from extproc.telemetry.recorder import Recorder, Remembered

VERDICT = Verdict(Action.SHED, Reason.KV_WATERMARK, Load(0.1, 1.0, 3, 2, 0.09), 0.15, 0.1)


def decided(number: int) -> Decided:
    return Decided(
        f"x{number}", "r", "qwen", "chat", "a", "P2", "", 10, 64, VERDICT, 1e-4, waited=None
    )


def batch(*numbers: int) -> list[Remembered]:
    return [Remembered(number, 1000.0 + number, decided(number)) for number in numbers]


def ids(file: Path) -> list[str]:
    return [line.id for line in read(file)]


def test_lines_are_on_disk_in_order_when_writing_ends(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    log = DecisionLog(file, max_bytes=1 << 20, keep=2)
    with log.writing():
        log.take(batch(1, 2))
        log.take(batch(3))

    assert ids(file) == ["x1", "x2", "x3"]
    (line, *_) = read(file)
    assert (line.at, line.reason.value, line.in_flight) == (1001.0, "kv_watermark", 3)


def test_a_log_goes_on_where_it_was_left(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    for number in (1, 2):
        log = DecisionLog(file, max_bytes=1 << 20, keep=2)
        with log.writing():
            log.take(batch(number))

    assert ids(file) == ["x1", "x2"]


@pytest.mark.parametrize(
    ("keep", "kept"), [(2, ["x3", "x4", "x5"]), (1, ["x4", "x5"]), (0, ["x5"])]
)
def test_a_full_file_is_put_aside_and_the_oldest_goes(
    tmp_path: Path, keep: int, kept: list[str]
) -> None:
    file = tmp_path / "decisions.jsonl"
    log = DecisionLog(file, max_bytes=10, keep=keep)
    with log.writing():
        for number in range(1, 6):
            log.take(batch(number))

    assert ids(file) == kept
    assert len(list(tmp_path.iterdir())) == len(kept)


def test_what_is_no_line_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    log = DecisionLog(file, max_bytes=1 << 20, keep=2)
    with log.writing():
        log.take(batch(1))
    with file.open("ab") as out:
        out.write(b'{"at": 1, "id": "half')

    assert ids(file) == ["x1"]


def test_a_disk_that_fails_costs_lines_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "decisions.jsonl"
    log = DecisionLog(file, max_bytes=1 << 20, keep=2)

    def full(_: DecisionLog, text: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DecisionLog, "_write", full)
    with log.writing():
        log.take(batch(1, 2))
        log.take(batch(3))

    assert log.lost == 3
    (record,) = [
        each for each in caplog.records if each.message == "decisions are not written down"
    ]
    assert vars(record)["why"] == "No space left on device"


def test_a_disk_that_is_slow_costs_lines_and_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "BATCHES", 2)
    log = DecisionLog(tmp_path / "decisions.jsonl", max_bytes=1 << 20, keep=2)

    for number in range(5):
        log.take(batch(number))

    assert log.lost == 3


def test_a_place_that_cannot_be_written_to_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        DecisionLog(tmp_path / "nowhere" / "decisions.jsonl", max_bytes=10, keep=0)


@pytest.fixture
def recorder() -> Callable[..., Recorder]:
    """Make a recorder whose clock counts."""

    def make(**more: int) -> Recorder:
        times = iter(range(100, 10_000))
        return Recorder(lambda: float(next(times)), **more)

    return make


def test_decisions_are_counted_numbered_and_remembered(recorder: Callable[..., Recorder]) -> None:
    made = recorder(remembered=3)
    batches: list[list[Remembered]] = []
    made.hand_to(batches.append)
    made.turn()
    assert (batches, made.oldest(), made.last_number) == ([], None, 0)

    for first, last in ((1, 3), (3, 6)):
        for number in range(first, last):
            made.decided(decided(number))
        made.turn()

    assert made.counts == {("qwen", "P2", "shed", "kv_watermark"): 5}
    assert [[each.number for each in taken] for taken in batches] == [[1, 2], [3, 4, 5]]
    assert [each.record.id for each in made.newest()] == ["x5", "x4", "x3"]
    assert [each.number for each in made.since(3)] == [4, 5]
    assert (made.oldest(), made.last_number, made.lost) == (102.0, 5, 0)


def test_what_comes_too_fast_is_lost_and_counted(recorder: Callable[..., Recorder]) -> None:
    made = recorder(fresh=2)
    for number in range(5):
        made.decided(decided(number))
    made.turn()

    assert [(each.number, each.record.id) for each in made.newest()] == [(5, "x4"), (4, "x3")]
    assert made.lost == 3
    made.decided(decided(9))
    made.turn()
    assert (made.lost, made.last_number) == (3, 6)


def test_other_news_is_not_remembered(recorder: Callable[..., Recorder]) -> None:
    made = recorder()
    made.waited("qwen", "P2", WaitEnd.SHED, 1.0)
    made.ended(Ended("x", "a", "P2", "qwen", Outcome.COMPLETED, None, None, 1.0))
    made.turn()

    assert list(made.newest()) == []


async def test_the_last_decisions_are_taken_when_it_stops(
    recorder: Callable[..., Recorder],
) -> None:
    made = recorder()
    running = asyncio.ensure_future(made.run())
    await asyncio.sleep(0)
    made.decided(decided(1))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert [each.record.id for each in made.newest()] == ["x1"]
