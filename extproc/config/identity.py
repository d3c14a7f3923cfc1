"""``identity``: where the name of a call's tenant comes from.

Rule this module keeps: a source that a client can write to is trusted only where the configuration says so.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from extproc.config.base import Section
from extproc.config.values import FilePath, HeaderName, TenantName


class MetadataSource(Section):
    """A value that an earlier Envoy filter (JWT, ext_authz) has verified."""

    filter: str = Field(min_length=1)
    path: tuple[str, ...] = Field(min_length=1)


class HeaderSource(Section):
    """A request header. Untrusted (the default), it can lower a class but never raise it."""

    name: HeaderName
    trusted: bool = False


class ApiKeySource(Section):
    """A YAML file that maps the SHA-256 of a bearer key, in hex, to a tenant."""

    file: FilePath


class Source(Section):
    """One place where a tenant's name can come from; exactly one key is set."""

    metadata: MetadataSource | None = None
    header: HeaderSource | None = None
    api_key: ApiKeySource | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Source:
        if sum(kind is not None for kind in (self.metadata, self.header, self.api_key)) != 1:
            raise ValueError("give exactly one of metadata, header, api_key")
        return self


class Identity(Section):
    """Who is calling: the first source that answers wins."""

    sources: tuple[Source, ...] = ()
    default_tenant: TenantName = "anonymous"
