//! Wake-ups across processes: hints by LISTEN and NOTIFY, outside of any flush and never one per row.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use stepfast_core::store::{Hint, Flush, Outcome, State, StoreError, Write};
use stepfast_core::sync::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client};
use xxhash_rust::xxh3::xxh3_64;

use crate::conn::background::Background;
use crate::conn::connector::{Connector, Role, jittered};
use crate::error::store_error;

/// After each NOTIFY, which takes a lock of the whole server, a process rests this many times as long as it took, and
/// at most so long.
const NOTIFY_PAUSE: (u32, Duration) = (4, Duration::from_millis(5));

/// How long who closes waits until others have been told.
const FINAL_SEND_TIMEOUT: Duration = Duration::from_millis(500);

/// How long to wait before connecting again: doubles from the first to the last, with jitter.
const RECONNECT_PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Something of nobody's concern.
const EMPTY_HINT: Hint = Hint { has_ready: false, has_other: false };
/// Something may be ready.
pub(crate) const READY_HINT: Hint = Hint { has_ready: true, has_other: false };
/// Anything may have changed.
const FULL_HINT: Hint = Hint { has_ready: true, has_other: true };

/// The channel of those who work with a schema. Whoever puts something there for them tells `<name> ready`, with any name
/// that has no blank.
pub fn hint_channel(schema: &str) -> String {
    format!("stepfast_{:016x}", xxh3_64(schema.as_bytes()))
}

/// What the process tells others, and hears from them.
pub(crate) struct Hints {
    connector: Arc<Connector>,
    is_running: AtomicBool,
    /// False once a look has seen no other worker: then nobody needs to be told anything.
    has_peers: AtomicBool,
    send_requested: Notify,
    /// What others have not been told yet.
    unsent: Mutex<Hint>,
    /// How often was heard that something may be ready, and that there may be more.
    received: watch::Sender<(u64, u64)>,
    /// Of these, how much the last return of `changed` had seen.
    returned: Mutex<(u64, u64)>,
    /// How many NOTIFYs have been begun, and the number of the last one that is done.
    sends_begun: AtomicU64,
    last_sent: watch::Sender<u64>,
    channel: String,
    /// Tells our own hints from those of others.
    name: String,
}

impl Hints {
    pub(crate) fn new(connector: Arc<Connector>) -> Self {
        let channel = hint_channel(&connector.options().schema);
        Self {
            connector,
            is_running: AtomicBool::new(false),
            has_peers: AtomicBool::new(true),
            send_requested: Notify::new(),
            unsent: Mutex::default(),
            received: watch::Sender::new((0, 0)),
            returned: Mutex::default(),
            sends_begun: AtomicU64::new(0),
            last_sent: watch::Sender::new(0),
            channel,
            name: format!("{:016x}", fastrand::u64(..)),
        }
    }

    /// Whether other workers are there.
    pub(crate) fn set_has_peers(&self, has_company: bool) {
        self.has_peers.store(has_company, Relaxed);
    }

    /// Tells others what may have changed, soon.
    pub(crate) fn send(self: &Arc<Self>, background: &Background, what: Hint) {
        if what != EMPTY_HINT && self.has_peers.load(Relaxed) {
            merge_hint(&self.unsent, what);
            self.ensure_running(background);
            self.send_requested.notify_one();
        }
    }

    /// The same, and waits until they have been told, but not for long: the process may end next.
    pub(crate) async fn send_and_wait(self: &Arc<Self>, background: &Background, what: Hint) {
        if !self.has_peers.load(Relaxed) {
            return;
        }
        // one that is on its way may be older than what is told of
        let next = self.sends_begun.load(SeqCst) + 1;
        let mut sent = self.last_sent.subscribe();
        self.send(background, what);
        let _ = tokio::time::timeout(FINAL_SEND_TIMEOUT, sent.wait_for(|sent| *sent >= next)).await;
    }

    /// Returns what others may have changed since the last call returned, when there is something.
    pub(crate) async fn next_hint(self: &Arc<Self>, background: &Background) -> Hint {
        if !self.connector.can_listen() {
            return std::future::pending().await;
        }
        self.ensure_running(background);
        let (ready, more) = *self.returned.lock();
        let mut heard = self.received.subscribe();
        // the sender is ours: it does not go away
        let now = heard.wait_for(|now| now.0 > ready || now.1 > more).await.map_or((ready, more), |now| *now);
        let mut seen = self.returned.lock();
        *seen = (seen.0.max(now.0), seen.1.max(now.1));
        Hint { has_ready: now.0 > ready, has_other: now.1 > more }
    }

    fn receive(&self, what: Hint) {
        self.received.send_modify(|(ready, more)| {
            *ready += u64::from(what.has_ready);
            *more += u64::from(what.has_other);
        });
    }

