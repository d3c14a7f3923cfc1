"""The section ``envoy.valve``: what Envoy itself refuses of a flood."""

from __future__ import annotations

from pydantic import model_validator

from extproc.config.base import Section
from extproc.config.values import Address, Message, Rate


class ValveMessages(Section):
    """The text of the valve's fallback per language; it keeps no place, so it promises none."""

    zh: Message = "【大促服务提示】当前咨询人数较多，请等待 {seconds} 秒后重新提交。"
    en: Message = "We are very busy right now: please resend in {seconds} seconds."


class ValveConfig(Section):
    """The flood valve: Envoy refuses what a class floods us with. Off where the section is missing.

    Rates are calls per second. Of each class and pool ``through`` refused calls still come to
    Tidegate, which gives tickets and explanations; from twice as many on the valve shuts. ``first``
    is how much of all classes that are not strict one Envoy lets through before Tidegate has said
    anything; the excess of the lowest class is answered by Envoy. It must be more than what Tidegate
    admits of it; null leaves this stage out. ``stats`` are the admin addresses of the Envoys, where
    Tidegate reads their exact counts; empty: ``envoy.admin``. About ``sampled`` of the refusals come
    into the decision log and the console one by one.
    """

    through: Rate = 50.0
    first: Rate | None = 400.0
    stats: tuple[Address, ...] = ()
    sampled: Rate = 20.0
    message: ValveMessages = ValveMessages()

    @model_validator(mode="after")
    def _ordered(self) -> ValveConfig:
        if self.first is not None and self.first < 2 * self.through:
            raise ValueError("first must be at least twice through, or it would hide a flood")
        return self
