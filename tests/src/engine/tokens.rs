//! Tokens and questions: answers that come from outside, or from other executions, once.

use std::sync::Arc;
use std::time::Duration;

use stepfast_core::store::{CheckpointKind, Status};
use stepfast_core::{Context, Engine, Error, Failure, Question, Token, Workflow};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::support::{
    BodyResult, deliveries, is_end_of, is_suspension_of, noop, open_engine, open_second_engine, record, row,
    shut_down,
};
use crate::StoreFixture;

super::cases![
    token_is_completed_from_outside,
    failed_token_fails_the_wait,
    suspended_execution_is_woken_by_the_answer,
    one_answer_counts,
    answer_is_received_after_a_timeout,
    received_answer_stays,
    one_branch_at_a_time_waits_for_a_token,
    token_of_another_execution_is_refused,
    wrong_tokens_are_refused,
    items_of_batches_create_tokens,
    question_is_answered,
    refused_question_fails_the_caller,
    suspended_execution_answers,
    execution_asks_another_one,
    question_with_an_id_is_asked_once,
    questions_without_an_answer_end,
];

const SHORT: Duration = Duration::from_millis(10);
const HOUR: Duration = Duration::from_hours(1);

/// Returns the workflow `approve`, which hands out the id of a token in a step and returns the value of the token.
fn approve() -> (Workflow<(), i64>, UnboundedReceiver<String>) {
    let (sender, ids) = unbounded_channel();
    let workflow = Workflow::new("approve", move |mut cx: Context, (): ()| {
        let sender = sender.clone();
        async move {
            let token = create(&mut cx, &sender).await?;
            token.result(&mut cx).await
        }
    });
    (workflow, ids)
}

/// Creates a token and hands out its id in a step.
async fn create(cx: &mut Context, ids: &UnboundedSender<String>) -> Result<Token<i64>, Failure> {
    let token = cx.create_token().await?;
    cx.step("hand out", async || Ok::<_, Failure>(ids.send(token.id().to_owned()).is_ok())).await?;
    Ok(token)
}

async fn token_is_completed_from_outside(fixture: &dyn StoreFixture) {
    let (approve, mut ids) = approve();
    let (engine, _) = open_engine(fixture, |b| b.register(&approve).suspend_after(HOUR)).await;
    let (other, _) = open_second_engine(fixture, |b| b.register(&noop())).await;
    for (answerer, value) in [(&engine, 7), (&other, 8)] {
        let handle = engine.start(&approve, ()).await.unwrap();
        let id = ids.recv().await.unwrap();
        answerer.complete_token(&id, &value).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), value);
        let kinds: Vec<_> =
            deliveries(&record(&engine, &handle.workflow_id()).await).into_iter().map(|it| it.0).collect();
        assert_eq!(kinds, [CheckpointKind::Event, CheckpointKind::Step, CheckpointKind::Message]);
        assert!(engine.events(&handle.workflow_id()).await.unwrap().is_empty());
    }
    shut_down(other).await;
    shut_down(engine).await;
}

async fn failed_token_fails_the_wait(fixture: &dyn StoreFixture) {
    let (approve, mut ids) = approve();
    let (engine, _) = open_engine(fixture, |b| b.register(&approve)).await;
    let handle = engine.start(&approve, ()).await.unwrap();
    let id = ids.recv().await.unwrap();
    engine.fail_token(&id, Failure::with_kind("Refused", "too expensive")).await.unwrap();
    match handle.result().await.unwrap_err() {
        Error::Failed(failure) => {
            assert_eq!((&*failure.kind, &*failure.message), ("Refused", "too expensive"));
        }
        error => panic!("{error}"),
    }
    shut_down(engine).await;
}

async fn suspended_execution_is_woken_by_the_answer(fixture: &dyn StoreFixture) {
    let (approve, mut ids) = approve();
    let (engine, store) = open_engine(fixture, |b| b.register(&approve).suspend_after(SHORT)).await;
    let handle = engine.start(&approve, ()).workflow_id("a").await.unwrap();
    let id = ids.recv().await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    assert_eq!(row(&engine, "a").await.status, Status::Waiting);
    engine.complete_token(&id, &7).await.unwrap();
    // the replay has created the same token
    assert_eq!(handle.result().await.unwrap(), 7);
    assert_eq!(ids.try_recv().ok(), None);
    shut_down(engine).await;
}

