//! Takeovers: exactly once, of many workers at once, and their duration.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use rustix::process::Signal;
use stepfast::payload::Payload;
use tokio::time::Instant;

use crate::chaos::Form;
use crate::chaos::connection::connect;
use crate::chaos::deployment::Deployment;
use crate::chaos::load::TICKS;
use crate::chaos::report::Report;
use crate::chaos::throughput::FaultImpact;
use crate::chaos::worker::CallKind;
use crate::chaos::worker_process::{WorkerEvent, WorkerOptions};
use crate::fixtures::postgres_server::PostgresServer;

/// Two workers try to take over the same dead worker at the same moment. Its executions are recovered exactly once.
///
/// A transaction holds the lanes of the dead worker until both have tried and detected its death; then both try at once.
pub(crate) async fn races(form: Form, _rng: Rng) -> Report {
    let mut deployment = Deployment::on_postgres(PostgresServer::shared(), form).await;
    let options = WorkerOptions::orders(8);
    let racers = deployment.start_workers(2, &options);
    deployment.wait_for_registrations(2).await;
    let mut sql = connect(&deployment.url).await.unwrap();
    let times = form.pick(2, 20);
    let impact = deployment
        .measure_fault(async |deployment| {
            for _ in 0..times {
                race(deployment, &mut sql, &racers, &options).await;
            }
        })
        .await;
    deployment.finish("two racing takeovers", times, impact).await
}

async fn race(
    deployment: &mut Deployment,
    sql: &mut tokio_postgres::Client,
    racers: &[usize],
    options: &WorkerOptions,
) {
    let target = deployment.start_worker(options);
    deployment.wait_for_registrations(racers.len() + 1).await;
    deployment
        .wait_until("ends of the target", |deployment| deployment.workers[target].end_count >= 10)
        .await;
    // the neighbour registers workers and clients too
    let pid = deployment.workers[target].pid();
    let worker = format!("SELECT worker_id FROM workers WHERE pid = {pid} AND NOT is_client");
    let worker = deployment.query_number(&worker).await.unwrap();
    let owned = "SELECT key::text, recoveries FROM executions WHERE owner = $1 AND status = 2";
    let (lock, rows) = loop {
        let lock = sql.transaction().await.unwrap();
        // none of its flushes is in progress, and none can begin
        lock.execute("SELECT FROM lanes WHERE worker_id = $1 FOR UPDATE", &[&worker]).await.unwrap();
        let rows = lock.query(owned, &[&worker]).await.unwrap();
        if !rows.is_empty() {
            break (lock, rows);
        }
        // all of its orders are suspended at this moment
        lock.rollback().await.unwrap();
        deployment.listen_for(Duration::from_millis(20)).await;
    };
    deployment.workers[target].kill();
    let before: HashMap<String, i32> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let waiting = "SELECT coalesce(max(pid), 0)::bigint FROM pg_stat_activity \
                   WHERE datname = current_database() \
                   AND application_name LIKE '% control' AND wait_event_type = 'Lock'";
    let (began, mut seen, mut turn) = (Instant::now(), HashSet::new(), 0);
    // one worker waits for the lock of the lanes, and the others leave the takeover to that one; the workers of the neighbour
    // observe leases too. Two workers are seen waiting at some time.
    while seen.len() < racers.len() {
        if began.elapsed() > Duration::from_secs(90) {
            let sessions = "SELECT string_agg(concat_ws(' ', pid, application_name, state, wait_event_type, wait_event, \
                            pg_blocking_pids(pid)::text, age(now(), xact_start)::text, left(query, 60)), '; ') \
                            FROM pg_stat_activity WHERE datname = current_database() AND application_name <> ''";
            let sessions: Option<String> = lock.query_one(sessions, &[]).await.unwrap().get(0);
            deployment.expect(false, || {
                let sessions = sessions.unwrap_or_default();
                format!("only {seen:?} tried to take over the target {worker}; sessions: {sessions}")
            });
            break;
        }
        deployment.listen_for(Duration::from_millis(20)).await;
        seen.extend(deployment.query_number(waiting).await.filter(|pid| *pid > 0));
        if began.elapsed().as_secs() % 7 == 6 {
            // The same one may be first each time. Without one of them, the other one is first; its wait of half a second and
            // the next renewal of the other one fit into the pause.
            stop_racers(deployment, &racers[turn..=turn], Duration::from_millis(1500), async {}).await;
            turn = (turn + 1) % racers.len();
        }
    }
    // both have detected the death; after SIGCONT they try at the same moment
    let pause = Duration::from_millis(1200);
    stop_racers(deployment, racers, pause, async { lock.rollback().await.unwrap() }).await;
    deployment.wait_for_registrations(racers.len()).await;
    deployment
        .wait_for_number(
            "the takeover of the target",
            &format!("SELECT count(*) FROM executions WHERE owner = {worker} AND status = 2"),
            |count| count == 0,
        )
        .await;
    let rows = "SELECT key::text, recoveries FROM executions WHERE key::text = ANY($1)";
    let keys: Vec<&String> = before.keys().collect();
    for row in sql.query(rows, &[&keys]).await.unwrap() {
        let (key, recoveries): (String, i32) = (row.get(0), row.get(1));
        let expected = before[&key] + 1;
        deployment.expect(recoveries == expected, || {
            format!("{key} was recovered {recoveries} times in all, not {expected} times")
        });
    }
}

