"""How many tokens a prompt is taken for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.openai.endpoints import Endpoint
from extproc.openai.requests import read
from tests.openai.calls import call


@pytest.mark.parametrize(
    ("content", "least", "most"),
    [
        ("word " * 4000, 4000, 6000),
        ("你好，请问今天天气怎么样？" * 1000, 8000, 11000),
    ],
)
@pytest.mark.parametrize("ascii_", [True, False])
def test_the_estimate_is_near(content: str, least: int, most: int, ascii_: bool) -> None:
    body = json.dumps({"messages": [{"content": content}]}, ensure_ascii=ascii_).encode()
    assert least < read(Endpoint.CHAT, body).prompt_tokens < most


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 80_000}},
        {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 80_000},
        {"type": "image", "source": {"type": "base64", "data": "A" * 80_000}},
    ],
)
def test_an_image_is_not_its_bytes(part: dict[str, Any]) -> None:
    assert 1024 < call(messages=[{"content": [part]}]).prompt_tokens < 1100


@pytest.mark.parametrize(
    "content",
    [
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "input_image", "image_url": "https://example.org/a.png"},
        {"type": "video_url", "video_url": {"url": "https://example.org/a.mp4"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
    ],
)
def test_an_image_that_is_fetched_is_not_its_link(content: dict[str, Any]) -> None:
    assert 3 * 1024 < call(messages=[{"content": [content] * 3}]).prompt_tokens < 3 * 1100
    assert 1024 < call(Endpoint.RESPONSES, input=[{"content": [content]}]).prompt_tokens < 1100


def test_very_many_links_are_not_counted_one_by_one() -> None:
    link = {"type": "image_url", "image_url": "https://example.org/a.png"}
    few, many = (call(messages=[{"content": [link] * number}]) for number in (500, 501))
    assert 500 * 1024 < few.prompt_tokens < 500 * 1100
    assert 2 * 501 * 1024 < many.prompt_tokens < 2 * 501 * 1100, "each twice, by its type as well"


@pytest.mark.parametrize(
    "content",
    [
        '"image_url": {"url": "https://example.org/a.png"}',
        [{"type": "tool_use", "input": {"source": {"type": "book"}}}],
    ],
)
def test_no_text_passes_for_a_linked_image(content: Any) -> None:
    assert call(messages=[{"content": content}]).prompt_tokens < 100


@pytest.mark.parametrize(
    ("endpoint", "members", "tokens"),
    [
        (Endpoint.COMPLETIONS, {"prompt": [1] * 5000}, 5000),
        (Endpoint.COMPLETIONS, {"prompt": [151643] * 5000}, 5000),
        (Endpoint.COMPLETIONS, {"prompt": [[7] * 2000, [8] * 3000]}, 5000),
        (Endpoint.GENERATE, {"token_ids": [1] * 5000, "sampling_params": {}}, 5000),
        (Endpoint.EMBEDDINGS, {"input": [[1] * 5000]}, 5000),
    ],
)
def test_token_ids_are_counted(endpoint: Endpoint, members: dict[str, Any], tokens: int) -> None:
    """Short ids would otherwise pass for half of what they are."""
    assert tokens <= call(endpoint, **members).prompt_tokens < tokens + 30


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": '"url":"data:image/png;base64,' + "A" * 80_000},
        {"type": "text", "text": ";base64," + "A" * 80_000},
        {"type": "tool_use", "input": {"data": "word " * 16_000}},
    ],
)
def test_no_text_passes_for_an_image(part: dict[str, Any]) -> None:
    assert call(messages=[{"content": [part]}]).prompt_tokens > 20_000


def test_many_images_and_odd_ends() -> None:
    image = {"image_url": {"url": "data:image/png;base64," + "A" * 2000}}
    odd = ['"data"', {"data": 7}, ";base64,"]
    assert 70 * 1024 < call(messages=[image] * 70 + odd).prompt_tokens < 76_000


def test_what_no_template_shows_does_not_count() -> None:
    schema = {"type": "json_schema", "json_schema": {"description": "x" * 8000}}
    assert call(response_format=schema).prompt_tokens < 10


def test_a_batch_of_texts_that_are_no_text_is_counted() -> None:
    body = b'{"messages": [["\\ud800"], ["\\ud800"], ["a"]]}'
    assert read(Endpoint.CHAT, body).choices == 4  # brackets: it errs upwards
