"""A web service that saves an order and its mail in one transaction: `uvicorn outbox:app` and
`python outbox.py`, with fastapi, uvicorn and sqlalchemy installed.

curl -X POST 'http://127.0.0.1:8000/orders/order-7?customer=ann'

The first command runs the service, the second a worker that sends the mails. Both use a file in the current
directory, or the Postgres database of STEPFAST_STORE, which needs psycopg."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from stepfast import Engine, Outbox, Queue, step, workflow

STORE = os.environ.get("STEPFAST_STORE", "sqlite:///shop.db")
DATABASE = STORE.replace("postgres://", "postgresql+psycopg://")

mails = Queue("mails", concurrency=10)


@step(retries=5)
def deliver(customer: str, text: str) -> str:
    print(f"to {customer}: {text}", flush=True)  # a call of some service
    return "sent"


@workflow
def send(customer: str, text: str) -> str:
    return deliver(customer, text)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]


database = create_engine(DATABASE)
outbox = Outbox()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    with Engine(STORE, queues=[mails]):
        pass  # the engine's tables are there now, in the same database
    Base.metadata.create_all(database)
    yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{number}", status_code=201)
def place(number: str, customer: str) -> dict[str, str]:
    try:
        with Session(database) as session, session.begin():
            # both rows are committed, or none, even if this process dies
            mail = outbox.start(
                session, send.options(queue=mails), customer, f"we have got your order {number}"
            )
            session.add(Order(number=number, customer=customer))
    except IntegrityError as error:
        raise HTTPException(409, f"{number} is there already") from error
    return {"mail": mail}


if __name__ == "__main__":
    with Engine(STORE) as worker:
        worker.work()
