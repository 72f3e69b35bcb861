"""Declarations of schedules: wrong arguments, which the declaration itself refuses."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepfast import (
    AsyncClient,
    AsyncEngine,
    Client,
    EncodeError,
    Engine,
    InvalidArgument,
    RemoteWorkflow,
    Schedule,
    workflow,
)

DAY = timedelta(days=1)
LATER = datetime(2050, 1, 1, tzinfo=UTC)


@workflow
def takes_item(item: str, *, amount: int = 1) -> str:
    return item * amount


class Shop:
    """A class whose method is a workflow."""

    @classmethod
    @workflow
    def scheduled_method(cls, item: str) -> str:
        return f"{cls.__name__}: {item}"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, r"the timing of schedule 's' is one of cron, every and at, and none is given"),
        ({"cron": "0 2 * * *", "every": 60}, r"cron and every are given"),
        ({"cron": "0 2 * * *", "every": 60, "at": LATER}, r"cron and every and at are given"),
        ({"cron": ""}, r"cron of schedule 's' is ''"),
        ({"cron": 5}, r"cron of schedule 's' is 5"),
        ({"cron": "0 2 * *"}, r"cron: .*is not a cron expression"),
        ({"cron": "61 * * * *"}, r"cron: .*is not a cron expression"),
        ({"cron": "0 0 31 2 *"}, r"cron: \"0 0 31 2 \*\" has no instant"),
        ({"cron": "0 2 * * *", "timezone": "Mars/Olympus"}, r"timezone: .*Mars/Olympus.*Europe/Berlin"),
        ({"cron": "0 2 * * *", "timezone": 1}, r"timezone of schedule 's' is 1"),
        ({"cron": "0 2 * * *", "timezone": "a\0b"}, r"timezone of schedule 's'"),
        ({"every": 60, "timezone": "UTC"}, r"timezone of schedule 's' is 'UTC', and goes with cron only"),
        ({"every": 0}, r"every of schedule 's' is 0, and must be from 1 to"),
        ({"every": -60}, r"every of schedule 's' is -60"),
        ({"every": 0.999}, r"every of schedule 's' is 0.999"),
        ({"every": timedelta(0)}, r"every of schedule 's' is datetime.timedelta\(0\)"),
        ({"every": math.inf}, r"every of schedule 's' is inf"),
        ({"every": math.nan}, r"every of schedule 's' is nan"),
        ({"every": 10**400}, r"every of schedule 's' is 1000"),
        ({"every": "1h"}, r"every of schedule 's' is '1h', and must be a number of seconds or a timedelta"),
        ({"every": True}, r"every of schedule 's' is True"),
        ({"at": datetime(2050, 1, 1)}, r"at of schedule 's' .*must be a datetime with a time zone"),
        ({"at": "2050-01-01"}, r"at of schedule 's' is '2050-01-01'"),
        ({"every": 60, "starts_at": datetime(2050, 1, 1)}, r"starts_at of schedule 's' .*with a time zone"),
        ({"every": 60, "ends_at": 7}, r"ends_at of schedule 's' is 7"),
        ({"every": 60, "starts_at": LATER, "ends_at": LATER - DAY}, r"must not be before starts_at"),
        ({"every": 60, "overlap": "wait"}, r"overlap of schedule 's' is 'wait'.*'skip', 'buffer_one'"),
        ({"every": 60, "overlap": None}, r"overlap of schedule 's' is None"),
        ({"every": 60, "catch_up": True}, r"catch_up of schedule 's' is True.*'none', 'last', 'all'"),
        ({"every": 60, "on_conflict": "merge"}, r"on_conflict of schedule 's' is 'merge'"),
        ({"every": 60, "jitter": -1}, r"jitter of schedule 's' is -1"),
        ({"every": 60, "jitter": math.inf}, r"jitter of schedule 's' is inf"),
        ({"every": 60, "pause_after": 0}, r"pause_after of schedule 's' is 0, and must be at least 1|from 1"),
        ({"every": 60, "pause_after": 2**32}, r"pause_after of schedule 's'"),
        ({"every": 60, "pause_after": 1.5}, r"pause_after of schedule 's' is 1.5"),
        ({"every": 60, "kwargs": ["amount"]}, r"kwargs of schedule 's' is \['amount'\], and must be a dict"),
        ({"every": 60, "kwargs": {1: 2}}, r"a name in kwargs of schedule 's' is 1"),
    ],
)
def test_wrong_values_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        Schedule("s", takes_item, "tea", **given)


@pytest.mark.parametrize("name", ["", "a\0b", "a@b", "a#1", "n" * 129, "ä" * 65, "\ud800", None, 7])
def test_wrong_names_are_refused(name: Any, sqlite_url: str) -> None:
    with pytest.raises(InvalidArgument, match="the schedule's name is"):
        Schedule(name, takes_item, "tea", every=60)
    with Client(sqlite_url) as client:
        for operation in (client.schedule, client.pause_schedule, client.trigger_schedule):
            with pytest.raises(InvalidArgument, match="the schedule's name is"):
                operation(name)


def test_longest_name_is_stored(sqlite_url: str) -> None:
    with Client(sqlite_url) as client:
        for name in ("n" * 128, "ä" * 64, "Bericht für heute: a/b"):
            client.set_schedule(Schedule(name, takes_item, "tea", every=60))
            assert client.schedule(name).name == name
        for reason in ("a\0b", "\ud800", None):
            with pytest.raises(InvalidArgument, match="reason"):
                client.pause_schedule(name, reason)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"workflow_id": "x"}, r"workflow_id is 'x', and a schedule gives each execution an id of its own"),
        ({"queue": "q", "dedup_id": "x"}, r"dedup_id is 'x', and a schedule starts each instant once"),
        ({"delay": 1}, r"delay is 1\.0, and a schedule starts its executions at its instants"),
        ({"start_at": LATER}, r"start_at is .*, and a schedule starts its executions at its instants"),
        ({"queue": "q", "debounce": "x"}, r"debounce is 'x', and a schedule"),
        ({"max_delay": 1}, r"max_delay is 1\.0, and a schedule"),
        ({"wait_timeout": 1}, r"wait_timeout is 1\.0, and a schedule"),
        ({"queue": "q", "on_full": "wait"}, r"on_full is 'wait', and a schedule"),
        ({"attributes": {"schedule": "x"}}, r"attributes of schedule 's' has 'schedule'"),
    ],
)
def test_options_without_a_meaning_are_refused(options: dict[str, Any], reason: str) -> None:
    for target in (takes_item.options(**options), RemoteWorkflow("elsewhere").options(**options)):
        with pytest.raises(InvalidArgument, match=reason):
            Schedule("s", target, "tea", every=60)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="the arguments do not fit takes_item"):
        Schedule("s", takes_item, every=60)
    with pytest.raises(TypeError, match="the arguments do not fit takes_item"):
        Schedule("s", takes_item, "tea", "cup", every=60)
    with pytest.raises(TypeError, match="the arguments do not fit takes_item"):
        Schedule("s", takes_item, "tea", every=60, kwargs={"price": 1})
    # the workflow is in this program, too
    with pytest.raises(TypeError, match="the arguments do not fit takes_item"):
        Schedule("s", RemoteWorkflow("takes_item"), every=60)
    with pytest.raises(EncodeError, match="argument 1"):
        Schedule("s", takes_item, object(), every=60)


def test_other_values_are_no_workflows() -> None:
    with pytest.raises(InvalidArgument, match=r"'report' is text.*RemoteWorkflow\('report'\)"):
        Schedule("s", "report", every=60)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="is no workflow: give a name, a workflow"):
        Schedule("s", print, every=60)  # type: ignore[arg-type]

    async def called() -> None:
        pass

    with pytest.raises(InvalidArgument, match="is no workflow"):
        Schedule("s", called(), every=60)  # type: ignore[arg-type]


@pytest.mark.parametrize("opened", [Engine, Client, AsyncEngine, AsyncClient])
def test_engines_take_lists_of_schedules(opened: Any, sqlite_url: str) -> None:
    schedule = Schedule("s", takes_item, "tea", every=60)
    for given, reason in [
        (schedule, "and must be a list"),
        ("s", "and must be a list"),
        (None, "and must be a list"),
        (["s"], "'s' in schedules is no schedule"),
        ([schedule, Schedule("s", takes_item, "cup", every=60)], "has 's' more than once"),
    ]:
        with pytest.raises(InvalidArgument, match=reason):
            opened(sqlite_url, schedules=given)


def test_only_schedules_are_set(sqlite_url: str) -> None:
    with Client(sqlite_url) as client, pytest.raises(InvalidArgument, match="'s' is no schedule"):
        client.set_schedule("s")  # type: ignore[arg-type]


def test_declarations_are_immutable_and_comparable(sqlite_url: str) -> None:
    items = ["tea"]
    schedule = Schedule("s", RemoteWorkflow("elsewhere"), items, every=60)
    assert (schedule.name, schedule.workflow, schedule.on_conflict) == ("s", "elsewhere", "update")
    with pytest.raises(dataclasses.FrozenInstanceError):
        schedule.name = "t"  # type: ignore[misc]
    assert schedule == Schedule("s", RemoteWorkflow("elsewhere"), ["tea"], every=timedelta(minutes=1))
    assert schedule != Schedule("s", RemoteWorkflow("elsewhere"), ["tea"], every=61)
    assert len({schedule, Schedule("s", RemoteWorkflow("elsewhere"), ["tea"], every=60)}) == 1
    assert repr(schedule) == "Schedule(name='s', workflow='elsewhere', on_conflict='update')"
    # the arguments were encoded by the declaration
    items.append("cup")
    with Client(sqlite_url, schedules=[schedule]) as client:
        assert client.schedule("s").args == (["tea"],)


def test_method_runs_on_a_schedule(sqlite_url: str) -> None:
    schedule = Schedule("s", Shop.scheduled_method, "tea", cron="0 0 1 1 *")
    with Engine(sqlite_url, schedules=[schedule]) as engine:
        assert engine.trigger_schedule("s").result(60) == "Shop: tea"
        assert engine.schedule("s").args == (Shop, "tea")
