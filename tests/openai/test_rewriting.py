from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.openai.endpoints import Endpoint
from extproc.openai.requests import read, rewrite
from extproc.openai.rewriting import surplus_stop

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS
RESPONSES, MESSAGES = Endpoint.RESPONSES, Endpoint.MESSAGES


def rewritten(endpoint: Endpoint, body: str, **options: Any) -> str | None:
    written = rewrite(read(endpoint, body.encode()), **{"max_output": 512, **options})
    return None if written is None else written.decode()


@pytest.mark.parametrize(
    ("endpoint", "body", "expected"),
    [
        # Within the limit, and what the engine will refuse: the client's bytes.
        (CHAT, '{"max_tokens": 512}', None),
        (CHAT, '{"max_tokens": "5"}', None),
        (CHAT, '{"max_tokens": 5.0}', None),
        (CHAT, '{"max_tokens": 0}', None),
        (CHAT, '{"max_tokens": -1}', None),
        (COMPLETIONS, "{}", None),
        (COMPLETIONS, '{"max_tokens":null}', None),
        (COMPLETIONS, '{"max_completion_tokens":9999}', None),
        (Endpoint.EMBEDDINGS, '{"max_tokens":9999}', None),
        # Too much, however it is written.
        (CHAT, '{"max_tokens":513}', '{"max_tokens":512}'),
        (CHAT, '{"max_tokens":"9999"}', '{"max_tokens":512}'),
        (CHAT, '{"max_tokens":1e4}', '{"max_tokens":512}'),
        (CHAT, '{"max_tokens":1,"max_tokens":9999}', '{"max_tokens":512}'),
        (CHAT, '{"max_completion_tokens":9999}', '{"max_completion_tokens":512}'),
        (COMPLETIONS, '{"max_tokens":9999}', '{"max_tokens":512}'),
        (RESPONSES, '{"max_output_tokens":9999}', '{"max_output_tokens":512}'),
        (MESSAGES, '{"max_tokens":9999}', '{"max_tokens":512}'),
        (Endpoint.COHERE, '{"max_tokens":9999}', '{"max_tokens":512}'),
        # Both at once: either could count.
        (
            CHAT,
            '{"max_tokens":9999,"max_completion_tokens":5}',
            '{"max_tokens":512,"max_completion_tokens":5}',
        ),
        (
            CHAT,
            '{"max_tokens":5,"max_completion_tokens":9999}',
            '{"max_tokens":5,"max_completion_tokens":512}',
        ),
        # Left open.
        (CHAT, "{}", '{"max_tokens":512}'),
        (CHAT, ' { "n" : 1 } \n', ' { "n" : 1,"max_tokens":512}'),
        (CHAT, '{"max_tokens":null}', '{"max_tokens":512}'),
        (
            CHAT,
            '{"max_completion_tokens":null}',
            '{"max_completion_tokens":null,"max_tokens":512}',
        ),
        (RESPONSES, "{}", '{"max_output_tokens":512}'),
        (RESPONSES, '{"max_tokens":9999}', '{"max_tokens":9999,"max_output_tokens":512}'),
        (MESSAGES, "{}", '{"max_tokens":512}'),
        # The minimum follows.
        (CHAT, '{"max_tokens":600,"min_tokens":600}', '{"max_tokens":512,"min_tokens":512}'),
        (CHAT, '{"max_tokens":600,"min_tokens":5}', '{"max_tokens":512,"min_tokens":5}'),
        (COMPLETIONS, '{"min_tokens":"600"}', '{"min_tokens":512}'),
        # Tokens in, tokens out.
        (
            Endpoint.GENERATE,
            '{"token_ids":[1],"sampling_params":{"n":2}}',
            '{"token_ids":[1],"sampling_params":{"n":2,"max_tokens":512}}',
        ),
        (Endpoint.GENERATE, '{"sampling_params":{"max_tokens":5}}', None),
        # Thinking has to stay below.
        (
            MESSAGES,
            '{"max_tokens":9999,"thinking":{"type":"enabled","budget_tokens":2048}}',
            '{"max_tokens":512,"thinking":{"type":"disabled"}}',
        ),
        (
            MESSAGES,
            '{"max_tokens":9999,"thinking":{"type":"adaptive"}}',
            '{"max_tokens":512,"thinking":{"type":"adaptive"}}',
        ),
        (
            MESSAGES,
            '{"max_tokens":9999,"thinking":{"type":"enabled","budget_tokens":500}}',
            '{"max_tokens":512,"thinking":{"type":"enabled","budget_tokens":500}}',
        ),
        (
            MESSAGES,
            '{"max_tokens":9999,"thinking":{"budget_tokens":"x"}}',
            '{"max_tokens":512,"thinking":{"budget_tokens":"x"}}',
        ),
        (MESSAGES, '{"max_tokens":9999,"thinking":7}', '{"max_tokens":512,"thinking":7}'),
    ],
)
def test_the_clamp(endpoint: Endpoint, body: str, expected: str | None) -> None:
    assert rewritten(endpoint, body) == expected


