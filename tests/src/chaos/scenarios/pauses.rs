//! A busy queue that is paused, resumed and given other limits at random, while its workers are killed.
//!
//! Workers start and run as many executions as they can. An [`Operator`] changes the queue. After each change, a
//! [`QueueSnapshot`] compares slots, running executions and limits: see [`BusyQueue`]. From time to time the operator
//! pauses, and the queue reaches a quiet point, at which counts alone show that no execution is stuck.

use std::collections::HashMap;
use std::time::Duration;

use fastrand::Rng;
use stepfast::queue::Limits;
use stepfast::store::{Outcome, StoreError, Transition, Write};
use tokio::time::Instant;

use crate::Worker;
use crate::chaos::Form;
use crate::chaos::busy_queue::{
    BusyQueue, FEED_SIZE, QueueFigures, TARGET_BACKLOG, WorkerReports, normalize_key,
};
use crate::chaos::deployment::Deployment;
use crate::chaos::operator::Operator;
use crate::chaos::queue_snapshot::QueueSnapshot;
use crate::chaos::report::Report;
use crate::chaos::throughput::FaultImpact;
use crate::fixtures::builders::queued;
use crate::fixtures::postgres_server::PostgresServer;

const WORKERS: usize = 3;
/// Time from change to change, in milliseconds.
const PAUSE_MILLIS: std::ops::Range<u64> = 0..120;
/// Maximum number of claims that may be empty although there is capacity: a claim that meets another one may return
/// empty.
const MAX_EMPTY_CLAIMS: usize = 20;

/// A queue under load is paused, resumed and given other limits, while workers are killed. No count exceeds its
/// limit, slots match the running executions, and executions within the limits begin.
pub(crate) async fn on_postgres(form: Form, mut rng: Rng) -> Report {
    let mut reports = Vec::new();
    for round in Round::plan(form, &mut rng) {
        reports.push(round.run(Deployment::on_postgres(PostgresServer::shared(), form).await).await);
    }
    sum_reports(reports)
}

/// The scenario on a SQLite file.
pub(crate) async fn on_sqlite(form: Form, mut rng: Rng) -> Report {
    let mut reports = Vec::new();
    for round in Round::plan(form, &mut rng) {
        reports.push(round.run(Deployment::on_sqlite(form).await).await);
    }
    sum_reports(reports)
}

fn sum_reports(reports: Vec<Report>) -> Report {
    let (mut all, rounds) = (Report::default(), reports.len() as f64);
    for report in reports {
        (all.fault, all.store) = (report.fault, report.store);
        all.executions += report.executions;
        all.times += report.times;
        all.takeovers += report.takeovers;
        all.impact.during += report.impact.during / rounds;
        all.violations.extend(report.violations);
        all.notes.extend(report.notes);
    }
    all
}

/// The events on one database.
struct Round {
    rng: Rng,
    changes: u64,
    kills: u64,
    has_rates: bool,
}

impl Round {
    /// Returns the rounds of a form: every second one has rates.
    fn plan(form: Form, rng: &mut Rng) -> Vec<Self> {
        let rounds = form.pick(1, 5);
        let first = rng.bool();
        let round = |n: u64| Round {
            rng: rng.fork(),
            changes: form.pick(40, 1_000) / rounds,
            kills: form.pick(4, 60) / rounds,
            has_rates: first == n.is_multiple_of(2),
        };
        (0..rounds).map(round).collect()
    }

    async fn run(self, deployment: Deployment) -> Report {
        let Self { mut rng, changes, mut kills, has_rates } = self;
        let operator = Operator::new(&deployment.url, rng.fork(), has_rates).await.unwrap();
        let to_quiet_point = deployment.form.pick(13, 25);
        let mut quiet = QuietPoints {
            queue: BusyQueue::new(deployment, operator),
            points: 0,
            claimed: 0,
            slowest: Duration::ZERO,
        };
        quiet.queue.start_workers(WORKERS).await;
        for change in 0..changes {
            if rng.u64(0..changes - change) < kills {
                kills = kills.saturating_sub(quiet.queue.change_and_kill(&mut rng).await);
            } else {
                quiet.queue.operator.change_at_random().await;
            }
            quiet.queue.run_for(Duration::from_millis(rng.u64(PAUSE_MILLIS))).await;
            if change % to_quiet_point == to_quiet_point - 1 {
                match quiet.points % 3 {
                    0 => quiet.run_with_closed_gates(&mut rng).await,
                    1 => quiet.run_without_workers().await,
                    _ => quiet.run_pause().await,
                }
                quiet.points += 1;
            }
        }
        quiet.finish(has_rates).await
    }
}

/// The quiet points of a busy queue.
struct QuietPoints {
    queue: BusyQueue,
    /// Number of quiet points so far.
    points: u64,
    /// Number of executions claimed at quiet points.
    claimed: u64,
    /// Longest time until workers had claimed all executions within the limits.
    slowest: Duration,
}

