"""A workflow that SIGKILL interrupts, and that continues where it stopped: python crash.py [URL]"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from stepfast import Engine, step, workflow

STEPS, KILLED_IN = 20, 11


def note(text: str) -> None:
    with open(os.environ["BODIES"], "a") as bodies:
        bodies.write(text)


@step
def count(n: int) -> int:
    note(f"{n} ")
    if n == KILLED_IN and os.environ["LIFE"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return n


@workflow
def counting(until: int) -> int:
    return sum(count(n) for n in range(1, until + 1))


def live(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(counting.options(workflow_id="counting"), STEPS)
        print(f"the sum is {handle.result()}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[1] if len(sys.argv) > 1 else f"sqlite:{folder}/crash.db"
        for life in (1, 2):
            bodies = pathlib.Path(folder) / f"bodies-{life}"
            bodies.touch()
            environment = {**os.environ, "LIFE": str(life), "BODIES": str(bodies)}
            ended = subprocess.run([sys.executable, __file__, url, "live"], env=environment)
            how = "killed by SIGKILL" if ended.returncode == -signal.SIGKILL else "ended"
            print(f"process {life} {how}; steps that it ran: {bodies.read_text()}")


if __name__ == "__main__":
    if sys.argv[2:] == ["live"]:
        live(sys.argv[1])
    else:
        main()
