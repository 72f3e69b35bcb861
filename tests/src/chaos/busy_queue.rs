//! [`BusyQueue`]: a queue under load with its workers and its operator, and repeated snapshots of it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use tokio::time::Instant;

use crate::chaos::deployment::Deployment;
use crate::chaos::operator::Operator;
use crate::chaos::queue_snapshot::QueueSnapshot;
use crate::chaos::worker_process::{ProcessState, WorkerEvent, WorkerOptions};

/// Number of ready executions to maintain, if the workers can start them as fast as they run them.
pub const TARGET_BACKLOG: u64 = 2_500;
/// Number of starts that a worker is asked for at a time.
pub const FEED_SIZE: u32 = 500;
/// Time without an end after which the queue counts as stalled, pauses excluded: a lease, the search for leftovers of a
/// takeover, and a margin for a busy machine.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Length of the spans over which the throughput is measured.
const SPAN: Duration = Duration::from_secs(1);
/// Maximum time from a change to a kill, in milliseconds.
const MAX_KILL_DELAY_MILLIS: u64 = 40;

/// The lines that workers have printed.
#[derive(Default)]
pub struct WorkerReports {
    /// Executions whose start was acknowledged.
    pub started: HashSet<String>,
    /// Number of bodies that began, by execution.
    pub bodies: HashMap<String, u32>,
    /// Workers that have completed their last command.
    replied: HashSet<usize>,
}

impl WorkerReports {
    fn add_line(&mut self, event: &WorkerEvent) {
        let line = event.line.as_deref().unwrap_or_default();
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["note", "started", keys @ .., "."] => {
                self.started.extend(keys.iter().map(|key| normalize_key(key)));
            }
            ["note", "fed" | "closed" | "open"] => {
                self.replied.insert(event.number);
            }
            ["body", _, execution, ..] => *self.bodies.entry(normalize_key(execution)).or_default() += 1,
            _ => {}
        }
    }
}

/// Returns a key in the form of snapshots.
pub fn normalize_key(key: &str) -> String {
    key.replace('-', "").to_lowercase()
}

fn lock(reports: &Mutex<WorkerReports>) -> MutexGuard<'_, WorkerReports> {
    reports.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Figures for the report.
#[derive(Default)]
pub struct QueueFigures {
    /// The time during which the workers ran at full speed, and the number of executions that ended in it.
    pub busy: (Duration, u64),
    /// Three maxima: executions that ended within a second, that ran at one time, and that waited at one time.
    pub peaks: [u64; 3],
    /// Number of snapshots.
    pub snapshots: u64,
    /// Number of killed workers.
    pub kills: u64,
    /// Number of workers that were shut down.
    pub shutdowns: u64,
}

/// A database with its workers, an operator, and the last snapshot.
pub struct BusyQueue {
    /// The database with its workers.
    pub deployment: Deployment,
    /// The operator that changes the queue.
    pub operator: Operator,
    /// Figures for the report.
    pub figures: QueueFigures,
    /// Whether no more executions are started.
    pub is_closing: bool,
    /// Whether no execution has ended for [`STALL_TIMEOUT`].
    pub is_stalled: bool,
    /// The last snapshot.
    pub last_snapshot: Option<QueueSnapshot>,
    reports: Arc<Mutex<WorkerReports>>,
    /// The number of ended executions in the last snapshot, the time since then that counts for a stall, and the time
    /// of the snapshot.
    progress: (u64, Duration, Instant),
    /// The number of ended executions at the beginning of the current span, and its time.
    span: (u64, Instant),
}

impl BusyQueue {
    /// Creates a busy queue without workers.
    pub fn new(mut deployment: Deployment, operator: Operator) -> Self {
        let reports = Arc::new(Mutex::new(WorkerReports::default()));
        let sink = reports.clone();
        deployment.listener = Some(Box::new(move |event| lock(&sink).add_line(event)));
        let now = Instant::now();
        Self {
            deployment,
            operator,
            figures: QueueFigures::default(),
            is_closing: false,
            is_stalled: false,
            last_snapshot: None,
            reports,
            progress: (0, Duration::ZERO, now),
            span: (0, now),
        }
    }