impl QuietPoints {
    /// Starts executions until enough wait. No execution may begin or end in the meantime.
    async fn fill(&mut self) {
        while self.queue.observe().await.is_none_or(|snapshot| snapshot.ready_count() < TARGET_BACKLOG) {
            self.queue.command_all(&format!("feed {FEED_SIZE}")).await;
        }
        self.queue.wait_for_replies().await;
    }

    /// Pauses the queue, and waits until no execution runs.
    async fn pause_until_idle(&mut self) {
        self.queue.operator.pause().await;
        self.fill().await;
        let snapshot =
            self.queue.observe_until("the end of all running executions", |it| it.running.is_empty()).await;
        let is_idle =
            snapshot.is_paused && snapshot.slots.is_empty() && snapshot.ready_count() >= TARGET_BACKLOG;
        self.queue.deployment.expect(is_idle, || format!("paused, but not idle: {snapshot}"));
    }

    /// A quiet point at which the queue is paused until no execution runs.
    async fn run_pause(&mut self) {
        self.pause_until_idle().await;
        self.queue.operator.resume().await;
        let snapshot = self.queue.observe_now().await;
        self.queue.reset_progress(&snapshot);
    }

    /// A quiet point at which all workers are killed and a single worker claims. The limits determine the number of
    /// claimed executions.
    async fn run_without_workers(&mut self) {
        self.pause_until_idle().await;
        let running = self.queue.deployment.running_workers();
        self.queue.kill(&running);
        self.queue.operator.resume().await;
        self.claim_and_requeue(true).await;
        self.queue.start_workers(WORKERS).await;
        let snapshot = self.queue.observe_now().await;
        self.queue.reset_progress(&snapshot);
    }

    /// A quiet point at which no execution ends: workers claim all executions within the limits. Sometimes one of
    /// them is killed, and others claim what its death permits.
    async fn run_with_closed_gates(&mut self, rng: &mut Rng) {
        self.queue.command_all("close").await;
        self.queue.operator.pause().await;
        self.fill().await;
        let limits = self.queue.operator.random_limits();
        self.queue.operator.set(limits).await;
        self.queue.operator.resume().await;
        self.wait_until_full().await;
        if rng.bool() {
            let running = self.queue.deployment.running_workers();
            self.queue.kill(&[running[rng.usize(0..running.len())]]);
            self.queue.start_workers(1).await;
            self.queue.command_all("close").await;
            self.wait_until_full().await;
        }
        self.claim_and_requeue(false).await;
        self.queue.command_all("open").await;
        let snapshot = self.queue.observe_now().await;
        self.queue.reset_progress(&snapshot);
    }

    /// Waits until the running workers have claimed all executions within the limits.
    async fn wait_until_full(&mut self) {
        let (began, pids) = (Instant::now(), self.queue.pids());
        let is_full = |snapshot: &QueueSnapshot| {
            let workers = snapshot.workers_of_processes(&pids);
            let is_suspended = snapshot.statuses.get(&3).is_some_and(|count| *count > 0);
            workers.len() == pids.len()
                && snapshot.capacity_of_workers(&workers) == 0
                && snapshot.unknown_owners(&workers).is_empty()
                && !is_suspended
        };
        self.queue.observe_until("workers that have claimed all executions within the limits", is_full).await;
        self.slowest = self.slowest.max(began.elapsed());
    }

    /// A worker claims until the queue has no capacity for it, and requeues its executions. If it `is_alone`, it must
    /// claim exactly as many as the limits allow.
    async fn claim_and_requeue(&mut self, is_alone: bool) {
        let queue = &mut self.queue;
        let store = stepfast::connect(&queue.deployment.url).await.unwrap();
        let mut worker = Worker::register_for(&store, &["gated"]).await;
        // the second service would take over a worker that needs longer than a lease
        let renewals = tokio::spawn({
            let (store, id, epoch) = (store.clone(), worker.id, worker.epoch);
            async move {
                let mut ticks = tokio::time::interval(Duration::from_millis(500));
                loop {
                    ticks.tick().await;
                    let _ = store.renew(id, epoch).await;
                }
            }
        });
        let snapshot = queue.observe_now().await;
        let (capacity, mut empty, mut taken) = (snapshot.capacity_of_workers(&[worker.id.0]), 0, Vec::new());
        // executions beyond a rate come later
        let is_rated = loop {
            let claim = worker.new_claim(10_000);
            let claimed = match worker.send_claim(&claim).await {
                // another process held the write lock for more than a second
                Err(StoreError::Unavailable(_)) if queue.deployment.is_sqlite() => continue,
                claimed => claimed.unwrap(),
            };
            let (is_empty, is_rated) = (claimed.records.is_empty(), claimed.retry_at.is_some());
            taken.extend(claimed.records);
            let snapshot = queue.observe_now().await;
            if is_empty && (is_rated || snapshot.capacity_of_workers(&[worker.id.0]) == 0) {
                break is_rated;
            }
            empty += usize::from(is_empty);
            if empty > MAX_EMPTY_CLAIMS {
                let violation = format!("{MAX_EMPTY_CLAIMS} claims were empty despite capacity: {snapshot}");
                queue.deployment.promises.violations.push(violation);
                break is_rated;
            }
        };
        let count = taken.len() as u64;
        self.claimed += count;
        queue.deployment.expect(!is_alone || is_rated || count == capacity, || {
            format!("{count} were claimed, with capacity for {capacity}: {snapshot}")
        });
        let requeues = taken.into_iter().map(|record| {
            let (key, placement) = (record.execution.key, record.execution.placement);
            Write::Transition(Transition { key, placement, state: queued() })
        });
        let outcomes = worker.commit_with_retry(requeues.collect()).await;
        let is_ours = outcomes.iter().all(|outcome| *outcome == Outcome::Applied);
        queue
            .deployment
            .expect(is_ours, || format!("a worker did not own its claimed executions: {outcomes:?}"));
        renewals.abort();
        worker.close_with_retry().await;
        let snapshot = queue.observe_now().await;
        queue.deployment.expect(!is_alone || snapshot.slots.is_empty(), || {
            format!("all executions were requeued, but slots are left: {snapshot}")
        });
    }