    /// Starts the connection for hints, once. It ends with the background thread.
    fn ensure_running(self: &Arc<Self>, background: &Background) {
        if self.is_running.swap(true, Relaxed) {
            return;
        }
        let hints = self.clone();
        background.runtime().spawn(async move {
            let mut pause = RECONNECT_PAUSES.0;
            // an outage is told by those who need an answer; this alone may be missing when all else goes well
            let (mut has_been, mut is_told) = (false, false);
            loop {
                let mut was_there = false;
                if let Err(error) = hints.serve_connection(&mut was_there).await {
                    has_been |= was_there;
                    if !has_been && !std::mem::replace(&mut is_told, true) {
                        tracing::warn!(
                            %error,
                            "no wake-up hints, as nobody can be heard; what others do is seen once a second: see \
                             listen= in the URL, and stepfast db check"
                        );
                    } else {
                        tracing::debug!(%error, "no wake-up hints for a moment; the look once a second goes on");
                    }
                }
                pause = if was_there { RECONNECT_PAUSES.0 } else { (pause * 2).min(RECONNECT_PAUSES.1) };
                tokio::time::sleep(jittered(pause)).await;
            }
        });
    }

    /// Listens and tells, until the connection is lost; sets `was_there` once it works.
    async fn serve_connection(self: &Arc<Self>, was_there: &mut bool) -> Result<(), StoreError> {
        let what = "wake-up hints";
        let fail = |error: tokio_postgres::Error| store_error(what, &error);
        let connected = self.connector.dial_hints(&Handle::current()).await;
        let (client, mut connection) = connected.map_err(|refusal| self.connector.hint_connect_failed(&refusal))?;
        let hints = self.clone();
        let mut driver = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(note) = message
                    && let Some((name, what)) = note.payload().split_once(' ')
                    && name != hints.name
                {
                    hints.receive(parse_payload(what));
                }
            }
        });
        self.connector.set_up(&client, Role::Hints).await?;
        if self.connector.can_listen() {
            let listen = format!("SET synchronous_commit TO off; LISTEN {}", self.channel);
            client.batch_execute(&listen).await.map_err(fail)?;
            // whatever was told before we listened
            self.receive(FULL_HINT);
        }
        *was_there = true;
        tokio::select! {
            result = self.publish(&client) => result.map_err(fail),
            _ = &mut driver => Err(StoreError::Unavailable(format!("{what}: the connection was lost"))),
        }
    }

    async fn publish(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        loop {
            self.send_requested.notified().await;
            let number = self.sends_begun.fetch_add(1, SeqCst) + 1;
            let what = take_hint(&self.unsent);
            let payload = format!("{} {}", self.name, payload_text(what));
            // without a name: also through a proxy
            let params: [(&(dyn ToSql + Sync), Type); 2] =
                [(&self.channel, Type::TEXT), (&payload, Type::TEXT)];
            let begun = Instant::now();
            if let Err(error) = client.query_typed("SELECT pg_notify($1, $2)", &params).await {
                // the next connection tells it
                merge_hint(&self.unsent, what);
                self.send_requested.notify_one();
                return Err(error);
            }
            self.last_sent.send_replace(number);
            tokio::time::sleep((begun.elapsed() * NOTIFY_PAUSE.0).min(NOTIFY_PAUSE.1)).await;
        }
    }
}

/// What of a flush may concern others: what somebody may claim, wait for, or has to answer.
pub(crate) fn hint_for_flush(flush: &Flush, outcomes: &[(usize, Outcome)]) -> Hint {
    let mut all = EMPTY_HINT;
    // what was to run has been queued
    all.has_ready = outcomes.iter().any(|(_, outcome)| *outcome == Outcome::Queued);
    for write in &flush.writes {
        let state = match write {
            Write::Start(start) => &start.state,
            Write::Transition(change) => &change.state,
            Write::Wake(_) | Write::Request(_) => return FULL_HINT,
            Write::Checkpoint(_)
            | Write::Attempt(_)
            | Write::ClearRequests(_)
            | Write::Chunk(_)
            | Write::DeleteChunks(_) => continue,
        };
        all.has_ready |= matches!(state, State::Queued { .. });
        all.has_other |= !matches!(state, State::Queued { .. } | State::Running { .. });
        if all == FULL_HINT {
            break;
        }
    }
    all
}

fn merge_hint(to: &Mutex<Hint>, what: Hint) {
    let mut all = to.lock();
    all.has_ready |= what.has_ready;
    all.has_other |= what.has_other;
}

fn take_hint(from: &Mutex<Hint>) -> Hint {
    std::mem::take(&mut *from.lock())
}

/// What a payload says behind the name.
fn payload_text(what: Hint) -> &'static str {
    match (what.has_ready, what.has_other) {
        (true, false) => "ready",
        (false, true) => "more",
        _ => "anything",
    }
}

fn parse_payload(what: &str) -> Hint {
    match what {
        "ready" => READY_HINT,
        "more" => Hint { has_other: true, ..EMPTY_HINT },
        _ => FULL_HINT,
    }
}
