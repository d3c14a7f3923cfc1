"""Which run a call belongs to, and its place there, by what the caller says.

Rules this module keeps:

* Headers are asked first, then the body's ``metadata``, then W3C baggage, then ``traceparent``, whose
  trace is the run. The first that names a run tells the rest too; nothing is put together from two.
* Everything here is the caller's word: it can limit a call and give it the class of its own run's
  root, no more. The owner comes from the identity sources.
* An id that is too long, or holds what no id does, names nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import unquote

from extproc import contract
from extproc.core.agents.runs import LONGEST_ID, Member, Owner
from extproc.openai.calls import Call
from extproc.openai.metadata import metadata

MOST_PREDECESSORS = 16
DEEPEST = 1000
"""What is said to be deeper counts as this deep."""

_HEADERS = contract.AGENT_HEADERS["headers"]
_ID = re.compile(rf"[!-+\--~]{{1,{LONGEST_ID}}}")
"""Printable ASCII without the comma, which separates ids."""
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*", re.ASCII)
_NO_TRACE = "0" * 32
_NOTHING: Mapping[str, str] = {}

Source = Callable[[Mapping[str, str], Call], Mapping[str, str]]
"""Returns what a place says, by the names of `metadata`: ``agent_run_id`` and so on."""


def from_headers(headers: Mapping[str, str], _call: Call) -> Mapping[str, str]:
    """Read ``x-agent-*``."""
    if "x-agent-run-id" not in headers:
        return _NOTHING
    return {name[2:].replace("-", "_"): headers.get(name, "") for name in _HEADERS}


def from_metadata(_headers: Mapping[str, str], call: Call) -> Mapping[str, str]:
    """Read the body's ``metadata``."""
    return metadata(call) if call.members.metadata else _NOTHING


def from_baggage(headers: Mapping[str, str], _call: Call) -> Mapping[str, str]:
    """Read W3C baggage: ``agent_run_id=…,agent_task_id=…``; dashes will do for underscores."""
    if "baggage" not in headers:
        return _NOTHING
    said: dict[str, str] = {}
    for pair in headers.get("baggage", "").split(","):
        name, _, value = pair.partition(";")[0].partition("=")
        said[name.strip().replace("-", "_")] = unquote(value.strip())
    return said


def from_trace(headers: Mapping[str, str], _call: Call) -> Mapping[str, str]:
    """Take the trace of W3C ``traceparent`` for the run."""
    match = _TRACE.fullmatch(headers["traceparent"]) if "traceparent" in headers else None
    return _NOTHING if match is None or match[1] == _NO_TRACE else {"agent_run_id": match[1]}


SOURCES: Mapping[str, Source] = {
    "headers": from_headers,
    "metadata": from_metadata,
    "baggage": from_baggage,
    "traceparent": from_trace,
}
"""By their names in the configuration."""


def member_of(
    sources: Sequence[Source], headers: Mapping[str, str], call: Call, owner: Owner
) -> Member:
    """Return a call's place in its run, as the first source that names a run tells it."""
    for source in sources:
        said = source(headers, call)
        run = _ident(said.get("agent_run_id", "")) if said else ""
        if run:
            return Member(
                owner=owner,
                run=run,
                task=_ident(said.get("agent_task_id", "")),
                parent=_ident(said.get("agent_parent_id", "")),
                depends_on=_idents(said.get("agent_depends_on", "")),
                depth=_depth(said.get("agent_depth", "")),
            )
    return Member(owner)


def _ident(text: str) -> str:
    text = text.strip()
    return text if _ID.fullmatch(text) else ""


def _idents(text: str) -> tuple[str, ...]:
    found = (_ident(each) for each in text.split(",")[:MOST_PREDECESSORS]) if text else ()
    return tuple(dict.fromkeys(each for each in found if each))


def _depth(text: str) -> int:
    text = text.strip()
    return min(DEEPEST, int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else 0