    /// Runs all executions to their ends, and compares the workers' reports with the database.
    async fn finish(self, has_rates: bool) -> Report {
        let Self { mut queue, points, claimed, slowest } = self;
        queue.is_closing = true;
        let limits = Limits { concurrency: Some(200), key_concurrency: Some(50), ..Limits::default() };
        queue.operator.set(limits).await;
        queue.operator.resume().await;
        queue.wait_for_replies().await;
        while !queue.is_stalled
            && queue.last_snapshot.as_ref().is_none_or(|snapshot| snapshot.unfinished_count() > 0)
        {
            queue.run_for(Duration::from_millis(50)).await;
        }
        let snapshot = queue.observe_now().await;
        let is_over =
            snapshot.slots.is_empty() && snapshot.ready_count() == 0 && snapshot.unfinished_count() == 0;
        queue
            .deployment
            .expect(is_over, || format!("all executions have ended, but leftovers remain: {snapshot}"));
        compare_reports(&mut queue).await;
        let BusyQueue { deployment, operator, figures, .. } = queue;
        let QueueFigures {
            busy: (time, ended), peaks: [max_ended, max_running, max_waiting], snapshots, ..
        } = figures;
        let throughput = ended as f64 / time.as_secs_f64();
        let kinds: Vec<String> =
            operator.actions.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let notes = vec![
            format!(
                "{} changes ({}), the slowest in {:.0} ms; {} kills, {} shutdowns; {snapshots} snapshots",
                operator.action_count(),
                kinds.join(", "),
                operator.slowest.as_secs_f64() * 1_000.0,
                figures.kills,
                figures.shutdowns,
            ),
            format!(
                "{} quiet points: all executions within the limits began in at most {:.1} s, other claims took {claimed}",
                points,
                slowest.as_secs_f64(),
            ),
            format!(
                "{} rates: {throughput:.0} ended per second, at most {max_ended}; at most {max_running} ran, {max_waiting} \
                 waited",
                if has_rates { "with" } else { "without" },
            ),
        ];
        operator.shut_down().await;
        let impact = FaultImpact { during: throughput, ..FaultImpact::default() };
        let mut report = deployment.finish("changes of a busy queue", figures.kills, impact).await;
        report.notes.extend(notes);
        report
    }
}

/// Checks that acknowledged starts exist, and that bodies ran again only after a recovery or a shutdown.
async fn compare_reports(queue: &mut BusyQueue) {
    let WorkerReports { started, bodies, .. } = queue.take_reports();
    let (shutdowns, deployment) = (queue.figures.shutdowns, &mut queue.deployment);
    let key = if deployment.is_sqlite() { "hex(key)" } else { "key::text" };
    let rows = deployment
        .query_rows(&format!("SELECT {key}, CAST(recoveries AS TEXT) FROM executions"))
        .await
        .unwrap();
    let text = |row: &[Option<String>], i: usize| row[i].clone().unwrap_or_default();
    let recoveries: HashMap<String, u64> =
        rows.iter().map(|row| (normalize_key(&text(row, 0)), text(row, 1).parse().unwrap())).collect();
    let missing = started.iter().filter(|it| !recoveries.contains_key(*it)).count();
    deployment.expect(missing == 0, || format!("{missing} starts were acknowledged and are gone"));
    deployment
        .expect(!started.is_empty() && !bodies.is_empty(), || "no start or no body was reported".into());
    for (execution, count) in bodies {
        let limit = 1 + recoveries.get(&execution).copied().unwrap_or_default() + shutdowns;
        deployment.expect(u64::from(count) <= limit, || {
            format!("the body of {execution} ran {count} times, with a limit of {limit}")
        });
    }
}
