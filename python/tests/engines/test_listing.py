"""The order of lists."""

from __future__ import annotations

import threading

from stepfast import Engine, Queue, gather, map, step, workflow

HELD = threading.Event()
WAITS = threading.Event()


@step
def holds() -> None:
    WAITS.set()
    HELD.wait(60)


@step
def counts(n: int) -> int:
    return n


@workflow
def listed(n: int) -> int:
    return n


@workflow
def starts_later(children: int) -> list[str]:
    holds()
    return [listed.start_detached(n) for n in range(children)]


@workflow
def awaits_later(children: int) -> list[int]:
    holds()
    return [child.result() for child in [listed.start(n) for n in range(children)]]


@workflow
def calls_later(children: int) -> list[int]:
    holds()
    one, two = gather(lambda: listed(0), lambda: listed(1))
    return [one, two, listed(2), *map(listed, range(3, children))]


@workflow
def starts_one_that_calls(children: int) -> str:
    holds()
    return calls_later.start_detached(children)


@workflow
def follows(left: int) -> str:
    counts(left)
    return follows.start_detached(left - 1) if left else "the last"


def ids_of(engine: Engine, **conditions: str) -> list[str]:
    return [each.workflow_id for each in engine.list(limit=200, **conditions)]  # type: ignore[arg-type]


def in_millisecond(workflow_id: str) -> str:
    """The part of an id that the engine has made which says when: to the millisecond."""
    return workflow_id[: len("00000000-0000")]


def test_a_child_that_is_started_later_is_listed_above_what_began_meanwhile(url: str) -> None:
    HELD.clear()
    WAITS.clear()
    with Engine(url) as engine:
        early = engine.start(starts_later, 1)
        assert WAITS.wait(60)
        late = engine.start(listed, 7)
        HELD.set()
        (child,) = early.result()
        assert ids_of(engine) == [child, late.workflow_id, early.workflow_id]
        assert [each.workflow_id for each in engine.list(limit=1)] == [child]


def test_children_are_listed_in_the_order_in_which_they_were_started(url: str) -> None:
    HELD.set()
    with Engine(url) as engine:
        started = engine.run(starts_later, 100)
        awaited = engine.start(awaits_later, 50)
        assert awaited.result() == list(range(50))
        assert ids_of(engine, workflow="listed", parent=awaited.workflow_id) == sorted(
            ids_of(engine, parent=awaited.workflow_id), reverse=True
        )
        listed_ids = ids_of(engine, workflow="listed")
        assert listed_ids[50:] == started[::-1]
        created = [each.created_at for each in engine.list(limit=200, parent=awaited.workflow_id)]
        assert created == sorted(created, reverse=True)


def test_a_child_that_is_called_is_listed_beside_its_parent(url: str) -> None:
    HELD.clear()
    WAITS.clear()
    with Engine(url) as engine:
        early = engine.start(calls_later, 20)
        assert WAITS.wait(60)
        late = engine.start(listed, 7)
        while in_millisecond(late.workflow_id) == in_millisecond(early.workflow_id):
            late = engine.start(listed, 7)
        HELD.set()
        assert early.result() == list(range(20))
        children = ids_of(engine, parent=early.workflow_id)
        assert len(children) == 20
        ids = ids_of(engine)
        # what came meanwhile stands above them
        assert ids[0] == late.workflow_id
        family = [each for each in ids if each in {*children, early.workflow_id}]
        assert family == [*sorted(children, reverse=True), early.workflow_id]


def test_a_child_that_is_called_has_the_age_of_a_parent_that_was_started_later(url: str) -> None:
    HELD.clear()
    WAITS.clear()
    with Engine(url) as engine:
        root = engine.start(starts_one_that_calls, 5)
        assert WAITS.wait(60)
        late = engine.start(listed, 7)
        HELD.set()
        parent = root.result()
        assert engine.get(parent).result() == list(range(5))
        children = ids_of(engine, parent=parent)
        assert {in_millisecond(child) for child in children} == {in_millisecond(parent)}
        assert ids_of(engine)[-2:] == [late.workflow_id, root.workflow_id]


def test_a_chain_is_listed_link_by_link(url: str) -> None:
    with Engine(url) as engine:
        link = engine.run(follows, 30)
        links = [link]
        while (following := engine.get(link).result()) != "the last":
            link = str(following)
            links.append(link)
        assert ids_of(engine, workflow="follows")[:-1] == links[::-1]


def test_pages_of_a_list_follow_each_other(url: str) -> None:
    HELD.set()
    with Engine(url, queues=[Queue("paged")]) as engine:
        engine.run(starts_later, 20)
        whole = ids_of(engine)
        paged: list[str] = []
        while page := engine.list(limit=6, after=paged[-1] if paged else None):
            paged += [each.workflow_id for each in page]
        assert paged == whole and len(whole) == 21
