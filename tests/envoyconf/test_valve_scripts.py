"""The valve's scripts in the Lua that Envoy has: they say what Tidegate would, or leave it to Tidegate."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lupa import luajit21  # type: ignore[import-untyped]

from extproc.config import Config, parse
from extproc.config.classes import catalog_of
from extproc.edge.identity import identify
from extproc.edge.wording import Wording
from extproc.envoyconf.lua import literal
from extproc.envoyconf.valve import answer_script, classify_script
from extproc.openai import replies
from extproc.openai.endpoints import PATHS, Endpoint
from extproc.openai.requests import Unreadable, read
from extproc.parts import sources

_ENVOY = """\
EnvoyTimestampResolution = { MICROSECOND = 1 }
local function map(values)
  return {
    get = function(_, name) return values[name] end,
    remove = function(_, name) values[name] = nil end,
    replace = function(_, name, value) values[name] = value end,
  }
end
return function(headers, metadata, body)
  local own, answered = {}, {}
  local handle = {
    headers = function() return map(headers) end,
    timestampString = function() return "1764582000123456" end,
    body = function()
      if body == nil then return nil end
      return { length = function() return #body end, getBytes = function() return body end }
    end,
    streamInfo = function()
      return { dynamicMetadata = function()
        return {
          get = function(_, filter) return filter == "tidegate.valve" and own or metadata[filter] end,
          set = function(_, _, key, value) own[key] = value end,
        }
      end }
    end,
    respond = function(_, given, text) answered.headers, answered.body = given, text end,
  }
  envoy_on_request(handle)
  return headers, own, answered.headers, answered.body
end
"""


class Script:
    """A script in an Envoy that is not there."""

    def __init__(self, text: str) -> None:
        self.lua = luajit21.LuaRuntime(encoding=None)
        self.lua.execute(text.encode())
        self._call = self.lua.execute(_ENVOY.encode())

    def __call__(
        self,
        headers: dict[str, str],
        body: bytes | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> tuple[dict[str, str], dict[str, str], dict[str, str] | None, bytes | None]:
        """Return the request's headers, what was set in metadata, and the answer, if any."""
        given_headers = self.lua.eval(literal(headers).encode())
        given_metadata = self.lua.eval(literal(metadata or {}).encode())
        found, own, answered, text = self._call(given_headers, given_metadata, body)
        return plain(found), plain(own), answered and plain(answered), text


def plain(table: Any) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in table.items()}


def config(more: str = "") -> Config:
    return parse(
        "pools: {m: {endpoints: {static: ['e:1']}, aliases: [n]}, other: {endpoints: {static: ['e:2']}}}\n"
        "tenants: {pay: {class: P0}, service: {class: P1}, anonymous: {class: P1},\n"
        "  marketing: {class: P2}, english: {class: P2, language: en, finish_reason: stop}}\n"
        f"envoy: {{valve: {{}}}}\n{more}"
    )


MARKED = {
    ":path": "/v1/chat/completions",
    "x-tidegate-valve": "1:kv_watermark",
    "x-tidegate-valve-class": "P2",
}
ANSWER = Script(answer_script(config()))
TEXT = {
    "zh": "【大促服务提示】当前咨询人数较多，请等待 15 秒后重新提交。",
    "en": "We are very busy right now: please resend in 15 seconds.",
}


# What it says.

FIELDS: dict[Endpoint, dict[str, Any]] = {
    Endpoint.CHAT: {"messages": []},
    Endpoint.COMPLETIONS: {"prompt": "x"},
    Endpoint.RESPONSES: {"input": "x"},
    Endpoint.MESSAGES: {"messages": [], "max_tokens": 3},
    Endpoint.EMBEDDINGS: {"input": "x"},
    Endpoint.COHERE: {"messages": []},
    Endpoint.GENERATE: {"sampling_params": {}},
}
PATH_OF = {endpoint: path for path, endpoint in reversed(PATHS.items())}


@pytest.mark.parametrize("refusal", [False, True], ids=["error", "refusal"])
@pytest.mark.parametrize("structured", [{}, {"response_format": {"type": "json_object"}}])
@pytest.mark.parametrize(
    "stream",
    [{}, {"stream": False}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}],
)  # fmt: skip
@pytest.mark.parametrize("endpoint", list(FIELDS))
def test_its_answers_are_tidegates_own(
    endpoint: Endpoint, stream: dict[str, Any], structured: dict[str, Any], refusal: bool
) -> None:
    settings = config("fallback: {structured: refusal}" if refusal else "")
    body = json.dumps({"model": "m", **FIELDS[endpoint], **stream, **structured}).encode()

    _, own, headers, text = Script(answer_script(settings))(
        {**MARKED, ":path": PATH_OF[endpoint]}, body
    )

    assert text is not None
    assert headers is not None
    created = int(headers.pop("created", 0)) or _created(text)
    expected = replies.fallback(
        read(endpoint, body),
        ident=own["id"],
        created=created,
        message=TEXT["zh"],
        finish_reason="load_shedding_fallback",
        reason="kv_watermark",
        ticket=None,
        retry_after=15,
        refusal=refusal,
    )
    assert text == expected.body
    assert headers == {
        ":status": str(expected.status),
        "x-tidegate-verdict": "shed",
        "x-tidegate-reason": "kv_watermark",
        "x-tidegate-class": "P2",
        **dict(expected.headers),
    }
    assert {**own, "id": ""} == {
        "id": "", "reason": "kv_watermark", "pool": "m", "endpoint": endpoint.value,
    }  # fmt: skip


