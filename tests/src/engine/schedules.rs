//! Schedules: each instant gets one execution, by the policies of its schedule.

use std::collections::BTreeSet;
use std::time::Duration;

use stepfast_core::clock::Timestamp;
use stepfast_core::store::{Execution, Status};
use stepfast_core::{
    Attributes, CatchUp, Client, Context, Engine, Error, Failure, Filter, OnConflict, Overlap, Schedule,
    ScheduleView, Workflow,
};

use super::support::{
    BodyResult, Count, Latch, latched_workflow, noop, open, open_engine, open_second_engine, row, shut_down,
};
use crate::StoreFixture;

super::cases![
    each_instant_gets_one_execution,
    downtime_is_caught_up_by_policy,
    overlap_skip_and_buffers,
    running_execution_is_cancelled_or_kept,
    paused_schedule_starts_nothing,
    deleted_schedule_can_be_set_again,
    triggered_execution_starts_at_once,
    backfill_starts_what_is_missing,
    failures_pause_a_schedule,
    changes_apply_without_a_worker,
    declared_schedules_follow_their_conflict_policy,
    bad_schedules_are_refused,
    instant_with_an_execution_gets_no_other,
    code_reads_its_instant,
    several_workers_share_schedules,
    schedule_runs_in_any_version,
    stopped_schedule_says_so,
];

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Returns the executions of a schedule, oldest instant first.
async fn executions_of(engine: &Engine, schedule: &str) -> Vec<Execution> {
    let mut attributes = Attributes::NONE;
    attributes.set("schedule", schedule);
    let filter = Filter { attributes, limit: 1_000, ..Filter::default() };
    let mut executions = engine.list(&filter).await.unwrap().executions;
    executions.sort_by(|a, b| a.given_id.cmp(&b.given_id));
    executions
}

fn ids(executions: &[Execution]) -> Vec<&str> {
    executions.iter().map(|it| it.given_id.as_deref().unwrap()).collect()
}

/// Waits until the schedule's view fulfils a condition.
async fn wait_for_view(engine: &Engine, name: &str, is_met: impl Fn(&ScheduleView) -> bool) -> ScheduleView {
    loop {
        let view = engine.schedule(name).await.unwrap();
        if is_met(&view) {
            return view;
        }
        tokio::task::yield_now().await;
    }
}

async fn each_instant_gets_one_execution(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let schedule = Schedule::new("s", &workflow, &7).unwrap().every(SECOND).attribute("tenant", "acme");
    // no instant is skipped, however slow the machine is
    let schedule = schedule.overlap(Overlap::Allow).catch_up(CatchUp::All);
    engine.set_schedule(&schedule).await.unwrap();
    let view = wait_for_view(&engine, "s", |view| view.started >= 3).await;
    assert_eq!(view.schedule, schedule);
    assert_eq!((view.workflow_id.as_str(), view.error), ("schedule:s", None));
    engine.delete_schedule("s").await.unwrap();
    let executions = executions_of(&engine, "s").await;
    assert!(executions.len() >= 3, "{}", executions.len());
    for pair in executions.windows(2) {
        let instant = |it: &Execution| {
            let id = it.given_id.as_deref().unwrap();
            let text = id.strip_prefix("s@").and_then(|it| it.strip_suffix('Z')).unwrap();
            let (minutes, seconds) = text.rsplit_once(':').unwrap();
            (minutes.to_owned(), seconds.parse::<i64>().unwrap())
        };
        let ((minute, second), (next_minute, next_second)) = (instant(&pair[0]), instant(&pair[1]));
        let is_next = (minute == next_minute && next_second == second + 1)
            || (second == 59 && next_second == 0 && minute != next_minute);
        assert!(is_next, "{:?}", ids(&executions));
    }
    for execution in &executions {
        assert_eq!(execution.attributes.get("tenant"), Some("acme"));
        let handle = engine.get::<i64>(execution.given_id.as_deref().unwrap()).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), 7);
    }
    shut_down(engine).await;
}

