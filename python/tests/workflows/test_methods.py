"""Steps and workflows that are methods."""

import dataclasses
import subprocess
import sys

import pytest

from stepfast import Engine, Instance, InvalidArgument, step, workflow


class Shop(Instance):
    def __init__(self, name: str, currency: str) -> None:
        super().__init__(name)
        self.currency = currency

    @step
    def price(self, amount: int) -> str:
        return f"{amount} {self.currency}"

    @workflow
    def checkout(self, amount: int) -> str:
        return f"{self.name}: {self.price(amount)}"

    @classmethod
    @step
    def tax(cls, amount: int) -> str:
        return f"{cls.__name__} {amount}"

    @staticmethod
    @step
    def rounded(amount: float) -> int:
        return round(amount)

    @workflow
    def all_kinds(self, amount: float) -> list[str]:
        whole = self.rounded(amount)
        return [self.price(whole), Shop.tax(whole), self.tax(whole), self.checkout(whole)]

    @workflow
    def closing(self, amount: int) -> str:
        return self.checkout.start_detached(amount)

    @workflow
    def in_vain(self, amount: int) -> str:
        return others[0].start(self.checkout, amount).result()

    @classmethod
    @workflow
    def opening(cls, amount: int) -> str:
        return cls.tax(amount)


#: Engines that workflows must not use.
others: list[Engine] = []


@dataclasses.dataclass
class Basket:
    items: list[str]

    @step
    def count(self) -> int:
        return len(self.items)

    @workflow
    def total(self) -> int:
        return self.count()


def test_steps_and_workflows_are_methods(url: str) -> None:
    eu = Shop("eu", "EUR")
    with Engine(url) as engine:
        assert engine.run(eu.checkout, 3) == "eu: 3 EUR"
        assert engine.start(eu.all_kinds.options(workflow_id="all"), 2.6).result() == [
            "3 EUR",
            "Shop 3",
            "Shop 3",
            "eu: 3 EUR",
        ]
        assert engine.run(Shop.opening, 4) == "Shop 4"
        assert engine.run(Basket(["a", "b"]).total) == 2
        assert engine.show("all").args[0] is eu
        detached = engine.run(eu.closing, 5)
        assert engine.get(detached).result() == "eu: 5 EUR"
        # methods name workflows, too
        assert [each.workflow for each in engine.list(workflow=Shop.opening)] == ["Shop.opening"]
        assert engine.count(workflow=eu.checkout) == engine.count(workflow=Shop.checkout) == 3
        others.append(engine)
        with pytest.raises(InvalidArgument, match=r"write self\.checkout\.start\(\.\.\.\)"):
            engine.run(eu.in_vain, 6)
    # outside of workflows they are plain methods
    assert eu.price(1) == "1 EUR" and Shop.tax(2) == "Shop 2" and eu.checkout(3) == "eu: 3 EUR"


def test_decorators_in_the_wrong_order_are_told() -> None:
    with pytest.raises(InvalidArgument, match="write @classmethod above @step or @workflow"):

        class Wrong:
            @step  # type: ignore[arg-type]
            @classmethod
            def odd(cls) -> None: ...

    with pytest.raises(InvalidArgument, match="needs a name"):
        Shop("", "EUR")
    with (
        Engine("memory:") as engine,
        pytest.raises(InvalidArgument, match="workflow is <step Shop.price>, and must be a workflow"),
    ):
        engine.count(workflow=Shop.price)  # type: ignore[arg-type]


PROGRAM = """
import sys
from stepfast import Engine, Instance, WorkflowParked, sleep, step, workflow

class Mill(Instance):
    @step
    def grind(self, n: int) -> int:
        print("ground by", self.name, flush=True)
        return n + 1

    @workflow
    def work(self, n: int) -> int:
        return self.grind(n) + (sleep(0.2) or 0)

if sys.argv[2] != "nobody":
    mill = Mill("north")
with Engine(sys.argv[1], suspend_after=0.01) as engine:
    if sys.argv[2] == "begin":
        engine.start(mill.work.options(workflow_id="w"), 1)
    else:
        try:
            print(engine.get("w").result())
        except WorkflowParked as parked:
            print("parked:", parked)
        if sys.argv[2] == "resume":
            engine.resume("w")
            print(engine.get("w").result())
"""


def test_instances_are_found_again_by_name(url: str) -> None:
    def ran(how: str) -> str:
        command = [sys.executable, "-c", PROGRAM, url, how]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    ran("begin")
    said = ran("nobody")
    assert "parked:" in said and "no instance 'north' of Mill" in said, said
    assert ran("resume").strip().splitlines()[-1] == "2"
