"""One engine endpoint: what it says, what it was promised, and how the two are reconciled.

Rules this module keeps:

* Own accounting never stops. What a scrape says corrects it, and ages; it does not replace it.
* The two are compared as of the moment when the scrape was sent.
* A surplus of the engine's usage over ours (load of others, prompts longer than estimated) counts as
  it is: ``bias``. A deficit (prompts that share blocks, estimates that are too high, ends that we
  never heard of, a page that tells too few blocks) shows slowly, as a share of our numbers that is
  really there: ``share``. Load that only comes and goes does not open anything that way.
* A counter that fell means another engine: differences are forgotten, the comparison starts anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from extproc.core.promises import Demand, Predict, Promise, Promises
from extproc.core.readings import Freshness, Reading

PACE = 25.0
"""Tokens per second of a sequence, until it is measured."""
PREFILL_RATE = 8000.0
"""Prompt tokens per second of an endpoint, until it is measured."""
FASTEST_PACE, FASTEST_PREFILL = 2_000.0, 1e6
"""What is measured beyond is a fault of the counters."""
COMPLETION_GAIN = 0.05
"""How much of its own pace one completed sequence adds to the endpoint's."""
BIAS_SECONDS = 1.0
"""Time in which the bias takes on 63 % of a change."""
BIAS_NOISE = 0.02
"""Share of the capacity by which the bias may differ from what the last scrape said."""
SHARE_SECONDS = 15.0
"""The same for the share of our numbers that is really there."""
RATE_SECONDS = 2.0
"""The same for the pace and the prefill rate."""
MOST_SECONDS = 5.0
"""However long ago the last comparison was, one alone does not change the share by more."""
LEAST_SHARE = 0.3
"""However little the engine shows of what we count, this much of it counts."""
MOST_FAILURES = 3
"""Failures of exchanges since an endpoint was last read that show it is gone: its streams break all
at once, and it would look empty. A single one may be the request's own fault."""
REPORTS_APART = 0.02
"""Seconds between two reports of an engine that are looked at."""
LEAST_USAGE = 0.1
"""Under this KV usage a comparison says nothing about the share."""


class Promised(NamedTuple):
    """What an endpoint was promised by other Tidegates, in tokens.

    Attributes:
        peak: at the worst moment to come; their peaks need not coincide, so it is no too little.
        current: in use by it now.
    """

    peak: float = 0.0
    current: float = 0.0


@dataclass(frozen=True, slots=True)
class Timing:
    """From which age on a reading is stale, and unknown; in seconds."""

    stale_after: float
    unknown_after: float


