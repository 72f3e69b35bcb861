"""A pause that survives crashes: python sleep.py"""

from stepfast import Engine, sleep, step, workflow


@step
def remind(who: str) -> str:
    return f"{who}, your tea is ready"


@workflow
def tea(who: str) -> str:
    sleep(seconds=0.2)
    return remind(who)


with Engine("sqlite://sleep.db") as engine:
    print(engine.run(tea, "Ada"))
