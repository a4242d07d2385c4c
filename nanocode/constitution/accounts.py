"""What generation may spend: reserved before a request is sent, settled when it is over, remembered across kills.

A request is *reserved* -> done (its answer is in the ledger) or *failed* (written here with what it may have cost). A
reservation that is neither when the file is opened was under way at a kill: the server may have billed it, so its
worst case counts as spent. Answers may also come from earlier attempts and runs: *found* where no record has them on
its bill, *reused* where one has. The file stands beside the ledger and is its other half; records, in lists:

    reserved, key, part, tokens, usd
    failed, key, reason, tokens, usd
    found, key, part, tokens, usd
    reused, key, part, 0, 0

`tokens` is an integer, `usd` a number, or null where no price is known.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nanocode.constitution.append_file import AppendFile, LedgerError
from nanocode.constitution.faults import EndpointError, usage_of
from nanocode.constitution.ledger import Answer, Ledger
from nanocode.constitution.pricing import Price

KILLED = "in flight at a kill"
_KINDS = frozenset({"reserved", "failed", "found", "reused"})


class BudgetError(EndpointError):
    """The next request may cost more than is left. Nothing was lost; a larger budget goes on where this one ended."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=False, fatal=True)


@dataclass(frozen=True)
class Charge:
    """Prompt and completion tokens together, and US dollars (None: no price known)."""

    tokens: int = 0
    usd: float | None = 0.0

    def __add__(self, other: Charge) -> Charge:
        usd = None if self.usd is None or other.usd is None else self.usd + other.usd
        return Charge(self.tokens + other.tokens, usd)

    def __sub__(self, other: Charge) -> Charge:
        usd = None if self.usd is None or other.usd is None else self.usd - other.usd
        return Charge(self.tokens - other.tokens, usd)

    def __str__(self) -> str:
        return f"{self.tokens:,} tokens" + ("" if self.usd is None else f", ${self.usd:.4f}")


@dataclass(frozen=True)
class Budget:
    """Upper limits; None: no limit. `cure` ends the message of a BudgetError."""

    usd: float | None = None
    tokens: int | None = None
    cure: str = "raise it and start again to go on"


@dataclass(frozen=True)
class Reservation:
    """One attempt's worst case, set aside."""

    key: str
    part: str
    charge: Charge


