//! [`Operator`]: pauses a queue, resumes it, and changes its limits at random.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use stepfast::queue::rate::Rate;
use stepfast::queue::{Limits, OnConflict, Queue, QueueRow};
use stepfast::{Client, Engine, Error};
use tokio::time::Instant;

use crate::chaos::worker::{KEYS, QUEUE};

/// The time within which a change must return. A later return is a violation.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of clients that change the queue, sometimes at the same moment.
const CLIENTS: usize = 3;

/// An operator that changes a queue and records its versions.
pub struct Operator {
    url: String,
    clients: Vec<Client>,
    rng: Rng,
    has_rates: bool,
    /// All versions of the queue.
    pub rows: BTreeMap<i64, QueueRow>,
    /// Number of completed changes, by kind.
    pub actions: BTreeMap<&'static str, u64>,
    /// Duration of the slowest change.
    pub slowest: Duration,
    /// Violations found.
    pub violations: Vec<String>,
}

/// One change.
#[derive(Clone, Debug)]
enum QueueAction {
    Pause,
    Resume,
    /// Sets all limits at once.
    Limits(Limits),
    /// Changes one limit and keeps the others as they are.
    One(Limits),
    /// Opens an engine that declares the queue.
    Declare(Limits, OnConflict),
}

impl QueueAction {
    fn name(&self) -> &'static str {
        match self {
            QueueAction::Pause => "pauses",
            QueueAction::Resume => "resumes",
            QueueAction::Limits(_) => "limits",
            QueueAction::One(_) => "one limit",
            QueueAction::Declare(..) => "declarations",
        }
    }
}

