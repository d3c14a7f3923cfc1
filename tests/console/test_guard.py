"""Where the console may be served, and which origins are its own."""

from __future__ import annotations

import pytest

from extproc.console.guard import ExposedError, origins
from extproc.console.server import preferred_language


@pytest.mark.parametrize(
    ("host", "encrypted", "url", "expected"),
    [
        (
            "127.0.0.1",
            False,
            None,
            {"http://127.0.0.1:9092", "http://localhost:9092", "http://[::1]:9092"},
        ),
        ("0.0.0.0", True, "https://board.example:9092", {"https://board.example:9092"}),
        ("10.0.0.5", False, "https://board.example", {"https://board.example"}),
        (
            "localhost",
            True,
            "https://board.example/",
            {
                "https://board.example",
                "https://127.0.0.1:9092",
                "https://localhost:9092",
                "https://[::1]:9092",
            },
        ),
    ],
)
def test_our_origins(host: str, encrypted: bool, url: str | None, expected: set[str]) -> None:
    assert origins(host, 9092, encrypted=encrypted, url=url) == expected


@pytest.mark.parametrize(
    ("host", "encrypted", "url", "told"),
    [
        ("0.0.0.0", False, None, "--url"),
        ("0.0.0.0", True, None, "--url"),
        ("10.0.0.5", False, "http://board.example", "without TLS"),
        ("127.0.0.1", False, "board.example", "give an origin"),
        ("127.0.0.1", False, "https://board.example/console", "give an origin"),
    ],
)
def test_tokens_never_cross_a_network_in_the_clear(
    host: str, encrypted: bool, url: str | None, told: str
) -> None:
    with pytest.raises(ExposedError, match=told):
        origins(host, 9092, encrypted=encrypted, url=url)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-GB, zh;q=0.9", "en"),
        ("fr, zh;q=0.5, en;q=0.4", "zh"),
        ("fr", "en"),
        ("zh;q=x, en;q=0.1", "en"),
        ("zh;q=0", "en"),
    ],
)
def test_the_language_is_the_browsers(header: str, expected: str) -> None:
    assert preferred_language(header) == expected