class Account(msgspec.Struct, frozen=True, gc=False):
    """What one endpoint, or several together, come to; all in tokens.

    Attributes:
        capacity: of the KV cache.
        peak: highest usage that the promises lead to, in whole blocks.
        bias: surplus of the engine's usage over ours; under 0 where it has less.
        held: what we thought it had, over the recent past.
        seen: what it had.
        observed: usage now by the last scrape: as it said while fresh; later moved on by what we
            know came and went; by our own accounting where it is too old.
    """

    capacity: float
    peak: float
    bias: float
    held: float
    seen: float
    observed: float

    @staticmethod
    def of_all(accounts: Sequence[Account]) -> Account:
        """Return several accounts as one; at least one."""
        return Account(
            sum([each.capacity for each in accounts]),
            sum([each.peak for each in accounts]),
            sum([each.bias for each in accounts]),
            sum([each.held for each in accounts]),
            sum([each.seen for each in accounts]),
            sum([each.observed for each in accounts]),
        )

    @property
    def share(self) -> float:
        """How much of what we count is really there, `LEAST_SHARE`..1."""
        return _share(self.seen, self.held)

    @property
    def own(self) -> float:
        """Free ratio at the worst moment to come if there were nothing but what we let in."""
        return 1.0 - self.share * self.peak / self.capacity

    @property
    def predicted(self) -> float:
        """Free ratio at the worst moment to come; under 0 where more is promised than fits."""
        return self._predicted_after(0.0)

    @property
    def free(self) -> float:
        """The ratio that counts: as predicted, and never above what is observed."""
        return self.free_after(0.0)

    def free_after(self, more: float) -> float:
        """Return the ratio that counts if the peak were so many tokens higher."""
        # Gauges are fractions of a block count: what lies under a millionth is binary noise, and
        # would put a pool with exactly 8 % free under its mark of 8 %.
        observed = round(1.0 - self.observed / self.capacity, 6)
        predicted = self._predicted_after(more)
        return min(observed, predicted)

    def _predicted_after(self, more: float) -> float:
        surplus = max(0.0, self.bias)
        used = _share(self.seen, self.held) * (self.peak + more) + surplus
        return round(1.0 - used / self.capacity, 6)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What we thought an endpoint had when a scrape was sent."""

    at: float
    current: float
    sequences: int
    mean_prompt: float
    dispatched: float


class Endpoint:
    """The books of one endpoint. Times in seconds of the caller's clock, sizes in tokens.

    Attributes:
        promises: what it was promised.
        elsewhere: what others have promised of it; it is no part of the bias.
        prefill_rate: prompt tokens that it reads per second, as learned.
        reading: the last one, or None; asked for at ``read_at``.
        problem: why the last scrape failed, or None where it did not.
        failures: exchanges that failed here since it was last read.
        surplus: how many more sequences we thought it had than it said, when last read.
        scrapes: how often it was read.
        capacity: tokens that the KV cache holds, by the page or the configuration, or None.
    """

    def __init__(
        self,
        name: str,
        timing: Timing,
        predict: Predict,
        *,
        blocks: int | None = None,
        block_size: int | None = None,
    ) -> None:
        self.name = name
        self.promises = Promises(predict, PACE)
        self.elsewhere = Promised()
        self.prefill_rate = PREFILL_RATE
        self.reading: Reading | None = None
        self.read_at = -math.inf
        self.problem: str | None = None
        self.failures = 0
        self.surplus = 0
        self.scrapes = 0
        self._timing = timing
        self._resize(blocks, block_size)
        self._snapshot: _Snapshot | None = None
        self._dispatched = 0.0
        self._unread, self._unread_at = 0.0, -math.inf
        self._raw: float | None = None
        self._reported_at = -math.inf
        self._bias = 0.0
        self._held = self._seen = 0.0

    def __repr__(self) -> str:
        return (
            f"<Endpoint {self.name}: {len(self.promises)} promises, peak {self.promises.peak:.0f} "
            f"of {self.capacity or math.nan:.0f}, bias {self._bias:.0f}>"
        )

    # What it is.

    @property
    def down(self) -> bool:
        """Whether exchanges and scrapes fail, whichever did so first, or many exchanges."""
        return self.failures >= MOST_FAILURES or (self.failures > 0 and self.problem is not None)

    @property
    def bias(self) -> float:
        """Tokens in use beyond our own, smoothed; under 0 where the engine has less than we think."""
        return self._bias

    def age(self, now: float) -> float:
        """Return the age of the reading in seconds; infinite where there is none."""
        return now - self.read_at

    def freshness(self, now: float) -> Freshness:
        """Return how far the reading can be trusted now."""
        age = now - self.read_at
        if age <= self._timing.stale_after:
            return Freshness.FRESH
        return Freshness.UNKNOWN if age > self._timing.unknown_after else Freshness.STALE

    def staleness(self, now: float) -> float:
        """Return 0 for a fresh reading up to 1 for an unknown one; 0 where there never was one."""
        if self.reading is None:
            return 0.0
        span = self._timing.unknown_after - self._timing.stale_after
        return min(1.0, max(0.0, self.age(now) - self._timing.stale_after) / span)

    def size(self, demand: Demand) -> float:
        """Return what a sequence of this demand takes on arrival.

        The last block of a sequence is half full on average. No sequence takes more than there is:
        the engine refuses a prompt that is longer.
        """
        size = demand.prompt + (self._block_size or 0) / 2
        return size if self.capacity is None else min(size, self.capacity)

    def in_blocks(self, tokens: float) -> float:
        """Return so many tokens rounded up to whole blocks."""
        block = self._block_size or 1
        return float(block * math.ceil(tokens / block - 1e-9))

    def _resize(self, blocks: int | None, block_size: int | None) -> None:
        self._blocks, self._block_size = blocks, block_size
        self.capacity: float | None = None
        if blocks is not None and block_size is not None:
            self.capacity = float(blocks * block_size)

    # What comes and goes.

    def dispatch(self, demand: Demand, now: float) -> None:
        """Note that the engine is being sent a prompt."""
        prompt = min(demand.prompt, self.capacity or math.inf)
        self._unread = self.unprefilled(now) + prompt
        self._unread_at = now
        self._dispatched += prompt

    def withdraw(self, promise: Promise) -> None:
        """Let go of a promise; where none is left, no prompt of ours waits either."""
        self.promises.withdraw(promise)
        if not self.promises:
            self._unread = 0.0

    def unprefilled(self, now: float) -> float:
        """Return how many tokens of prompts wait to be read, estimated."""
        if self._unread == 0.0:
            return 0.0
        return max(0.0, self._unread - self.prefill_rate * max(0.0, now - self._unread_at))

    def completed(self, tokens: int, seconds: float) -> None:
        """Learn the pace from a completed sequence, where the engine's page does not tell it."""
        counted = self.reading is not None and self.reading.generated is not None
        if not counted and seconds > 0.0:
            clock = self.promises.clock
            pace = min(FASTEST_PACE, tokens / seconds)
            clock.pace += COMPLETION_GAIN * (pace - clock.pace)

    # What the engine says.

    def sending(self, now: float) -> None:
        """A scrape is about to be sent: note what we think the endpoint holds."""
        self._snapshot = self._snap(now)

    def report(self, kv_usage: float, waiting: int, now: float) -> bool:
        """Take what the engine said of its load beside an answer; say whether that is news.

        It corrects the last reading, whose age and counters it leaves, where it says that more is
        in use: that it is less the next scrape will say, which knows what has ended. Where nothing
        was ever read it means nothing, and several within `REPORTS_APART` mean one.
        """
        reading = self.reading
        if reading is None or now - self._reported_at < REPORTS_APART:
            return False
        self._reported_at = now
        if kv_usage <= reading.kv_usage:
            return False
        self.reading = replace(reading, kv_usage=kv_usage, waiting=waiting)
        if self.capacity is not None:
            self._compare(self.reading, self._snap(now), 0.0)
        return True

    def observe(self, reading: Reading, read_at: float, now: float) -> int:
        """Take a reading that was asked for at ``read_at``.

        Returns:
            How many sequences the engine has preempted since the reading before.
        """
        snapshot, self._snapshot = self._snapshot or self._snap(now), None
        before, passed = self.reading, read_at - self.read_at
        if before is not None and reading.restarted_since(before):
            before, self._raw = None, None
        self.reading, self.read_at = reading, read_at
        self.problem, self.failures = None, 0
        self.scrapes += 1
        self._resize(reading.blocks or self._blocks, reading.block_size or self._block_size)
        if before is not None and passed > 0.0:
            self._measure(before, reading, passed)
        self._anchor(reading, snapshot, now)
        if self.capacity is not None:
            self._compare(reading, snapshot, passed)
        self.promises.renew(now)
        self.surplus = snapshot.sequences - reading.sequences
        return 0 if before is None else reading.preemptions - before.preemptions

    def _snap(self, now: float) -> _Snapshot:
        promises = self.promises
        return _Snapshot(
            now,
            promises.current(now) + self.elsewhere.current,
            promises.sequences,
            promises.mean_prompt,
            self._dispatched,
        )

    def _measure(self, before: Reading, reading: Reading, passed: float) -> None:
        """Learn how fast sequences advance and prompts are read."""
        gain = 1.0 - math.exp(-passed / RATE_SECONDS)
        # Those that wait do not move: taken over all, the pace keeps the sum over the promises right.
        sequences = (before.sequences + reading.sequences) / 2
        if before.generated is not None and reading.generated is not None and sequences >= 1.0:
            pace = min(FASTEST_PACE, (reading.generated - before.generated) / passed / sequences)
            self.promises.clock.pace += gain * (pace - self.promises.clock.pace)
        if before.prompted is not None and reading.prompted is not None:
            rate = min(FASTEST_PREFILL, (reading.prompted - before.prompted) / passed)
            # Where nothing waits, the engine reads what comes: that is no measure of what it can.
            if rate > self.prefill_rate or min(before.waiting, reading.waiting) > 0:
                self.prefill_rate += gain * (rate - self.prefill_rate)

    def _anchor(self, reading: Reading, snapshot: _Snapshot, now: float) -> None:
        """Set the prompts that wait by the engine's queue, and move them on to now."""
        waiting = reading.waiting * snapshot.mean_prompt + self._dispatched - snapshot.dispatched
        self._unread, self._unread_at = waiting if self.promises else 0.0, snapshot.at
        self._unread = self.unprefilled(now)
        self._unread_at = now

    def _compare(self, reading: Reading, snapshot: _Snapshot, passed: float) -> None:
        """Reconcile the engine's usage with ours; what waits in its queue is in no block yet."""
        capacity = self.capacity or 0.0
        seen = reading.kv_usage * capacity
        held = max(0.0, snapshot.current - reading.waiting * snapshot.mean_prompt)
        raw = seen - held
        if self._raw is None:
            self._bias, self._held, self._seen = raw, 0.0, 0.0
        else:
            self._bias += (1.0 - math.exp(-passed / BIAS_SECONDS)) * (raw - self._bias)
            # What is more than noise is true at once.
            noise = BIAS_NOISE * capacity
            self._bias = min(raw + noise, max(raw - noise, self._bias))
        self._bias = min(capacity, max(-capacity, self._bias))
        self._raw = raw
        if reading.kv_usage >= LEAST_USAGE:
            gain = 1.0 - math.exp(-min(passed, MOST_SECONDS) / SHARE_SECONDS)
            # Until there is enough of it, the past counts as agreement.
            self._held = (self._held or seen) + gain * (held - (self._held or seen))
            self._seen = (self._seen or seen) + gain * (seen - (self._seen or seen))

    # What follows.

    def account(self, now: float) -> Account | None:
        """Return what it comes to, or None where the capacity is unknown."""
        capacity = self.capacity
        if capacity is None:
            return None
        self.promises.renew(now)
        peak = self.in_blocks(self.promises.peak) + self.elsewhere.peak
        freshness = self.freshness(now)
        share = _share(self._seen, self._held)
        if self.reading is None or self._raw is None or freshness is Freshness.UNKNOWN:
            bias, observed = 0.0, share * peak
        else:
            known = self.promises.current(now) + self.elsewhere.current - self.unprefilled(now)
            bias, observed = self._bias, max(0.0, known + self._raw)
            if freshness is Freshness.FRESH:
                # What has ended since is gone; what came since is in the peak.
                observed = min(observed, self.reading.kv_usage * capacity)
        return Account(capacity, peak, bias, self._held, self._seen, observed)


def _share(seen: float, held: float) -> float:
    if seen >= held or held <= 0.0:
        return 1.0
    return max(LEAST_SHARE, seen / held)