def _created(text: bytes) -> int:
    for name in (b'"created":', b'"created_at":'):
        _, found, rest = text.partition(name)
        if found:
            return int(rest[: rest.index(b",")])
    return 0


def test_ids_are_unique() -> None:
    ids = {ANSWER(MARKED, b'{"model": "m"}')[1]["id"] for _ in range(100)}
    assert len(ids) == 100
    assert all(len(each) == 28 for each in ids)


@pytest.mark.parametrize(
    "accepted",
    ["", "en", "EN-us", "en;q=0.4, zh;q=0.5", "fr, en;q=0.1", "zh;q=0", "en; q=1", "*", "en;q=x"],
)
def test_the_language_is_that_of_tidegate(accepted: str) -> None:
    wording = Wording(TEXT, "zh", "", 15, refusal=False)
    _, _, _, text = ANSWER({**MARKED, "accept-language": accepted}, b'{"model": "m"}')
    assert text is not None
    assert TEXT[wording.language(accepted, None)].encode() in text


def test_a_tenant_may_have_its_own_words() -> None:
    script = Script(
        answer_script(config()) + "\nlocal inner = envoy_on_request\nfunction envoy_on_request(h)\n"
        '  h:streamInfo():dynamicMetadata():set("", "tenant", "english") inner(h)\nend'
    )
    _, _, _, text = script(MARKED, b'{"model": "m"}')
    assert text is not None
    answer = json.loads(text)["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == (TEXT["en"], "stop")


def test_an_override_answers_with_an_error() -> None:
    more = "fallback: {overrides: [{class: P2, reason: kv_watermark, kind: error, status: 429}]}"
    script = Script(answer_script(config(more)))
    _, _, headers, text = script(MARKED, b'{"model": "m"}')
    assert headers is not None
    assert (headers[":status"], headers["retry-after"]) == ("429", "15")
    assert json.loads(text or b"") == {
        "error": {
            "message": "剩余 KV 缓存低于该等级的水位线。",
            "type": "overloaded",
            "param": None,
            "code": "kv_watermark",
        }
    }


@pytest.mark.parametrize(
    ("marks", "model", "reason"),
    [
        ("1:kv_watermark", "m", "kv_watermark"),
        ("1:kv_watermark", "n", "kv_watermark"),
        ("1:kv_watermark", "unknown", "kv_watermark"),
        ("1:kv_watermark", "other", None),
        ("2:mode_protect,1:concurrency", "m", "concurrency"),
        ("2:mode_protect, 1:concurrency", "other", "mode_protect"),
        ("0:flood", "other", "flood"),
        ("3:flood", "m", None),
    ],
)
def test_a_mark_is_for_one_pool(marks: str, model: str, reason: str | None) -> None:
    body = json.dumps({"model": model}).encode()
    headers, own, answer, _ = ANSWER({**MARKED, "x-tidegate-valve": marks}, body)
    assert own.get("reason") == reason
    assert (answer is None) == (reason is None)
    assert ("x-tidegate-valve" in headers) == (reason is not None)


# What it leaves to Tidegate.


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"",
        b"{",
        b"[]",
        b'{"stream": 1}',
        b'{"stream": "true"}',
        b'{"str\\u0065am": true}',
        b'{"model": "\\u006d"}',
        b'{"model": 7}',
        '{"model": "模型"}'.encode(),
        b'{"model": "' + b"m" * 257 + b'"}',
        b'{"model": "m"',
        b'{"model": "m"} {}',
        b'{"model": "m",}',
        b'{"model" "m"}',
        b'{"a": [1, 2, "model": "m"}',
        b"\x1f\x8b\x08",
        b'{"a": [' + b"[" * 30_000 + b"]" * 30_000 + b"]}",
        b'{"a": "' + b'\\"' * 30_000 + b'"}',
    ],
)
def test_what_is_not_plain_is_left_to_tidegate(body: bytes | None) -> None:
    headers, _, answer, _ = ANSWER(MARKED, body)
    assert answer is None
    assert "x-tidegate-valve" not in headers


@pytest.mark.parametrize(
    "more",
    [
        {":path": "/v1/models"},
        {":path": "/v1/chat/completions/"},
        {":path": "/invocations"},
        {"x-tidegate-ticket": "AQ"},
        {"content-encoding": "gzip"},
    ],
)
def test_what_is_not_a_plain_call_is_left_to_tidegate(more: dict[str, str]) -> None:
    headers, _, answer, _ = ANSWER({**MARKED, **more}, b'{"model": "m"}')
    assert answer is None
    assert "x-tidegate-valve" not in headers


