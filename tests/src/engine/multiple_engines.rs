//! Several engines on one database, and engines that end.

use std::time::Duration;

use futures_util::FutureExt;
use stepfast_core::guest::GuestWorkflow;
use stepfast_core::queue::Queue;
use stepfast_core::store::{Filter, Status};
use stepfast_core::{Engine, EngineBuilder, Error, ErrorKind, Payload};

use super::support::{
    Count, GRACE, Latch, engine, fresh_number, noop, open, record, row, second_engine, shut_down, steps,
    waiting,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    what_one_starts_another_awaits,
    what_is_queued_runs_wherever_there_is_a_place,
    a_lost_engine_is_taken_over_and_goes_on_anew,
    shutting_down_flushes_what_is_staged,
    what_runs_is_handed_on_at_once,
    an_engine_that_is_dropped_hands_on,
    nothing_is_accepted_after_a_shutdown,
    who_waits_for_a_result_hears_of_the_shutdown,
    shutting_down_twice_is_once,
    a_new_engine_finds_what_was_left_queued,
    it_renews_once_a_second_however_much_happens_elsewhere,
    a_worker_leaves_to_others_what_its_threads_cannot_begin,
];

async fn what_one_starts_another_awaits(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (one, _) = engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = second_engine(fixture, |b| b).await;
    one.start(&workflow, 5).workflow_id("x").await.unwrap();
    let handle = two.get::<i64>("x").await.unwrap();
    let waiting = tokio::spawn(async move { handle.result().await });
    count.reaches(1).await;
    latch.open();
    assert_eq!(waiting.await.unwrap().unwrap(), 5);
    shut_down(one).await;
    shut_down(two).await;
}

async fn what_is_queued_runs_wherever_there_is_a_place(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (one, _) = engine(fixture, |b| b.register(&workflow).max_running(1)).await;
    let (two, _) = second_engine(fixture, |b| b.register(&workflow).max_running(2)).await;
    let mut handles = Vec::new();
    for x in 0..3 {
        handles.push(one.start(&workflow, x).await.unwrap());
    }
    count.reaches(3).await;
    assert_eq!((one.running_count(), two.running_count()), (1, 2));
    latch.open();
    for (x, handle) in (0..).zip(handles) {
        assert_eq!(handle.result().await.unwrap(), x);
    }
    shut_down(one).await;
    shut_down(two).await;
}

const EVERYTHING: &[Call] = &[Call::Commit, Call::Claim, Call::Heartbeat, Call::Load, Call::List];

async fn a_lost_engine_is_taken_over_and_goes_on_anew(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let (workflow, steps) = (waiting("w", &count, &latch), steps());
    let (one, store) = engine(fixture, |b| b.register(&workflow).register(&steps)).await;
    let (two, _) = second_engine(fixture, |b| b.register(&workflow)).await;
    let handle = one.start(&workflow, 5).workflow_id("x").await.unwrap();
    count.reaches(1).await;
    let lost = row(&two, "x").await.owner.unwrap();
    // it stands still, as a stopped process does
    store.hold_calls(EVERYTHING);
    let staged: Vec<_> = (0..5)
        .map(|n| {
            let (one, steps) = (one.clone(), steps.clone());
            tokio::spawn(async move { one.run(&steps, n).workflow_id(format!("staged {n}")).await })
        })
        .collect();
    fixture.mark_dead(lost).await;
    count.reaches(2).await;
    let taken = row(&two, "x").await;
    assert_eq!((taken.status, taken.recoveries), (Status::Running, 1));
    assert_ne!(taken.owner, Some(lost));
    // the body that has gone on in the first engine ends first: nothing of it may be recorded
    store.release();
    for (n, run) in staged.into_iter().enumerate() {
        assert_eq!(run.await.unwrap().unwrap().len(), n, "starts outlive a lost registration");
    }
    assert_eq!(row(&two, "x").await.owner, taken.owner);
    latch.open();
    assert_eq!(handle.result().await.unwrap(), 5);
    assert_eq!(two.get::<i64>("x").await.unwrap().result().await.unwrap(), 5);
    assert_eq!(record(&two, "x").await.checkpoints.len(), 1);
    assert_eq!(one.run(&steps, 2).await.unwrap().len(), 2);
    assert_eq!(one.count(&Filter::default()).await.unwrap(), 7);
    shut_down(one).await;
    shut_down(two).await;
}

