"""A task that runs once for each item of a list, with retries for each: python map_over.py"""

from stepfast import Engine, Graph, current

scan = Graph("scan")


@scan.task
def pages(site: str, count: int) -> list[str]:
    # the number of items is known when this task has run
    return [f"{site}/{number}" for number in range(count)]


@scan.task(map_over=pages, max_items=4, retries=2, backoff=0.01)
def length(pages: str) -> int:
    if pages.endswith("3") and current().attempt == 1:
        raise ConnectionError(f"{pages} is unreachable")
    return len(pages)


@scan.task
def longest(pages: list[str], length: list[int]) -> str:
    return pages[length.index(max(length))]


if __name__ == "__main__":
    with Engine("sqlite://map_over.db") as engine:
        handle = engine.start(scan, site="shop", count=12)
        print("longest:", handle.result())
        record = engine.show(handle.workflow_id)
        print("steps:", len(record.checkpoints))
        for attempt in record.attempts:
            print("failed attempt:", attempt.error)
