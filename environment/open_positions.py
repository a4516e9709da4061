"""The open positions of a ledger, the only orders that a session changes."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor
from torch.nn import functional

from environment.ledger import MONEY, Ledger, sum_rows

_NUMBERS = ("cell", "lane", "stock", "days_without_bar")


class OpenPositions:
    """The N positions that are open in all lanes, oldest first: the columns of the ledger that days change.

    N differs from day to day, and the ledger learns what became of a position when it is closed, or asked for. The
    graphs of a GPU need fixed shapes: there N counts all orders that are young enough to be open, several times as
    many, and the columns are the ledger's own.
    """

    def __init__(self, ledger: Ledger, money: Tensor, slots: int, orders_per_day: int, *, is_fixed: bool) -> None:
        """Begin without a position; `slots` orders of a lane are young enough to be open, `money` is the ledger's."""
        self._all_money = money.flatten(1)
        self._flat: dict[str, Tensor] = {one.name: getattr(ledger, one.name).view(-1) for one in fields(Ledger)}
        self._slots, self._orders, self.lanes = slots, orders_per_day, money.shape[2]
        self.is_fixed = is_fixed
        young = slots * self.lanes if is_fixed else 0
        self._young = torch.arange(young, device=money.device)
        self.clear(0)

    def clear(self, step: int) -> None:
        """Forget all positions at the close before a step."""
        if self.is_fixed:
            self.lane = self._young % self.lanes
            self._begin(max(step - 1, 0))
        else:
            self._hold(self._all_money[:, :0], self._young.expand(len(_NUMBERS), 0))

    def _begin(self, step: int) -> None:
        """Look at the orders that may be open after a step."""
        first = step * self._orders * self.lanes
        self.cell = self._young + first
        self._columns = {name: flat[first : first + len(self._young)] for name, flat in self._flat.items()}

    def _hold(self, money: Tensor, numbers: Tensor) -> None:
        self._money, self._numbers = money, numbers
        self.cell, self.lane = numbers[0], numbers[1]
        """(N,) place in the flattened columns of the ledger, and lane."""
        self._columns = dict(zip((*MONEY, *_NUMBERS), (*money, *numbers), strict=True))

    def first_cell(self, step: int) -> int:
        """Return the first cell of the orders of a step."""
        return (self._slots + (step - 1) * self._orders) * self.lanes

    def __getitem__(self, name: str) -> Tensor:
        """Return a column, (N,)."""
        return self._columns[name]

    def __setitem__(self, name: str, values: Tensor) -> None:
        """Set (N,) values of the open positions."""
        column = self[name]
        if self.is_fixed:
            torch.where(self.is_open, values, column, out=column)
        else:
            column.copy_(values)

    @property
    def is_open(self) -> Tensor:
        """(N,) bool; false only with fixed shapes."""
        return self["is_open"] if self.is_fixed else torch.ones_like(self.cell, dtype=torch.bool)

    def has_position(self) -> Tensor:
        """Tell which lanes have an open position, (lanes,) bool."""
        if self.is_fixed:
            return self.is_open.view(-1, self.lanes).any(0)
        return torch.zeros(self.lanes, dtype=torch.bool).index_fill_(0, self.lane, True)

    def gather(self, plan: Tensor) -> Tensor:
        """Look up (steps, orders, lanes) values of all orders at the open positions: (N,)."""
        return plan.flatten().index_select(0, (self.cell - self.first_cell(0)).clamp(min=0))

    def by_lane(self, money: Tensor) -> Tensor:
        """Sum up (..., N) amounts by lane, in an order that does not depend on other lanes."""
        if self.is_fixed:
            return sum_rows(money.unflatten(-1, (-1, self.lanes)))
        return money.new_zeros(*money.shape[:-1], self.lanes).index_add_(-1, self.lane, money)

    def advance(self, step: int, decided: Tensor | None) -> Tensor | None:
        """Go on to the day after a step, with what it bought; return what was decided on positions, (N,) bool."""
        if self.is_fixed:
            later = 0 if step == 0 else self._orders * self.lanes
            self._begin(step)
            return None if decided is None else functional.pad(decided[later:], (0, later))
        first = self.first_cell(step)
        bought = self._flat["is_open"][first : first + self._orders * self.lanes].nonzero()[:, 0] + first
        if not len(bought):
            return decided
        stock = self._flat["stock"].index_select(0, bought)
        numbers = torch.stack((bought, bought % self.lanes, stock, torch.zeros_like(stock)))
        money = self._all_money.index_select(1, bought)
        self._hold(torch.cat((self._money, money), 1), torch.cat((self._numbers, numbers), 1))
        return None if decided is None else functional.pad(decided, (0, len(bought)))

    def close(self, leaves: Tensor, step: int, reason: Tensor) -> None:
        """Close the positions where (N,) `leaves` is true, after `step` steps, by the (N,) bits of their exit rules."""
        if self.is_fixed:
            exit_step, reasons = self["exit_step"], self["reason"]
            exit_step.masked_fill_(leaves, step)
            torch.where(leaves, reason, reasons, out=reasons)
            self["is_open"].logical_and_(~leaves)
            return
        left = leaves.nonzero()[:, 0]
        if not len(left):
            return
        cell, kept = self.cell.index_select(0, left), (~leaves).nonzero()[:, 0]
        self._all_money.index_copy_(1, cell, self._money.index_select(1, left))
        self._flat["exit_step"].index_fill_(0, cell, step)
        self._flat["reason"].index_copy_(0, cell, reason.index_select(0, left))
        self._flat["is_open"].index_fill_(0, cell, False)
        self._hold(self._money.index_select(1, kept), self._numbers.index_select(1, kept))

    def write(self) -> None:
        """Write what has become of the open positions into the ledger."""
        if not self.is_fixed:
            self._all_money.index_copy_(1, self.cell, self._money)
