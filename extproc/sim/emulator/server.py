"""A vLLM server without a model: the engine model behind vLLM's HTTP endpoints.

Rules this module keeps:

* To a client or a gateway it looks like vLLM 0.32: paths, bodies, events, headers, errors, metrics.
* A client that goes away, streaming or not, is noticed at once and its sequences are aborted.
* Everything random (ids, output lengths) comes from the seed and the request; equal prompts get
  equal texts.
* What only tests need lives under ``/_emulator/`` and can be left unused.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from aiohttp import web

from extproc.sim.emulator.bodies import VERSION, Head, error_body
from extproc.sim.emulator.driver import Driver, Generation
from extproc.sim.emulator.faults import Faults, FaultsError, MetricsFault, ReceivedRequests, Reset
from extproc.sim.emulator.http import (
    EVENTS,
    JSON,
    MAX_BODY,
    cut,
    json_response,
    plain_body,
    sign,
)
from extproc.sim.emulator.metrics import CONTENT_TYPE, Page, metrics_page, process_page
from extproc.sim.emulator.oddities import Oddity, Wire
from extproc.sim.emulator.replies import OutputLength, Reply, sequences
from extproc.sim.emulator.requests import BYTES_PER_TOKEN, Endpoint, read_call, read_tokenize
from extproc.sim.emulator.schema import INVALID, RefusedError, read_json
from extproc.sim.engine import Engine, EngineBusyError
from extproc.sim.engine_config import EngineConfig, Policy

BUSY = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)
OUTPUT_HEADER = "x-emulator-output-tokens"
"""A request header that says how many tokens come before the end of each sequence."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class EmulatorOptions:
    """What is emulated, and where.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0: any free one.
        model: name of the model.
        engine: size, policy and speed of the engine.
        output: how many tokens are generated before the end-of-sequence token.
        seed: what all that is random starts from.
        request_id_headers: answer with ``x-request-id``, as under ``--enable-request-id-headers``.
        faults: what goes wrong from the start.
        keep_requests: how many requests ``/_emulator/requests`` remembers.
    """

    host: str = "127.0.0.1"
    port: int = 0
    model: str = "emulated"
    engine: EngineConfig = field(default_factory=lambda: EngineConfig(policy=Policy.PRIORITY))
    output: OutputLength = field(default_factory=OutputLength)
    seed: int = 0
    request_id_headers: bool = False
    faults: Faults = field(default_factory=Faults)
    keep_requests: int = 256


async def serve(options: EmulatorOptions, *, ready: Callable[[int], None]) -> None:
    """Emulate until cancelled.

    Args:
        options: what and where.
        ready: called with the port once requests are accepted.

    Raises:
        OSError: the address cannot be listened on.
    """
    async with Emulator(options) as emulator:
        ready(emulator.port)
        await emulator.wait()


