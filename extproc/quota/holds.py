"""What remains of quotas, and what of it is held for calls under way.

Rules this module keeps:

* What is held is what calls may cost at most. All holds of an account together never exceed what
  remains; that calls run at the same time makes no difference.
* A hold ends once: with it goes what it held, and what the call has cost is taken from the rest. A
  cost over the hold leaves a debt; nothing is let in until it is paid.
* Differences commute: a balance may hear of its ledger after it was spent from.
* Of an account that has its plan's whole quota and holds nothing, nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping

from extproc.quota.ports import Movement


class _Balance:
    """One account.

    Attributes:
        remaining: tokens, less than nothing where it owes; None: the plan's quota.
        moved: what has come and gone besides.
        held: tokens that calls under way may cost.
    """

    __slots__ = ("held", "moved", "remaining")

    def __init__(self, remaining: int | None = None) -> None:
        self.remaining = remaining
        self.moved = 0
        self.held = 0


class Holds:
    """The balances of all accounts; the ledger's `extproc.quota.ports.Accounts`."""

    def __init__(self) -> None:
        self._balances: dict[str, _Balance] = {}

    def __repr__(self) -> str:
        return f"<Holds: {len(self)} accounts, {self.held_in_all} tokens held>"

    def __len__(self) -> int:
        return len(self._balances)

    @property
    def held_in_all(self) -> int:
        """Return the tokens that are held, of all accounts together."""
        return sum(each.held for each in self._balances.values())

    def remaining(self, account: str, quota: int) -> int:
        """Return what is not spent, of an account whose plan has this quota; holds are not spent."""
        known = self._balances.get(account)
        if known is None:
            return quota
        return (quota if known.remaining is None else known.remaining) + known.moved

    def held(self, account: str) -> int:
        """Return what calls under way may cost."""
        known = self._balances.get(account)
        return 0 if known is None else known.held

    def free(self, account: str, quota: int) -> int:
        """Return what can still be held; under 0 where the account owes."""
        return self.remaining(account, quota) - self.held(account)

    def hold(self, account: str, tokens: int) -> None:
        """Hold tokens; whether they are there, `free` has said."""
        self._known(account).held += tokens

    def end(self, account: str, held: int, cost: int) -> None:
        """End a hold and take what its call has cost."""
        known = self._known(account)
        known.held -= held
        known.moved -= cost
        self._forget(account, known)

    def opened(self, remaining: Mapping[str, int]) -> None:
        """See `extproc.quota.ports.Accounts`."""
        for account, tokens in remaining.items():
            self._known(account).remaining = tokens

    def moved(self, movement: Movement) -> None:
        """See `extproc.quota.ports.Accounts`."""
        known = self._known(movement.tenant)
        known.moved += movement.tokens
        self._forget(movement.tenant, known)

    def _known(self, account: str) -> _Balance:
        known = self._balances.get(account)
        if known is None:
            known = self._balances[account] = _Balance()
        return known

    def _forget(self, account: str, known: _Balance) -> None:
        if known.remaining is None and not known.moved and not known.held:
            del self._balances[account]