READ = Script(answer_script(config()).replace("local function read(", "function read_call("))
MEMBERS = st.dictionaries(
    st.sampled_from(
        ("model", "stream", "stream_options", "response_format", "tool_choice", "text", "messages",
         "guided_json", "function_call", "output_config", "x")
    ),
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 3)
        | st.sampled_from(("required", "auto", "m", '{"', "\\", "json_object", "任")),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("type", "mode", "format", "include_usage", "name", '"')), inner, max_size=3
        ),
        max_leaves=6,
    ),
)  # fmt: skip


@given(
    members=MEMBERS,
    endpoint=st.sampled_from((Endpoint.CHAT, Endpoint.RESPONSES, Endpoint.MESSAGES)),
    compact=st.booleans(),
    ascii_only=st.booleans(),
)
@example(
    members={"output_config": {'"': None, "format": []}},
    endpoint=Endpoint.CHAT,
    compact=False,
    ascii_only=False,
)
def test_a_body_means_what_it_means_to_tidegate(
    members: dict[str, Any], endpoint: Endpoint, compact: bool, ascii_only: bool
) -> None:
    separators = (",", ":") if compact else (" , ", " :\n")
    body = json.dumps(members, separators=separators, ensure_ascii=ascii_only).encode()
    found = READ.lua.globals().read_call(endpoint.value.encode(), body)
    if found is None:
        return
    try:
        call = read(endpoint, body)
    except Unreadable:
        return  # Tidegate would refuse it, too: in a mode, or for want of room, before it reads it
    assert (found.stream, found.model.decode(), found.usage, found.structured) == (
        call.stream, call.model, call.include_usage, call.structured,
    )  # fmt: skip


@given(st.binary(max_size=60))
def test_no_body_breaks_it(body: bytes) -> None:
    READ.lua.globals().read_call(b"chat", body)
    READ.lua.globals().read_call(b"chat", b'{"model": "m", "x": ' + body)


# Who calls.

KEY, LOW_KEY = "sk-pay-1", "sk-ads-1"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Config:
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    digests = {hashlib.sha256(key.encode()).hexdigest(): key for key in (KEY, LOW_KEY)}
    names = {KEY: "pay", LOW_KEY: "marketing"}
    file.write_text("".join(f"{digest}: {names[key]}\n" for digest, key in digests.items()))
    return config(f"""
identity:
  sources:
    - metadata: {{filter: jwt, path: [payload, tenant]}}
    - api_key: {{file: {file}}}
    - header: {{name: x-tenant-id, trusted: true}}
    - header: {{name: x-claimed-tenant}}
""")


class View:
    """See `extproc.edge.identity.RequestView`."""

    def __init__(self, headers: dict[str, str], metadata: dict[str, Any]) -> None:
        self.headers = headers
        self.metadata = metadata


NAMES = st.sampled_from(
    ("pay", "service", "marketing", "unknown", "PAY", " pay\t", "pay,pay", "pay,", ",", "", " ", "pay;x",
     "x" * 257)
)  # fmt: skip
KEYS = st.sampled_from(
    (f"Bearer {KEY}", f"bEARER  {KEY} ", f"Bearer {LOW_KEY}", f"Basic {KEY}", KEY, f"Bearer{KEY}",
     f"Bearer\t{KEY}", "Bearer ", f"Bearer {KEY},Bearer {KEY}", f"Bearer {KEY.upper()}", "")
)  # fmt: skip


@given(
    headers=st.fixed_dictionaries(
        {},
        optional={
            "authorization": KEYS,
            "x-api-key": st.sampled_from((KEY, LOW_KEY, f"{KEY},{KEY}", " " + KEY, "")),
            "x-tenant-id": NAMES,
            "x-claimed-tenant": NAMES,
        },
    ),
    claim=st.sampled_from((None, {}, {"payload": {}}, {"payload": {"tenant": "pay"}},
                           {"payload": {"tenant": 7}}, {"payload": "x"})),
)  # fmt: skip
def test_a_caller_has_the_class_that_tidegate_gives(
    keyed: Config, headers: dict[str, str], claim: dict[str, Any] | None
) -> None:
    metadata = {} if claim is None else {"jwt": claim}
    script = _classifiers.setdefault(id(keyed), Script(classify_script(keyed)))
    found, own, _, _ = script({**headers}, None, metadata)

    who = identify(sources(keyed), View(headers, metadata))
    expected = catalog_of(keyed).classify(who, task="", path="", model="")
    if expected.service_class.strict:
        assert "x-tidegate-valve-class" not in found
        assert own == {}
    else:
        assert found["x-tidegate-valve-class"] == expected.service_class.name
        assert own == {"tenant": expected.tenant, "class": expected.service_class.name}


_classifiers: dict[int, Script] = {}


@given(st.binary(max_size=300))
def test_digests_are_sha256(text: bytes) -> None:
    assert SHA256(text) == hashlib.sha256(text).hexdigest().encode()


_CLASSIFY = (Path(answer_script.__code__.co_filename).parent / "lua" / "classify.lua").read_text()
SHA256: Callable[[bytes], bytes] = luajit21.LuaRuntime(encoding=None).execute(
    (_CLASSIFY.split("local function stripped")[0] + "return sha256").encode()
)