/// Stops racers for a pause shorter than their leases, and continues them together after `then`.
async fn stop_racers(
    deployment: &mut Deployment,
    racers: &[usize],
    pause: Duration,
    then: impl Future<Output = ()>,
) {
    for &racer in racers {
        deployment.workers[racer].signal(Signal::STOP);
    }
    deployment.listen_for(pause).await;
    then.await;
    for &racer in racers {
        deployment.workers[racer].signal(Signal::CONT);
    }
}

/// The number of dead workers, and of the executions of each.
const DEAD_WORKERS: i64 = 1000;
const EXECUTIONS_PER_WORKER: i64 = 3;

/// A thousand dead workers have left registrations and executions. Two live workers recover each of them once, renew
/// their own leases in the meantime, and continue to run executions.
pub(crate) async fn thousand_dead(form: Form, _rng: Rng) -> Report {
    let mut deployment = Deployment::on_postgres(PostgresServer::shared(), form).await;
    let options = WorkerOptions::orders(4);
    deployment.start_workers(2, &options);
    deployment.wait_for_registrations(2).await;
    let sql = connect(&deployment.url).await.unwrap();
    let mut notes = Vec::new();
    let impact = deployment
        .measure_fault(async |deployment| notes = insert_dead_workers(deployment, &sql).await)
        .await;
    let of_living = "SELECT count(*) FROM executions WHERE recoveries > 0 AND workflow_id NOT LIKE 'dead-%'";
    let holds = deployment.query_number(of_living).await == Some(0);
    deployment.expect(holds, || "executions of live workers were taken over".into());
    let of_dead = "SELECT count(*) FROM executions WHERE recoveries <> 1 AND workflow_id LIKE 'dead-%'";
    let holds = deployment.query_number(of_dead).await == Some(0);
    deployment.expect(holds, || "an execution of a dead worker was not recovered exactly once".into());
    let mut report = deployment.finish("1,000 dead workers at once", 1, impact).await;
    report.notes.extend(notes);
    report
}

async fn insert_dead_workers(deployment: &mut Deployment, sql: &tokio_postgres::Client) -> Vec<String> {
    let n: u32 = 4;
    let input = Payload::encode(&n).unwrap();
    let insert = format!(
        "WITH dead AS (
             INSERT INTO workers (registered_at, lease_expires_at, pid, host, engine, workflows, is_client)
             SELECT now() - interval '1 hour', now() - interval '1 minute', pid, host, engine, workflows, false
             FROM generate_series(1, {DEAD_WORKERS}), (SELECT * FROM workers WHERE 'order' = ANY(workflows) LIMIT 1) AS living
             RETURNING worker_id
         ), lanes AS (
             INSERT INTO lanes (worker_id, epoch, lane)
             SELECT worker_id, 1, lane FROM dead, generate_series(0, 4) AS lane
         ), running AS (
             INSERT INTO executions (created_at, owner, status, key, workflow, workflow_id, input)
             SELECT now(), worker_id, 2, gen_random_uuid(), 'order', 'dead-' || worker_id || '-' || n, $1::bytea
             FROM dead, generate_series(1, {EXECUTIONS_PER_WORKER}) AS n
             RETURNING owner, key
         )
         INSERT INTO assignments (worker_id, lane, number, executions)
         SELECT owner, 0, 1, array_agg(key) FROM running GROUP BY owner"
    );
    let dead = "SELECT count(*) FROM workers WHERE registered_at < now() - interval '30 minutes'";
    let last = deployment.query_number("SELECT max(worker_id) FROM workers").await.unwrap();
    let bytes = input.as_bytes();
    sql.execute(&insert, &[&bytes]).await.unwrap();
    let began = Instant::now();
    let remaining_lease = format!(
        "SELECT (1000 * extract(epoch FROM min(lease_expires_at) - clock_timestamp()))::bigint FROM workers \
         WHERE worker_id <= {last}"
    );
    let ended = "SELECT count(*) FROM executions WHERE workflow_id LIKE 'dead-%' AND status = 4";
    let (mut shortest, mut fenced_after) = (i64::MAX, None);
    while deployment.query_number(ended).await != Some(DEAD_WORKERS * EXECUTIONS_PER_WORKER)
        && began.elapsed() < Duration::from_secs(180)
    {
        shortest = shortest.min(deployment.query_number(&remaining_lease).await.unwrap_or(i64::MAX));
        if fenced_after.is_none() && deployment.query_number(dead).await == Some(0) {
            fenced_after = Some(began.elapsed());
        }
        deployment.listen_for(Duration::from_millis(20)).await;
    }
    let duration = began.elapsed();
    let holds = deployment.query_number(ended).await == Some(DEAD_WORKERS * EXECUTIONS_PER_WORKER);
    deployment.expect(holds, || "executions of dead workers have not ended within three minutes".into());
    let ids =
        deployment.query_number("SELECT max(worker_id) FROM workers WHERE lease_expires_at > now()").await;
    deployment.expect(ids == Some(last), || "a live worker was taken over while it recovered others".into());
    deployment.expect(shortest > 0, || format!("a live worker was {} ms late to renew its lease", -shortest));
    vec![format!(
        "all fenced after {:.1} s, all of their {} executions ended after {:.1} s; a live lease had {shortest} ms \
         left, at least",
        fenced_after.unwrap_or(duration).as_secs_f64(),
        DEAD_WORKERS * EXECUTIONS_PER_WORKER,
        duration.as_secs_f64()
    )]
}

