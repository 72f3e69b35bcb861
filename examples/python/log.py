"""Log records name their execution, and a replay logs nothing twice: python log.py"""

import logging
import sys

from stepfast import Engine, ReplayFilter, sleep, step, workflow

logger = logging.getLogger("shop")


@step
def pack(item: str) -> str:
    logger.info("packing %s", item)
    return f"[{item}]"


@workflow
def parcel(item: str) -> str:
    logger.info("begun")
    packed = pack(item)
    sleep(0.2)
    logger.info("done")
    return packed


handler = logging.StreamHandler(sys.stdout)
handler.addFilter(ReplayFilter())
handler.setFormatter(
    logging.Formatter("%(stepfast_workflow)s %(stepfast_workflow_id)s %(stepfast_step)s: %(message)s")
)
logging.basicConfig(level=logging.INFO, handlers=[handler])
# from the engine itself, only warnings and errors
logging.getLogger("stepfast.engine").setLevel(logging.WARNING)

# at 0.0 the execution is suspended in its sleep, so its code runs again
with Engine("sqlite://log.db", suspend_after=0.0) as engine:
    engine.start(parcel.options(workflow_id="parcel-7"), "tea").result()