    /// Starts `count` workers, and waits until all are registered.
    pub async fn start_workers(&mut self, count: usize) {
        self.start_workers_without_waiting(count);
        let pids = self.pids();
        let condition = |snapshot: &QueueSnapshot| snapshot.workers_of_processes(&pids).len() == pids.len();
        self.observe_until("registrations of all workers", condition).await;
    }

    fn start_workers_without_waiting(&mut self, count: usize) {
        // a new worker has no pending command
        lock(&self.reports).replied.extend(self.deployment.start_workers(count, &WorkerOptions::default()));
    }

    /// Returns the process ids of the running workers.
    pub fn pids(&self) -> Vec<i64> {
        self.deployment
            .running_workers()
            .into_iter()
            .map(|number| self.deployment.workers[number].pid())
            .collect()
    }

    /// Takes a snapshot, and compares it with the last one; `None` while the database is unreachable.
    pub async fn observe(&mut self) -> Option<QueueSnapshot> {
        let snapshot = QueueSnapshot::read(&mut self.deployment).await?;
        let mut violations = snapshot.slot_violations();
        if let Some(before) = &self.last_snapshot {
            violations.extend(snapshot.violations_since(before, &self.operator.rows));
        }
        violations.append(&mut self.operator.violations);
        self.deployment
            .promises
            .violations
            .extend(violations.into_iter().map(|it| format!("{it}; {snapshot}")));
        let (ended, began) = self.span;
        let QueueFigures { peaks: [max_ended, max_running, max_waiting], snapshots, .. } = &mut self.figures;
        *snapshots += 1;
        *max_running = (*max_running).max(snapshot.running.len() as u64);
        *max_waiting = (*max_waiting).max(snapshot.ready_count());
        if began.elapsed() >= SPAN {
            let throughput = (snapshot.ended_count() - ended) as f64 / began.elapsed().as_secs_f64();
            *max_ended = (*max_ended).max(throughput as u64);
            self.span = (snapshot.ended_count(), Instant::now());
        }
        self.last_snapshot = Some(snapshot.clone());
        Some(snapshot)
    }

    /// Takes snapshots until one meets a condition. Records a violation after [`STALL_TIMEOUT`].
    pub async fn observe_until(
        &mut self,
        what: &str,
        condition: impl Fn(&QueueSnapshot) -> bool,
    ) -> QueueSnapshot {
        let began = Instant::now();
        loop {
            let snapshot = match self.observe().await {
                Some(snapshot) if condition(&snapshot) => return snapshot,
                snapshot => snapshot.or_else(|| self.last_snapshot.clone()).unwrap_or_default(),
            };
            if began.elapsed() > STALL_TIMEOUT {
                self.deployment
                    .promises
                    .violations
                    .push(format!("waited {STALL_TIMEOUT:?} without success for {what}: {snapshot}"));
                return snapshot;
            }
            self.deployment.listen_for(Duration::from_millis(20)).await;
        }
    }

    /// Takes a snapshot as soon as the database is reachable.
    pub async fn observe_now(&mut self) -> QueueSnapshot {
        self.observe_until("a reachable database", |_| true).await
    }

    /// Handles events for some time, takes a snapshot, keeps the workers busy, and checks that executions end.
    pub async fn run_for(&mut self, time: Duration) {
        self.deployment.listen_for(time).await;
        let Some(snapshot) = self.observe().await else { return };
        if snapshot.ready_count() < TARGET_BACKLOG && !self.is_closing {
            for number in self.deployment.running_workers() {
                if lock(&self.reports).replied.remove(&number) {
                    self.deployment.workers[number].send_command(&format!("feed {FEED_SIZE}"));
                }
            }
        }
        self.watch_progress(&snapshot);
    }

