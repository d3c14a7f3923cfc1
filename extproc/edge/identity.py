"""Who is calling, read from what Envoy says of the request.

Rules this module keeps:

* Only configured sources are asked, in order; the first that answers wins.
* Metadata that another filter has verified, trusted headers and API keys are believed. A header
  that is not declared trusted yields an untrusted claim, which cannot raise a class.
* Envoy joins a doubled header with a comma. Several names where one belongs are an ambiguous
  claim, whoever added them.
* A key is hashed at once and never kept.
* A name that is too long for any tenant names nobody: names are kept, and callers make them up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from extproc.core.classes import LONGEST_TENANT, Claim

NOBODY = Claim(None)
_BLANKS = " \t"
"""What HTTP allows around a value. Python would strip more, and make two names one."""


class RequestView(Protocol):
    """What identity sources can see of a request."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers by lower-case name; doubled ones joined by a comma."""
        ...

    @property
    def metadata(self) -> Mapping[str, object]:
        """Metadata of other filters by namespace, as plain values."""
        ...


class IdentitySource(Protocol):
    """One place where a tenant's name can come from."""

    def __call__(self, request: RequestView) -> Claim | None:
        """Return the claim, or None where this source does not answer."""
        ...


class FromMetadata:
    """A value at a path in another filter's metadata, such as a JWT claim."""

    def __init__(self, namespace: str, path: Sequence[str]) -> None:
        self._namespace = namespace
        self._path = tuple(path)

    def __call__(self, request: RequestView) -> Claim | None:
        """See `IdentitySource`."""
        value = request.metadata.get(self._namespace)
        for part in self._path:
            if not isinstance(value, Mapping):
                return None
            value = value.get(part)
        return Claim(value) if isinstance(value, str) and value else None


class FromHeader:
    """The value of a request header."""

    def __init__(self, name: str, *, trusted: bool) -> None:
        self._name = name.lower()
        self._trusted = trusted

    def __call__(self, request: RequestView) -> Claim | None:
        """See `IdentitySource`."""
        value = request.headers.get(self._name, "").strip(_BLANKS)
        if not value:
            return None
        if "," in value:
            return Claim(None, trusted=self._trusted, ambiguous=True)
        return Claim(value, trusted=self._trusted)


class FromApiKey:
    """The tenant of the bearer key (``authorization``, or Anthropic's ``x-api-key``).

    Args:
        tenants: tenant by the SHA-256 of its key, in lower-case hex. Looking up a digest tells an
            attacker nothing about a key by its timing.
    """

    def __init__(self, tenants: Mapping[str, str]) -> None:
        self._tenants = dict(tenants)

    def __call__(self, request: RequestView) -> Claim | None:
        """See `IdentitySource`."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        keys = (key if scheme.lower() == "bearer" else "", request.headers.get("x-api-key", ""))
        for candidate in filter(None, keys):
            digest = hashlib.sha256(candidate.strip(_BLANKS).encode("utf-8", "replace")).hexdigest()
            tenant = self._tenants.get(digest)
            if tenant is not None:
                return Claim(tenant)
        return None


def identify(sources: Sequence[IdentitySource], request: RequestView) -> Claim:
    """Return the claim of the first source that answers, else that nobody is named."""
    for source in sources:
        claim = source(request)
        if claim is not None:
            named = len(claim.tenant or "") <= LONGEST_TENANT
            return claim if named else Claim(None, trusted=claim.trusted)
    return NOBODY
