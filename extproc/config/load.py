"""Reading a configuration file, and saying what is wrong with it.

Rules this module keeps:

* Every problem is named with its line, its path, the value and the reason; as many as can be found
  in one go.
* A key that is written twice is a problem, not a silent overwrite.
* Relative paths inside a file are relative to that file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from yaml.constructor import SafeConstructor

from extproc.config.control import Role, Token
from extproc.config.model import Config


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where (line from 1, dotted path), what stands there, and why."""

    line: int | None
    path: str
    value: str
    reason: str

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        what = f" = {self.value}" if self.value else ""
        return f"{where}{self.path}{what}: {self.reason}"


class ConfigError(Exception):
    """The configuration cannot be used; ``problems`` says what to mend."""

    def __init__(self, file: Path, problems: tuple[Problem, ...]) -> None:
        super().__init__(f"{file}: " + "; ".join(map(str, problems)))
        self.file = file
        self.problems = problems


class _UniqueKeys(SafeConstructor):
    """YAML where a key that is written twice is an error, not a silent overwrite.

    What PyYAML trips over (a tag that does not fit its node or its text), what is no text (NUL, lone
    surrogates) and numbers that nothing can hold are errors too.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            found: Any = super().construct_object(node, deep)
        except (LookupError, TypeError, ValueError, OverflowError):
            raise _wrong(node, "the value does not fit its kind") from None
        if isinstance(found, str) and _NO_TEXT.search(found):
            raise _wrong(node, "a text must not hold NUL or half a character")
        if isinstance(found, int) and abs(found) > _LARGEST:
            raise _wrong(node, "the number is too large")
        return found

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise _wrong(node, "expected a map")
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = key_node.value
            problem = None
            if not isinstance(key_node, yaml.ScalarNode):
                problem = "a key must be plain text"
            elif key in seen:
                problem = f"the key {key} is written twice"
            if problem is not None:
                raise _wrong(key_node, problem)
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Loader(_UniqueKeys, yaml.SafeLoader):
    """Says best what is wrong."""


class _QuickLoader(_UniqueKeys, yaml.CSafeLoader):
    """Reads a hundred thousand tenants in 3 s instead of 12."""


_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_LARGEST = 2**63 - 1


def _wrong(node: yaml.Node, problem: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def load(file: Path) -> Config:
    """Read and check a configuration file; the key files that it names are `load_keys`'s.

    Raises:
        ConfigError: a file cannot be read, is not YAML, or says something wrong.
    """
    return parse(_read(file), file=file)


def parse(text: str, *, file: Path = Path("configuration")) -> Config:
    """Check the text of a configuration; see `load`."""
    root, data = _yaml(text, file)
    try:
        return Config.model_validate(
            {} if data is None else data, context={"directory": file.parent}
        )
    except ValidationError as error:
        raise ConfigError(file, tuple(_problems(error, root))) from error


def located(file: Path, found: Mapping[tuple[str, ...], str], reason: str) -> tuple[Problem, ...]:
    """Return problems with a file that `load` has read; their lines, where the section is written.

    Args:
        file: what was read.
        found: the values that cannot be used, by their paths.
        reason: why not.

    Raises:
        ConfigError: the file has become unreadable.
    """
    root, data = _yaml(_read(file), file)
    return tuple(
        Problem(
            _line(root, path) if path[0] in (data or ()) else None, ".".join(path), value, reason
        )
        for path, value in found.items()
    )


def load_keys(config: Config) -> dict[str, str]:
    """Return the tenant of each API key, by the key's SHA-256 in lower-case hex.

    Raises:
        ConfigError: a key file cannot be read or holds something else. Keys are not named in it.
    """
    tenants: dict[str, str] = {}
    for source in config.identity.sources:
        if source.api_key is not None:
            tenants.update(_key_file(source.api_key.file))
    return tenants


def load_ticket_key(config: Config) -> bytes | None:
    """Return the secret that tickets are signed with, or None where no file is named.

    Raises:
        ConfigError: the file cannot be read or is too short.
    """
    file = config.tickets.key_file
    if file is None:
        return None
    try:
        key = file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(file, (Problem(None, "file", "", str(error.strerror)),)) from error
    if len(key) < _SHORTEST_KEY:
        reason = f"must hold at least {_SHORTEST_KEY} bytes; make one with: openssl rand -hex 32"
        raise ConfigError(file, (Problem(None, "file", "", reason),))
    return key


def load_tokens(config: Config) -> dict[str, Token]:
    """Return the control API's tokens by their SHA-256 in lower-case hex.

    Raises:
        ConfigError: the file cannot be read or holds something else. Tokens are not named in it.
    """
    file = config.control.tokens
    if file is None:
        return {}
    _, data = _yaml(_read(file), file)
    expected = "a map from the SHA-256 of a token (64 hex digits) to {who: NAME, role: ROLE}"
    if not isinstance(data, dict) or not data:
        raise ConfigError(file, (Problem(None, "file", "", f"must be {expected}"),))
    tokens: dict[str, Token] = {}
    for number, (digest, owner) in enumerate(data.items(), start=1):
        try:
            if not (isinstance(digest, str) and _SHA256.fullmatch(digest)):
                raise ValueError
            tokens[digest.lower()] = Token.model_validate(owner)
        except ValueError:
            reason = f"must be in {expected}; the role one of {', '.join(Role)}"
            raise ConfigError(file, (Problem(None, f"entry {number}", "", reason),)) from None
    return tokens


_SHORTEST_KEY = 16


def _key_file(file: Path) -> dict[str, str]:
    _, data = _yaml(_read(file), file)
    expected = "a map from the SHA-256 of a key (64 hex digits) to a tenant"
    if not isinstance(data, dict):
        raise ConfigError(file, (Problem(None, "file", "", f"must be {expected}"),))
    for number, (digest, tenant) in enumerate(data.items(), start=1):
        if not (isinstance(digest, str) and _SHA256.fullmatch(digest) and isinstance(tenant, str)):
            raise ConfigError(
                file, (Problem(None, f"entry {number}", "", f"must be in {expected}"),)
            )
    return {digest.lower(): tenant for digest, tenant in data.items()}


_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigError(file, (Problem(None, "file", "", str(reason)),)) from error


def _yaml(text: str, file: Path) -> tuple[yaml.Node | None, Any]:
    with suppress(yaml.YAMLError, RecursionError, ValueError):
        return _built(_QuickLoader(text))
    try:
        return _built(_Loader(text))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error)
        line = mark.line + 1 if mark else None
        raise ConfigError(file, (Problem(line, "yaml", "", reason),)) from error


def _built(loader: _Loader | _QuickLoader) -> tuple[yaml.Node | None, Any]:
    try:
        root = loader.get_single_node()
        return root, None if root is None else loader.construct_document(root)
    finally:
        loader.dispose()


def _problems(error: ValidationError, root: yaml.Node | None) -> Iterator[Problem]:
    details = error.errors(include_url=False)
    for detail in details:
        if any(_follows_from(detail, other) for other in details):
            continue
        path = tuple(str(part) for part in detail["loc"])
        reason = detail["msg"].removeprefix("Value error, ")
        if not path and detail["type"] == "value_error":  # from _consistent: has its own paths
            for statement in reason.split("; "):
                where, _, why = statement.partition(": ")
                yield Problem(_line(root, where.split(".")), where, "", why)
            continue
        value = detail["input"]
        shown = "" if isinstance(value, dict | list | tuple) else repr(value)
        if detail["type"] == "extra_forbidden":
            shown, reason = "", "there is no such key"
        yield Problem(_line(root, path), ".".join(path) or "file", shown, reason)


def _follows_from(detail: ErrorDetails, other: ErrorDetails) -> bool:
    """Say whether a container is only found too short because a member of it is wrong."""
    length = len(detail["loc"])
    return (
        detail["type"] == "too_short"
        and len(other["loc"]) > length
        and other["loc"][:length] == detail["loc"]
    )


def _line(node: yaml.Node | None, path: tuple[str, ...] | list[str]) -> int | None:
    """Return the line, from 1, of the deepest part of ``path`` that is written in the file."""
    if node is None:
        return None
    line = node.start_mark.line + 1
    for part in path:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == part]
            if not found:
                break
            line, node = found[0][0].start_mark.line + 1, found[0][1]
        elif isinstance(node, yaml.SequenceNode) and part.isdecimal():
            if int(part) >= len(node.value):
                break
            node = node.value[int(part)]
            line = node.start_mark.line + 1
        else:
            break
    return int(line)