async fn one_answer_counts(fixture: &dyn StoreFixture) {
    let (approve, mut ids) = approve();
    let (engine, _) = open_engine(fixture, |b| b.register(&approve)).await;
    let (other, _) = open_second_engine(fixture, |b| b.register(&noop())).await;
    for _ in 0..5 {
        let handle = engine.start(&approve, ()).await.unwrap();
        let id = ids.recv().await.unwrap();
        let engines = [&engine, &other, &engine, &other, &engine, &other];
        let id = &id;
        let answers = engines
            .iter()
            .enumerate()
            .map(|(number, it)| async move { it.complete_token(id, &number).await });
        let answered = futures_util::future::join_all(answers).await;
        let winners: Vec<_> = (0_i64..).zip(&answered).filter(|(_, answer)| answer.is_ok()).collect();
        assert_eq!(winners.len(), 1, "{answered:?}");
        let errors = answered.iter().filter_map(|answer| answer.as_ref().err());
        assert!(errors.clone().all(|error| matches!(error, Error::TokenAnswered { .. })), "{answered:?}");
        assert_eq!(handle.result().await.unwrap(), winners[0].0);
        // also after the end
        assert_eq!(engine.complete_token(id, &9).await.unwrap_err().code(), "SF-0043");
        assert_eq!(engine.fail_token(id, Failure::new("late")).await.unwrap_err().code(), "SF-0043");
    }
    shut_down(other).await;
    shut_down(engine).await;
}

async fn answer_is_received_after_a_timeout(fixture: &dyn StoreFixture) {
    let (sender, mut ids) = unbounded_channel();
    let workflow = Workflow::new("w", move |mut cx: Context, (): ()| {
        let sender = sender.clone();
        async move {
            let token = create(&mut cx, &sender).await?;
            let nothing = token.result(&mut cx).timeout(SHORT).await?;
            // another hand-out tells the test that the time is over
            cx.step("remind", async || Ok::<_, Failure>(sender.send(token.id().to_owned()).is_ok())).await?;
            BodyResult::Ok((nothing, token.result(&mut cx).timeout(HOUR).await?))
        }
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).await.unwrap();
    let (first, second) = (ids.recv().await.unwrap(), ids.recv().await.unwrap());
    assert_eq!(first, second);
    engine.complete_token(&second, &7).await.unwrap();
    assert_eq!(handle.result().await.unwrap(), (None, Some(7)));
    shut_down(engine).await;
}

async fn received_answer_stays(fixture: &dyn StoreFixture) {
    let (sender, mut ids) = unbounded_channel();
    let workflow = Workflow::new("w", move |mut cx: Context, (): ()| {
        let sender = sender.clone();
        async move {
            let token = create(&mut cx, &sender).await?;
            let first = token.result(&mut cx).await?;
            // the run is suspended here, and a replay gets both results
            cx.receive::<()>().await?;
            BodyResult::Ok((first, token.result(&mut cx).await?))
        }
    });
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow).suspend_after(SHORT)).await;
    let handle = engine.start(&workflow, ()).workflow_id("w").await.unwrap();
    engine.complete_token(&ids.recv().await.unwrap(), &7).await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    handle.send(&()).await.unwrap();
    assert_eq!(handle.result().await.unwrap(), (7, 7));
    shut_down(engine).await;
}