async fn shutting_down_flushes_what_is_staged(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (one, store) = engine(fixture, |b| b.register(&steps)).await;
    store.hold_calls(&[Call::Commit]);
    let starts: Vec<_> = (0..50)
        .map(|n| {
            let (one, steps) = (one.clone(), steps.clone());
            tokio::spawn(async move { one.start(&steps, n).workflow_id(format!("{n}")).await.map(drop) })
        })
        .collect();
    store.wait_until_hanging().await;
    let ending = {
        let one = one.clone();
        tokio::spawn(async move { one.shutdown(GRACE).await })
    };
    store.release();
    ending.await.unwrap().unwrap();
    let (two, _) = engine(fixture, |b| b.register(&steps)).await;
    for (n, start) in starts.into_iter().enumerate() {
        match start.await.unwrap() {
            Ok(()) => {
                let handle = two.get::<Vec<usize>>(&n.to_string()).await.unwrap();
                assert_eq!(handle.result().await.unwrap().len(), n, "what was acknowledged is there");
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    }
    shut_down(two).await;
}

/// Ends `one` by `end` while it runs something that `two` must then go on with.
async fn hands_on(fixture: &dyn StoreFixture, end: impl AsyncFnOnce(Engine)) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (one, _) = engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = second_engine(fixture, |b| b.register(&workflow)).await;
    for x in 0..5 {
        one.start(&workflow, x).workflow_id(format!("{x}")).await.unwrap();
    }
    count.reaches(5).await;
    end(one).await;
    count.reaches(10).await;
    latch.open();
    for x in 0..5 {
        let id = x.to_string();
        assert_eq!(two.get::<i64>(&id).await.unwrap().result().await.unwrap(), x);
        assert_eq!(record(&two, &id).await.execution.recoveries, 0, "nothing was lost");
    }
    shut_down(two).await;
}

async fn what_runs_is_handed_on_at_once(fixture: &dyn StoreFixture) {
    hands_on(fixture, shut_down).await;
}

async fn an_engine_that_is_dropped_hands_on(fixture: &dyn StoreFixture) {
    hands_on(fixture, async |engine| drop(engine)).await;
}

async fn nothing_is_accepted_after_a_shutdown(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, store) = engine(fixture, |b| b.register(&noop)).await;
    let handle = engine.start(&noop, 1).workflow_id("x").await.unwrap();
    handle.result().await.unwrap();
    engine.shutdown(GRACE).await.unwrap();
    let landed = store.committed_writes().len();
    for error in [
        engine.start(&noop, 1).await.map(drop).unwrap_err(),
        engine.run(&noop, 1).workflow_id("y").await.map(drop).unwrap_err(),
        engine.cancel("x").await.map(drop).unwrap_err(),
        engine.resume("x").await.map(drop).unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "SF-0012"), "{error}");
    }
    assert_eq!(handle.result().await.unwrap(), 1, "what is known stays known");
    assert_eq!(row(&engine, "x").await.status, Status::Completed);
    assert_eq!(store.committed_writes().len(), landed);
}

async fn who_waits_for_a_result_hears_of_the_shutdown(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (engine, _) = engine(fixture, |b| b.register(&workflow)).await;
    let run = {
        let (engine, workflow) = (engine.clone(), workflow.clone());
        tokio::spawn(async move { engine.run(&workflow, 1).workflow_id("x").await })
    };
    let handle = engine.start(&workflow, 2).await.unwrap();
    let result = tokio::spawn(async move { handle.result().await });
    count.reaches(2).await;
    let (again, same) = (engine.clone(), workflow.clone());
    let attached = tokio::spawn(async move { again.run(&same, 1).workflow_id("x").await });
    shut_down(engine).await;
    for waiter in [run, result, attached] {
        let error = waiter.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Shutdown), "{error}");
    }
}

