"""``python docs/generate.py``: writes the references in ``docs/reference`` from what they describe.

Rules this module keeps:

* A reference says what the code says: the schema of the configuration, the table of reasons, the
  registry of metrics. What is missing there is missing here, and is to be said there.
* Written again, the pages are the same bytes: a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import cleandoc
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from extproc.app import build
from extproc.config import Config, parse
from extproc.core.reasons import REASONS, ReplyKind

FOLDER = Path(__file__).parent / "reference"
_NOTE = "<!-- Written by docs/generate.py; do not edit. -->"
_EXAMPLE = """\
pools: {m: {endpoints: {static: ['127.0.0.1:8000']}}}
breaker: {}
agents: {}
plans: {p: {quota: {tokens: 1}}}
state: {redis: 'redis://127.0.0.1:6379/0'}
envoy: {valve: {}}
"""
"""A configuration in which everything that has metrics is on."""

_MOST = 1e9
"""Bounds from here on are only there to keep arithmetic exact."""

Schema = Mapping[str, Any]


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    return {
        "configuration.md": "\n".join(_configuration()) + "\n",
        "reasons.md": "\n".join(_reasons()) + "\n",
        "metrics.md": "\n".join(_metrics()) + "\n",
    }


# Configuration.


def _configuration() -> Iterator[str]:
    schema = Config.model_json_schema()
    yield from (_NOTE, "# Configuration reference", "")
    yield (
        "Every key has a default; an empty file is a valid configuration. Durations are written as "
        "`200ms`, `15s`, `2m`, `1h` or a number of seconds, sizes as `64KiB`, `32MiB` or a number of "
        "bytes. `tidegate check FILE` says what is wrong, with line, path and reason."
    )
    yield from _section("", schema, schema["$defs"])
    for name, field in schema["properties"].items():
        yield from _below(name, field, schema["$defs"])


def _below(path: str, field: Schema, known: Schema) -> Iterator[str]:
    """Yield the sections under a key: its own, and those of its keys."""
    named = _named(field)
    section = _model(named or field, known)
    if section is None:
        return
    path = f"{path}.<name>" if named else path
    yield from _section(path, section, known)
    for name, each in section["properties"].items():
        yield from _below(f"{path}.{name}", each, known)


def _named(field: Schema) -> Schema:
    """Return what each name of a map stands for; empty where the field is no map."""
    found: Schema = field.get("additionalProperties") or {}
    return next(iter(field.get("patternProperties", {}).values()), found)


def _model(field: Schema, known: Schema) -> Schema | None:
    """Return the section that a key holds, alone or in a list, or None where it holds a value."""
    for each in (field, *field.get("anyOf", ()), field.get("items", {})):
        reference = each.get("$ref")
        if reference is not None:
            found: Schema = known[reference.rpartition("/")[2]]
            return found if "properties" in found else None
    return None


def _section(path: str, section: Schema, known: Schema) -> Iterator[str]:
    yield from ("", f"## `{path}`" if path else "## The whole file", "")
    if path:
        yield from (cleandoc(section["description"]).replace("``", "`"), "")
    yield from ("| key | value | default |", "|---|---|---|")
    for name, field in section["properties"].items():
        default = "required" if name in section.get("required", ()) else _default(field)
        yield f"| `{name}` | {_value(field, known)} | {default} |"


def _default(field: Schema) -> str:
    if "default" not in field:
        return "see below"
    default = field["default"]
    if default is None:
        return "none"
    if isinstance(default, dict):
        return "see below" if default else "empty"
    if isinstance(default, list):
        return "empty" if not default else f"`{', '.join(map(str, default))}`"
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return f"`{text}`".replace("|", "\\|")


def _value(field: Schema, known: Schema) -> str:
    """Return what may stand under a key, in words."""
    if "anyOf" in field:
        return " or ".join(
            _value(each, known) for each in field["anyOf"] if each != {"type": "null"}
        )
    if "$ref" in field:
        target = known[field["$ref"].rpartition("/")[2]]
        return _value(target, known) if "enum" in target else "a section"
    if "enum" in field or "const" in field:
        return ", ".join(f"`{each}`" for each in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"a list: {_value(field.get('items') or {'type': 'string'}, known)}"
    if field.get("type") == "object":
        return f"by name: {_value(_named(field), known)}"
    words = {"boolean": "`true` or `false`", "integer": "a whole number", "number": "a number"}
    return words.get(field.get("type", ""), "text") + _bounds(field)


def _bounds(field: Schema) -> str:
    """Return the bounds in words; those added to a type that has some stand under pydantic's own names."""
    signs = {"≥": ("minimum", "ge"), ">": ("exclusiveMinimum", "gt")}
    signs |= {"≤": ("maximum", "le"), "<": ("exclusiveMaximum", "lt")}
    found = {
        sign: next((field[name] for name in names if name in field), _MOST)
        for sign, names in signs.items()
    }
    if _MOST not in (found["≥"], found[">"]):
        del found["≥" if found[">"] >= found["≥"] else ">"]
    bounds = [f"{sign} {bound:g}" for sign, bound in found.items() if abs(bound) < _MOST]
    return f", {', '.join(bounds)}" if bounds else ""


# Reasons.


def _reasons() -> Iterator[str]:
    yield from (_NOTE, "# Reasons", "")
    yield (
        "Every verdict has one of these, in the header `x-tidegate-reason`, the metric "
        "`tidegate_decisions_total`, and the decision log. The reply is the default; "
        "`fallback.overrides` changes it by reason, class or tenant."
    )
    yield from ("", "| reason | gate | reply | meaning | 含义 |", "|---|---|---|---|---|")
    for reason, entry in REASONS.items():
        reply = "goes on"
        if entry.reply is not None:
            fallback = entry.reply.kind is ReplyKind.FALLBACK
            reply = (
                "fallback, 200" if fallback else f"error {entry.reply.status} `{entry.reply.code}`"
            )
        yield f"| `{reason.value}` | {entry.gate} | {reply} | {entry.en} | {entry.zh} |"


# Metrics.


def _metrics() -> Iterator[str]:
    yield from (_NOTE, "# Metrics", "")
    yield (
        "`GET /metrics` on `listen.http`. Labels take their values from the configuration or a closed "
        "set, tenants are the busiest by name and `other`: the number of series is bounded."
    )
    yield from ("", "| metric | type | labels | meaning |", "|---|---|---|---|")
    for name, kind, labels, help_text in sorted(_families(build(parse(_EXAMPLE)).metrics.registry)):
        shown = ", ".join(f"`{label}`" for label in labels)
        yield f"| `{name}` | {kind} | {shown} | {help_text} |"


def _families(registry: CollectorRegistry) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    for collector in list(registry._collector_to_names):  # noqa: SLF001 (no public way to them)
        for family in collector.collect():
            # Without a sample, labels show nowhere else.
            labelled = collector if isinstance(collector, MetricWrapperBase) else family
            labels: Sequence[str] = getattr(labelled, "_labelnames", ())
            suffix = "_total" if family.type == "counter" else ""
            yield family.name + suffix, family.type, tuple(labels), family.documentation


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for page, text in pages().items():
        (FOLDER / page).write_text(text, encoding="utf-8")
