"""Sends the calls of a drill to a gateway in real time, and keeps what became of each.

Rules this module keeps:

* Open loop: a call leaves when it is due, whatever became of others.
* All times count from when a call was due, so a gateway, or this sender, that falls behind shows in
  them (no coordinated omission). How late calls left is kept beside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from extproc.sim.drill.history import End, Record
from extproc.sim.drill.policy import Offer
from extproc.sim.drill.setting import Setting
from extproc.sim.drill.workload import Call
from extproc.sim.loadgen.http_client import Answer, Client
from extproc.sim.loadgen.load import Kind, kind_of
from extproc.stand.real.calls import PATH, Writer

GIVEN_UP = "no answer"
_DONE = b"[DONE]"
_CUT = b"load_shedding_fallback"


@dataclass(slots=True)
class Seen:
    """A call, and what the sender saw of it.

    Attributes:
        record: in the terms of the drill; times in seconds from the start.
        late: seconds that it left after it was due.
        pause: longest time between two pieces of the answer, in seconds.
        error: what went wrong, or None.
    """

    record: Record
    late: float = 0.0
    pause: float = 0.0
    error: str | None = None


class Sender:
    """Plays calls, all from one process."""

    def __init__(self, client: Client, writer: Writer, setting: Setting) -> None:
        self._client = client
        self._writer = writer
        self._setting = setting
        self._start = 0.0
        self._in_flight = 0
        self._idle = asyncio.Event()

    async def play(self, calls: Sequence[Call], *, patience: float) -> list[Seen]:
        """Send the calls; ``patience``: seconds after the last until what is open is given up."""
        clock = self._client.clock
        self._start = clock()
        every = []
        for number, call in enumerate(calls):
            head = self._client.head(PATH, self._writer.headers(call))
            body = self._writer.body(call)
            wait = self._start + call.at - clock()
            if wait > 0:
                await asyncio.sleep(wait)
            seen = Seen(self._record(number, call), late=clock() - self._start - call.at)
            every.append(seen)
            self._in_flight += 1
            self._client.send(head, body, partial(self._answered, seen))
        try:
            async with asyncio.timeout(patience):
                while self._in_flight:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            self._client.give_up(GIVEN_UP)
        return every

    def _record(self, number: int, call: Call) -> Record:
        start = self._setting.warm_up
        counts = start <= call.at < start + self._setting.measured
        offer = Offer(call.id, call.rank, call.tenant, call.task, call.prompt, call.max_tokens)
        return Record(call, offer, 0, counts, number)

    def _answered(self, seen: Seen, answer: Answer) -> None:
        self._in_flight -= 1
        if not self._in_flight:
            self._idle.set()
        record = seen.record
        kind = kind_of(answer)
        if kind is Kind.ERROR:
            record.end = End.UNFINISHED if answer.error == GIVEN_UP else End.ENGINE_ERROR
            seen.error = answer.error or f"HTTP {answer.status}"
        elif kind is Kind.FALLBACK:
            record.end = End.SHED
        elif _CUT in answer.tail:
            record.end = End.EVICTED
        elif _DONE in answer.tail:
            record.end = End.COMPLETED
        else:
            record.end, seen.error = End.ENGINE_ERROR, "the stream is not whole"
        record.ended_at = answer.end - self._start
        if kind is not Kind.FALLBACK:
            record.sent_at = record.call.at + seen.late
            if answer.status == 200:
                record.first_at = answer.first_byte - self._start
                seen.pause = answer.pause
