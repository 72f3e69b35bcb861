//! [`Deployment`]: a database with worker processes that call and run executions without end, and their
//! acknowledgements.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use stepfast::Store;
use stepfast::clock::{Clock, SystemClock};
use stepfast::store::{Detail, Execution, ExecutionId, Filter, StoreError};
use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;
use tokio_postgres::SimpleQueryMessage;

use crate::chaos::Form;
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
    /// An additional receiver of all events.
    pub listener: Option<Listener>,
    events: (UnboundedSender<WorkerEvent>, UnboundedReceiver<WorkerEvent>),
    connection: Option<SqlConnection>,
    directory: Option<TempDir>,
}

enum SqlConnection {
    Sqlite(Connection),
    Postgres(Arc<tokio_postgres::Client>),
}

impl Deployment {
    /// Creates a deployment on a new SQLite file.
    pub fn on_sqlite(form: Form) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", directory.path().join("chaos.db").display());
        Self::new(url, Some(directory), form)
    }

    /// Creates a deployment on a new database of the server.
    pub async fn on_postgres(server: &PostgresServer, form: Form) -> Self {
        let (client, connection) =
            tokio_postgres::connect(server.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let name = format!("chaos_{:x}", fastrand::u64(..));
        client.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        Self::new(format!("{}/{name}", server.url().rsplit_once('/').unwrap().0), None, form)
    }

    fn new(url: String, directory: Option<TempDir>, form: Form) -> Self {
        let (promises, throughput, workers) = (Promises::default(), Throughput::default(), Vec::new());
        let events = unbounded_channel();
        Self { url, form, promises, throughput, workers, listener: None, events, connection: None, directory }
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
        if let Some(listener) = &mut self.listener {
            listener(event);
        }
        let process = &mut self.workers[event.number];
        let Some(line) = &event.line else {
            if let Err(status) = process.reap() {
                self.promises
                    .violations
                    .push(format!("worker {} died without a kill: {status}", event.number));
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
                    self.promises.violations.push(format!("worker {}: {line}", event.number));
                }
            }
            ("error", error) => {
                let violation = format!("worker {}: {error}", event.number);
                self.promises.violations.push(violation);
            }
            (what, _) => {
                if what == "ended" {
                    process.end_count += 1;
                    self.throughput.record_end(event.at);
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
    pub async fn query_rows(&mut self, sql: &str) -> Option<Vec<Vec<Option<String>>>> {
        self.connect().await?;
        match self.connection.as_ref()? {
            SqlConnection::Sqlite(conn) => query_sqlite_rows(conn, sql).ok(),
            SqlConnection::Postgres(client) => {
                let client = client.clone();
                let messages = client.simple_query(sql).await.ok()?;
                let rows = messages.iter().filter_map(|message| match message {
                    SimpleQueryMessage::Row(row) => {
                        Some((0..row.len()).map(|i| row.get(i).map(ToOwned::to_owned)).collect())
                    }
                    _ => None,
                });
                Some(rows.collect())
            }
        }
    }

    async fn connect(&mut self) -> Option<()> {
        if self.connection.is_none() {
            self.connection = Some(match self.url.strip_prefix("sqlite:") {
                Some(path) => SqlConnection::Sqlite(
                    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).ok()?,
                ),
                None => SqlConnection::Postgres(Arc::new(connect(&self.url).await?)),
            });
        }
        Some(())
    }

    async fn try_query_number(&mut self, sql: &str) -> Option<i64> {
        self.connect().await?;
        let number = match self.connection.as_ref()? {
            SqlConnection::Sqlite(conn) => conn.query_row(sql, [], |row| row.get(0)).ok(),
            SqlConnection::Postgres(client) => {
                let client = client.clone();
                client.query_one(sql, &[]).await.ok().map(|row| row.get(0))
            }
        };
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

    /// Waits until `count` workers are registered.
    pub async fn wait_for_registrations(&mut self, count: usize) -> bool {
        let what = format!("{count} registrations");
        self.wait_for_number(&what, "SELECT count(*) FROM workers", |it| it == count as i64).await
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
        for number in self.running_workers() {
            self.workers[number].send_command("stop");
        }
        self.wait_until("callers that have received all results", |deployment| {
            deployment.running_workers().into_iter().all(|n| deployment.workers[n].is_idle)
        })
        .await;
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
        let has_ended =
            |process: &WorkerProcess| matches!(process.state, ProcessState::ShutDown | ProcessState::Exited);
        self.wait_until("workers that have shut down", |deployment| deployment.workers.iter().all(has_ended))
            .await;
        let executions = self.promises.check(&store, true).await;
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
        Report { fault, store, executions, times, takeovers, impact, violations, notes: Vec::new() }
    }
}

/// Returns the rows that a statement finds in a SQLite file, as text.
fn query_sqlite_rows(conn: &Connection, sql: &str) -> rusqlite::Result<Vec<Vec<Option<String>>>> {
    let mut statement = conn.prepare_cached(sql)?;
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| {
        let text = |i| {
            Ok(match row.get_ref(i)? {
                ValueRef::Null => None,
                ValueRef::Integer(number) => Some(number.to_string()),
                ValueRef::Real(number) => Some(number.to_string()),
                ValueRef::Text(text) | ValueRef::Blob(text) => {
                    Some(String::from_utf8_lossy(text).into_owned())
                }
            })
        };
        (0..columns).map(text).collect()
    })?;
    rows.collect()
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

/// Returns a connection to the schema of the store; `None` while the database is unreachable.
pub async fn connect(url: &str) -> Option<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.ok()?;
    tokio::spawn(connection);
    client.batch_execute("SET search_path TO stepfast").await.ok()?;
    Some(client)
}