async fn downtime_is_caught_up_by_policy(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let first = fixture.now().plus(10 * MINUTE);
    for policy in CatchUp::ALL {
        let name = policy.as_str();
        let schedule = Schedule::new(name, &workflow, &7).unwrap().every(HOUR).starts_at(first);
        engine.set_schedule(&schedule.catch_up(policy).overlap(Overlap::Allow)).await.unwrap();
    }
    // every second, for an hour
    let seconds = Schedule::new("seconds", &workflow, &7).unwrap().every(SECOND).starts_at(first);
    let ends_at = first.plus(300 * SECOND);
    engine
        .set_schedule(&seconds.catch_up(CatchUp::All).overlap(Overlap::Allow).ends_at(ends_at))
        .await
        .unwrap();
    shut_down(engine).await;
    fixture.clock().advance(3 * HOUR + 30 * MINUTE);
    let (engine, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    let now = fixture.now();
    for policy in CatchUp::ALL {
        let expected = match policy {
            CatchUp::None => 0,
            CatchUp::Last => 1,
            CatchUp::All => 4,
        };
        let is_done = |view: &ScheduleView| view.next.is_some_and(|it| it > now) && view.started >= expected;
        let view = wait_for_view(&engine, policy.as_str(), is_done).await;
        assert_eq!(view.next, Some(first.plus(4 * HOUR)));
        let executions = executions_of(&engine, policy.as_str()).await;
        assert_eq!(executions.len() as u64, expected, "{policy:?}: {:?}", ids(&executions));
        assert_eq!(view.started, expected);
    }
    let last = engine.schedule("last").await.unwrap().last_started;
    assert_eq!(last, Some(first.plus(3 * HOUR)));
    wait_for_view(&engine, "seconds", |view| view.started == 301).await;
    let executions = executions_of(&engine, "seconds").await;
    assert_eq!(ids(&executions).into_iter().collect::<BTreeSet<_>>().len(), 301);
    shut_down(engine).await;
}

async fn overlap_skip_and_buffers(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &begun, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    for policy in [Overlap::Skip, Overlap::BufferOne, Overlap::BufferAll] {
        let schedule = Schedule::new(policy.as_str(), &workflow, &7).unwrap().every(SECOND).overlap(policy);
        engine.set_schedule(&schedule).await.unwrap();
    }
    wait_for_view(&engine, "skip", |view| view.skipped >= 2).await;
    wait_for_view(&engine, "buffer_one", |view| view.buffered == 1 && view.skipped >= 1).await;
    wait_for_view(&engine, "buffer_all", |view| view.buffered >= 3).await;
    for policy in [Overlap::Skip, Overlap::BufferOne, Overlap::BufferAll] {
        let view = engine.schedule(policy.as_str()).await.unwrap();
        assert_eq!((view.started, executions_of(&engine, policy.as_str()).await.len()), (1, 1), "{policy:?}");
        assert_eq!(view.skips.len() as u64, view.skipped.min(10));
    }
    latch.open();
    wait_for_view(&engine, "skip", |view| view.started >= 2).await;
    wait_for_view(&engine, "buffer_one", |view| view.started >= 3).await;
    let view = wait_for_view(&engine, "buffer_all", |view| view.started >= 5 && view.buffered == 0).await;
    assert_eq!(view.skipped, 0);
    shut_down(engine).await;
}

async fn running_execution_is_cancelled_or_kept(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &begun, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    for policy in [Overlap::CancelRunning, Overlap::Allow] {
        let schedule = Schedule::new(policy.as_str(), &workflow, &7).unwrap().every(SECOND).overlap(policy);
        engine.set_schedule(&schedule).await.unwrap();
    }
    for policy in [Overlap::CancelRunning, Overlap::Allow] {
        wait_for_view(&engine, policy.as_str(), |view| view.started >= 3).await;
    }
    let cancelled = executions_of(&engine, "cancel_running").await;
    assert_eq!(cancelled[0].status, Status::Cancelled);
    assert!(cancelled.iter().filter(|it| !it.status.is_terminal()).count() <= 1);
    let allowed = executions_of(&engine, "allow").await;
    assert!(allowed.iter().all(|it| !it.status.is_terminal()), "{:?}", ids(&allowed));
    latch.open();
    shut_down(engine).await;
}

async fn paused_schedule_starts_nothing(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    engine.set_schedule(&Schedule::new("s", &workflow, &7).unwrap().every(SECOND)).await.unwrap();
    wait_for_view(&engine, "s", |view| view.started >= 1).await;
    engine.pause_schedule("s", "maintenance").await.unwrap();
    let view = engine.schedule("s").await.unwrap();
    let pause = view.pause.unwrap();
    assert_eq!((pause.reason.as_str(), pause.is_automatic, view.next), ("maintenance", false, None));
    // an answered question shows that the pause was applied
    let handle = engine.trigger_schedule::<i64>("s").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 7);
    let started = engine.schedule("s").await.unwrap().started;
    let other = Schedule::new("other", &workflow, &7).unwrap().every(SECOND);
    engine.set_schedule(&other).await.unwrap();
    wait_for_view(&engine, "other", |view| view.started >= 3).await;
    assert_eq!(engine.schedule("s").await.unwrap().started, started);
    engine.resume_schedule("s").await.unwrap();
    let resumed_at = engine.schedule("s").await.unwrap().next.unwrap();
    wait_for_view(&engine, "s", |view| view.started > started).await;
    // no instant of the pause has an execution
    let executions = executions_of(&engine, "s").await;
    let regular = executions.iter().filter(|it| !it.given_id.as_deref().unwrap().contains("trigger"));
    let late = regular.filter(|it| it.created_at >= resumed_at.minus(SECOND)).count();
    assert_eq!(late as u64, engine.schedule("s").await.unwrap().started - started);
    shut_down(engine).await;
}

