"""The valve's answers: Tidegate's own replies, with slots for what only a call tells.

Rules this module keeps:

* Every text is made by `extproc.openai.replies`, so that the valve's cannot drift from Tidegate's.
* Equal replies are one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from extproc import contract
from extproc.config import Config, reply_rules
from extproc.core.reasons import REASONS, Reason, ReplyKind
from extproc.openai import replies
from extproc.openai.endpoints import PATHS, Endpoint
from extproc.openai.sse import dump

_IDENT, _MODEL, _MESSAGE, _FINISH, _REASON = (f"-slot-{n}-" for n in (1, 3, 4, 5, 6))
_CREATED = 1_000_000_000_000_002
_SLOT = re.compile(r"-slot-(\d)-|100000000000000(\d)")
_FORMS = {"whole": (False, False), "stream": (True, False), "usage": (True, True)}
_PATHS = {
    path: endpoint
    for path, endpoint in PATHS.items()
    if endpoint is not Endpoint.INVOCATIONS  # its body tells what it is
}

Template = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Call:
    """Whoever is answered; see `extproc.openai.replies.Addressee`."""

    endpoint: Endpoint
    stream: bool
    include_usage: bool
    structured: bool
    model: str = _MODEL


def told(config: Config, messages: Mapping[str, str]) -> dict[str, Any]:
    """Return what the answering script is told of replies and words."""
    shaped = {
        endpoint.value: dict(_forms(config, endpoint))
        for endpoint in dict.fromkeys(_PATHS.values())
    }
    templates: list[Template] = []
    for template in (each for forms in shaped.values() for each in forms.values()):
        if template not in templates:
            templates.append(template)
    return {
        "PATHS": {path: endpoint.value for path, endpoint in _PATHS.items()},
        "TEMPLATES": templates,
        "REPLIES": {
            shape: {form: templates.index(each) + 1 for form, each in forms.items()}
            for shape, forms in shaped.items()
        },
        "ERRORS": dict(_errors(config)),
        "WORDS": {
            reason.value: {"zh": _json(REASONS[reason].zh), "en": _json(REASONS[reason].en)}
            for reason in contract.VALVE_REASONS
        },
        "MESSAGES": {language: _json(text) for language, text in messages.items()},
        "LANGUAGE": config.fallback.language,
        "FINISH": config.fallback.finish_reason,
        "TENANTS": {
            name: {"language": each.language, "finish": each.finish_reason}
            for name, each in config.tenants.items()
            if each.language is not None or each.finish_reason is not None
        },
    }


def _forms(config: Config, endpoint: Endpoint) -> Iterator[tuple[str, Template]]:
    fallback = config.fallback
    for structured in (False, True):
        for name, (stream, usage) in _FORMS.items():
            reply = replies.fallback(
                _Call(endpoint, stream, usage, structured),
                ident=_IDENT,
                created=_CREATED,
                message=_MESSAGE,
                finish_reason=_FINISH,
                reason=_REASON,
                ticket=None,
                retry_after=round(fallback.retry_after),
                refusal=fallback.structured == "refusal",
            )
            yield f"structured {name}" if structured else name, _template(reply)
    for status in sorted({each for _, each in _statuses(config)}):
        soon = status in (429, 503)
        reply = replies.error(
            endpoint,
            status=status,
            message=_MESSAGE,
            type=_style(config, Reason.FLOOD, "", "").code,
            code=_REASON,
            retry_after=round(fallback.retry_after) if soon else None,
        )
        yield f"error {status}", _template(reply)


def _errors(config: Config) -> Iterator[tuple[str, str]]:
    for key, status in _statuses(config):
        yield key, f"error {status}"


def _statuses(config: Config) -> Iterator[tuple[str, int]]:
    """Yield the status of every class, reason and tenant that is answered with an error."""
    named = {each.tenant for each in config.fallback.overrides if each.tenant is not None}
    for service_class in config.classes:
        for reason in contract.VALVE_REASONS:
            for tenant in ("", *sorted(named)):
                style = _style(config, reason, service_class, tenant)
                if style.kind is ReplyKind.ERROR:
                    yield f"{service_class} {reason.value} {tenant}".rstrip(), style.status


def _style(config: Config, reason: Reason, service_class: str, tenant: str) -> Any:
    return reply_rules(config).style(reason, service_class, tenant)


def _template(reply: replies.Reply) -> Template:
    text, parts, at = reply.body.decode(), [], 0
    for slot in _SLOT.finditer(text):
        parts += [text[at : slot.start()], int(slot[1] or slot[2])]
        at = slot.end()
    parts.append(text[at:])
    return {"status": str(reply.status), "headers": dict(reply.headers), "body": parts}


def _json(text: str) -> str:
    """Return a text as it stands between the quotes of JSON."""
    return dump(text).decode()[1:-1]
