//! Wake-ups across processes: hints by LISTEN and NOTIFY, outside of any flush and never one per row.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stepfast_core::store::StoreError;
use stepfast_core::write::{Flush, State, Write};
use tokio::sync::{Notify, watch};
use tokio_postgres::{AsyncMessage, Client, NoTls};
use xxhash_rust::xxh3::xxh3_64;

use crate::background::Background;
use crate::connect::{Connector, Role};
use crate::error::store_error;

/// Shortest time between two NOTIFYs of a process: each takes a lock of the whole server.
const PAUSE: Duration = Duration::from_millis(5);

/// How long to wait before connecting again.
const RETRY: Duration = Duration::from_secs(1);

/// What the process tells others, and hears from them.
pub(crate) struct Hints {
    connector: Arc<Connector>,
    is_running: AtomicBool,
    /// False once a look has seen no other worker: then nobody needs to be told anything.
    has_company: AtomicBool,
    told: Notify,
    heard: watch::Sender<u64>,
    seen: Mutex<u64>,
    channel: String,
    /// Tells our own hints from those of others.
    name: String,
}

impl Hints {
    pub(crate) fn new(connector: Arc<Connector>) -> Self {
        let channel = format!("stepfast_{:016x}", xxh3_64(connector.options().schema.as_bytes()));
        Self {
            connector,
            is_running: AtomicBool::new(false),
            has_company: AtomicBool::new(true),
            told: Notify::new(),
            heard: watch::Sender::new(0),
            seen: Mutex::new(0),
            channel,
            name: format!("{:016x}", fastrand::u64(..)),
        }
    }

    /// Whether other workers are there.
    pub(crate) fn set_company(&self, has_company: bool) {
        self.has_company.store(has_company, Relaxed);
    }

    /// Tells others that something may have changed, soon.
    pub(crate) fn tell(self: &Arc<Self>, background: &Background) {
        if self.has_company.load(Relaxed) {
            self.run(background);
            self.told.notify_one();
        }
    }

    /// Returns when others may have changed something since the last call returned.
    pub(crate) async fn changed(self: &Arc<Self>, background: &Background) {
        self.run(background);
        let seen = || self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let last = *seen();
        let mut heard = self.heard.subscribe();
        if let Ok(now) = heard.wait_for(|now| *now > last).await {
            let mut seen = seen();
            *seen = (*now).max(*seen);
        }
    }

    fn hear(&self) {
        self.heard.send_modify(|heard| *heard += 1);
    }

    /// Starts the connection for hints, once. It ends with the background thread.
    fn run(self: &Arc<Self>, background: &Background) {
        if self.is_running.swap(true, Relaxed) {
            return;
        }
        let hints = self.clone();
        background.runtime().spawn(async move {
            loop {
                if let Err(error) = hints.serve().await {
                    tracing::debug!(%error, "no wake-up hints for a moment; the look once a second goes on");
                }
                tokio::time::sleep(RETRY).await;
            }
        });
    }

    /// Listens and tells, until the connection is lost.
    async fn serve(self: &Arc<Self>) -> Result<(), StoreError> {
        let what = "wake-up hints";
        let fail = |error: tokio_postgres::Error| store_error(what, &error);
        let mut config = self.connector.config().clone();
        config.application_name("stepfast hints");
        let (client, mut connection) = config.connect(NoTls).await.map_err(fail)?;
        let hints = self.clone();
        let mut driver = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(note) = message
                    && note.payload() != hints.name
                {
                    hints.hear();
                }
            }
        });
        client.batch_execute(&self.connector.settings(Role::Reader)).await.map_err(fail)?;
        let listen = format!("SET synchronous_commit TO off; LISTEN {}", self.channel);
        client.batch_execute(&listen).await.map_err(fail)?;
        // whatever was told before we listened
        self.hear();
        tokio::select! {
            result = self.speak(&client) => result.map_err(fail),
            _ = &mut driver => Err(StoreError::Unavailable(format!("{what}: the connection was lost"))),
        }
    }

    async fn speak(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let notify = client.prepare("SELECT pg_notify($1, $2)").await?;
        loop {
            self.told.notified().await;
            client.execute(&notify, &[&self.channel, &self.name]).await?;
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// True if somebody else may wait for what the flush changes.
pub(crate) fn concerns_others(flush: &Flush) -> bool {
    flush.writes.iter().any(|write| match write {
        Write::Start(start) => !matches!(start.state, State::Running { .. }),
        Write::Move(change) => !matches!(change.state, State::Running { .. }),
        Write::Wake(_) | Write::Request(_) => true,
        Write::Checkpoint(_) | Write::Attempt(_) | Write::Answer(_) | Write::Chunk(_) | Write::Discard(_) => {
            false
        }
    })
}