async fn deleted_schedule_can_be_set_again(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let schedule = Schedule::new("s", &workflow, &7).unwrap().every(SECOND);
    engine.set_schedule(&schedule).await.unwrap();
    wait_for_view(&engine, "s", |view| view.started >= 1).await;
    engine.delete_schedule("s").await.unwrap();
    assert!(matches!(engine.schedule("s").await, Err(Error::UnknownSchedule { .. })));
    assert!(matches!(engine.pause_schedule("s", "").await, Err(Error::UnknownSchedule { .. })));
    assert_eq!(engine.schedules().await.unwrap(), []);
    engine.set_schedule(&schedule.clone().every(HOUR)).await.unwrap();
    let view = engine.schedule("s").await.unwrap();
    assert_eq!((view.started, view.schedule), (0, schedule.every(HOUR)));
    assert_eq!(engine.schedules().await.unwrap().len(), 1);
    shut_down(engine).await;
}

async fn triggered_execution_starts_at_once(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    engine.set_schedule(&Schedule::new("s", &workflow, &7).unwrap().cron("0 0 1 1 *")).await.unwrap();
    let client = Client::open(fixture.second_store().await).await.unwrap();
    let handles = [
        client.trigger_schedule::<i64>("s").await.unwrap(),
        client.trigger_schedule::<i64>("s").await.unwrap(),
    ];
    for handle in &handles {
        assert!(handle.workflow_id().starts_with("s@trigger-"), "{}", handle.workflow_id());
        assert_eq!(handle.result().await.unwrap(), 7);
    }
    assert_eq!(client.schedule("s").await.unwrap().started, 2);
    assert!(matches!(client.trigger_schedule::<i64>("x").await, Err(Error::UnknownSchedule { .. })));
    shut_down(client.into_engine()).await;
    shut_down(engine).await;
}