class Accounts:
    """The spending of one stage; used from one event loop. `prices` are by part, None where unknown.

    ``lost`` and ``lost_charge``: requests that were under way when an earlier process was killed, and their worst case.
    """

    def __init__(
        self, path: Path | str, ledger: Ledger, prices: Mapping[str, Price | None], budget: Budget | None = None
    ) -> None:
        """Raises LedgerError as a ledger does, ValueError for a limit in US dollars without all prices."""
        self._prices, self._budget, self._ledger = prices, budget or Budget(), ledger
        if self._budget.usd is not None and None in prices.values():
            raise ValueError("a limit in US dollars needs the price of every part")
        self.spent, self.reserved = Charge(), Charge()
        self.lost, self.lost_charge = 0, Charge()
        self._open: set[Reservation] = set()
        self._halted: EndpointError | None = None
        self._settling: list[asyncio.Future[None]] = []
        self._file = AppendFile(path)
        try:
            self._take_over()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Accounts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Flush to disk and let go of the file."""
        self._file.close()

    def halt(self, error: EndpointError) -> None:
        """No reservation from here on: each raises `error`. What is under way may end."""
        self._halted = self._halted or error
        self._wake()

    async def reserve(self, key: str, part: str, prompt_bytes: int, max_tokens: int) -> Reservation:
        """Set the worst case of a request aside, waiting for others to settle if only their reserves are in the way.

        No tokenizer makes more tokens of a prompt than it has bytes. Raises BudgetError, or what `halt` was told.
        """
        price = self._prices[part]
        charge = Charge(prompt_bytes + max_tokens, None if price is None else price.of(prompt_bytes, max_tokens))
        while self._halted is None and not self._fits(self.spent + self.reserved + charge):
            if not self._open or not self._fits(self.spent + charge):
                self.halt(self._exhausted(charge))
            else:
                waiting = asyncio.get_running_loop().create_future()
                self._settling.append(waiting)
                await waiting
        if self._halted is not None:
            raise self._halted
        self._file.append(["reserved", key, part, charge.tokens, charge.usd])
        reservation = Reservation(key, part, charge)
        self._open.add(reservation)
        self.reserved += charge
        return reservation

    def answered(self, reservation: Reservation, usage: tuple[int, int] | None) -> None:
        """The answer is in the ledger; without a `usage` the whole reserve counts as spent."""
        self._settle(reservation, self._charge(reservation.part, usage) or reservation.charge)

    def failed(self, reservation: Reservation, reason: str, usage: tuple[int, int] | None) -> None:
        """There is no answer, and `usage` tokens were billed for it (None: perhaps the worst case)."""
        charge = self._charge(reservation.part, usage) or reservation.charge
        self._file.append(["failed", reservation.key, reason, charge.tokens, charge.usd])
        self._settle(reservation, charge)

    def taken_over(self, key: str, part: str, usage: tuple[int, int] | None, counted: bool) -> None:
        """An answer of an earlier attempt or run is in the ledger; `counted`: on the bill of a record already."""
        charge = Charge() if counted else self._charge(part, usage) or Charge()
        self._file.append(["reused" if counted else "found", key, part, charge.tokens, charge.usd])
        self.spent += charge

    def _settle(self, reservation: Reservation, charge: Charge) -> None:
        self._open.remove(reservation)
        self.reserved = self.reserved - reservation.charge if self._open else Charge()
        self.spent += charge
        self._wake()

    def _wake(self) -> None:
        waiting, self._settling = self._settling, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def _fits(self, charge: Charge) -> bool:
        usd, tokens = self._budget.usd, self._budget.tokens
        if usd is not None and (charge.usd is None or charge.usd > usd):
            return False
        return tokens is None or charge.tokens <= tokens

    def _exhausted(self, charge: Charge) -> BudgetError:
        limits = [] if self._budget.usd is None else [f"${self._budget.usd:.4f}"]
        limits += [] if self._budget.tokens is None else [f"{self._budget.tokens:,} tokens"]
        return BudgetError(
            f"the budget is used up: {self.spent} spent of {' and '.join(limits)}, and the next request may take "
            f"{charge}; what was answered is kept: {self._budget.cure}"
        )

    def _charge(self, part: str, usage: tuple[int, int] | None) -> Charge | None:
        if usage is None:
            return None
        price = self._prices[part]
        return Charge(sum(usage), None if price is None else price.of(*usage))

    def _take_over(self) -> None:
        """Count what earlier processes spent, and close the reservations that died with them."""
        unsettled: dict[str, Reservation] = {}
        elsewhere: set[str] = set()
        is_limited = self._budget.usd is not None or self._budget.tokens is not None
        for kind, key, what, tokens, usd in _entries(self._file):
            if kind == "reserved":
                if is_limited or key not in self._ledger:  # what was answered is of interest to a budget alone
                    unsettled[key] = Reservation(key, what, Charge(tokens, usd))
            else:
                unsettled.pop(key, None)
                self.spent += Charge(tokens, usd)
                if is_limited and kind in ("found", "reused"):
                    elsewhere.add(key)
        for key, reservation in unsettled.items():
            if key in self._ledger:
                continue
            self.lost, self.lost_charge = self.lost + 1, self.lost_charge + reservation.charge
            self.spent += reservation.charge
            self._file.append(["failed", key, KILLED, reservation.charge.tokens, reservation.charge.usd])
        if is_limited:
            for answer in self._ledger.answers():
                if answer.key not in elsewhere:
                    self.spent += self._answered_before(answer, unsettled.get(answer.key))

    def _answered_before(self, answer: Answer, reservation: Reservation | None) -> Charge:
        """What an answer in the ledger cost; one whose reservation is not on file, at the dearest part's price."""
        usage = usage_of(json.loads(answer.raw))
        if reservation is not None:
            return self._charge(reservation.part, usage) or reservation.charge
        charges = [self._charge(part, usage) or Charge() for part in self._prices]
        return max(charges, key=lambda charge: charge.usd or 0.0)


def failures_in(path: Path | str) -> Iterator[Charge]:
    """Charges of the attempts in a file of accounts that brought no answer and were not free."""
    with AppendFile(path) as file:
        for kind, _, _, tokens, usd in _entries(file):
            if kind == "failed" and tokens:
                yield Charge(tokens, usd)


def reused_in(path: Path | str) -> Iterator[str]:
    """Keys of the answers that a file of accounts says to be on another record's bill."""
    with AppendFile(path) as file:
        for kind, key, *_ in _entries(file):
            if kind == "reused":
                yield key


def _entries(file: AppendFile) -> Iterator[tuple[str, str, str, int, float | None]]:
    """The records of a file of accounts. Raises LedgerError for one that is none."""
    for _, record in file.records():
        match record:
            case [str(kind), str(key), str(what), int(tokens), int() | float() | None as usd] if kind in _KINDS:
                yield kind, key, what, tokens, usd
            case _:
                raise LedgerError(
                    f"{file.path} holds a record that is no entry of accounts: it is of another version: move it away"
                )
