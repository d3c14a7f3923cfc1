"""Who leads, who follows, and who takes over."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from extproc.core.agents.merging import Merging


def group(*members: str) -> Merging:
    merging = Merging()
    leader, *followers = members
    merging.lead("key", leader)
    for each in followers:
        merging.follow("key", each)
    return merging


def test_the_first_leads_and_the_rest_follows() -> None:
    merging = group("a", "b", "c")
    assert merging.can_follow("key")
    assert not merging.can_follow("other")
    assert [merging.leads(each) for each in "abc?"] == [True, False, False, False]
    assert [merging.follows(each) for each in "abc?"] == [False, True, True, False]
    assert [merging.followers(each) for each in "ab?"] == [2, 0, 0]
    assert repr(merging) == "<Merging: 3 calls>"


def test_those_who_followed_are_told_in_their_order() -> None:
    merging = group("a", "b", "c")
    assert merging.dissolve("a") == ["b", "c"]
    assert len(merging) == 0
    assert not merging.can_follow("key")


def test_the_first_follower_takes_over() -> None:
    merging = group("a", "b", "c")
    assert merging.leave("a") == "b"
    assert merging.leads("b")
    merging.follow("key", "d")
    assert merging.dissolve("b") == ["c", "d"]


def test_a_follower_may_leave_and_so_may_strangers() -> None:
    merging = group("a", "b")
    assert merging.leave("b") is None
    assert merging.leave("?") is None
    assert merging.followers("a") == 0
    assert merging.leave("a") is None
    assert not merging.can_follow("key")


class Groups(RuleBasedStateMachine):
    """Against a plain list of members for each key."""

    def __init__(self) -> None:
        super().__init__()
        self.merging = Merging()
        self.model: dict[str, list[str]] = {}
        self.ids = 0

    @rule(key=st.sampled_from("xyz"))
    def come(self, key: str) -> None:
        self.ids += 1
        if self.merging.can_follow(key):
            self.merging.follow(key, str(self.ids))
        else:
            self.merging.lead(key, str(self.ids))
        self.model.setdefault(key, []).append(str(self.ids))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.model)))
        members = self.model[key]
        who = data.draw(st.sampled_from(members))
        led = members[0] == who
        members.remove(who)
        assert self.merging.leave(who) == (members[0] if led and members else None)
        if not members:
            del self.model[key]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def dissolve(self, data: st.DataObject) -> None:
        leader, *followers = self.model.pop(data.draw(st.sampled_from(sorted(self.model))))
        assert self.merging.dissolve(leader) == followers

    @invariant()
    def as_modelled(self) -> None:
        assert len(self.merging) == sum(map(len, self.model.values()))
        for key in "xyz":
            assert self.merging.can_follow(key) == (key in self.model)
        for leader, *followers in self.model.values():
            assert self.merging.leads(leader)
            assert self.merging.followers(leader) == len(followers)
            assert all(self.merging.follows(each) for each in followers)


Groups.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestGroups = Groups.TestCase