def test_a_limit_below_the_default_is_set() -> None:
    assert rewritten(COMPLETIONS, "{}", max_output=15) == '{"max_tokens":15}'
    assert rewritten(COMPLETIONS, "{}", max_output=16) is None


def test_without_a_limit_the_lengths_stay() -> None:
    assert rewritten(CHAT, '{"max_tokens":9999}', max_output=None) is None
    assert rewritten(CHAT, "{}", max_output=None, priority=3) == '{"priority":3}'


def test_thinking_is_shortened_where_there_is_room() -> None:
    thinking = '{"type":"enabled","budget_tokens":9000,"display":"omitted"}'
    written = rewritten(MESSAGES, f'{{"max_tokens":9999,"thinking":{thinking}}}', max_output=4000)
    assert written is not None
    assert json.loads(written) == {
        "max_tokens": 4000,
        "thinking": {"type": "enabled", "budget_tokens": 2000, "display": "omitted"},
    }


@pytest.mark.parametrize(
    ("endpoint", "body", "priority", "expected"),
    [
        (CHAT, '{"max_tokens":1}', 10, '{"max_tokens":1,"priority":10}'),
        (CHAT, '{"max_tokens":1,"priority":-99}', 10, '{"max_tokens":1,"priority":10}'),
        (CHAT, '{"priority":"-99","max_tokens":1}', 0, '{"priority":0,"max_tokens":1}'),
        (CHAT, '{"max_tokens":1,"priority":10}', 10, None),
        (CHAT, '{"max_tokens":1,"priority":-99}', None, '{"max_tokens":1}'),
        (CHAT, '{"priority":0,"priority":-99,"max_tokens":1}', None, '{"max_tokens":1}'),
        (MESSAGES, '{"max_tokens":1}', 10, None),
        (MESSAGES, '{"max_tokens":1,"priority":-99}', 10, '{"max_tokens":1}'),
        (Endpoint.EMBEDDINGS, '{"input":"a"}', 10, '{"input":"a","priority":10}'),
        (
            Endpoint.GENERATE,
            '{"sampling_params":{"max_tokens":5}}',
            10,
            '{"sampling_params":{"max_tokens":5},"priority":10}',
        ),
    ],
)
def test_priority_is_ours(
    endpoint: Endpoint, body: str, priority: int | None, expected: str | None
) -> None:
    assert rewritten(endpoint, body, priority=priority) == expected


@pytest.mark.parametrize(
    ("endpoint", "body", "expected"),
    [
        (CHAT, '{"max_tokens":1}', '{"max_tokens":1,"stop":["END"]}'),
        (CHAT, '{"max_tokens":1,"stop":null}', '{"max_tokens":1,"stop":["END"]}'),
        (CHAT, '{"max_tokens":1,"stop":"a"}', '{"max_tokens":1,"stop":["a","END"]}'),
        (CHAT, '{"max_tokens":1,"stop":["a","END"]}', None),
        (CHAT, '{"max_tokens":1,"stop":7}', None),
        (CHAT, '{"max_tokens":1,"stop":"' + "x" * 70_000 + '"}', None),
        (MESSAGES, '{"max_tokens":1}', '{"max_tokens":1,"stop_sequences":["END"]}'),
        (Endpoint.EMBEDDINGS, "{}", None),
    ],
)
def test_stop_sequences_are_added(endpoint: Endpoint, body: str, expected: str | None) -> None:
    assert rewritten(endpoint, body, stop=("END", "END")) == expected


