"""The order of executions in lists."""

from __future__ import annotations

import threading

from stepfast import Engine, Queue, gather, map, step, workflow

CAN_CONTINUE = threading.Event()
HAS_BLOCKED = threading.Event()


@step
def block_until_released() -> None:
    HAS_BLOCKED.set()
    CAN_CONTINUE.wait(60)


@step
def return_step_number(n: int) -> int:
    return n


@workflow
def return_listed_number(n: int) -> int:
    return n


@workflow
def block_then_start_detached(children: int) -> list[str]:
    block_until_released()
    return [return_listed_number.start_detached(n) for n in range(children)]


@workflow
def block_then_start(children: int) -> list[int]:
    block_until_released()
    return [child.result() for child in [return_listed_number.start(n) for n in range(children)]]


@workflow
def block_then_call(children: int) -> list[int]:
    block_until_released()
    first, second = gather(lambda: return_listed_number(0), lambda: return_listed_number(1))
    return [first, second, return_listed_number(2), *map(return_listed_number, range(3, children))]


@workflow
def block_then_start_caller(children: int) -> str:
    block_until_released()
    return block_then_call.start_detached(children)


@workflow
def start_next_link(remaining: int) -> str:
    return_step_number(remaining)
    return start_next_link.start_detached(remaining - 1) if remaining else "the last"


def list_ids(engine: Engine, **conditions: str) -> list[str]:
    """Returns the ids of the matching executions, newest first."""
    return [each.workflow_id for each in engine.list(limit=200, **conditions)]  # type: ignore[arg-type]


def millisecond_prefix(workflow_id: str) -> str:
    """Returns the part of a UUIDv7 that is its time in milliseconds."""
    return workflow_id[: len("00000000-0000")]


def test_started_child_is_listed_by_its_own_start(url: str) -> None:
    CAN_CONTINUE.clear()
    HAS_BLOCKED.clear()
    with Engine(url) as engine:
        earlier = engine.start(block_then_start_detached, 1)
        assert HAS_BLOCKED.wait(60)
        later = engine.start(return_listed_number, 7)
        CAN_CONTINUE.set()
        (child,) = earlier.result()
        assert list_ids(engine) == [child, later.workflow_id, earlier.workflow_id]
        assert [each.workflow_id for each in engine.list(limit=1)] == [child]


def test_children_are_listed_in_order_of_their_starts(url: str) -> None:
    CAN_CONTINUE.set()
    with Engine(url) as engine:
        started_ids = engine.run(block_then_start_detached, 100)
        awaited = engine.start(block_then_start, 50)
        assert awaited.result() == list(range(50))
        assert list_ids(engine, workflow="return_listed_number", parent=awaited.workflow_id) == sorted(
            list_ids(engine, parent=awaited.workflow_id), reverse=True
        )
        listed_ids = list_ids(engine, workflow="return_listed_number")
        assert listed_ids[50:] == started_ids[::-1]
        created = [each.created_at for each in engine.list(limit=200, parent=awaited.workflow_id)]
        assert created == sorted(created, reverse=True)


def test_called_child_is_listed_beside_its_parent(url: str) -> None:
    CAN_CONTINUE.clear()
    HAS_BLOCKED.clear()
    with Engine(url) as engine:
        earlier = engine.start(block_then_call, 20)
        assert HAS_BLOCKED.wait(60)
        later = engine.start(return_listed_number, 7)
        while millisecond_prefix(later.workflow_id) == millisecond_prefix(earlier.workflow_id):
            later = engine.start(return_listed_number, 7)
        CAN_CONTINUE.set()
        assert earlier.result() == list(range(20))
        children = list_ids(engine, parent=earlier.workflow_id)
        assert len(children) == 20
        ids = list_ids(engine)
        # the execution that started meanwhile is above all of them
        assert ids[0] == later.workflow_id
        family = [each for each in ids if each in {*children, earlier.workflow_id}]
        assert family == [*sorted(children, reverse=True), earlier.workflow_id]


def test_called_child_has_time_of_its_detached_parent(url: str) -> None:
    CAN_CONTINUE.clear()
    HAS_BLOCKED.clear()
    with Engine(url) as engine:
        root = engine.start(block_then_start_caller, 5)
        assert HAS_BLOCKED.wait(60)
        later = engine.start(return_listed_number, 7)
        CAN_CONTINUE.set()
        parent = root.result()
        assert engine.get(parent).result() == list(range(5))
        children = list_ids(engine, parent=parent)
        assert {millisecond_prefix(child) for child in children} == {millisecond_prefix(parent)}
        assert list_ids(engine)[-2:] == [later.workflow_id, root.workflow_id]


def test_chain_of_detached_children_is_listed_in_order(url: str) -> None:
    with Engine(url) as engine:
        link = engine.run(start_next_link, 30)
        links = [link]
        while (output := engine.get(link).result()) != "the last":
            link = str(output)
            links.append(link)
        assert list_ids(engine, workflow="start_next_link")[:-1] == links[::-1]


def test_pages_of_list_cover_all_executions(url: str) -> None:
    CAN_CONTINUE.set()
    with Engine(url, queues=[Queue("paged")]) as engine:
        engine.run(block_then_start_detached, 20)
        all_ids = list_ids(engine)
        paged_ids: list[str] = []
        while page := engine.list(limit=6, after=paged_ids[-1] if paged_ids else None):
            paged_ids += [each.workflow_id for each in page]
        assert paged_ids == all_ids and len(all_ids) == 21
