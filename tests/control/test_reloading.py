"""A configuration file that has changed is taken over whole, or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

import pytest

from extproc import app
from extproc.app import Tidegate
from extproc.config import Config, Role, load
from extproc.control.auth import Caller
from extproc.edge.exchange import Request
from extproc.edge.messages import Answer, Forward
from extproc.reloading import Reloading
from tests.e2e.conftest import Samples, eventually

ALICE = Caller("alice", Role.OPERATOR, "here")
KEY = "sk-one"
FIRST = """\
listen: {{control: "unix://{directory}/control.sock"}}
control: {{tokens: {directory}/tokens.yaml, directory: {directory}/kept}}
identity:
  sources:
    - api_key: {{file: {directory}/keys.yaml}}
    - header: {{name: x-tenant-id, trusted: true}}
tenants: {{pay: {{class: P0}}, shop: {{class: P2}}}}
fallback: {{language: en, message: {{en: "first"}}}}
agents: {{}}
pools: {{qwen: {{endpoints: {{static: ["127.0.0.1:9"]}}, max_concurrency: 4}}}}
"""


@dataclass
class House:
    """A Tidegate that does not serve, and its file."""

    tidegate: Tidegate
    reloading: Reloading
    file: Path
    text: str

    def write(self, old: str, new: str) -> None:
        assert old in self.text
        self.text = self.text.replace(old, new)
        self.file.write_text(self.text)

    def ask(self, tenant: str = "", *, key: str = "", model: str = "qwen") -> Forward | Answer:
        """Return what is said to a call; it is over then."""
        headers = {"x-tenant-id": tenant} if tenant else {"authorization": f"Bearer {key}"}
        body = f'{{"model": "{model}", "messages": [], "max_tokens": 4000}}'.encode()
        request = Request("/v1/chat/completions", "", headers, {}, body)
        judgement = self.tidegate.admission.judge(request, lambda _: None)
        if judgement.hold is not None:
            self.tidegate.admission.release(judgement.hold)
        assert isinstance(judgement.reply, Forward | Answer)
        return judgement.reply

    def class_of(self, **call: str) -> str:
        return dict(self.ask(**call).metadata)["class"]

    @property
    def metrics(self) -> Samples:
        return Samples(self.tidegate.metrics.render().decode())


@pytest.fixture
def house(directory: Path) -> House:
    text, file = FIRST.format(directory=directory), directory / "tidegate.yaml"
    file.write_text(text)
    keep_key(directory, "pay")
    tidegate = app.build(load(file))
    tidegate.pools["qwen"].join("e")
    return House(tidegate, app.reloading(tidegate, file, lambda: load(file)), file, text)


def keep_key(directory: Path, tenant: str) -> None:
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    (directory / "keys.yaml").write_text(f"{digest}: {tenant}\n")


async def test_tenants_classes_keys_words_and_models_are_taken_over(
    house: House, directory: Path
) -> None:
    assert house.class_of(key=KEY) == "P0"
    assert house.class_of(tenant="new") == "P2"

    keep_key(directory, "shop")
    house.write("shop: {class: P2}", "shop: {class: P2}, new: {class: P1, agents: {calls: 7}}")
    house.write("max_concurrency: 4", "max_concurrency: 1, aliases: [q]")
    house.write('"first"', '"second"')
    await house.reloading.reload()

    assert house.class_of(key=KEY) == "P2"
    assert house.class_of(tenant="new") == "P1"
    assert dict(house.ask("new", model="q").metadata)["pool"] == "qwen"
    assert house.tidegate.pools["qwen"].limits.max_concurrency == 1
    desk = house.tidegate.admission._desk
    assert desk is not None
    assert desk.agents.policy.tenants["new"].calls == 7
    assert house.metrics.of("config_reloads_total", result="taken_over") == 1
    assert house.metrics.of("config_as_written") == 1


async def test_the_new_words_answer_the_next_refused_call(house: House) -> None:
    house.write("max_concurrency: 4", "max_concurrency: 1")
    house.write('"first"', '"second"')
    await house.reloading.reload()
    judged = house.tidegate.admission.judge(
        Request("/v1/chat/completions", "", {"x-tenant-id": "pay"}, {}, b'{"messages": []}'),
        lambda _: None,
    )
    assert judged.hold is not None

    answer = house.ask("shop")

    assert isinstance(answer, Answer)
    assert b"second" in answer.body


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("{class: P0}", "{class: P9}", "line 7: tenants.pay.class: there is no class P9"),
        ("agents: {}", "agents: {", "line 11: yaml: expected ',' or '}', but got '<stream end>'"),
        (
            'static: ["127.0.0.1:9"]',
            'static: ["127.0.0.1:10"]',
            "line 10: pools.qwen.endpoints.static = ['127.0.0.1:10']: is taken over by a restart only",
        ),
        ("keys.yaml", "gone.yaml", "file: No such file or directory"),
    ],
)
async def test_a_file_that_cannot_be_used_changes_nothing_and_is_told(
    house: House, caplog: pytest.LogCaptureFixture, old: str, new: str, problem: str
) -> None:
    house.write(old, new)
    house.write("shop: {class: P2}", "shop: {class: P1}")

    with caplog.at_level(logging.INFO):
        await house.reloading.reload()

    told = [vars(each)["problem"] for each in caplog.records if hasattr(each, "problem")]
    assert told == [problem]
    assert house.class_of(tenant="shop") == "P2"
    assert house.class_of(key=KEY) == "P0"
    assert house.metrics.of("config_reloads_total", result="refused") == 1
    assert house.metrics.of("config_as_written") == 0

    house.file.write_text(FIRST.format(directory=house.file.parent))
    await house.reloading.reload()
    assert house.metrics.of("config_as_written") == 1


async def test_what_operators_have_changed_stays_laid_over_it(house: House) -> None:
    changes = {"classes": {"P2": {"max_tokens": 7}}}
    await house.tidegate.operations.set_thresholds(changes, ALICE, "a peak")

    house.write("shop: {class: P2}", "shop: {class: P2}, more: {class: P2}")
    await house.reloading.reload()

    assert house.tidegate.levers.config.classes["P2"].max_tokens == 7
    assert "more" in house.tidegate.levers.config.tenants
    forward = house.ask("more")
    assert isinstance(forward, Forward)
    assert forward.body is not None
    assert b'"max_tokens":7' in forward.body.replace(b" ", b"")

    await house.tidegate.operations.reset_thresholds(ALICE, "over")

    assert house.tidegate.levers.config.classes["P2"].max_tokens == 2048
    assert "more" in house.tidegate.levers.config.tenants


async def test_where_they_cannot_be_laid_over_it_all_stays_as_it_was(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    changes = {"classes": {"P1": {"concurrency": 0.9}, "P2": {"concurrency": 0.9}}}
    await house.tidegate.operations.set_thresholds(changes, ALICE, "a peak")
    house.write(
        "agents:",
        "classes: {P0: {strict: true, concurrency: 0.5}, P1: {concurrency: 0.5},"
        " P2: {concurrency: 0.5, evictable: true}}\nagents:",
    )

    await house.reloading.reload()

    told = [vars(each)["problem"] for each in caplog.records if hasattr(each, "problem")]
    assert told == ["classes.P1.concurrency: over that of P0 above it"]
    assert house.tidegate.levers.config.classes["P0"].concurrency == 1.0


async def test_asked_again_while_it_reads_it_reads_once_more(house: House) -> None:
    read: list[int] = []

    def reading() -> Config:
        read.append(len(read))
        return load(house.file)

    reloading = app.reloading(house.tidegate, house.file, reading)
    running = asyncio.ensure_future(reloading.run())
    reloading.ask()
    reloading.ask()
    await eventually(lambda: read == [0], "the first reading")
    for _ in range(3):
        reloading.ask()
    await eventually(
        lambda: house.metrics.of("config_reloads_total", result="taken_over") == 2, "the second"
    )
    running.cancel()
    await asyncio.wait([running])
    assert read == [0, 1]