async fn shutting_down_twice_is_once(fixture: &dyn StoreFixture) {
    let (engine, store) = engine(fixture, |b| b).await;
    store.hold_calls(&[Call::Close]);
    let mut both = [engine.clone(), engine.clone()]
        .map(|engine| tokio::spawn(async move { engine.shutdown(GRACE).await.unwrap() }));
    store.wait_until_hanging().await;
    for shutdown in &mut both {
        assert!((&mut *shutdown).now_or_never().is_none(), "it has not shut down yet");
    }
    store.release();
    for shutdown in both {
        shutdown.await.unwrap();
    }
    engine.shutdown(Duration::ZERO).await.unwrap();
}

async fn a_new_engine_finds_what_was_left_queued(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (one, _) = engine(fixture, |b| b.register(&workflow).max_running(1)).await;
    let ids: Vec<String> = (0..20).map(|n| format!("{n} {}", fresh_number())).collect();
    for (x, id) in (0..).zip(&ids) {
        one.start(&workflow, x).workflow_id(id.clone()).await.unwrap();
    }
    count.reaches(1).await;
    shut_down(one).await;
    latch.open();
    let (two, _) = engine(fixture, |b| b.register(&workflow).max_running(3)).await;
    for (x, id) in (0..).zip(&ids) {
        assert_eq!(two.get::<i64>(id).await.unwrap().result().await.unwrap(), x);
    }
    shut_down(two).await;
}

async fn it_renews_once_a_second_however_much_happens_elsewhere(fixture: &dyn StoreFixture) {
    let store = FaultStore::wrap(fixture.store());
    store.send_endless_hints();
    let begun = tokio::time::Instant::now();
    let engine = open(store.clone(), |b| b).await;
    store.wait_until_called(Call::Heartbeat, 100).await;
    let most = 2 + 2 * begun.elapsed().as_secs() as usize;
    assert!(store.renewal_count() <= most, "{} renewals in {:?}", store.renewal_count(), begun.elapsed());
    // and they do not fall by the wayside
    store.wait_until_renewed(3).await;
    shut_down(engine).await;
}

/// A worker claims what its threads can begin soon: twice as many as it has. Workflows that hold none are not
/// concerned.
async fn a_worker_leaves_to_others_what_its_threads_cannot_begin(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let in_thread = {
        let (count, latch) = (count.clone(), latch.clone());
        GuestWorkflow::new_guest("in thread", true, true, "", move |_branch, input| {
            let (count, latch) = (count.clone(), latch.clone());
            async move {
                count.more();
                latch.passed().await;
                Ok(input)
            }
        })
    };
    let noop = noop();
    let (left, _) = engine(fixture, |b| b.register(&in_thread).max_running(1)).await;
    let mut handles = Vec::new();
    for n in 0..21_i64 {
        let input = Payload::encode(&n).unwrap();
        handles.push(left.start_guest(&in_thread, input.into(), None).await.unwrap());
    }
    count.reaches(1).await;
    let with = |threads: usize| {
        let (in_thread, noop) = (in_thread.clone(), noop.clone());
        move |b: EngineBuilder| b.register(&in_thread).register(&noop).max_threads(threads)
    };
    let (one, store) = second_engine(fixture, with(2)).await;
    count.reaches(1 + 4).await;
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
    assert_eq!((count.get(), one.running_count()), (5, 4));
    let (two, _) = second_engine(fixture, with(3)).await;
    count.reaches(1 + 4 + 6).await;
    // those of another kind are claimed beside them
    let (starter, _) = second_engine(fixture, |b| b.register(&noop).serve_queues(["elsewhere"])).await;
    starter.set_queue(&Queue::new("q")).await.unwrap();
    let other = starter.start(&noop, 7).queue("q").await.unwrap();
    assert_eq!(other.result().await.unwrap(), 7);
    assert_eq!(count.get(), 11);
    latch.open();
    for (n, handle) in (0..21_i64).zip(handles) {
        assert_eq!(handle.payload().await.unwrap().decode::<i64>().unwrap(), n);
    }
    assert_eq!(count.get(), 21);
    for engine in [left, one, two, starter] {
        shut_down(engine).await;
    }
}
