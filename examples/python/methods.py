"""Workflows as methods, of a dataclass and of a configured instance: python methods.py"""

import dataclasses

from stepfast import Engine, Instance, step, workflow


class Bank(Instance):
    """A bank of which only the name is recorded. The program creates it again before it opens its engine."""

    def __init__(self, name: str, currency: str) -> None:
        super().__init__(name)
        self.currency = currency  # or a client, a pool, a password

    @step
    def charge(self, amount: int) -> str:
        return f"{amount} {self.currency} from {self.name}"


@dataclasses.dataclass
class Order:
    """An order. Its fields are recorded, like any argument."""

    prices: list[int]

    @workflow
    def checkout(self, bank: Bank) -> str:
        return bank.charge(sum(self.prices))


europe = Bank("europe", "EUR")

with Engine("sqlite://methods.db") as engine:
    print(engine.run(Order([3, 5]).checkout, europe))
