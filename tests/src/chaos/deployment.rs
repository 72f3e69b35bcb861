//! [`Site`]: a database, workers on it that call and run without end, and what they have told.

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
use crate::chaos::throughput::{Dent, Pace};
use crate::chaos::worker_process::{Fate, Hand, Heard, Listener, Terms};
use crate::crash::leftovers;
use crate::crash::promises::Told;
use crate::fixtures::postgres_server::PostgresServer;

/// What is awaited for so long never comes.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often the database is asked whether something is so.
const GLANCE: Duration = Duration::from_millis(50);
/// How soon the pace must be back after a fault, and how much more a busy machine may take.
const BACK_WITHIN: Duration = Duration::from_secs(10);
const TOLERANCE: Duration = Duration::from_secs(2);

/// A database and its workers.
pub struct Site {
    /// The database's URL.
    pub url: String,
    /// How long it all takes.
    pub form: Form,
    /// What the workers have told, and what is wrong.
    pub told: Told,
    /// When executions have ended.
    pub pace: Pace,
    /// The workers that were hired.
    pub hands: Vec<Hand>,
    /// Who else listens.
    pub listener: Option<Listener>,
    events: (UnboundedSender<Heard>, UnboundedReceiver<Heard>),
    sql: Option<Sql>,
    directory: Option<TempDir>,
}

enum Sql {
    Sqlite(Connection),
    Postgres(Arc<tokio_postgres::Client>),
}