@pytest.mark.parametrize(
    ("endpoint", "body", "told", "left"),
    [
        (CHAT, '{"max_tokens":1}', '{"max_tokens":1,"stop":["1","2","3","4"]}', ("5",)),
        (
            CHAT,
            '{"max_tokens":1,"stop":["a","2","b"]}',
            '{"max_tokens":1,"stop":["a","2","b","1"]}',
            ("3", "4", "5"),
        ),
        (MESSAGES, '{"max_tokens":1,"stop_sequences":["a","b","c","d"]}', None, tuple("12345")),
        (CHAT, '{"max_tokens":1,"stop":["a","b","c","d","e"]}', None, tuple("12345")),
        (CHAT, '{"max_tokens":1,"stop":7}', None, ()),
        (CHAT, '{"max_tokens":1,"stop":"' + "x" * 70_000 + '"}', None, ()),
        (Endpoint.EMBEDDINGS, "{}", None, ()),
    ],
)
def test_an_engine_is_told_no_more_than_it_takes(
    endpoint: Endpoint, body: str, told: str | None, left: tuple[str, ...]
) -> None:
    """vLLM would refuse the call: at most 4 sequences."""
    stop = ("1", "2", "3", "4", "5")
    assert rewritten(endpoint, body, stop=stop) == told
    assert surplus_stop(read(endpoint, body.encode()), stop) == left


@pytest.mark.parametrize(
    ("endpoint", "body", "expected"),
    [
        (
            CHAT,
            '{"max_tokens":1,"stream":true}',
            '{"max_tokens":1,"stream":true,"stream_options":{"include_usage":true}}',
        ),
        (CHAT, '{"max_tokens":1,"stream":true,"stream_options":{"include_usage":true}}', None),
        (CHAT, '{"max_tokens":1}', None),
        (MESSAGES, '{"max_tokens":1,"stream":true}', None),
        # What else was asked for stays; but not usage in every chunk, which was not in effect.
        (
            CHAT,
            '{"stream":true,"stream_options":{"other":0,"continuous_usage_stats":true}}',
            '{"stream":true,"stream_options":{"other":0,"include_usage":true},"max_tokens":512}',
        ),
        (
            COMPLETIONS,
            '{"max_tokens":1,"stream":true,"stream_options":null}',
            '{"max_tokens":1,"stream":true,"stream_options":{"include_usage":true}}',
        ),
        (CHAT, '{"max_tokens":1,"stream":true,"stream_options":7}', None),
        (CHAT, '{"max_tokens":1,"stream":true,"stream_options":[1' + "1" * 70_000 + "]}", None),
    ],
)
def test_usage_is_asked_for(endpoint: Endpoint, body: str, expected: str | None) -> None:
    assert rewritten(endpoint, body, include_usage=True) == expected


def test_other_members_keep_their_bytes() -> None:
    body = '{"a":1.0e+02 , "messages":[ {"content" : "\\u4f60/\\/"} ],"max_tokens":999,"ä":[1 ,2]}'
    assert rewritten(CHAT, body) == (
        '{"a":1.0e+02,"messages":[ {"content" : "\\u4f60/\\/"} ],"max_tokens":512,"ä":[1 ,2]}'
    )


def test_a_big_prompt_does_not_matter() -> None:
    body = json.dumps({"max_tokens": 999, "messages": [{"content": "x" * 400_000}]})
    assert rewritten(CHAT, body) == json.dumps(
        {"max_tokens": 512, "messages": [{"content": "x" * 400_000}]}, separators=(",", ":")
    ).replace('[{"content":', '[{"content": ')


def test_a_crowded_object_is_not_taken_apart() -> None:
    crowd = ",".join(f'"{number}":0' for number in range(30_000))
    body = f'{{"max_tokens":999,"priority":-9,{crowd}}}'
    assert rewritten(CHAT, body) == f'{body[:-1]},"max_tokens":512,"priority":0}}'


def test_a_leniently_read_body_is_written_anew() -> None:
    body = '{"max_tokens":999,"priority":-9,"top_p":NaN,"user":"\\ud800"}'
    assert rewritten(CHAT, body) == '{"max_tokens": 512, "top_p": NaN, "user": "\\ud800"}'


def test_names_that_are_no_text_are_left_to_the_engine_to_refuse() -> None:
    body = b'{"priority":1,"\xff":2}'
    assert rewrite(read(CHAT, body), max_output=512, priority=3) == (
        b'{"priority":1,"\xff":2,"max_tokens":512,"priority":3}'
    )
    inside = b'{"sampling_params":{"max_tokens":900,"\xff":2}}'
    assert rewrite(read(Endpoint.GENERATE, inside), max_output=512) == (
        b'{"sampling_params":{"max_tokens":900,"\xff":2,"max_tokens":512}}'
    )
