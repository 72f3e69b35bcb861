"""Reports of the orders of each day: one each night, and those of the last week at once: python nightly.py"""

import sqlite3
import time
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from stepfast import Engine, Schedule, current, step, workflow

BERLIN = ZoneInfo("Europe/Berlin")
DAY = timedelta(days=1)


@step
def find_day() -> date:
    # an execution that is triggered by hand has no instant
    instant = current().scheduled_at or datetime.now(UTC)
    return instant.astimezone(BERLIN).date() - DAY


@step
def add_up(day: date) -> tuple[int, int]:
    with closing(sqlite3.connect("shop.db")) as shop:
        query = "SELECT count(*), coalesce(sum(euros), 0) FROM orders WHERE day = ?"
        orders, euros = shop.execute(query, [day.isoformat()]).fetchone()
        return orders, euros


@workflow
def report() -> str:
    day = find_day()
    orders, euros = add_up(day)
    return f"{day}  {orders:>6}  {euros:>4}"


def save_orders(today: date) -> None:
    """Saves orders of the last ten days: more on later days."""
    with closing(sqlite3.connect("shop.db")) as shop:
        shop.execute("CREATE TABLE IF NOT EXISTS orders (day TEXT, euros INTEGER)")
        for ago in range(1, 11):
            shop.executemany("INSERT INTO orders VALUES (?, 5)", [[str(today - ago * DAY)]] * (11 - ago))
        shop.commit()


now = datetime.now(BERLIN)
save_orders(now.date())
nightly = Schedule("nightly", report, cron="0 2 * * *", timezone="Europe/Berlin")

with Engine("sqlite://nightly.db", schedules=[nightly]) as engine:
    print("nights of the last week:", engine.backfill_schedule("nightly", now - 7 * DAY, now))
    while engine.schedule("nightly").backfills:
        time.sleep(0.05)
    by_hand = engine.trigger_schedule("nightly")

    executions = engine.list(attributes={"schedule": "nightly"})
    print("day         orders   EUR  instant")
    for workflow_id in sorted(execution.workflow_id for execution in executions):
        instant = "by hand" if workflow_id == by_hand.workflow_id else workflow_id.partition("@")[2]
        print(f"{engine.get(workflow_id, report).result()}  {instant}")
