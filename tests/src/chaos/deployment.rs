//! [`Deployment`]: a database with worker processes that call and run executions without end, their acknowledgements, and
//! a [`Neighbour`].

use std::sync::Arc;
use std::time::Duration;

use stepfast::Store;
use stepfast::clock::{Clock, SystemClock};
use stepfast::store::{Detail, Execution, ExecutionId, Filter, StoreError};
use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use crate::chaos::Form;
use crate::chaos::connection::{SqlConnection, TextRow};
use crate::chaos::neighbour::{NEIGHBOUR_PREFIX, Neighbour, Service};
use crate::chaos::report::Report;
use crate::chaos::throughput::{FaultImpact, Throughput};
use crate::chaos::worker_process::{Listener, ProcessState, WorkerEvent, WorkerOptions, WorkerProcess};
use crate::crash::leftovers;
use crate::crash::promises::Promises;
use crate::fixtures::postgres_server::PostgresServer;

/// The time after which a wait for a condition is a violation.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval between two queries for a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum time until the throughput has recovered after a fault, and the additional time for a busy machine.
const RECOVERY_LIMIT: Duration = Duration::from_secs(10);
const RECOVERY_TOLERANCE: Duration = Duration::from_secs(2);

/// A database and its workers.
pub struct Deployment {
    /// The database's URL.
    pub url: String,
    /// The length of the scenario.
    pub form: Form,
    /// The acknowledgements of the workers, and the violations.
    pub promises: Promises,
    /// The times at which executions ended.
    pub throughput: Throughput,
    /// Every worker that was started, also ended ones.
    pub workers: Vec<WorkerProcess>,
    /// The service beside the workers; `None` where versions of the schema or durations are compared.
    pub neighbour: Option<Neighbour>,
    /// An additional receiver of all events of the workers.
    pub listener: Option<Listener>,
    events: (UnboundedSender<WorkerEvent>, UnboundedReceiver<WorkerEvent>),
    connection: Option<SqlConnection>,
    directory: Option<TempDir>,
}

impl Deployment {
    /// Creates a deployment on a new SQLite file, beside a neighbour under load.
    pub async fn on_sqlite(form: Form) -> Self {
        Self::alone_on_sqlite(form).beside_neighbour().await
    }

    /// Creates a deployment on a new database of the server, beside a neighbour under load.
    pub async fn on_postgres(server: &PostgresServer, form: Form) -> Self {
        Self::alone_on_postgres(server, form).await.beside_neighbour().await
    }