/// The workers that last ran each execution, and those that ran it after a kill.
#[derive(Default)]
struct TakeoverWatch {
    /// Unfinished executions: the worker that began the last body, and the time.
    last: HashMap<String, (usize, Instant)>,
    /// The killed worker, the time of its death, and its executions that no other worker has continued since.
    killed: Option<(usize, Instant, HashSet<String>)>,
    /// The time until a body began on another worker, for each execution.
    durations: Vec<Duration>,
}

impl TakeoverWatch {
    fn add_event(&mut self, event: &WorkerEvent) {
        let words: Vec<&str> = event.line.as_deref().unwrap_or_default().split(' ').collect();
        let ["body", _, execution, step, _] = words[..] else { return };
        if let Some((number, at, executions)) = &mut self.killed
            && *number != event.number
            && executions.remove(execution)
        {
            self.durations.push(event.at.duration_since(*at));
        }
        if step == format!("tick{}", TICKS - 1) {
            self.last.remove(execution);
        } else {
            self.last.insert(execution.to_owned(), (event.number, event.at));
        }
    }
}

/// Measures the time from the end of a worker until other workers continue its executions, after kills and shutdowns.
/// Returns a line for each, with the times of the first and of all executions, and the violations.
pub async fn measure_takeovers(is_sqlite: bool, times: usize) -> (Vec<String>, Vec<String>) {
    let form = Form::Short;
    let mut deployment = if is_sqlite {
        Deployment::alone_on_sqlite(form)
    } else {
        Deployment::alone_on_postgres(PostgresServer::shared(), form).await
    };
    let watch = Arc::new(Mutex::new(TakeoverWatch::default()));
    let sink = watch.clone();
    deployment.listener = Some(Box::new(move |event| sink.lock().unwrap().add_event(event)));
    let options = WorkerOptions { calls: CallKind::Ticks, ..WorkerOptions::orders(8) };
    deployment.start_workers(3, &options);
    deployment.wait_for_registrations(3).await;
    let mut lines = Vec::new();
    for (cause, is_kill) in [("SIGKILL", true), ("a shutdown", false)] {
        let (mut first, mut all) = (Vec::new(), Vec::new());
        for _ in 0..times {
            // long enough for all executions to tick
            deployment.listen_for(Duration::from_millis(1500)).await;
            let number = deployment.running_workers()[0];
            {
                let mut watch = watch.lock().unwrap();
                let at = Instant::now();
                let lately = at - Duration::from_millis(500);
                let own =
                    watch.last.iter().filter(|(_, (worker, since))| *worker == number && *since > lately);
                let own = own.map(|(execution, _)| execution.clone()).collect();
                watch.killed = Some((number, at, own));
            }
            if is_kill {
                deployment.workers[number].kill();
            } else {
                deployment.workers[number].send_command("shutdown");
            }
            let observed = watch.clone();
            let expected = observed.lock().unwrap().killed.as_ref().map_or(0, |killed| killed.2.len());
            deployment
                .wait_until("all executions on other workers", |_| {
                    observed.lock().unwrap().durations.len() >= expected
                })
                .await;
            let durations = std::mem::take(&mut watch.lock().unwrap().durations);
            if let (Some(min), Some(max)) = (durations.iter().min(), durations.iter().max()) {
                first.push(*min);
                all.push(*max);
            }
            watch.lock().unwrap().killed = None;
            deployment.start_worker(&options);
            deployment.wait_for_registrations(3).await;
        }
        lines.push(format!(
            "{:<9} {cause:<10} {:>3} times: next body on another worker {}; all of them {}",
            deployment.store_name(),
            first.len(),
            format_spread(&mut first),
            format_spread(&mut all)
        ));
    }
    deployment.listener = None;
    let report = deployment.finish("takeovers", 0, FaultImpact::default()).await;
    (lines, report.violations)
}

/// Formats the minimum, median, 99th percentile and maximum.
fn format_spread(times: &mut [Duration]) -> String {
    if times.is_empty() {
        return "never".to_owned();
    }
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part).round() as usize].as_secs_f64();
    format!("min {:.2} p50 {:.2} p99 {:.2} max {:.2} s", at(0.0), at(0.5), at(0.99), at(1.0))
}
