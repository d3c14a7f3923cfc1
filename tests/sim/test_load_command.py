"""``tidegate load`` as its users see it."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from extproc.cli import app
from extproc.sim.loadgen.cli import notes, parse_mix, table
from extproc.sim.loadgen.http_client import Answer
from extproc.sim.loadgen.load import Tally


class Gateway(BaseHTTPRequestHandler):
    """Turns marketing away, and keeps what it was asked."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str | None, str | None, dict[str, Any]]]

    def on_request(self) -> None:
        pass

    def do_POST(self) -> None:
        self.on_request()
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        tenant = self.headers["x-tenant-id"]
        self.asked.append((tenant, self.headers["authorization"], body))
        ident = "chatcmpl-promo-shedded-1" if tenant == "marketing" else "chatcmpl-1"
        answer = json.dumps({"id": ident}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[tuple[str, type[Gateway]]]:
    handler = type("Handler", (Gateway,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
        server.shutdown()
        thread.join()


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["load", *arguments])
    return result.exit_code, result.output


def cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def test_a_long_name_and_large_numbers_fit_into_80_columns() -> None:
    tally = Tally()
    for _ in range(2000):
        tally.sending(0.0)
        tally.answered(0.0, Answer(200, b'{"id":"chatcmpl-1"}', 1.271, 2.0))
        tally.sending(0.0)
        tally.answered(0.0, Answer(200, b'{"id":"cmpl-promo-shedded-1"}', 0.5, 0.5))
    console = Console(width=80, file=None)
    with console.capture() as capture:
        console.print(table({"marketing": tally}))
    row = "marketing  4000  2000 (50%)  2000 (50%)      –  1271 / 1271    500 / 500"
    assert row in capture.get()


def test_shows_who_was_answered_by_whom(gateway: tuple[str, type[Gateway]]) -> None:
    url, handler = gateway
    code, output = run("--url", url, "--rate", "200", "--duration", "0.3", "--no-stream")
    assert code == 0
    rows = {row[0]: row for row in map(cells, output.splitlines()) if len(row) == 7}
    assert list(rows) == ["tenant", "pay", "service", "marketing"]
    _, sent, engine, fallback, error, *_ = rows["pay"]
    assert (engine, fallback, error) == (f"{sent} (100%)", "–", "–")
    _, sent, engine, fallback, *_ = rows["marketing"]
    assert (engine, fallback) == ("–", f"{sent} (100%)")
    asked = {tenant for tenant, _, _ in handler.asked}
    assert asked == {"pay", "service", "marketing"}
    body = handler.asked[0][2]
    assert (body["model"], body["max_tokens"], body["stream"]) == ("qwen-72b-instruct", 256, False)
    assert len(body["messages"][0]["content"].split()) == 200


def test_keys_in_place_of_the_header(gateway: tuple[str, type[Gateway]]) -> None:
    url, handler = gateway
    options = ("--rate", "100", "--duration", "0.2", "--mix", "pay=1", "--key", "pay=sk-1")
    code, _ = run("--url", url, *options)
    assert code == 0
    assert {(tenant, key) for tenant, key, _ in handler.asked} == {(None, "Bearer sk-1")}
    assert handler.asked[0][2]["stream"] is True


def test_ctrl_c_still_tells_what_came_of_it(
    gateway: tuple[str, type[Gateway]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = gateway
    main = threading.main_thread().ident
    assert main is not None
    interrupted = threading.Lock()

    def interrupt_once(_: Gateway) -> None:
        if interrupted.acquire(blocking=False):
            signal.pthread_kill(main, signal.SIGINT)

    monkeypatch.setattr(handler, "on_request", interrupt_once)
    code, output = run("--url", url, "--rate", "100", "--duration", "60", "--mix", "pay=1")
    assert code == 0
    assert "pay" in output


def test_nobody_listens(gateway: tuple[str, type[Gateway]]) -> None:
    code, output = run("--url", "http://127.0.0.1:1")
    assert code == 1
    assert "http://127.0.0.1:1 cannot be reached" in output
    assert "tidegate up" in output


@pytest.mark.parametrize(
    "arguments",
    [
        ("--mix", "pay"),
        ("--mix", "pay=0"),
        ("--mix", "pay=many"),
        ("--mix", "pay=-1"),
        ("--key", "sk-1"),
        ("--url", "gateway:8080"),
        ("--mix", "pay\r\nx-class=1"),
    ],
)
def test_bad_options(arguments: tuple[str, ...]) -> None:
    code, output = run(*arguments)
    assert code == 2
    assert "Invalid value" in output


def test_a_mix() -> None:
    assert parse_mix("pay=20, marketing=0.5") == {"pay": 20.0, "marketing": 0.5}
    with pytest.raises(typer.BadParameter, match="--mix: every share is 0"):
        parse_mix("pay=0")


def test_table_and_notes() -> None:
    pay, idle = Tally(), Tally()
    for _ in range(4):
        pay.sending(0.02)
    pay.answered(10.0, Answer(200, b'{"id":"chatcmpl-1"}', 10.012, 10.5))
    pay.answered(10.0, Answer(200, b'{"id":"cmpl-promo-shedded-1"}', 10.25, 10.25))
    pay.answered(10.0, Answer(503, b"", 10.001, 10.001))
    tallies = {"pay": pay, "idle": idle}
    console = Console(width=80, file=None)
    with console.capture() as capture:
        console.print(table(tallies))
        console.print(table(tallies, recent=1))
    rows = [row for row in map(cells, capture.get().splitlines()) if row[0] == "pay"]
    assert rows[0] == ["pay", "4", "1 (25%)", "1 (25%)", "1 (25%)", "12.0 / 12.0", "250 / 250"]
    assert rows[1] == rows[0]
    assert notes(tallies) == [
        "pay: 1 × HTTP 503",
        (
            "1 % of the requests left more than 20 ms late: this machine is too busy for the rate, "
            "the latencies above include that"
        ),
    ]
    assert notes({"idle": idle}) == []