    /// Creates a deployment without neighbour on a new SQLite file.
    pub fn alone_on_sqlite(form: Form) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", directory.path().join("chaos.db").display());
        Self::new(url, Some(directory), form)
    }

    /// Creates a deployment without neighbour on a new database of the server.
    pub async fn alone_on_postgres(server: &PostgresServer, form: Form) -> Self {
        let name = server.create_database("chaos").await;
        Self::new(server.database_url(&name), None, form)
    }

    /// Creates a deployment on the database at `url`, beside a neighbour under load.
    pub async fn at(url: String, form: Form) -> Self {
        Self::new(url, None, form).beside_neighbour().await
    }

    fn new(url: String, directory: Option<TempDir>, form: Form) -> Self {
        Self {
            url,
            form,
            promises: Promises::default(),
            throughput: Throughput::default(),
            workers: Vec::new(),
            neighbour: None,
            listener: None,
            events: unbounded_channel(),
            connection: None,
            directory,
        }
    }

    /// Starts the neighbour, and waits until it runs executions. So its registrations are the first.
    async fn beside_neighbour(mut self) -> Self {
        let plan = Neighbour::plan(&self.url, self.form);
        let spawn = |(number, options)| WorkerProcess::spawn(&self.url, number, options, &self.events.0);
        let processes = plan.iter().enumerate().map(spawn).collect();
        self.neighbour = Some(Neighbour::new(processes, &self.url, self.form));
        self.wait_until("results of the neighbour", |deployment| {
            deployment.neighbour.as_ref().is_some_and(Neighbour::is_under_load)
        })
        .await;
        self
    }

    /// Returns the name of the store.
    pub fn store_name(&self) -> &'static str {
        if self.is_sqlite() { "sqlite" } else { "postgres" }
    }

    /// Returns whether the store is a SQLite file.
    pub fn is_sqlite(&self) -> bool {
        self.url.starts_with("sqlite:")
    }

    /// Starts a worker, and returns its number.
    pub fn start_worker(&mut self, options: &WorkerOptions) -> usize {
        let number = self.workers.len();
        self.workers.push(WorkerProcess::spawn(&self.url, number, options, &self.events.0));
        number
    }

    /// Starts `count` workers with the same options, and returns their numbers.
    pub fn start_workers(&mut self, count: usize, options: &WorkerOptions) -> Vec<usize> {
        (0..count).map(|_| self.start_worker(options)).collect()
    }

    /// Returns the numbers of the workers that run.
    pub fn running_workers(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|&n| self.workers[n].state == ProcessState::Running).collect()
    }

    /// Handles a line of a worker, or its end.
    fn handle_event(&mut self, event: &WorkerEvent) {
        let is_neighbour = event.service == Service::Neighbour;
        if let Some(listener) = self.listener.as_mut().filter(|_| !is_neighbour) {
            listener(event);
        }
        let name = event.service.name(&format!("worker {}", event.number));
        let process = match &mut self.neighbour {
            Some(neighbour) if is_neighbour => &mut neighbour.processes[event.number],
            // its results are known already
            None if is_neighbour => return,
            _ => &mut self.workers[event.number],
        };
        let Some(line) = &event.line else {
            if let Err(status) = process.reap() {
                self.promises.violations.push(format!("{name} died without a kill: {status}"));
            }
            return;
        };
        match line.split_once(' ').unwrap_or((line, "")) {
            ("clock", clock) => {
                let own: i64 = clock.parse().unwrap();
                process.clock_offset = own - SystemClock.now().as_micros();
            }
            ("flushes", figures) => {
                process.flush_figures = figures.split(' ').filter_map(|it| it.parse().ok()).collect();
            }
            ("idle", "") => process.is_idle = true,
            // for the listener only
            ("note", _) => {}
            ("shut-down", "") => process.state = ProcessState::ShutDown,
            ("migrated" | "outdated" | "open-failed", _) => {
                if !process.note_exit(line) {
                    self.promises.violations.push(format!("{name}: {line}"));
                }
            }
            ("error", error) => self.promises.violations.push(format!("{name}: {error}")),
            (what, _) => {
                let is_end = what == "ended";
                process.end_count += u64::from(is_end);
                match &mut self.neighbour {
                    Some(neighbour) if is_neighbour => neighbour.add_line(event, line),
                    _ if is_end => self.throughput.record_end(event.at),
                    _ => {}
                }
                self.promises.add_line(line);
            }
        }
    }

    /// Records a violation unless a condition holds.
    pub fn expect(&mut self, holds: bool, violation: impl FnOnce() -> String) {
        if !holds {
            self.promises.violations.push(violation());
        }
    }

    /// Handles events for some time.
    pub async fn listen_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while let Ok(Some(event)) = tokio::time::timeout_at(until, self.events.1.recv()).await {
            self.handle_event(&event);
        }
    }

    /// Handles all events that have arrived.
    fn handle_pending_events(&mut self) {
        while let Ok(event) = self.events.1.try_recv() {
            self.handle_event(&event);
        }
    }

    /// Handles events until a condition holds. Records a violation after `WAIT_TIMEOUT`.
    pub async fn wait_until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) -> bool {
        let until = Instant::now() + WAIT_TIMEOUT;
        while !condition(self) {
            match tokio::time::timeout_at(until, self.events.1.recv()).await {
                Ok(Some(event)) => self.handle_event(&event),
                _ => {
                    self.promises.violations.push(format!("waited {WAIT_TIMEOUT:?} without success: {what}"));
                    return false;
                }
            }
        }
        true
    }

    /// Handles events until `count` more executions have ended.
    pub async fn wait_for_ends(&mut self, count: usize) -> bool {
        let wanted = self.throughput.end_count() + count;
        self.wait_until(&format!("{count} more ends"), |deployment| {
            deployment.throughput.end_count() >= wanted
        })
        .await
    }

    /// Handles events until each running worker has reported `count` more ends.
    pub async fn wait_for_ends_of_each(&mut self, count: u64) -> bool {
        let wanted: Vec<(usize, u64)> =
            self.running_workers().into_iter().map(|n| (n, self.workers[n].end_count + count)).collect();
        self.wait_until("ends of every worker", |deployment| {
            wanted.iter().all(|&(n, ends)| {
                deployment.workers[n].end_count >= ends
                    || deployment.workers[n].state != ProcessState::Running
            })
        })
        .await
    }

    /// Returns the number that a query finds; `None` while the database is unreachable.
    pub async fn query_number(&mut self, sql: &str) -> Option<i64> {
        match self.try_query_number(sql).await {
            // the connection may have died since its last use
            None => self.try_query_number(sql).await,
            number => number,
        }
    }

    /// Returns the rows that a statement finds, as text; `None` while the database is unreachable.
    pub async fn query_rows(&mut self, sql: &str) -> Option<Vec<TextRow>> {
        self.connect().await?;
        self.connection.as_ref()?.query_rows(sql).await
    }

    async fn connect(&mut self) -> Option<()> {
        if self.connection.is_none() {
            self.connection = Some(SqlConnection::open(&self.url).await?);
        }
        Some(())
    }

    async fn try_query_number(&mut self, sql: &str) -> Option<i64> {
        self.connect().await?;
        let number = self.connection.as_ref()?.query_number(sql).await;
        if number.is_none() {
            self.connection = None;
        }
        number
    }

    /// Repeats a query, and handles events, until its number meets a condition. Records a violation after
    /// `WAIT_TIMEOUT`.
    pub async fn wait_for_number(&mut self, what: &str, sql: &str, condition: impl Fn(i64) -> bool) -> bool {
        let until = Instant::now() + WAIT_TIMEOUT;
        while !self.query_number(sql).await.is_some_and(&condition) {
            if Instant::now() > until {
                self.promises.violations.push(format!("waited {WAIT_TIMEOUT:?} without success: {what}"));
                return false;
            }
            self.listen_for(POLL_INTERVAL).await;
        }
        true
    }

    /// Returns a query of the registrations without those of the neighbour.
    pub fn workers_sql(&self, what: &str) -> String {
        let neighbours = self.neighbour.iter().flat_map(|neighbour| &neighbour.processes);
        let pids = neighbours.map(WorkerProcess::pid).chain([-1]).map(|pid| pid.to_string());
        let pids: Vec<String> = pids.collect();
        format!("SELECT {what} FROM workers WHERE pid NOT IN ({})", pids.join(", "))
    }

    /// Waits until `count` workers are registered, beside the neighbour.
    pub async fn wait_for_registrations(&mut self, count: usize) -> bool {
        let (what, sql) = (format!("{count} registrations"), self.workers_sql("count(*)"));
        self.wait_for_number(&what, &sql, |it| it == count as i64).await
    }

    /// Records a violation if one of `count` workers, or the neighbour, has registered again.
    pub async fn expect_no_new_registration(&mut self, count: usize) {
        let last = self.query_number("SELECT max(worker_id) FROM workers").await;
        let all = count + self.neighbour.as_ref().map_or(0, Neighbour::registration_count);
        self.expect(last == Some(all as i64), || format!("a worker registered again, with the id {last:?}"));
    }

    /// Runs `outage`, during which the server is down. This time does not count for the neighbour.
    pub async fn during_outage(&mut self, outage: impl AsyncFnOnce(&mut Self)) {
        let from = Instant::now();
        outage(self).await;
        self.excuse_neighbour(from);
    }

    /// Excuses the neighbour from the time since `from`.
    pub fn excuse_neighbour(&mut self, from: Instant) {
        if let Some(neighbour) = &mut self.neighbour {
            neighbour.excuse(from, Instant::now());
        }
    }

    /// Warms up, runs `fault`, and measures the recovery of the throughput. The long form records a violation if the
    /// recovery is late.
    pub async fn measure_fault(&mut self, fault: impl AsyncFnOnce(&mut Self)) -> FaultImpact {
        let impact = self.observe_fault(fault).await;
        if self.form == Form::Long {
            let is_back =
                impact.recovered_after.is_some_and(|back| back <= RECOVERY_LIMIT + RECOVERY_TOLERANCE);
            self.expect(is_back, || {
                format!("the throughput had not recovered within {RECOVERY_LIMIT:?}: {impact:?}")
            });
        }
        impact
    }

    /// Warms up, runs `fault`, and measures the recovery of the throughput, without a limit.
    pub async fn observe_fault(&mut self, fault: impl AsyncFnOnce(&mut Self)) -> FaultImpact {
        let form = self.form;
        self.wait_for_ends_of_each(form.pick(3, 20)).await;
        let since = Instant::now();
        self.listen_for(form.pick(Duration::from_millis(1500), Duration::from_secs(10))).await;
        // even a slow machine has a throughput to compare with
        self.wait_for_ends(1).await;
        let fault_start = Instant::now();
        fault(self).await;
        let fault_end = Instant::now();
        let (min_wait, max_wait) = match form {
            Form::Short => (Duration::from_secs(1), Duration::from_secs(4)),
            Form::Long => (Duration::from_secs(15), Duration::from_secs(30)),
        };
        self.listen_for(min_wait).await;
        let mut impact = self.throughput.measure_impact(since, fault_start, fault_end);
        while impact.recovered_after.is_none() && fault_end.elapsed() < max_wait {
            self.listen_for(Duration::from_millis(250)).await;
            impact = self.throughput.measure_impact(since, fault_start, fault_end);
        }
        impact
    }

    async fn store(&self) -> Arc<dyn Store> {
        stepfast::connect(&self.url).await.unwrap()
    }

    /// Compares the acknowledgements with the database while the workers continue.
    pub async fn check(&mut self) {
        self.handle_pending_events();
        let store = self.store().await;
        self.promises.check(&store, false).await;
    }

    /// Stops the workers, waits until every execution has ended, checks all promises, and returns the report.
    pub async fn finish(mut self, fault: &'static str, times: u64, impact: FaultImpact) -> Report {
        self.stop_neighbour();
        for number in self.running_workers() {
            self.workers[number].send_command("stop");
        }
        self.wait_until("callers that have received all results", |deployment| {
            deployment.running_workers().into_iter().all(|n| deployment.workers[n].is_idle)
        })
        .await;
        self.wait_for_idle_neighbour().await;
        // executions of killed workers end as well
        let store = self.store().await;
        let mut unfinished = u64::MAX;
        let mut until = Instant::now() + WAIT_TIMEOUT;
        loop {
            match count_unfinished(&store).await {
                Ok(0) => break,
                Ok(count) if count < unfinished => {
                    (unfinished, until) = (count, Instant::now() + WAIT_TIMEOUT);
                }
                _ if Instant::now() > until => {
                    self.promises.violations.push(format!("{unfinished} executions never end"));
                    break;
                }
                _ => {}
            }
            self.listen_for(POLL_INTERVAL).await;
        }
        for number in self.running_workers() {
            self.workers[number].send_command("shutdown");
        }
        self.shut_down_neighbour().await;
        self.wait_until("workers that have shut down", |deployment| {
            deployment.workers.iter().all(WorkerProcess::has_ended)
        })
        .await;
        let executions = self.promises.check(&store, true).await;
        let notes = self.judge_neighbour().await;
        let recovered = "SELECT CAST(coalesce(sum(recoveries), 0) AS BIGINT) FROM executions";
        let takeovers = self.query_number(recovered).await.unwrap_or(-1);
        drop(store);
        self.connection = None;
        self.promises.violations.extend(leftovers::find_leftovers(&self.url).await);
        if !self.promises.violations.is_empty()
            && let Some(directory) = self.directory.take()
        {
            // kept for inspection
            self.promises.violations.push(format!("kept in {}", directory.keep().display()));
        }
        let violations = std::mem::take(&mut self.promises.violations);
        let store = self.store_name();
        Report { fault, store, executions, times, takeovers, impact, violations, notes }
    }

    /// Stops the neighbour alone, and checks it. Returns notes for the report.
    pub async fn finish_neighbour(&mut self) -> Vec<String> {
        self.stop_neighbour();
        self.wait_for_idle_neighbour().await;
        self.shut_down_neighbour().await;
        let store = self.store().await;
        let workflows: Vec<String> = ["order", "item", "gated"].map(|it| Service::Neighbour.name(it)).into();
        self.promises.check_workflows(&store, &workflows, true).await;
        self.judge_neighbour().await
    }

    fn command_neighbour(&mut self, command: &str) {
        for process in self.neighbour.iter_mut().flat_map(|neighbour| &mut neighbour.processes) {
            process.send_command(command);
        }
    }

    fn stop_neighbour(&mut self) {
        self.handle_pending_events();
        if let Some(neighbour) = &mut self.neighbour {
            neighbour.stop_watch();
        }
        self.command_neighbour("stop");
    }

    async fn wait_for_idle_neighbour(&mut self) {
        self.wait_until("results of all callers of the neighbour", |deployment| {
            deployment.neighbour.iter().flat_map(|it| &it.processes).all(|process| process.is_idle)
        })
        .await;
    }

    async fn shut_down_neighbour(&mut self) {
        self.command_neighbour("shutdown");
        self.wait_until("a neighbour that has shut down", |deployment| {
            deployment.neighbour.iter().flat_map(|it| &it.processes).all(WorkerProcess::has_ended)
        })
        .await;
    }

    /// Records the violations of the neighbour, whose processes have ended, and returns notes for the report.
    async fn judge_neighbour(&mut self) -> Vec<String> {
        let Some(mut neighbour) = self.neighbour.take() else { return Vec::new() };
        let recovered = format!(
            "SELECT count(*) FROM executions WHERE workflow LIKE '{NEIGHBOUR_PREFIX}%' AND recoveries > 0"
        );
        let recovered = self.query_number(&recovered).await;
        self.expect(recovered == Some(0), || {
            format!(
                "{recovered:?} executions of the neighbour were recovered, although none of its workers died"
            )
        });
        let (violations, note) = neighbour.judge();
        self.promises.violations.extend(violations);
        vec![note]
    }
}

/// Returns the number of executions that have not ended.
async fn count_unfinished(store: &Arc<dyn Store>) -> Result<u64, StoreError> {
    let page = store.list(&Filter { limit: 0, ..leftovers::unfinished_filter() }).await?;
    Ok(page.total.unwrap_or_default())
}

/// Returns all executions of a workflow, with their outcomes.
pub async fn load_executions(store: &Arc<dyn Store>, workflow: &str) -> Vec<Execution> {
    let filter = Filter { workflow: Some(workflow.into()), limit: 1_000_000, ..Filter::default() };
    let keys: Vec<ExecutionId> =
        store.list(&filter).await.unwrap().executions.iter().map(|row| ExecutionId::Key(row.key)).collect();
    let records = store.load(&keys, Detail::Outcome).await.unwrap();
    records.into_iter().flatten().map(|record| record.execution).collect()
}
