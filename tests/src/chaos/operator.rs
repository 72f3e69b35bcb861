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

/// A change that is not answered after this time never is.
const PATIENCE: Duration = Duration::from_secs(60);
/// Clients that change the queue, now and then at the same moment.
const CLIENTS: usize = 3;

/// Changes a queue, and keeps its versions.
pub struct Operator {
    url: String,
    clients: Vec<Client>,
    rng: Rng,
    has_rates: bool,
    /// The versions of the queue.
    pub rows: BTreeMap<i64, QueueRow>,
    /// How many changes were answered, by kind.
    pub actions: BTreeMap<&'static str, u64>,
    /// How long the slowest took.
    pub slowest: Duration,
    /// What is not as promised.
    pub violations: Vec<String>,
}

/// One change.
#[derive(Clone, Debug)]
enum Action {
    Pause,
    Resume,
    /// All limits at once.
    Limits(Limits),
    /// One of them, as another process sees the others.
    One(Limits),
    /// An engine opens that declares the queue.
    Declare(Limits, OnConflict),
}

impl Action {
    fn name(&self) -> &'static str {
        match self {
            Action::Pause => "pauses",
            Action::Resume => "resumes",
            Action::Limits(_) => "limits",
            Action::One(_) => "one limit",
            Action::Declare(..) => "declarations",
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
        let limits = operator.limits();
        operator.set(limits).await;
        Ok(operator)
    }

    /// How many changes were answered.
    pub fn count(&self) -> u64 {
        self.actions.values().sum()
    }

    /// True while the queue is paused.
    pub fn is_paused(&self) -> bool {
        self.rows.last_key_value().is_some_and(|(_, row)| row.is_paused)
    }

    /// Pauses the queue.
    pub async fn pause(&mut self) {
        self.act_together(vec![Action::Pause]).await;
    }

    /// Lets the queue go on.
    pub async fn resume(&mut self) {
        self.act_together(vec![Action::Resume]).await;
    }

    /// Gives the queue these limits.
    pub async fn set(&mut self, limits: Limits) {
        self.act_together(vec![Action::Limits(limits)]).await;
    }

    /// Makes a change at random, now and then several at the same moment.
    pub async fn act(&mut self) {
        let together = if self.rng.u8(0..5) == 0 { self.rng.usize(2..=CLIENTS) } else { 1 };
        let actions = (0..together).map(|_| self.choose(together == 1)).collect();
        self.act_together(actions).await;
    }

    fn choose(&mut self, is_alone: bool) -> Action {
        match self.rng.u8(0..12) {
            0..=3 if self.is_paused() => Action::Resume,
            0..=2 => Action::Pause,
            3 => Action::Resume,
            // which version it makes is known only where it is alone
            4 if is_alone => {
                let all = [OnConflict::Update, OnConflict::Keep, OnConflict::Refuse];
                Action::Declare(self.limits(), all[self.rng.usize(0..3)])
            }
            5..=6 => Action::One(self.limits()),
            _ => Action::Limits(self.limits()),
        }
    }

    /// Returns random limits.
    pub fn limits(&mut self) -> Limits {
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

    async fn act_together(&mut self, actions: Vec<Action>) {
        let begun = Instant::now();
        let answers = (self.clients.iter().zip(&actions)).map(|(client, action)| {
            let one = self.rng.u8(0..4);
            carry_out(&self.url, client, action, one)
        });
        let answers: Vec<_> = answers.collect();
        let answers = join_all(answers.into_iter().map(|it| tokio::time::timeout(PATIENCE, it))).await;
        self.slowest = self.slowest.max(begun.elapsed());
        for (action, answer) in actions.into_iter().zip(answers) {
            *self.actions.entry(action.name()).or_default() += 1;
            match answer {
                Ok(Ok(row)) => self.keep(&action, &row),
                Ok(Err(error)) => self.violations.push(format!("{action:?}: {error}")),
                Err(_) => self.violations.push(format!("{action:?} was not answered in {PATIENCE:?}")),
            }
        }
    }

    /// Keeps the version that a change has led to.
    fn keep(&mut self, action: &Action, row: &QueueRow) {
        let is_heeded = match action {
            Action::Pause => row.is_paused,
            Action::Resume => !row.is_paused,
            Action::Limits(limits) => row.queue.limits == *limits,
            Action::One(_) | Action::Declare(..) => true,
        };
        if !is_heeded {
            self.violations.push(format!("{action:?} was answered with {row:?}"));
        }
        if let Some(other) = self.rows.insert(row.version, row.clone()).filter(|other| other != row) {
            self.violations.push(format!("two rows of one version: {other:?}, {row:?}"));
        }
    }

    /// Ends the clients.
    pub async fn leave(self) {
        for client in self.clients {
            client.shutdown(Duration::from_secs(20)).await.unwrap();
        }
    }
}

/// Makes a change; the row of the queue after it.
async fn carry_out(url: &str, client: &Client, action: &Action, one: u8) -> Result<QueueRow, Error> {
    let name: Arc<str> = QUEUE.into();
    match action.clone() {
        Action::Pause => client.pause_queue(QUEUE).await,
        Action::Resume => client.resume_queue(QUEUE).await,
        Action::Limits(limits) => client.set_queue(&Queue { name, limits }).await,
        Action::One(limits) => {
            let change = |before: Limits| match one {
                0 => Limits { concurrency: limits.concurrency, ..before },
                1 => Limits { worker_concurrency: limits.worker_concurrency, ..before },
                2 => Limits { key_concurrency: limits.key_concurrency, ..before },
                _ => Limits { key_weights: limits.key_weights.clone(), ..before },
            };
            client.change_queue(QUEUE, change).await
        }
        Action::Declare(limits, on_conflict) => {
            let store = stepfast::connect(url).await?;
            let builder = Engine::builder(store).declare_queue(Queue { name, limits }, on_conflict);
            match builder.open().await {
                Ok(engine) => engine.shutdown(Duration::from_secs(20)).await?,
                Err(Error::QueueConflict { .. }) if on_conflict == OnConflict::Refuse => {}
                Err(error) => return Err(error),
            }
            let row = client.queues().await?.into_iter().find(|row| *row.queue.name == *QUEUE);
            row.ok_or_else(|| Error::Corrupt("the queue is gone".into()))
        }
    }
}
