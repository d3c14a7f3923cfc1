"""Who is calling: configured sources only, the first that answers, nothing believed too much."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import pytest

from extproc.core.classes import Claim
from extproc.edge.identity import NOBODY, FromApiKey, FromHeader, FromMetadata, identify


@dataclass
class View:
    headers: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, object] = field(default_factory=dict)


KEYS = FromApiKey({hashlib.sha256(b"sk-pay").hexdigest(): "pay"})
JWT = FromMetadata("envoy.filters.http.jwt_authn", ("payload", "tenant"))


@pytest.mark.parametrize(
    ("headers", "claim"),
    [
        ({}, None),
        ({"x-tenant-id": ""}, None),
        ({"x-tenant-id": "  "}, None),
        ({"x-tenant-id": " pay\t"}, Claim("pay")),
        ({"x-tenant-id": "pay\u00a0"}, Claim("pay\u00a0")),
        ({"x-tenant-id": "pay,marketing"}, Claim(None, ambiguous=True)),
        ({"x-tenant-id": "pay,"}, Claim(None, ambiguous=True)),
    ],
)
def test_a_trusted_header(headers: dict[str, str], claim: Claim | None) -> None:
    assert FromHeader("X-Tenant-Id", trusted=True)(View(headers)) == claim


def test_an_untrusted_header_yields_an_untrusted_claim() -> None:
    source = FromHeader("x-tenant-id", trusted=False)

    assert source(View({"x-tenant-id": "pay"})) == Claim("pay", trusted=False)
    assert source(View({"x-tenant-id": "pay,x"})) == Claim(None, trusted=False, ambiguous=True)


@pytest.mark.parametrize(
    ("headers", "claim"),
    [
        ({"authorization": "Bearer sk-pay"}, Claim("pay")),
        ({"authorization": "bearer  sk-pay "}, Claim("pay")),
        ({"x-api-key": "sk-pay"}, Claim("pay")),
        ({"authorization": "Bearer nope", "x-api-key": "sk-pay"}, Claim("pay")),
        ({"authorization": "Basic sk-pay"}, None),
        ({"authorization": "sk-pay"}, None),
        ({"authorization": "Bearer sk-pay,Bearer sk-pay"}, None),
        ({"authorization": "Bearer SK-PAY"}, None),
        ({"authorization": "Bearer sk-pay\u3000"}, None),
        ({"authorization": "Bearer \udce4"}, None),
        ({}, None),
    ],
)
def test_an_api_key(headers: dict[str, str], claim: Claim | None) -> None:
    assert KEYS(View(headers)) == claim


@pytest.mark.parametrize(
    ("metadata", "claim"),
    [
        ({}, None),
        ({"envoy.filters.http.jwt_authn": {"payload": {"tenant": "pay"}}}, Claim("pay")),
        ({"envoy.filters.http.jwt_authn": {"payload": {"tenant": ""}}}, None),
        ({"envoy.filters.http.jwt_authn": {"payload": {"tenant": ["pay"]}}}, None),
        ({"envoy.filters.http.jwt_authn": {"payload": "pay"}}, None),
        ({"another.filter": {"payload": {"tenant": "pay"}}}, None),
    ],
)
def test_verified_metadata(metadata: dict[str, object], claim: Claim | None) -> None:
    assert JWT(View(metadata=metadata)) == claim


def test_the_first_source_that_answers_wins() -> None:
    sources = (JWT, FromHeader("x-tenant-id", trusted=False), KEYS)
    view = View(
        {"x-tenant-id": "pay", "authorization": "Bearer sk-pay"},
        {"envoy.filters.http.jwt_authn": {"payload": {"tenant": "marketing"}}},
    )

    assert identify(sources, view) == Claim("marketing")
    assert identify(sources[1:], view) == Claim("pay", trusted=False)
    assert identify(sources[2:], view) == Claim("pay")
    assert identify((), view) == NOBODY
    assert identify(sources, View()) == NOBODY


@pytest.mark.parametrize("trusted", [True, False])
def test_a_name_too_long_for_a_tenant_names_nobody(trusted: bool) -> None:
    sources = (FromHeader("x-tenant-id", trusted=trusted), FromHeader("x-other", trusted=True))
    long, longest = "a" * 257, "a" * 256

    found = identify(sources, View({"x-tenant-id": long, "x-other": "pay"}))
    assert found == Claim(None, trusted=trusted)
    assert identify(sources, View({"x-tenant-id": longest})) == Claim(longest, trusted=trusted)
