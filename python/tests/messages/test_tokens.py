"""Tokens and questions: answers from engines, clients, handles, other processes and workflows."""

from __future__ import annotations

import asyncio
import datetime
import subprocess
import sys
import threading
from typing import Any

import pytest

from stepfast import (
    AsyncClient,
    AsyncEngine,
    AsyncToken,
    Client,
    EncodeError,
    Engine,
    ExecutionEnded,
    InvalidArgument,
    NotFound,
    Question,
    Status,
    Token,
    TokenAnswered,
    Wait,
    WorkflowFailed,
    WorkflowParked,
    ask,
    create_token,
    current,
    gather,
    receive,
    receive_question,
    set_event,
    step,
    workflow,
)


class TooExpensive(Exception):
    """An error that completes a token or a question."""

    def __init__(self, amount: int) -> None:
        super().__init__(amount)
        self.amount = amount


@step
def hands_out(token_id: str) -> str:
    return token_id


@workflow
def awaits_token() -> Any:
    token: Token[Any] = create_token()
    set_event("token", hands_out(token.id))
    return token.result()


@workflow
async def awaits_token_async() -> Any:
    token: AsyncToken[Any] = await create_token()
    await set_event("token", token.id)
    return await token.result()


@workflow
def catches_failed_token() -> Any:
    token: Token[Any] = create_token()
    set_event("token", token.id)
    caught: list[Any] = []
    for _ in range(2):
        try:
            token.result()
        except TooExpensive as error:
            caught.append(error.amount)
        except WorkflowFailed as error:
            caught.append(str(error))
    return caught


@workflow
def awaits_token_in_turns() -> Any:
    token: Token[int] = create_token()
    first = token.result(0.01)
    set_event("token", token.id)
    second = token.result(timeout=datetime.timedelta(minutes=1))
    # the run is suspended here, and a replay gets all results
    receive()
    return first, second, token.result()


@workflow
async def awaits_token_in_turns_async() -> Any:
    token: AsyncToken[int] = await create_token()
    first = await token.result(0.01)
    await set_event("token", token.id)
    second = await token.result(60)
    await receive()
    return first, second, await token.result()


@workflow
async def creates_tokens_in_order() -> list[str]:
    # numbered when they are made, although they are awaited in another order
    calls = [create_token() for _ in range(3)]
    tokens = [await call for call in reversed(calls)]
    return [token.id.split(".")[1] for token in reversed(tokens)]


@workflow
def awaits_token_in_branches() -> list[str]:
    token: Token[Any] = create_token()
    set_event("token", token.id)

    def wait() -> str:
        try:
            return str(token.result())
        except InvalidArgument as error:
            return str(error)

    return list(gather(wait, wait))


@step
def uses_tokens_in_step() -> list[str]:
    errors: list[str] = []
    for use in (create_token, receive_question, lambda: ask("a", 1)):
        with pytest.raises(InvalidArgument) as raised:
            use()
        errors.append(str(raised.value))
    return errors


@workflow
def uses_tokens_in_a_step() -> list[str]:
    return uses_tokens_in_step()


@workflow
def answers_questions() -> int:
    answered = 0
    while True:
        question: Question[Any] = receive_question("sums")
        match question.value:
            case None:
                question.answer("bye")
                return answered
            case int(amount) if amount > 1000:
                question.refuse(TooExpensive(amount))
            case str(text):
                question.refuse(text)
            case amount:
                question.answer(amount + 1)
        answered += 1


@workflow
async def answers_questions_async(limit: int) -> int:
    answered = 0
    while (question := await receive_question(timeout=60)) is not None and question.value != limit:
        await question.answer(question.value + 1)
        answered += 1
    await question.refuse(TooExpensive(limit))
    return answered


@workflow
def asks_a_workflow(workflow_id: str, values: list[Any]) -> list[Any]:
    answers: list[Any] = []
    for value in values:
        try:
            answers.append(ask(workflow_id, value, topic="sums"))
        except TooExpensive as error:
            answers.append(f"{error.amount} is too much")
        except (ExecutionEnded, NotFound, WorkflowFailed) as error:
            answers.append(f"{type(error).__name__} {error.code}")
    return answers


@workflow
async def asks_a_workflow_async(workflow_id: str, values: list[int]) -> list[int]:
    return await asyncio.gather(*(_ask_in_task(workflow_id, value) for value in values))


async def _ask_in_task(workflow_id: str, value: int) -> int:
    answer: int = await ask(workflow_id, value)
    return answer