class Emulator:
    """An emulated engine; accepts requests inside its ``async with`` block."""

    def __init__(self, options: EmulatorOptions) -> None:
        self.options = options
        self.engine = Engine(options.engine)
        self.faults = options.faults
        self.port = 0
        """The port listened on; 0 outside of the ``async with`` block."""
        self._driver = Driver(self.engine)
        self._received = ReceivedRequests(options.keep_requests)
        self._ids = random.Random(options.seed)  # noqa: S311 - names, not secrets
        self._finished: Counter[str] = Counter()
        self._rejected = 0
        self._started = time.time()
        self._stack = AsyncExitStack()
        self._driving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._driving = asyncio.create_task(self._driver.run(), name="engine")
            stack.push_async_callback(_cancelled, self._driving)
            runner = web.AppRunner(
                self._application(),
                access_log=None,
                handler_cancellation=True,
                auto_decompress=False,
                shutdown_timeout=0.1,
            )
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, self.options.host, self.options.port, backlog=4096).start()
            self.port = runner.addresses[0][1]
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()
        self.port = 0

    @property
    def url(self) -> str:
        """Where requests are accepted, without a path."""
        host = self.options.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def wait(self) -> None:
        """Wait for ever; raises what stopped the engine, should it stop."""
        if self._driving is not None:
            await asyncio.shield(self._driving)

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self._middleware])
        app.on_response_prepare.append(sign)
        for endpoint in Endpoint:
            app.router.add_post(endpoint, self._generate)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/_emulator/faults", self._set_faults)
        for path, handler in (
            ("/health", self._health),
            ("/version", self._version),
            ("/v1/models", self._models),
            ("/metrics", self._metrics),
            ("/_emulator/faults", self._get_faults),
            ("/_emulator/requests", self._requests),
            ("/_emulator/state", self._state),
        ):
            app.router.add_get(path, handler, allow_head=False)
        return app

    @web.middleware
    async def _middleware(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            body = await request.read()
            if request.path != "/metrics" and not request.path.startswith("/_emulator/"):
                self._received.note(request.method, request.path_qs, request.raw_headers, body)
            return await handler(request)
        except RefusedError as error:
            return web.Response(
                status=error.status,
                body=error_body(error, _endpoint(request)),
                content_type=JSON,
                headers=self._request_id_header(request),
            )
        except web.HTTPException as error:
            headers = {"allow": error.headers["allow"]} if "allow" in error.headers else None
            return json_response({"detail": error.reason}, status=error.status, headers=headers)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        endpoint = Endpoint(request.path)
        faults = self.faults
        if faults.latency:
            await asyncio.sleep(faults.latency)
        if faults.reset is Reset.BEFORE_FIRST_BYTE:
            cut(request)
        if faults.status is not None:
            raise RefusedError(faults.status, "InternalServerError", "emulated fault")
        call = read_call(
            endpoint,
            await plain_body(request),
            model=self.options.model,
            max_model_len=self.options.engine.longest,
        )
        if Oddity.USAGE_EVERYWHERE in faults.stream:
            call = replace(call, continuous_usage=call.stream)
        unique = f"{self._ids.getrandbits(64):016x}"
        reply_id = _given_request_id(request) or unique
        calls_tool = Oddity.TOOL_CALL in faults.stream
        head = Head(reply_id, int(time.time()), self.options.model, call, calls_tool)
        requests = sequences(
            call,
            unique,
            self.options.engine.block_size,
            self.options.output,
            self.options.seed,
            wanted=_wanted_output(request),
        )
        try:
            with self._driver.generate(requests) as generation:
                reply = Reply(head, requests, generation, faults.text)
                send = self._stream if call.stream else self._whole
                response = await send(request, reply, generation)
        except EngineBusyError as error:
            self._rejected += 1
            raise RefusedError(503, "Service Unavailable", BUSY) from error
        self._finished.update(reply.reasons)
        return response

    async def _whole(
        self, request: web.Request, reply: Reply, generation: Generation
    ) -> web.StreamResponse:
        await generation.end()
        headers = self._request_id_header(request) | self._load_report(request)
        body = reply.whole()
        if self.faults.reset is Reset.MID_STREAM:
            response = web.StreamResponse(headers={**headers, "content-type": JSON})
            response.content_length = len(body)
            await response.prepare(request)
            await response.write(body[: len(body) // 2])
            cut(request)
        return web.Response(body=body, content_type=JSON, headers=headers)

    async def _stream(
        self, request: web.Request, reply: Reply, generation: Generation
    ) -> web.StreamResponse:
        wire = Wire(self.faults.stream)
        headers = {**self._request_id_header(request), "content-type": EVENTS, **wire.headers}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        finished = False
        while not finished:
            await generation.progress()
            finished = generation.finished  # as of these news; more may come while they are written
            await _write(response, wire.pieces(reply.news()))
            if self.faults.reset is Reset.MID_STREAM:
                cut(request)
        await _write(response, wire.pieces(reply.closing()))
        await response.write_eof(wire.end())
        return response

    def _load_report(self, request: web.Request) -> dict[str, str]:
        """Return the ORCA load report as a header, in the form asked for, where vLLM gives one."""
        if Endpoint(request.path) not in (Endpoint.CHAT, Endpoint.COMPLETIONS):
            return {}
        values = {
            "num_requests_waiting": float(self.engine.waiting),
            "kv_cache_usage_perc": self._shown_kv_usage(),
        }
        match request.headers.get("endpoint-load-metrics-format", "").lower():
            case "json":
                report = f"JSON {json.dumps({'named_metrics': values})}"
            case "text":
                report = "TEXT " + ", ".join(f"named_metrics.{k}={v}" for k, v in values.items())
            case _:
                return {}
        return {"endpoint-load-metrics": report}

    def _request_id_header(self, request: web.Request) -> dict[str, str]:
        if not self.options.request_id_headers:
            return {}
        given = _given_request_id(request)
        return {"x-request-id": given or f"{self._ids.getrandbits(128):032x}"}

    def _shown_kv_usage(self) -> float:
        told = self.faults.kv_usage
        return self.engine.kv_usage if told is None else told

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        match self.faults.metrics:
            case MetricsFault.HANG:
                await asyncio.Event().wait()
            case MetricsFault.ERROR:
                return web.Response(status=500, text="Internal Server Error")
            case MetricsFault.GARBAGE:
                return _page(b"\x00\xff{]vllm:num_requests_running{engine=\n= 1 2 3 4\n" * 8)
            case MetricsFault.FOREIGN:
                return _page(process_page(self._started).encode())
            case MetricsFault.NONE | MetricsFault.UNSIZED:
                pass
        page = Page(
            model=self.options.model,
            engine=self.engine,
            kv_usage=self._shown_kv_usage(),
            finished=self._finished,
            rejected=self._rejected,
            started=self._started,
            sized=self.faults.metrics is not MetricsFault.UNSIZED,
        )
        return _page(metrics_page(page).encode())

    async def _tokenize(self, request: web.Request) -> web.Response:
        text = read_tokenize(await plain_body(request)).text
        pieces = [text[i : i + BYTES_PER_TOKEN] for i in range(0, len(text), BYTES_PER_TOKEN)]
        return json_response(
            {
                "count": len(pieces),
                "max_model_len": self.options.engine.longest,
                "tokens": [int.from_bytes(piece, "big") for piece in pieces],
                "token_strs": None,
            }
        )

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, request: web.Request) -> web.Response:
        return json_response({"version": VERSION})

    async def _models(self, request: web.Request) -> web.Response:
        model = {
            "id": self.options.model,
            "object": "model",
            "created": int(self._started),
            "owned_by": "vllm",
            "root": self.options.model,
            "parent": None,
            "max_model_len": self.options.engine.longest,
            "permission": [],
        }
        return json_response({"object": "list", "data": [model]})

    async def _get_faults(self, request: web.Request) -> web.Response:
        return json_response(self.faults.as_json())

    async def _set_faults(self, request: web.Request) -> web.Response:
        try:
            self.faults = self.faults.changed(read_json(await request.read()))
        except FaultsError as error:
            raise RefusedError(400, INVALID, str(error)) from error
        return json_response(self.faults.as_json())

    async def _requests(self, request: web.Request) -> web.Response:
        return json_response({"requests": self._received.as_json()})

    async def _state(self, request: web.Request) -> web.Response:
        engine = self.engine
        return json_response(
            {
                "running": engine.running,
                "waiting": engine.waiting,
                "kv_usage": engine.kv_usage,
                "free_blocks": engine.free_blocks,
                "preemptions_total": engine.preemptions_total,
                "prompt_tokens_total": engine.prompt_tokens_total,
                "generation_tokens_total": engine.generation_tokens_total,
                "rejected_total": self._rejected,
                "finished_total": dict(self._finished),
            }
        )


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _given_request_id(request: web.Request) -> str | None:
    given = request.headers.get("x-request-id", "")
    return given if given.isascii() and given else None


def _wanted_output(request: web.Request) -> int | None:
    wanted = request.headers.get(OUTPUT_HEADER, "")
    return int(wanted) if wanted.isdecimal() and len(wanted) < 10 else None


def _endpoint(request: web.Request) -> Endpoint | None:
    try:
        return Endpoint(request.path)
    except ValueError:
        return None


async def _write(response: web.StreamResponse, pieces: Sequence[bytes]) -> None:
    for piece in pieces:
        await response.write(piece)
        if len(pieces) > 1:
            await asyncio.sleep(0)  # each in a packet of its own


def _page(body: bytes) -> web.Response:
    return web.Response(body=body, headers={"content-type": CONTENT_TYPE})
