"""Methods as steps and workflows, and the instances that a replay finds by name."""

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
    def round_amount(amount: float) -> int:
        return round(amount)

    @workflow
    def calls_all_kinds(self, amount: float) -> list[str]:
        whole = self.round_amount(amount)
        return [self.price(whole), Shop.tax(whole), self.tax(whole), self.checkout(whole)]

    @workflow
    def starts_detached(self, amount: int) -> str:
        return self.checkout.start_detached(amount)

    @workflow
    def starts_on_engine(self, amount: int) -> str:
        return engines[0].start(self.checkout, amount).result()

    @classmethod
    @workflow
    def returns_tax(cls, amount: int) -> str:
        return cls.tax(amount)


#: Engines that workflows must not use.
engines: list[Engine] = []


@dataclasses.dataclass
class Basket:
    items: list[str]

    @step
    def count(self) -> int:
        return len(self.items)

    @workflow
    def total(self) -> int:
        return self.count()


def test_methods_run_as_steps_and_workflows(url: str) -> None:
    eu = Shop("eu", "EUR")
    with Engine(url) as engine:
        assert engine.run(eu.checkout, 3) == "eu: 3 EUR"
        assert engine.start(eu.calls_all_kinds.options(workflow_id="all"), 2.6).result() == [
            "3 EUR",
            "Shop 3",
            "Shop 3",
            "eu: 3 EUR",
        ]
        assert engine.run(Shop.returns_tax, 4) == "Shop 4"
        assert engine.run(Basket(["a", "b"]).total) == 2
        assert engine.show("all").args[0] is eu
        detached_id = engine.run(eu.starts_detached, 5)
        assert engine.get(detached_id).result() == "eu: 5 EUR"
        # filters take methods, too
        assert [execution.workflow for execution in engine.list(workflow=Shop.returns_tax)] == [
            "Shop.returns_tax"
        ]
        assert engine.count(workflow=eu.checkout) == engine.count(workflow=Shop.checkout) == 3
        engines.append(engine)
        with pytest.raises(InvalidArgument, match=r"write self\.checkout\.start\(\.\.\.\)"):
            engine.run(eu.starts_on_engine, 6)
    # outside of workflows these calls are plain method calls
    assert eu.price(1) == "1 EUR" and Shop.tax(2) == "Shop 2" and eu.checkout(3) == "eu: 3 EUR"


def test_decorators_in_wrong_order_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="write @classmethod above @step or @workflow"):

        class Wrong:
            @step  # type: ignore[arg-type]
            @classmethod
            def wrong(cls) -> None: ...

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
        print("ground in", self.name, flush=True)
        return n + 1

    @workflow
    def work(self, n: int) -> int:
        return self.grind(n) + (sleep(0.2) or 0)

if sys.argv[2] != "without instance":
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


def test_replay_finds_instance_by_its_name(url: str) -> None:
    def run(action: str) -> str:
        command = [sys.executable, "-c", PROGRAM, url, action]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    run("begin")
    output = run("without instance")
    assert "parked:" in output and "no instance 'north' of Mill" in output, output
    assert run("resume").strip().splitlines()[-1] == "2"