async fn backfill_starts_what_is_missing(fixture: &dyn StoreFixture) {
    let running = Count::new();
    let peak = Count::new();
    let workflow = {
        let (running, peak) = (running.clone(), peak.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (running, peak) = (running.clone(), peak.clone());
            async move {
                cx.step("body", async || {
                    while peak.get() < running.get() + 1 {
                        peak.increment();
                    }
                    running.increment();
                    tokio::task::yield_now().await;
                    running.decrement();
                    BodyResult::Ok(())
                })
                .await
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let now = fixture.now();
    // the next instant is half an hour away
    let schedule = Schedule::new("s", &workflow, &()).unwrap().every(HOUR);
    let schedule = schedule.starts_at(now.minus(30_000 * HOUR + HOUR / 2));
    engine.set_schedule(&schedule).await.unwrap();
    let from = |hours: u32| now.minus(hours * HOUR);
    assert_eq!(engine.backfill_schedule("s", from(3), now).await.unwrap(), 3);
    wait_for_view(&engine, "s", |view| view.started == 3 && view.backfills == 0).await;
    // executions of one backfill start one after the other
    assert_eq!(peak.get(), 1);
    // more instants than one part has, most of which have their executions
    assert_eq!(engine.backfill_schedule("s", from(6), now).await.unwrap(), 6);
    wait_for_view(&engine, "s", |view| view.started == 6 && view.backfills == 0).await;
    let allowing = schedule.overlap(Overlap::Allow);
    engine.set_schedule(&allowing).await.unwrap();
    assert_eq!(engine.backfill_schedule("s", from(500), now).await.unwrap(), 500);
    wait_for_view(&engine, "s", |view| view.started == 500 && view.backfills == 0).await;
    let executions = executions_of(&engine, "s").await;
    assert_eq!(ids(&executions).into_iter().collect::<BTreeSet<_>>().len(), 500);
    for (from, until) in [(now, from(1)), (from(20_000), now), (from(1), now.plus(MINUTE)), (now, now)] {
        let refused = engine.backfill_schedule("s", from, until).await;
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    }
    shut_down(engine).await;
}

async fn failures_pause_a_schedule(fixture: &dyn StoreFixture) {
    let failing =
        Workflow::new(
            "failing",
            |_: Context, (): ()| async move { BodyResult::<()>::Err(Failure::new("no")) },
        );
    let (engine, _) = open_engine(fixture, |b| b.register(&failing)).await;
    let schedule = Schedule::new("s", &failing, &()).unwrap().every(SECOND).pause_after(2);
    engine.set_schedule(&schedule).await.unwrap();
    let view = wait_for_view(&engine, "s", |view| view.pause.is_some()).await;
    assert!(view.pause.as_ref().is_some_and(|pause| pause.is_automatic), "{view:?}");
    assert_eq!((view.started, view.failures), (2, 2));
    engine.resume_schedule("s").await.unwrap();
    let view = engine.schedule("s").await.unwrap();
    assert_eq!((view.pause, view.failures), (None, 0));
    wait_for_view(&engine, "s", |view| view.pause.is_some() && view.started == 4).await;
    shut_down(engine).await;
}

async fn changes_apply_without_a_worker(fixture: &dyn StoreFixture) {
    let client = Client::open(fixture.store()).await.unwrap();
    let workflow = noop();
    let schedule = Schedule::new("s", &workflow, &7).unwrap().every(HOUR);
    let before = fixture.now();
    client.set_schedule(&schedule).await.unwrap();
    let view = client.schedule("s").await.unwrap();
    // the hour may end here
    assert!(view.next.is_some_and(|next| next > before), "{view:?}");
    client.pause_schedule("s", "").await.unwrap();
    assert!(client.schedule("s").await.unwrap().pause.is_some());
    client.resume_schedule("s").await.unwrap();
    client.set_schedule(&schedule.clone().every(2 * HOUR)).await.unwrap();
    assert_eq!(client.schedules().await.unwrap()[0].schedule, schedule.clone().every(2 * HOUR));
    client.delete_schedule("s").await.unwrap();
    assert_eq!(client.schedules().await.unwrap(), []);
    client.set_schedule(&schedule.clone().every(SECOND)).await.unwrap();
    // instants after the setting count, even if no worker runs
    let late = Schedule::new("late", &workflow, &7).unwrap().at(fixture.now().plus(HOUR));
    client.set_schedule(&late).await.unwrap();
    assert!(!client.schedule("late").await.unwrap().is_late);
    fixture.clock().advance(2 * HOUR);
    // the next client finds the time
    let other = Client::open(fixture.second_store().await).await.unwrap();
    assert!(other.schedule("late").await.unwrap().is_late);
    shut_down(other.into_engine()).await;
    let engine = open(fixture.second_store().await, |b| b.register(&workflow)).await;
    wait_for_view(&client, "s", |view| view.started >= 1).await;
    let view = wait_for_view(&client, "late", |view| view.started == 1).await;
    assert!(!view.is_late);
    assert_eq!((view.next, executions_of(&client, "late").await.len()), (None, 1));
    shut_down(engine).await;
    shut_down(client.into_engine()).await;
}

async fn declared_schedules_follow_their_conflict_policy(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let schedule = |hours: u32| Schedule::new("s", &workflow, &7).unwrap().every(hours * HOUR);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow).schedule(schedule(1))).await;
    assert_eq!(engine.schedule("s").await.unwrap().schedule, schedule(1));
    shut_down(engine).await;
    for (policy, expected) in [(OnConflict::Update, 2), (OnConflict::Keep, 2)] {
        let hours = if policy == OnConflict::Keep { 3 } else { 2 };
        let (engine, _) =
            open_engine(fixture, |b| b.register(&workflow).declare_schedule(schedule(hours), policy)).await;
        assert_eq!(engine.schedule("s").await.unwrap().schedule, schedule(expected), "{policy:?}");
        shut_down(engine).await;
    }
    let builder = Engine::builder(fixture.store()).register(&workflow);
    let opened = builder.declare_schedule(schedule(3), OnConflict::Reject).open().await;
    assert!(matches!(opened, Err(Error::ScheduleConflict { .. })));
    let (engine, _) =
        open_engine(fixture, |b| b.register(&workflow).declare_schedule(schedule(2), OnConflict::Reject))
            .await;
    shut_down(engine).await;
    // a declaration stays valid after its last instant
    let once = Schedule::new("once", &workflow, &7).unwrap().at(fixture.now().plus(SECOND));
    for _ in 0..2 {
        let (engine, _) = open_engine(fixture, |b| b.register(&workflow).schedule(once.clone())).await;
        wait_for_view(&engine, "once", |view| view.started == 1).await;
        shut_down(engine).await;
    }
}

async fn bad_schedules_are_refused(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let schedule = |name: &str| Schedule::new(name, &workflow, &7).unwrap();
    let past = fixture.now().minus(HOUR);
    let bad = [
        schedule("s"),
        schedule("s").cron("* * * * *").every(HOUR),
        schedule("s").cron("* * *"),
        schedule("s").cron("0 0 31 2 *"),
        schedule("s").cron("* * * * *").timezone("Mars/Olympus"),
        schedule("s").every(HOUR).timezone("UTC"),
        schedule("s").every(Duration::ZERO),
        schedule("s").every(Duration::from_millis(999)),
        schedule("s").every(Duration::MAX),
        schedule("s").every(HOUR).jitter(Duration::MAX),
        schedule("s").at(past),
        schedule("s").every(HOUR).ends_at(past),
        schedule("s").every(HOUR).starts_at(fixture.now()).ends_at(past),
        schedule("s").every(HOUR).pause_after(0),
        schedule("s").every(HOUR).attribute("schedule", "x"),
        schedule("s").every(HOUR).attribute("", "x"),
        schedule("s").every(HOUR).priority(1),
        schedule("s").every(HOUR).starts_at(Timestamp::from_micros(i64::MAX)),
        schedule("").every(HOUR),
        schedule("a@b").every(HOUR),
        schedule("a#1").every(HOUR),
        schedule("a\0").every(HOUR),
        schedule(&"n".repeat(129)).every(HOUR),
    ];
    for schedule in bad {
        let refused = engine.set_schedule(&schedule).await;
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{schedule:?}: {refused:?}");
    }
    let text = Workflow::new("text", |_: Context, _: String| async move { BodyResult::Ok(()) });
    let large = Schedule::new("s", &text, &"x".repeat(40_000)).unwrap().every(HOUR);
    let refused = engine.set_schedule(&large).await;
    assert!(matches!(refused, Err(Error::Invalid { input: "input", .. })), "{refused:?}");
    let unknown = Schedule::new("s", &text, &String::new()).unwrap().every(HOUR);
    let refused = engine.set_schedule(&unknown).await;
    assert!(matches!(refused, Err(Error::UnknownWorkflow { .. })), "{refused:?}");
    let refused = engine.set_schedule(&schedule("s").every(HOUR).queue("none")).await;
    assert!(matches!(refused, Err(Error::UnknownQueue { .. })), "{refused:?}");
    assert_eq!(engine.schedules().await.unwrap(), []);
    shut_down(engine).await;
}

async fn instant_with_an_execution_gets_no_other(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let first = fixture.now().plus(3 * SECOND);
    let id = format!("s@{}", jiff::Timestamp::from_microsecond(first.as_micros()).unwrap());
    // with another input, as after a change of the schedule
    let handle = engine.start(&workflow, 8).workflow_id(&*id).await.unwrap();
    let schedule = Schedule::new("s", &workflow, &7).unwrap().every(SECOND).starts_at(first);
    engine.set_schedule(&schedule.catch_up(CatchUp::All)).await.unwrap();
    let view = wait_for_view(&engine, "s", |view| view.started >= 1).await;
    assert_eq!((view.failures, view.error), (0, None));
    let executions = executions_of(&engine, "s").await;
    assert!(!ids(&executions).contains(&&*id), "{:?}", ids(&executions));
    assert_eq!(handle.result().await.unwrap(), 8);
    shut_down(engine).await;
}

async fn code_reads_its_instant(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |cx: Context, (): ()| async move {
        BodyResult::Ok(cx.scheduled_at().map(Timestamp::as_micros))
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let instant =
        Timestamp::from_micros(fixture.now().plus(4 * SECOND).as_micros() / 1_000_000 * 1_000_000 + 7);
    engine.set_schedule(&Schedule::new("s", &workflow, &()).unwrap().at(instant)).await.unwrap();
    wait_for_view(&engine, "s", |view| view.started == 1).await;
    let id = executions_of(&engine, "s").await[0].given_id.clone().unwrap();
    let handle = engine.get::<Option<i64>>(&id).await.unwrap();
    assert_eq!(handle.result().await.unwrap(), Some(instant.as_micros()));
    let handle = engine.trigger_schedule::<Option<i64>>("s").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), None);
    assert_eq!(engine.run(&workflow, ()).await.unwrap(), None);
    shut_down(engine).await;
}