impl Operator {
    /// Creates the queue. With `has_rates`, rates are among its limits.
    pub async fn new(url: &str, rng: Rng, has_rates: bool) -> Result<Self, Error> {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(Client::open(stepfast::connect(url).await?).await?);
        }
        let (rows, actions, slowest, violations) = Default::default();
        let mut operator =
            Self { url: url.to_owned(), clients, rng, has_rates, rows, actions, slowest, violations };
        let limits = operator.random_limits();
        operator.set(limits).await;
        Ok(operator)
    }

    /// Returns the number of completed changes.
    pub fn action_count(&self) -> u64 {
        self.actions.values().sum()
    }

    /// Returns whether the queue is paused.
    pub fn is_paused(&self) -> bool {
        self.rows.last_key_value().is_some_and(|(_, row)| row.is_paused)
    }

    /// Pauses the queue.
    pub async fn pause(&mut self) {
        self.perform_together(vec![QueueAction::Pause]).await;
    }

    /// Resumes the queue.
    pub async fn resume(&mut self) {
        self.perform_together(vec![QueueAction::Resume]).await;
    }

    /// Sets the limits of the queue.
    pub async fn set(&mut self, limits: Limits) {
        self.perform_together(vec![QueueAction::Limits(limits)]).await;
    }

    /// Makes a random change, sometimes several at the same moment.
    pub async fn change_at_random(&mut self) {
        let count = if self.rng.u8(0..5) == 0 { self.rng.usize(2..=CLIENTS) } else { 1 };
        let actions = (0..count).map(|_| self.random_action(count == 1)).collect();
        self.perform_together(actions).await;
    }

    fn random_action(&mut self, is_alone: bool) -> QueueAction {
        match self.rng.u8(0..12) {
            0..=3 if self.is_paused() => QueueAction::Resume,
            0..=2 => QueueAction::Pause,
            3 => QueueAction::Resume,
            // the resulting version is known only without concurrent changes
            4 if is_alone => {
                let all = [OnConflict::Update, OnConflict::Keep, OnConflict::Reject];
                QueueAction::Declare(self.random_limits(), all[self.rng.usize(0..3)])
            }
            5..=6 => QueueAction::One(self.random_limits()),
            _ => QueueAction::Limits(self.random_limits()),
        }
    }

    /// Returns random limits.
    pub fn random_limits(&mut self) -> Limits {
        let rng = &mut self.rng;
        let mut limit = |none: u8, small: u32, large: u32| match rng.u8(0..20) {
            n if n < none => None,
            n if n < none + 2 => Some(1),
            n if n < none + 5 => Some(rng.u32(2..small)),
            _ => Some(rng.u32(small..large)),
        };
        let (concurrency, worker_concurrency) = (limit(4, 30, 1_000), limit(10, 15, 400));
        let key_concurrency = limit(10, 4, 100);
        let mut rate = |starts: u32, is_wanted: bool| {
            let rate = Rate::new(rng.u32(starts..starts * 10), Duration::from_secs(1));
            let rate = if rng.bool() { rate.burst(rng.u32(starts / 20..starts)) } else { rate };
            is_wanted.then_some(rate)
        };
        let rates = [rate(500, self.has_rates), rate(300, self.has_rates)];
        let [rate, key_rate] = rates.map(|rate| rate.filter(|_| rng.u8(0..3) > 0));
        let weights = (0..rng.u32(0..4)).map(|_| (format!("k{}", rng.u32(0..KEYS)), rng.u32(2..20)));
        let key_weights = weights.collect();
        Limits {
            concurrency,
            worker_concurrency,
            key_concurrency,
            rate,
            key_rate,
            max_depth: None,
            key_weights,
        }
    }

    async fn perform_together(&mut self, actions: Vec<QueueAction>) {
        let begun = Instant::now();
        let replies = (self.clients.iter().zip(&actions)).map(|(client, action)| {
            let one = self.rng.u8(0..4);
            perform(&self.url, client, action, one)
        });
        let replies: Vec<_> = replies.collect();
        let replies = join_all(replies.into_iter().map(|it| tokio::time::timeout(CHANGE_TIMEOUT, it))).await;
        self.slowest = self.slowest.max(begun.elapsed());
        for (action, reply) in actions.into_iter().zip(replies) {
            *self.actions.entry(action.name()).or_default() += 1;
            match reply {
                Ok(Ok(row)) => self.record_version(&action, &row),
                Ok(Err(error)) => self.violations.push(format!("{action:?}: {error}")),
                Err(_) => {
                    self.violations.push(format!("{action:?} did not return within {CHANGE_TIMEOUT:?}"));
                }
            }
        }
    }

    /// Records the version that a change has produced.
    fn record_version(&mut self, action: &QueueAction, row: &QueueRow) {
        let is_applied = match action {
            QueueAction::Pause => row.is_paused,
            QueueAction::Resume => !row.is_paused,
            QueueAction::Limits(limits) => row.queue.limits == *limits,
            QueueAction::One(_) | QueueAction::Declare(..) => true,
        };
        if !is_applied {
            self.violations.push(format!("{action:?} returned {row:?}"));
        }
        if let Some(other) = self.rows.insert(row.version, row.clone()).filter(|other| other != row) {
            self.violations.push(format!("two rows of one version: {other:?}, {row:?}"));
        }
    }

    /// Shuts the clients down.
    pub async fn shut_down(self) {
        for client in self.clients {
            client.shutdown(Duration::from_secs(20)).await.unwrap();
        }
    }
}

/// Makes a change. Returns the row of the queue after it.
async fn perform(url: &str, client: &Client, action: &QueueAction, one: u8) -> Result<QueueRow, Error> {
    let name: Arc<str> = QUEUE.into();
    match action.clone() {
        QueueAction::Pause => client.pause_queue(QUEUE).await,
        QueueAction::Resume => client.resume_queue(QUEUE).await,
        QueueAction::Limits(limits) => client.set_queue(&Queue { name, limits }).await,
        QueueAction::One(limits) => {
            let change = |before: Limits| match one {
                0 => Limits { concurrency: limits.concurrency, ..before },
                1 => Limits { worker_concurrency: limits.worker_concurrency, ..before },
                2 => Limits { key_concurrency: limits.key_concurrency, ..before },
                _ => Limits { key_weights: limits.key_weights.clone(), ..before },
            };
            client.change_queue(QUEUE, change).await
        }
        QueueAction::Declare(limits, on_conflict) => {
            let store = stepfast::connect(url).await?;
            let builder = Engine::builder(store).declare_queue(Queue { name, limits }, on_conflict);
            match builder.open().await {
                Ok(engine) => engine.shutdown(Duration::from_secs(20)).await?,
                Err(Error::QueueConflict { .. }) if on_conflict == OnConflict::Reject => {}
                Err(error) => return Err(error),
            }
            let row = client.queues().await?.into_iter().find(|row| *row.queue.name == *QUEUE);
            row.ok_or_else(|| Error::Corrupt("the queue is gone".into()))
        }
    }
}