async fn one_branch_at_a_time_waits_for_a_token(fixture: &dyn StoreFixture) {
    let (sender, mut ids) = unbounded_channel();
    let workflow = Workflow::new("w", move |mut cx: Context, (): ()| {
        let sender = sender.clone();
        async move {
            let token = Arc::new(create(&mut cx, &sender).await?);
            let (one, other) = (token.clone(), token.clone());
            let (first, second) = cx
                .join(
                    async move |mut cx: Context| one.result(&mut cx).await,
                    async move |mut cx: Context| {
                        let second = other.result(&mut cx).await;
                        BodyResult::Ok(second.err().map(|failure| failure.message))
                    },
                )
                .await;
            BodyResult::Ok((first?, second?))
        }
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).await.unwrap();
    engine.complete_token(&ids.recv().await.unwrap(), &7).await.unwrap();
    let (first, second) = handle.result().await.unwrap();
    assert_eq!(first, 7);
    assert!(second.unwrap().contains("another branch of the code waits for this token"));
    shut_down(engine).await;
}

async fn token_of_another_execution_is_refused(fixture: &dyn StoreFixture) {
    let kept = Arc::new(std::sync::Mutex::new(None::<Arc<Token<i64>>>));
    let workflow = Workflow::new("w", move |mut cx: Context, (): ()| {
        let kept = kept.clone();
        async move {
            let own = Arc::new(cx.create_token::<i64>().await?);
            let token = kept.lock().unwrap().replace(own.clone()).unwrap_or(own);
            let result = token.result(&mut cx).timeout(Duration::ZERO).await;
            BodyResult::Ok(result.err().map(|failure| failure.message))
        }
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    assert_eq!(engine.run(&workflow, ()).await.unwrap(), None);
    let refused = engine.run(&workflow, ()).await.unwrap().unwrap();
    assert!(refused.contains("created by another execution"), "{refused}");
    shut_down(engine).await;
}

async fn wrong_tokens_are_refused(fixture: &dyn StoreFixture) {
    let (approve, mut ids) = approve();
    let (engine, _) = open_engine(fixture, |b| b.register(&approve)).await;
    let handle = engine.start(&approve, ()).workflow_id("a").await.unwrap();
    let id = ids.recv().await.unwrap();
    let (rest, secret) = id.rsplit_once('.').unwrap();
    let (key, _) = rest.split_once('.').unwrap();
    let missing = "0".repeat(key.len());
    let wrong = [
        "x".to_owned(),
        format!("{rest}.{}", "0".repeat(32)),
        format!("{key}.7.{secret}"),
        format!("{missing}.0.{secret}"),
    ];
    for wrong in &wrong {
        let error = engine.complete_token(wrong, &7).await.unwrap_err();
        assert_eq!(error.code(), "SF-0001", "{error}");
        assert!(error.to_string().contains("token"), "{error}");
    }
    let error = engine.complete_token(&id, &"x".repeat(70_000)).await.unwrap_err();
    assert!(error.to_string().contains("has 70"), "{error}");
    handle.cancel().await.unwrap();
    handle.result().await.unwrap_err();
    let error = engine.complete_token(&id, &7).await.unwrap_err();
    assert!(matches!(error, Error::HasEnded { .. }), "{error}");
    assert!(error.to_string().contains("cancelled, and waits for no answer"), "{error}");
    shut_down(engine).await;
}

async fn items_of_batches_create_tokens(fixture: &dyn StoreFixture) {
    let (approve, mut ids) = approve();
    let (engine, _) = open_engine(fixture, |b| b.register(&approve).suspend_after(SHORT)).await;
    let batch = engine.submit_batch(&approve, [(), (), ()]).await.unwrap();
    for _ in 0..3 {
        engine.complete_token(&ids.recv().await.unwrap(), &7).await.unwrap();
    }
    let counts = batch.wait().await.unwrap();
    assert_eq!(counts.ended.completed, 3);
    shut_down(engine).await;
}

/// Returns the workflow `oracle`, which answers this many questions of the topic `t` by their doubles, and refuses
/// negative ones.
fn oracle() -> Workflow<usize, ()> {
    Workflow::new("oracle", |mut cx: Context, count: usize| async move {
        for _ in 0..count {
            let question: Question<i64> = cx.receive_question().topic("t").await?;
            match question.value {
                0.. => cx.answer(&question, &(2 * question.value)).await?,
                _ => cx.refuse(&question, Failure::with_kind("Negative", "no")).await?,
            }
            let again = cx.answer(&question, &0).await.unwrap_err();
            assert!(again.message.contains("answered before"), "{again}");
        }
        BodyResult::Ok(())
    })
}

async fn ask(engine: &Engine, id: &str, value: i64) -> Result<i64, Error> {
    engine.ask(id, &value).topic("t").await
}

async fn question_is_answered(fixture: &dyn StoreFixture) {
    let oracle = oracle();
    let (engine, _) = open_engine(fixture, |b| b.register(&oracle).suspend_after(HOUR)).await;
    let (other, _) = open_second_engine(fixture, |b| b.register(&noop())).await;
    let handle = engine.start(&oracle, 3).workflow_id("o").await.unwrap();
    assert_eq!(ask(&engine, "o", 7).await.unwrap(), 14);
    assert_eq!(ask(&other, "o", 8).await.unwrap(), 16);
    assert_eq!(handle.ask::<i64>(&9).topic("t").timeout(HOUR).await.unwrap(), Some(18));
    handle.result().await.unwrap();
    assert!(engine.events("o").await.unwrap().is_empty());
    shut_down(other).await;
    shut_down(engine).await;
}

async fn refused_question_fails_the_caller(fixture: &dyn StoreFixture) {
    let oracle = oracle();
    let (engine, _) = open_engine(fixture, |b| b.register(&oracle)).await;
    engine.start(&oracle, 1).workflow_id("o").await.unwrap();
    match ask(&engine, "o", -7).await.unwrap_err() {
        Error::Failed(failure) => assert_eq!((&*failure.kind, &*failure.message), ("Negative", "no")),
        error => panic!("{error}"),
    }
    shut_down(engine).await;
}

async fn suspended_execution_answers(fixture: &dyn StoreFixture) {
    let oracle = oracle();
    let (engine, store) = open_engine(fixture, |b| b.register(&oracle).suspend_after(SHORT)).await;
    let handle = engine.start(&oracle, 1).workflow_id("o").await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    assert_eq!(ask(&engine, "o", 7).await.unwrap(), 14);
    shut_down(engine).await;
}

async fn execution_asks_another_one(fixture: &dyn StoreFixture) {
    let oracle = oracle();
    let asker = Workflow::new("asker", |mut cx: Context, value: i64| async move {
        let answer: i64 = cx.ask("o", &value).topic("t").await?;
        let refused = cx.ask::<i64>("o", &-1).topic("t").timeout(HOUR).await;
        // a replay gets the same answers
        cx.receive::<()>().await?;
        BodyResult::Ok((answer, refused.unwrap_err().kind))
    });
    let (engine, store) =
        open_engine(fixture, |b| b.register(&oracle).register(&asker).suspend_after(SHORT)).await;
    engine.start(&oracle, 2).workflow_id("o").await.unwrap();
    let handle = engine.start(&asker, 7).workflow_id("a").await.unwrap();
    engine.get::<()>("o").await.unwrap().result().await.unwrap();
    handle.send(&()).await.unwrap();
    assert_eq!(handle.result().await.unwrap(), (14, "Negative".to_owned()));
    let refused = engine.run(&asker, 7).await.unwrap_err();
    assert!(refused.to_string().contains("has ended with status completed, and receives no message"));
    store.wait_until_committed(is_end_of(handle.key())).await;
    shut_down(engine).await;
}

async fn question_with_an_id_is_asked_once(fixture: &dyn StoreFixture) {
    let oracle = oracle();
    let (engine, _) = open_engine(fixture, |b| b.register(&oracle)).await;
    let handle = engine.start(&oracle, 2).workflow_id("o").await.unwrap();
    for value in [7, 8] {
        // the second question is not asked
        let answer: i64 = engine.ask("o", &value).topic("t").message_id("first").await.unwrap();
        assert_eq!(answer, 14);
    }
    let answer: i64 = handle.ask(&8).topic("t").message_id("second").await.unwrap();
    assert_eq!(answer, 16);
    handle.result().await.unwrap();
    shut_down(engine).await;
}

async fn questions_without_an_answer_end(fixture: &dyn StoreFixture) {
    let deaf = Workflow::new("deaf", |mut cx: Context, (): ()| async move {
        let _: Question<i64> = cx.receive_question().await?;
        cx.receive::<()>().await
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&deaf)).await;
    let handle = engine.start(&deaf, ()).workflow_id("d").await.unwrap();
    // a question of another topic, and one that is received and not answered in time
    assert_eq!(handle.ask::<i64>(&7).topic("t").timeout(Duration::ZERO).await.unwrap(), None);
    assert_eq!(handle.ask::<i64>(&7).timeout(SHORT).await.unwrap(), None);
    let (asked, ended) = tokio::join!(async { engine.ask::<i64>("d", &8).await }, async {
        handle.send(&()).await.unwrap();
        handle.result().await
    },);
    ended.unwrap();
    let error = asked.unwrap_err();
    assert!(matches!(error, Error::HasEnded { .. }), "{error}");
    let error = engine.ask::<i64>("missing", &7).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    let error = engine.ask::<i64>("d", &7).topic("a\0").await.unwrap_err();
    assert!(matches!(error, Error::Invalid { input: "topic", .. }), "{error}");
    shut_down(engine).await;
}