    /// Records a stall: no execution has ended for long, although the queue was not paused and executions waited or
    /// ran.
    fn watch_progress(&mut self, snapshot: &QueueSnapshot) {
        let (ended, mut stalled_for, at) = self.progress;
        self.figures.busy.0 += at.elapsed();
        self.figures.busy.1 += snapshot.ended_count() - ended;
        if snapshot.ended_count() > ended || snapshot.ready_count() + snapshot.running.len() as u64 == 0 {
            stalled_for = Duration::ZERO;
        } else if !snapshot.is_paused {
            stalled_for += at.elapsed();
        }
        self.progress = (snapshot.ended_count(), stalled_for, Instant::now());
        if stalled_for > STALL_TIMEOUT && !self.is_stalled {
            self.is_stalled = true;
            self.deployment
                .promises
                .violations
                .push(format!("nothing has ended for {stalled_for:?}: {snapshot}"));
        }
    }

    /// Ends a quiet point, whose time counts neither for stalls nor for the throughput.
    pub fn reset_progress(&mut self, snapshot: &QueueSnapshot) {
        self.progress = (snapshot.ended_count(), Duration::ZERO, Instant::now());
        self.span = (snapshot.ended_count(), Instant::now());
    }

    /// Makes a change, and kills a worker or all workers at the same time, or shuts one down. Starts as many new
    /// workers. Returns the number of kills.
    pub async fn change_and_kill(&mut self, rng: &mut Rng) -> u64 {
        let running = self.deployment.running_workers();
        let chosen = running[rng.usize(0..running.len())];
        if rng.u8(0..6) == 0 {
            self.figures.shutdowns += 1;
            self.deployment.workers[chosen].send_command("shutdown");
            self.operator.change_at_random().await;
            self.deployment
                .wait_until("a worker that shuts down", |deployment| {
                    deployment.workers[chosen].state == ProcessState::ShutDown
                })
                .await;
            self.start_workers(1).await;
            return 0;
        }
        let all = rng.u8(0..5) == 0;
        let chosen: Vec<usize> = running.into_iter().filter(|number| all || *number == chosen).collect();
        let (operator, deployment) = (&mut self.operator, &mut self.deployment);
        let kill = async {
            deployment.listen_for(Duration::from_millis(rng.u64(0..MAX_KILL_DELAY_MILLIS))).await;
            for number in &chosen {
                deployment.workers[*number].kill();
            }
        };
        tokio::join!(operator.change_at_random(), kill);
        self.figures.kills += chosen.len() as u64;
        self.start_workers_without_waiting(chosen.len());
        chosen.len() as u64
    }

    /// Kills these workers.
    pub fn kill(&mut self, numbers: &[usize]) {
        for number in numbers {
            self.deployment.workers[*number].kill();
        }
        self.figures.kills += numbers.len() as u64;
    }

    /// Waits until all workers have completed their last command.
    pub async fn wait_for_replies(&mut self) {
        let reports = self.reports.clone();
        let has_replied = move |number: &usize| lock(&reports).replied.contains(number);
        let condition = |deployment: &Deployment| deployment.running_workers().iter().all(&has_replied);
        self.deployment.wait_until("replies of all workers", condition).await;
    }

    /// Sends a command to all workers, and waits until they have completed it.
    pub async fn command_all(&mut self, command: &str) {
        self.wait_for_replies().await;
        for number in self.deployment.running_workers() {
            lock(&self.reports).replied.remove(&number);
            self.deployment.workers[number].send_command(command);
        }
        self.wait_for_replies().await;
    }

    /// Returns the lines that the workers have printed, and forgets them.
    pub fn take_reports(&mut self) -> WorkerReports {
        std::mem::take(&mut *lock(&self.reports))
    }
}