impl Site {
    /// An empty SQLite file.
    pub fn sqlite(form: Form) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", directory.path().join("chaos.db").display());
        Self::at(url, Some(directory), form)
    }

    /// An empty database on the server.
    pub async fn on(server: &PostgresServer, form: Form) -> Self {
        let (client, connection) =
            tokio_postgres::connect(server.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let name = format!("chaos_{:x}", fastrand::u64(..));
        client.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        Self::at(format!("{}/{name}", server.url().rsplit_once('/').unwrap().0), None, form)
    }

    fn at(url: String, directory: Option<TempDir>, form: Form) -> Self {
        let (told, pace, hands) = (Told::default(), Pace::default(), Vec::new());
        let events = unbounded_channel();
        Self { url, form, told, pace, hands, listener: None, events, sql: None, directory }
    }

    /// The name of the store.
    pub fn store_name(&self) -> &'static str {
        if self.is_sqlite() { "sqlite" } else { "postgres" }
    }

    /// True for a SQLite file.
    pub fn is_sqlite(&self) -> bool {
        self.url.starts_with("sqlite:")
    }

    /// Starts a worker; its number.
    pub fn hire(&mut self, terms: &Terms) -> usize {
        let number = self.hands.len();
        self.hands.push(Hand::hire(&self.url, number, terms, &self.events.0));
        number
    }

    /// Starts so many workers on the same terms.
    pub fn hire_some(&mut self, count: usize, terms: &Terms) -> Vec<usize> {
        (0..count).map(|_| self.hire(terms)).collect()
    }

    /// Workers that work.
    pub fn working(&self) -> Vec<usize> {
        (0..self.hands.len()).filter(|&n| self.hands[n].fate == Fate::Working).collect()
    }

    /// Takes in what was heard.
    fn take_in(&mut self, heard: &Heard) {
        if let Some(listener) = &mut self.listener {
            listener(heard);
        }
        let hand = &mut self.hands[heard.number];
        let Some(line) = &heard.line else {
            if let Err(status) = hand.end() {
                self.told.violations.push(format!("worker {} died by itself: {status}", heard.number));
            }
            return;
        };
        match line.split_once(' ').unwrap_or((line, "")) {
            ("clock", clock) => {
                let own: i64 = clock.parse().unwrap();
                hand.ahead = own - SystemClock.now().as_micros();
            }
            ("flushes", figures) => {
                hand.figures = figures.split(' ').filter_map(|it| it.parse().ok()).collect();
            }
            ("idle", "") => hand.is_idle = true,
            // for the listener
            ("note", _) => {}
            ("left", "") => hand.fate = Fate::Left,
            ("migrated" | "outdated" | "refused", _) => {
                if !hand.ends_by_itself(line) {
                    self.told.violations.push(format!("worker {}: {line}", heard.number));
                }
            }
            ("error", error) => {
                let violation = format!("worker {}: {error}", heard.number);
                self.told.violations.push(violation);
            }
            (what, _) => {
                if what == "ended" {
                    hand.ends += 1;
                    self.pace.end(heard.at);
                }
                self.told.hear(line);
            }
        }
    }

    /// Notes a violation unless it is so.
    pub fn expect(&mut self, is_so: bool, what: impl FnOnce() -> String) {
        if !is_so {
            self.told.violations.push(what());
        }
    }

    /// Listens for so long.
    pub async fn hear_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while let Ok(Some(heard)) = tokio::time::timeout_at(until, self.events.1.recv()).await {
            self.take_in(&heard);
        }
    }

    /// Takes in what has come out of the pipes.
    fn drain(&mut self) {
        while let Ok(heard) = self.events.1.try_recv() {
            self.take_in(&heard);
        }
    }

    /// Listens until it is so; a violation if that never comes.
    pub async fn hear_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> bool {
        let until = Instant::now() + PATIENCE;
        while !is_so(self) {
            match tokio::time::timeout_at(until, self.events.1.recv()).await {
                Ok(Some(heard)) => self.take_in(&heard),
                _ => {
                    self.told.violations.push(format!("waited {PATIENCE:?} in vain: {what}"));
                    return false;
                }
            }
        }
        true
    }

    /// Listens until so many more executions have ended.
    pub async fn more_ends(&mut self, count: usize) -> bool {
        let wanted = self.pace.count() + count;
        self.hear_until(&format!("{count} more ends"), |site| site.pace.count() >= wanted).await
    }

    /// Listens until each worker that works has told of so many more ends.
    pub async fn ends_of_each(&mut self, count: u64) -> bool {
        let wanted: Vec<(usize, u64)> =
            self.working().into_iter().map(|n| (n, self.hands[n].ends + count)).collect();
        self.hear_until("ends told by every worker", |site| {
            wanted.iter().all(|&(n, ends)| site.hands[n].ends >= ends || site.hands[n].fate != Fate::Working)
        })
        .await
    }

    /// A number that the database answers with; `None` while it cannot be asked.
    pub async fn number(&mut self, sql: &str) -> Option<i64> {
        match self.ask_database(sql).await {
            // by a connection that has died since it was used last
            None => self.ask_database(sql).await,
            number => number,
        }
    }

    /// Returns the rows that one statement finds, as text; `None` while the database cannot be asked.
    pub async fn rows(&mut self, sql: &str) -> Option<Vec<Vec<Option<String>>>> {
        self.connect().await?;
        match self.sql.as_ref()? {
            Sql::Sqlite(conn) => rows_of(conn, sql).ok(),
            Sql::Postgres(client) => {
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
        if self.sql.is_none() {
            self.sql = Some(match self.url.strip_prefix("sqlite:") {
                Some(path) => {
                    Sql::Sqlite(Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).ok()?)
                }
                None => Sql::Postgres(Arc::new(connect(&self.url).await?)),
            });
        }
        Some(())
    }

    async fn ask_database(&mut self, sql: &str) -> Option<i64> {
        self.connect().await?;
        let number = match self.sql.as_ref()? {
            Sql::Sqlite(conn) => conn.query_row(sql, [], |row| row.get(0)).ok(),
            Sql::Postgres(client) => {
                let client = client.clone();
                client.query_one(sql, &[]).await.ok().map(|row| row.get(0))
            }
        };
        if number.is_none() {
            self.sql = None;
        }
        number
    }

    /// Asks again and again, and listens meanwhile, until the database answers so; a violation if it never does.
    pub async fn until_number(&mut self, what: &str, sql: &str, is_so: impl Fn(i64) -> bool) -> bool {
        let until = Instant::now() + PATIENCE;
        while !self.number(sql).await.is_some_and(&is_so) {
            if Instant::now() > until {
                self.told.violations.push(format!("waited {PATIENCE:?} in vain: {what}"));
                return false;
            }
            self.hear_for(GLANCE).await;
        }
        true
    }

    /// Workers that are registered.
    pub async fn until_registered(&mut self, count: usize) -> bool {
        let what = format!("{count} registrations");
        self.until_number(&what, "SELECT count(*) FROM workers", |it| it == count as i64).await
    }

    /// Warms up, lets `fault` strike, and sees how the pace comes back; in the long form it must be in time.
    pub async fn struck(&mut self, fault: impl AsyncFnOnce(&mut Self)) -> Dent {
        let dent = self.seen_under(fault).await;
        if self.form == Form::Long {
            let is_back = dent.back.is_some_and(|back| back <= BACK_WITHIN + TOLERANCE);
            self.expect(is_back, || format!("the pace was not back within {BACK_WITHIN:?}: {dent:?}"));
        }
        dent
    }

    /// The same without a judgement.
    pub async fn seen_under(&mut self, fault: impl AsyncFnOnce(&mut Self)) -> Dent {
        let form = self.form;
        self.ends_of_each(form.pick(3, 20)).await;
        let since = Instant::now();
        self.hear_for(form.pick(Duration::from_millis(1500), Duration::from_secs(10))).await;
        // on any machine there is a pace to compare with
        self.more_ends(1).await;
        let begun = Instant::now();
        fault(self).await;
        let over = Instant::now();
        let (least, most) = match form {
            Form::Short => (Duration::from_secs(1), Duration::from_secs(4)),
            Form::Long => (Duration::from_secs(15), Duration::from_secs(30)),
        };
        self.hear_for(least).await;
        let mut dent = self.pace.dent(since, begun, over);
        while dent.back.is_none() && over.elapsed() < most {
            self.hear_for(Duration::from_millis(250)).await;
            dent = self.pace.dent(since, begun, over);
        }
        dent
    }

    async fn store(&self) -> Arc<dyn Store> {
        stepfast::connect(&self.url).await.unwrap()
    }

    /// Compares what was told with the database, while all goes on.
    pub async fn check(&mut self) {
        self.drain();
        let store = self.store().await;
        self.told.check(&store, false).await;
    }

    /// Asks the workers to come to an end, waits until nothing is left to do, asks everything, and sums up.
    pub async fn finish(mut self, fault: &'static str, times: u64, dent: Dent) -> Report {
        for number in self.working() {
            self.hands[number].ask("stop");
        }
        self.hear_until("callers that have all their results", |site| {
            site.working().into_iter().all(|n| site.hands[n].is_idle)
        })
        .await;
        // what killed workers have started ends as well
        let store = self.store().await;
        let mut left = u64::MAX;
        let mut until = Instant::now() + PATIENCE;
        loop {
            match going(&store).await {
                Ok(0) => break,
                Ok(count) if count < left => (left, until) = (count, Instant::now() + PATIENCE),
                _ if Instant::now() > until => {
                    self.told.violations.push(format!("{left} executions are stranded"));
                    break;
                }
                _ => {}
            }
            self.hear_for(GLANCE).await;
        }
        for number in self.working() {
            self.hands[number].ask("leave");
        }
        let has_ended = |hand: &Hand| matches!(hand.fate, Fate::Left | Fate::Dead);
        self.hear_until("workers that have left", |site| site.hands.iter().all(has_ended)).await;
        let executions = self.told.check(&store, true).await;
        let recovered = "SELECT CAST(coalesce(sum(recoveries), 0) AS BIGINT) FROM executions";
        let takeovers = self.number(recovered).await.unwrap_or(-1);
        drop(store);
        self.sql = None;
        self.told.violations.extend(leftovers::of(&self.url).await);
        if !self.told.violations.is_empty()
            && let Some(directory) = self.directory.take()
        {
            // for whoever wants to see
            self.told.violations.push(format!("kept in {}", directory.keep().display()));
        }
        let violations = std::mem::take(&mut self.told.violations);
        let store = self.store_name();
        Report { fault, store, executions, times, takeovers, dent, violations, notes: Vec::new() }
    }
}

/// Returns the rows that a statement finds in a SQLite file, as text.
fn rows_of(conn: &Connection, sql: &str) -> rusqlite::Result<Vec<Vec<Option<String>>>> {
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

/// How many executions have not ended.
async fn going(store: &Arc<dyn Store>) -> Result<u64, StoreError> {
    let page = store.list(&Filter { limit: 0, ..leftovers::unended() }).await?;
    Ok(page.total.unwrap_or_default())
}

/// All executions of a workflow, with what they came to.
pub async fn executions(store: &Arc<dyn Store>, workflow: &str) -> Vec<Execution> {
    let filter = Filter { workflow: Some(workflow.into()), limit: 1_000_000, ..Filter::default() };
    let keys: Vec<ExecutionId> =
        store.list(&filter).await.unwrap().executions.iter().map(|row| ExecutionId::Key(row.key)).collect();
    let records = store.load(&keys, Detail::Outcome).await.unwrap();
    records.into_iter().flatten().map(|record| record.execution).collect()
}

/// A connection to our schema; `None` while there is none to be had.
pub async fn connect(url: &str) -> Option<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.ok()?;
    tokio::spawn(connection);
    client.batch_execute("SET search_path TO stepfast").await.ok()?;
    Some(client)
}
