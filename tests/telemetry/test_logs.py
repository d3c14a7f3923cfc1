"""How logs look, and what they never show."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
import threading
from collections.abc import Iterator

import pytest
import uvloop

from extproc.telemetry import logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    hooks = sys.excepthook, threading.excepthook
    yield
    sys.excepthook, threading.excepthook = hooks
    root.handlers[:] = handlers
    root.setLevel(level)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fail(prompt: str) -> None:
    raise RuntimeError(f"cannot read {prompt}")


def test_a_line_is_a_json_object_with_what_was_added() -> None:
    stream = io.StringIO()
    logs.configure(stream)

    logging.getLogger("extproc.engines").warning("unreadable", extra={"endpoint": "a:1"})
    logging.getLogger("extproc.engines").debug("not shown")

    (line,) = stream.getvalue().splitlines()
    said = json.loads(line)
    said.pop("timestamp")
    assert said == {
        "event": "unreadable",
        "level": "warning",
        "logger": "extproc.engines",
        "endpoint": "a:1",
    }


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_a_traceback_shows_code_and_no_values(stream: io.StringIO) -> None:
    logs.configure(stream)
    prompt = "-".join(["a", "private", "prompt"])
    try:
        fail(prompt)
    except RuntimeError:
        logging.getLogger("extproc").exception("exchange failed")

    shown = stream.getvalue()
    assert "exchange failed" in shown
    assert "RuntimeError" in shown
    assert "in fail" in shown
    assert "a-private-prompt" not in shown


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def chained() -> BaseException:
    try:
        try:
            raise KeyError("a private key")
        except KeyError as error:
            raise OSError(28, "No space left on device", "a private file") from error
    except OSError as error:
        return error


def hidden() -> BaseException:
    try:
        try:
            raise KeyError("a private key")
        except KeyError:
            raise ValueError("a private value") from None
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (raised(ValueError("a private value")), ["ValueError"]),
        (chained(), ["KeyError", "which led to:", "OSError: No space left on device"]),
        (hidden(), ["ValueError"]),
        (
            raised(ExceptionGroup("private", [KeyError("private"), OSError("private")])),
            ["ExceptionGroup", "of it:", "KeyError", "of it:", "OSError: None"],
        ),
    ],
)
def test_of_an_exception_its_kind_is_told_and_what_led_to_it(
    error: BaseException, kinds: list[str]
) -> None:
    text = logs.told(error)

    assert [line for line in text.splitlines() if not line.startswith(" ")] == kinds
    told = [line for line in text.splitlines() if not line.startswith("    ")]
    assert "private" not in "".join(told)


def test_an_exception_that_leads_to_itself_is_told_once() -> None:
    one, other = raised(ValueError()), raised(KeyError())
    one.__cause__, other.__cause__ = other, one

    assert logs.told(one).count("ValueError") == 1 + logs.told(one).count("raised(ValueError())")


def test_what_was_said_to_have_an_exception_and_had_none_is_told_without() -> None:
    stream = io.StringIO()
    logs.configure(stream)

    logging.getLogger("extproc").error("nothing", exc_info=(None, None, None))

    assert "exception" not in json.loads(stream.getvalue())


def test_a_fault_that_nobody_catches_is_told_by_its_kind_and_place() -> None:
    stream = io.StringIO()
    logs.configure(stream)
    logs.own_faults()

    def broken() -> None:
        raise ValueError("-".join(["a", "private", "value"]))

    async def loop() -> None:
        asyncio.get_running_loop().set_exception_handler(logs.loop_fault)
        asyncio.get_running_loop().call_soon(broken)
        lost = asyncio.ensure_future(asyncio.sleep(0))
        lost.add_done_callback(lambda _: broken())
        await asyncio.sleep(0.01)

    uvloop.run(loop())
    thread = threading.Thread(target=broken)
    thread.start()
    thread.join()
    sys.excepthook(ValueError, raised(ValueError("-".join(["a", "private", "value"]))), None)

    said = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [each["event"] for each in said] == [
        *["fault in the event loop"] * 2,
        *["ended by a fault"] * 2,
    ]
    assert all(each["exception"].endswith("ValueError\n") for each in said)
    assert "a-private-value" not in stream.getvalue()