async fn several_workers_share_schedules(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    let from = fixture.now();
    for number in 0..50 {
        let schedule = Schedule::new(format!("s{number}"), &workflow, &number).unwrap().every(SECOND);
        one.set_schedule(&schedule).await.unwrap();
    }
    assert_eq!(two.schedules().await.unwrap().len(), 50);
    for number in 0..50 {
        wait_for_view(&one, &format!("s{number}"), |view| view.started >= 2).await;
    }
    shut_down(one).await;
    for number in 0..50 {
        let name = format!("s{number}");
        let started = two.schedule(&name).await.unwrap().started;
        wait_for_view(&two, &name, |view| view.started > started).await;
        two.pause_schedule(&name, "").await.unwrap();
        let executions = executions_of(&two, &name).await;
        let seconds = executions.len() as u64;
        assert!(seconds <= fixture.now().since(from).as_secs() + 1);
        assert_eq!(two.schedule(&name).await.unwrap().error, None);
    }
    shut_down(two).await;
}

async fn schedule_runs_in_any_version(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow).app_version("1")).await;
    engine.set_schedule(&Schedule::new("s", &workflow, &7).unwrap().every(SECOND)).await.unwrap();
    wait_for_view(&engine, "s", |view| view.started >= 1).await;
    shut_down(engine).await;
    let (engine, _) = open_second_engine(fixture, |b| b.register(&workflow).app_version("2")).await;
    let started = engine.schedule("s").await.unwrap().started;
    wait_for_view(&engine, "s", |view| view.started > started + 1).await;
    for execution in executions_of(&engine, "s").await {
        assert_eq!(execution.app_version, None);
    }
    assert_eq!(row(&engine, "schedule:s").await.app_version, None);
    shut_down(engine).await;
}

async fn stopped_schedule_says_so(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    engine.set_schedule(&Schedule::new("s", &workflow, &7).unwrap().every(SECOND)).await.unwrap();
    wait_for_view(&engine, "s", |view| view.started >= 1).await;
    engine.cancel("schedule:s").await.unwrap();
    let view = wait_for_view(&engine, "s", |view| view.stopped.is_some()).await;
    assert!(view.stopped.is_some_and(|reason| reason.contains("cancelled")));
    let refused = engine.trigger_schedule::<i64>("s").await.map(|_| ());
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    let started = engine.schedule("s").await.unwrap().started;
    engine.resume("schedule:s").await.unwrap();
    wait_for_view(&engine, "s", |view| view.started > started).await;
    shut_down(engine).await;
}
