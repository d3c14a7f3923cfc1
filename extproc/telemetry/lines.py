"""A line of the decision log: one verdict, with all that it takes to explain and replay it.

Rules this module keeps:

* A line stands for itself: no other line and no configuration is needed to read it.
* It holds names and numbers. There is no prompt in it, no key and no header; of a body that cannot be
  read it says so and not why.
* Fields are added, never renamed; what is missing has its default.
"""

from __future__ import annotations

import msgspec

from extproc.core.capacity import Load
from extproc.core.classes import Classification, ServiceClass
from extproc.core.controller import Action, Candidate, Verdict
from extproc.core.placement import Placement, Room, Shortage
from extproc.core.reasons import Reason
from extproc.core.records import Decided
from extproc.core.replay import Past
from extproc.core.standing import Notes, Standing


class Rules(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What held for the call's class then; see `extproc.core.classes.ServiceClass`."""

    rank: int
    strict: bool = False
    close: float = 0.0
    open: float = 0.0
    concurrency: float = 1.0
    max_wait: float = 0.0
    weight: float = 1.0


class Met(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What the call met; see `extproc.core.standing.Standing`."""

    endpoints: int = 0
    in_flight: int = 0
    max_concurrency: int = 1
    spare: float = 0.0
    free: float | None = None
    observed: float | None = None
    tightening: float = 1.0
    own: float = 1.0
    unmet: float | None = None


class Found(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What became of the search for a place.

    Attributes:
        reason: why there was none, or None where there was one.
        threshold, value: the limit and the number held against it.
        after: what would be free with the call.
        free, observed, tightening: of the engine, or engines, that decided.
        left: tokens that each of its sequences was predicted to generate.
        capacity: tokens that those engines hold.
    """

    reason: Reason | None = None
    threshold: float | None = None
    value: float | None = None
    after: float | None = None
    free: float | None = None
    observed: float | None = None
    tightening: float = 1.0
    left: float = 0.0
    capacity: float | None = None


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One verdict. Times in seconds, ``at`` since 1970; ``waited`` None: decided when it came.

    ``by_envoy``: the flood valve gave it, and of those only some have a line.
    """

    at: float
    id: str
    verdict: Action
    reason: Reason
    pool: str
    api: str
    tenant: str
    service_class: str
    request_id: str = ""
    task: str = ""
    run: str = ""
    run_task: str = ""
    run_parent: str = ""
    threshold: float | None = None
    value: float | None = None
    retry_after: float | None = None
    endpoint: str | None = None
    free_after: float | None = None
    waited: float | None = None
    seconds: float = 0.0
    shadow: bool = False
    by_envoy: bool = False
    prompt: int = 0
    max_output: int | None = None
    max_prompt: int | None = None
    choices: int = 1
    body: int = 0
    unreadable: bool = False
    ticket: bool = False
    held_up: bool = False
    free: float | None = None
    predicted: float | None = None
    tightening: float = 1.0
    in_flight: int = 0
    endpoints: int = 0
    rules: Rules = Rules(0)
    met: Met | None = None
    found: Found | None = None


def line_of(record: Decided, at: float) -> Line:
    """Return the line of a decision that was made at ``at``."""
    verdict, load, call = record.verdict, record.verdict.load, record.call
    notes = (call and call.notes) or _NO_NOTES
    return Line(
        at=at,
        id=record.id,
        verdict=verdict.action,
        reason=verdict.reason,
        pool=record.pool,
        api=record.endpoint,
        tenant=record.tenant,
        service_class=record.service_class,
        request_id=record.request_id,
        task=record.task,
        run=record.run,
        run_task=record.run_task,
        run_parent=record.run_parent,
        threshold=verdict.threshold,
        value=verdict.value,
        retry_after=verdict.retry_after,
        endpoint=verdict.endpoint,
        free_after=verdict.free,
        waited=record.waited,
        seconds=record.seconds,
        shadow=record.shadow,
        by_envoy=record.by_envoy,
        prompt=record.prompt_tokens,
        max_output=record.max_output if call is None else call.max_output,
        max_prompt=None if call is None else call.classification.max_prompt,
        choices=1 if call is None else call.choices,
        body=0 if call is None else call.body_bytes,
        unreadable=call is not None and call.defect is not None,
        ticket=call is not None and call.since is not None,
        held_up=notes.held_up,
        free=load.free,
        predicted=load.predicted,
        tightening=load.tightening,
        in_flight=load.in_flight,
        endpoints=load.endpoints,
        rules=Rules(0) if call is None else _rules(call.classification.service_class),
        met=None if notes.standing is None else Met(*notes.standing),
        found=None if notes.found is None else _found(notes.found),
    )


def past_of(line: Line) -> Past:
    """Return the decision that a line tells of, to be replayed."""
    rules, met = line.rules, line.met
    service_class = ServiceClass(
        line.service_class,
        rules.rank,
        strict=rules.strict,
        close=rules.close,
        open=rules.open,
        concurrency=rules.concurrency,
        max_wait=rules.max_wait,
        weight=rules.weight,
    )
    who = Classification(
        tenant=line.tenant,
        task=line.task,
        service_class=service_class,
        max_output=line.max_output,
        max_prompt=line.max_prompt,
        stop=(),
        finish_reason=None,
        language=None,
    )
    standing = None
    if met is not None:
        standing = Standing(*(getattr(met, field) for field in Standing._fields))
    found = None if line.found is None else _what_was_found(line.found, line.endpoint)
    call = Candidate(
        id=line.id,
        classification=who,
        prompt_tokens=line.prompt,
        body_bytes=line.body,
        defect="unreadable" if line.unreadable else None,
        max_output=line.max_output,
        choices=line.choices,
        since=0.0 if line.ticket else None,
        notes=Notes(standing, found, line.held_up),
    )
    load = Load(line.free, line.tightening, line.in_flight, line.endpoints, line.predicted)
    verdict = Verdict(
        line.verdict,
        line.reason,
        load,
        line.threshold,
        line.value,
        line.endpoint,
        line.free_after,
        line.retry_after,
    )
    return Past(call, verdict, line.waited)


def encode(line: Line) -> bytes:
    """Return a line as JSON, without its end."""
    return _ENCODER.encode(line)


def decode(text: bytes) -> Line:
    """Return a line from JSON.

    Raises:
        msgspec.DecodeError: it is something else.
    """
    return _DECODER.decode(text)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Line)
_NO_NOTES = Notes()


def _rules(service_class: ServiceClass) -> Rules:
    return Rules(
        service_class.rank,
        service_class.strict,
        service_class.close,
        service_class.open,
        service_class.concurrency,
        service_class.max_wait,
        service_class.weight,
    )


def _found(found: Placement | Shortage) -> Found:
    room, shortage = found.room, found if isinstance(found, Shortage) else None
    account = None if room is None else room.account
    return Found(
        reason=None if shortage is None else shortage.reason,
        threshold=None if shortage is None else shortage.threshold,
        value=None if shortage is None else shortage.value,
        after=found.free,
        free=None if room is None else room.free,
        observed=None if room is None else room.observed,
        tightening=1.0 if room is None else room.tightening,
        left=found.left if isinstance(found, Placement) else 0.0,
        capacity=None if account is None else account.capacity,
    )


def _what_was_found(found: Found, endpoint: str | None) -> Placement | Shortage:
    room = None
    if found.free is not None:
        room = Room(None, found.free, found.observed, found.tightening)
    if found.reason is None:
        return Placement(endpoint, endpoint is not None, found.after, found.left, room)
    return Shortage(found.reason, found.threshold, found.value, found.after, room)
