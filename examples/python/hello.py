"""The smallest program: python hello.py"""

from stepfast import Engine, step, workflow


@step
def greet(name: str) -> str:
    return f"Hello, {name}!"


@workflow
def hello(name: str) -> str:
    return greet(name)


with Engine("sqlite://hello.db") as engine:
    handle = engine.start(hello.options(workflow_id="hello-1"), "world")
    print(handle.result())