@workflow
async def answers_while_it_waits() -> tuple[int, Any]:
    token: AsyncToken[Any] = await create_token()
    await set_event("token", token.id)
    answered = 0
    while True:
        waiting = asyncio.create_task(_token_in_task(token))
        receiving = asyncio.create_task(_question_in_task())
        done, pending = await asyncio.wait((waiting, receiving), return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        if waiting in done:
            return answered, waiting.result()
        await receiving.result().answer("still waiting")
        answered += 1


async def _token_in_task(token: AsyncToken[Any]) -> Any:
    return await token.result()


async def _question_in_task() -> Question[Any]:
    question: Question[Any] = await receive_question()
    return question


#: Whether the code of `changes_its_calls` has begun before.
has_begun = threading.Event()


@workflow
def changes_its_calls() -> None:
    if has_begun.is_set():
        set_event("other", 1)
    has_begun.set()
    create_token()
    receive()


@workflow
def answers_twice() -> str:
    question: Question[int] = receive_question()
    question.answer(1)
    with pytest.raises(InvalidArgument) as raised:
        question.answer(2)
    with pytest.raises(InvalidArgument, match="must be an exception or a text"):
        question.refuse(3)  # type: ignore[arg-type]
    return str(raised.value)


@workflow
def answers_with_an_object() -> None:
    question: Question[Any] = receive_question()
    try:
        question.answer(object())
    except EncodeError:
        # a value that cannot be recorded is no answer
        question.answer("encoded")


@workflow
def receives_nothing() -> Any:
    return receive_question(timeout=0.01), ask(
        current().workflow_id, 1, timeout=datetime.timedelta(seconds=0.01)
    )


def test_token_is_completed_by_engines_clients_and_processes(url: str) -> None:
    with Engine(url) as engine, Client(url) as client, Engine(url) as other:
        for run in range(4):
            handle = engine.start(awaits_token.options(workflow_id=f"a{run}"))
            token: str = engine.get_event(f"a{run}", "token", timeout=60)
            if run == 3:
                code = (
                    "import sys, stepfast\n"
                    "with stepfast.Client(sys.argv[1]) as client: client.complete_token(sys.argv[2], 3)"
                )
                subprocess.run([sys.executable, "-c", code, url, token], check=True, timeout=60)
            else:
                (engine, client, other)[run].complete_token(token, run)
            assert handle.result(60) == run
        kinds = [checkpoint.kind for checkpoint in engine.show("a0").checkpoints]
        assert kinds == ["event", "step", "event", "message"]
        assert [event.name for event in engine.events("a0")] == ["token"]


def test_tokens_of_async_code(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine, AsyncClient(url) as client:
            for number, answerer in enumerate((engine, client)):
                handle = await engine.start(awaits_token_async)
                token = await handle.get_event("token", timeout=60)
                await answerer.complete_token(token, number)
                assert await handle == number
                with pytest.raises(TokenAnswered):
                    await answerer.complete_token(token, 1)
                with pytest.raises(TokenAnswered):
                    await answerer.fail_token(token, "late")
            handle = await engine.start(awaits_token_async)
            await client.fail_token(await handle.get_event("token", timeout=60), TooExpensive(7))
            with pytest.raises(TooExpensive) as raised:
                await handle
            assert raised.value.amount == 7
            numbers = await engine.run(creates_tokens_in_order)
            assert numbers == sorted(numbers, key=int) and len(set(numbers)) == 3

    asyncio.run(main())


def test_failed_token_raises_the_error(url: str) -> None:
    with Engine(url) as engine:
        for error, caught in (
            (TooExpensive(7), 7),
            ("no", "Failure: no"),
            (KeyboardInterrupt("ended"), None),
        ):
            handle = engine.start(catches_failed_token)
            engine.fail_token(handle.get_event("token", timeout=60), error)
            if caught is None:
                with pytest.raises(Exception, match="ended"):
                    handle.result(60)
            else:
                assert handle.result(60) == [caught, caught]


@pytest.mark.parametrize("is_async", [False, True])
def test_token_stays_valid_after_timeouts_and_suspensions(url: str, is_async: bool) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0.01) as engine:
            target: Any = awaits_token_in_turns_async if is_async else awaits_token_in_turns
            handle = await engine.start(target.options(workflow_id="a"))
            token = await handle.get_event("token", timeout=60)
            while not (record := await engine.show("a")).waits:
                pass
            position = token.split(".")[1]
            assert record.waits == (Wait("message", None, f"token {position}"),)
            names = [checkpoint.name for checkpoint in record.checkpoints]
            assert names == [f"token {position}", f"token {position}", "token"]
            assert record.checkpoints[0].value is None
            assert token.rsplit(".")[-1] not in repr(record.waits) + repr(names)
            await engine.complete_token(token, 7)
            while (await engine.show("a")).waits != (Wait("message", None, "default"),):
                pass
            await handle.send(None)
            assert await handle.result(60) == (None, 7, 7)
            assert [it.value for it in (await engine.show("a")).checkpoints if it.kind == "message"] == [
                7,
                None,
            ]

    asyncio.run(main())


def test_one_answer_counts(url: str) -> None:
    with Engine(url) as engine, Client(url) as client:
        handle = engine.start(awaits_token)
        token = handle.get_event("token", timeout=60)
        answered: list[int] = []
        errors: list[BaseException] = []

        def answer(number: int) -> None:
            try:
                (engine, client)[number % 2].complete_token(token, number)
                answered.append(number)
            except TokenAnswered as error:
                errors.append(error)

        threads = [threading.Thread(target=answer, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [handle.result(60)] == answered and len(errors) == 7
        assert "has an answer already; the first answer counts" in str(errors[0])
        assert errors[0].code == "SF-0043"  # type: ignore[attr-defined]
        cancelled = engine.start(awaits_token)
        token = cancelled.get_event("token", timeout=60)
        cancelled.cancel()
        with pytest.raises(Exception, match="cancel"):
            cancelled.result(60)
        with pytest.raises(ExecutionEnded, match="waits for no answer"):
            engine.complete_token(token, 1)


def test_one_branch_at_a_time_waits_for_a_token(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(awaits_token_in_branches)
        engine.complete_token(handle.get_event("token", timeout=60), 7)
        texts = sorted(handle.result(60))
        assert texts[0] == "7" and "another branch of the code waits for this token" in texts[1]


def test_wrong_tokens_are_refused(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(awaits_token)
        token = handle.get_event("token", timeout=60)
        for wrong in ("", "x", token + "0", token.upper() + "é", "x" * 10_000):
            with pytest.raises(InvalidArgument, match="is not the id of a token"):
                engine.complete_token(wrong, 1)
            with pytest.raises(InvalidArgument, match="is not the id of a token"):
                engine.fail_token(wrong, "no")
        key, position, secret = token.split(".")
        for other in (f"{key}.{int(position) + 7}.{secret}", f"{key}.{position}.{'0' * 32}"):
            with pytest.raises(InvalidArgument, match="no execution has created the token"):
                engine.complete_token(other, 1)
        for no_text in (3, None, "a\0b", b"x", handle):
            with pytest.raises(InvalidArgument, match="token is "):
                engine.complete_token(no_text, 1)  # type: ignore[arg-type]
        for no_error in (3, None, TooExpensive, "a\0b"):
            with pytest.raises(InvalidArgument, match="error is "):
                engine.fail_token(token, no_error)  # type: ignore[arg-type]
        with pytest.raises(EncodeError):
            engine.complete_token(token, object())
        with pytest.raises(InvalidArgument, match="65536"):
            engine.complete_token(token, "x" * 70_000)
        engine.complete_token(token, "right")
        assert handle.result(60) == "right"
        create_error, receive_error, ask_error = engine.run(uses_tokens_in_a_step)
        assert "pass token.id to the step" in create_error
        assert "receive in the workflow" in receive_error
        assert "engine.ask" in ask_error


def test_error_of_changed_code_names_the_token(url: str) -> None:
    has_begun.clear()
    with Engine(url, suspend_after=0.01) as engine:
        handle = engine.start(changes_its_calls)
        while handle.status() != Status.WAITING:
            pass
        handle.send(1)
        with pytest.raises(WorkflowParked) as raised:
            handle.result(60)
        position = engine.show(handle.workflow_id).checkpoints[0].path
        text = f'the record has event "token {position}", but the code calls event "other"'
        assert text in str(raised.value)


def test_tokens_and_questions_need_a_workflow() -> None:
    for use in (create_token, receive_question, lambda: ask("a", 1)):
        with pytest.raises(InvalidArgument, match="outside of the code of a workflow"):
            use()


def test_questions_are_answered_and_refused(url: str) -> None:
    with Engine(url, suspend_after=0.01) as engine, Client(url) as client:
        handle = engine.start(answers_questions.options(workflow_id="a"))
        assert [it.ask(1, topic="sums") for it in (handle, handle)] == [2, 2]
        assert engine.ask("a", 2, topic="sums", timeout=60) == 3
        assert client.ask("a", 3, topic="sums", message_id="q") == 4
        assert client.ask("a", 99, topic="sums", message_id="q") == 4
        while handle.status() != Status.WAITING:
            pass
        assert engine.show("a").waits == (Wait("message", None, "question sums"),)
        with pytest.raises(TooExpensive) as raised:
            client.ask("a", 5000, topic="sums")
        assert raised.value.amount == 5000
        with pytest.raises(WorkflowFailed, match=r"^Failure: closed$"):
            handle.ask("closed", topic="sums")
        assert engine.ask("a", "other topic", timeout=0.01) is None
        waiting: list[str] = []

        def ask_in_vain() -> None:
            # the execution may end before or after the question is asked
            with pytest.raises(ExecutionEnded, match=r"has not answered the question|receives no message"):
                engine.ask("a", "never answered")
            waiting.append("ended")

        thread = threading.Thread(target=ask_in_vain)
        thread.start()
        assert engine.ask("a", None, topic="sums") == "bye"
        assert handle.result(60) == 6
        thread.join(60)
        assert waiting == ["ended"]
        with pytest.raises(ExecutionEnded):
            engine.ask("a", 1)
        names = {checkpoint.name.split()[0] for checkpoint in engine.show("a").checkpoints}
        assert names == {"question", "answer"}
        received = [it.value for it in engine.show("a").checkpoints if it.kind == "message"]
        assert received[:3] == [1, 1, 2]


def test_questions_of_async_code(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine, AsyncClient(url) as client:
            handle = await engine.start(answers_questions_async.options(workflow_id="a"), 100)
            assert await asyncio.gather(handle.ask(1), engine.ask("a", 2), client.ask("a", 3)) == [2, 3, 4]
            assert await engine.run(asks_a_workflow_async, "a", [4, 5, 6]) == [5, 6, 7]
            with pytest.raises(TooExpensive):
                await handle.ask(100)
            assert await handle == 6

    asyncio.run(main())


@pytest.mark.parametrize("suspend_after", [0.01, 60])
def test_token_is_awaited_beside_questions(url: str, suspend_after: float) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=suspend_after) as engine:
            handle = await engine.start(answers_while_it_waits)
            for _ in range(3):
                assert await handle.ask("how is it?") == "still waiting"
                while suspend_after < 1 and await handle.status() != Status.WAITING:
                    pass
            await engine.complete_token(await handle.get_event("token"), "done")
            assert await handle == (3, "done")

    asyncio.run(main())


def test_workflows_ask_workflows(url: str) -> None:
    with Engine(url, suspend_after=0.01) as engine:
        engine.start(answers_questions.options(workflow_id="a"))
        values = [1, 5000, "closed", None, 2]
        asked = engine.start(asks_a_workflow.options(workflow_id="r"), "a", values).result(60)
        assert asked == [2, "5000 is too much", "WorkflowFailed SF-0008", "bye", "ExecutionEnded SF-0042"]
        assert engine.run(asks_a_workflow, "missing", [1]) == ["NotFound SF-0004"]
        answers = [it.value for it in engine.show("r").checkpoints if it.kind == "event read"]
        assert (answers[0], answers[3]) == (2, "bye")
        assert engine.run(receives_nothing) == (None, None)


def test_one_answer_to_a_question(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(answers_twice)
        assert handle.ask(0) == 1
        assert "the question was answered before; one answer counts" in handle.result(60)
        handle = engine.start(answers_with_an_object)
        assert handle.ask(0) == "encoded"


def test_wrong_questions_are_refused(url: str) -> None:
    with Engine(url) as engine:
        with pytest.raises(NotFound):
            engine.ask("missing", 1)
        handle = engine.start(answers_twice)
        uses: Any = (
            lambda **options: engine.ask("a", 1, **options),
            lambda **options: handle.ask(1, **options),
        )
        for use in uses:
            for topic in ("", "a\0b", "x" * 10_000, 3, None):
                with pytest.raises(InvalidArgument, match="topic"):
                    use(topic=topic)
            for timeout in (-1, float("nan"), True, "1"):
                with pytest.raises(InvalidArgument, match="timeout"):
                    use(timeout=timeout)
            for message_id in ("", "a\0b", "x" * 10_000, 3):
                with pytest.raises(InvalidArgument, match="message_id"):
                    use(message_id=message_id)
        with pytest.raises(InvalidArgument, match="65536"):
            handle.ask("x" * 70_000)
        with pytest.raises(EncodeError):
            handle.ask(object())
        assert handle.ask(0) == 1
