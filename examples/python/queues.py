"""Mails in a queue: one at a time for each customer, urgent ones first, with a pause: python queues.py"""

from stepfast import Engine, Queue, step, workflow

# these limits apply to all processes: to those that add mails, and to those that send them
mails = Queue("mails", concurrency=10, key_concurrency=1)

sent: list[str] = []


@step
def deliver(customer: str, text: str) -> None:
    sent.append(f"{customer}: {text}")  # a call of some service


@workflow
def send(customer: str, text: str) -> None:
    deliver(customer, text)


with Engine("sqlite://queues.db", queues=[mails]) as engine:
    engine.pause_queue(mails)  # no execution of the queue begins, and starts still enter it
    to_ann = engine.start_many(send.options(queue=mails, key="ann"), [("ann", f"news {n}") for n in range(3)])
    to_ann.append(
        engine.start(send.options(queue=mails, key="ann", priority=-1), "ann", "your parcel is here")
    )

    # a second press of the button returns the handle of the first report
    report = send.options(queue=mails, key="bob", dedup_id="report", on_duplicate="return_existing")
    first, second = engine.start(report, "bob", "a report"), engine.start(report, "bob", "a report")
    print("one report:", first.workflow_id == second.workflow_id)

    # attributes find the mails that are no longer needed
    promotion = send.options(queue=mails, key="eve", attributes={"campaign": "summer"})
    engine.start_many(promotion, [("eve", "buy 1"), ("eve", "buy 2")])
    print("cancelled:", engine.cancel_all(attributes={"campaign": "summer"}).done)

    engine.resume_queue(mails)
    engine.results(to_ann)
    print([mail for mail in sent if mail.startswith("ann")])
    first.result()
    print(len(sent), "mails are sent")
