//! [`Hints`]: hints to and from other processes, by LISTEN and NOTIFY. A NOTIFY is never part of a flush, and one
//! NOTIFY stands for many changes.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use stepfast_core::store::{Flush, Hint, Outcome, State, StoreError, Write};
use stepfast_core::sync::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client};
use xxhash_rust::xxh3::xxh3_64;

use crate::conn::background::BackgroundRuntime;
use crate::conn::connector::{Connector, Purpose, with_jitter};
use crate::error::store_error;

/// The pause after each NOTIFY, as a multiple of the time that the NOTIFY took, and the maximum pause. The pauses are
/// needed because a NOTIFY takes a lock of the whole server.
const NOTIFY_PAUSE: (u32, Duration) = (4, Duration::from_millis(5));

/// The maximum time for which a closing worker waits until its last hint is sent.
const FINAL_SEND_TIMEOUT: Duration = Duration::from_millis(500);

/// The pause before a new connection, which doubles from the first value to the second, with jitter.
const RECONNECT_PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// The hint that nothing has changed for other processes.
const EMPTY_HINT: Hint = Hint { has_ready: false, has_other: false };
/// The hint that an execution may be ready.
pub(crate) const READY_HINT: Hint = Hint { has_ready: true, has_other: false };
/// The hint that anything may have changed.
const FULL_HINT: Hint = Hint { has_ready: true, has_other: true };

/// Returns the channel on which the workers of a schema listen. A program that writes rows for these workers sends
/// `<name> ready`, with any name that contains no blank.
pub fn hint_channel(schema: &str) -> String {
    format!("stepfast_{:016x}", xxh3_64(schema.as_bytes()))
}

/// The hints that a store sends to other processes and receives from them.
pub(crate) struct Hints {
    connector: Arc<Connector>,
    is_running: AtomicBool,
    /// Whether other workers may exist. False once a heartbeat has found no other worker. Then no hint is sent.
    has_peers: AtomicBool,
    send_requested: Notify,
    /// The hint that is still to be sent.
    unsent: Mutex<Hint>,
    /// The number of received hints that set `has_ready`, and the number of received hints that set `has_other`.
    received: watch::Sender<(u64, u64)>,
    /// The values of `received` at the last return of [`next_hint`](Self::next_hint).
    returned: Mutex<(u64, u64)>,
    /// The number of NOTIFYs begun. `last_sent` contains the number of the last one that succeeded.
    sends_begun: AtomicU64,
    last_sent: watch::Sender<u64>,
    channel: String,
    /// The sender's name in payloads, which distinguishes this store's hints from those of others.
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

    /// Sets whether other workers exist.
    pub(crate) fn set_has_peers(&self, has_peers: bool) {
        self.has_peers.store(has_peers, Relaxed);
    }

    /// Sends a hint to other processes, soon.
    pub(crate) fn send(self: &Arc<Self>, background: &BackgroundRuntime, hint: Hint) {
        if hint != EMPTY_HINT && self.has_peers.load(Relaxed) {
            merge_hint(&self.unsent, hint);
            self.ensure_running(background);
            self.send_requested.notify_one();
        }
    }

    /// Sends a hint and waits until it is sent, for [`FINAL_SEND_TIMEOUT`] at most: the process may end next.
    pub(crate) async fn send_and_wait(self: &Arc<Self>, background: &BackgroundRuntime, hint: Hint) {
        if !self.has_peers.load(Relaxed) {
            return;
        }
        // a NOTIFY in progress may be older than this hint
        let next = self.sends_begun.load(SeqCst) + 1;
        let mut last_sent = self.last_sent.subscribe();
        self.send(background, hint);
        let _ = tokio::time::timeout(FINAL_SEND_TIMEOUT, last_sent.wait_for(|last| *last >= next)).await;
    }

    /// Waits for a hint of another process. Returns the union of all hints that were received since the last call
    /// returned.
    pub(crate) async fn next_hint(self: &Arc<Self>, background: &BackgroundRuntime) -> Hint {
        if !self.connector.can_listen() {
            return std::future::pending().await;
        }
        self.ensure_running(background);
        let (ready, other) = *self.returned.lock();
        let mut received = self.received.subscribe();
        // the sender is a field of `self`, so it is not dropped during the wait
        let now =
            received.wait_for(|now| now.0 > ready || now.1 > other).await.map_or((ready, other), |now| *now);
        let mut returned = self.returned.lock();
        *returned = (returned.0.max(now.0), returned.1.max(now.1));
        Hint { has_ready: now.0 > ready, has_other: now.1 > other }
    }

    fn receive(&self, hint: Hint) {
        self.received.send_modify(|(ready, other)| {
            *ready += u64::from(hint.has_ready);
            *other += u64::from(hint.has_other);
        });
    }

    /// Starts the task with the connection for hints, unless the task is running. The task ends with the background
    /// thread.
    fn ensure_running(self: &Arc<Self>, background: &BackgroundRuntime) {
        if self.is_running.swap(true, Relaxed) {
            return;
        }
        let hints = self.clone();
        background.runtime().spawn(async move {
            let mut pause = RECONNECT_PAUSES.0;
            // other connections report outages; this task only reports a connection for hints that has never worked
            let (mut has_ever_connected, mut is_reported) = (false, false);
            loop {
                let mut has_connected = false;
                if let Err(error) = hints.serve_connection(&mut has_connected).await {
                    has_ever_connected |= has_connected;
                    if !has_ever_connected && !std::mem::replace(&mut is_reported, true) {
                        tracing::warn!(
                            %error,
                            "no wake-up hints can be received; changes by other processes are noticed once a second: see \
                             listen= in the URL, and stepfast db check"
                        );
                    } else {
                        tracing::debug!(%error, "connection for wake-up hints failed; heartbeats continue once a second");
                    }
                }
                pause = if has_connected { RECONNECT_PAUSES.0 } else { (pause * 2).min(RECONNECT_PAUSES.1) };
                tokio::time::sleep(with_jitter(pause)).await;
            }
        });
    }

    /// Connects, then receives and sends hints until the connection is lost. Sets `has_connected` once the connection
    /// works.
    async fn serve_connection(self: &Arc<Self>, has_connected: &mut bool) -> Result<(), StoreError> {
        let action = "receiving wake-up hints";
        let fail = |error: tokio_postgres::Error| store_error(action, &error);
        let connected = self.connector.dial_hints(&Handle::current()).await;
        let (client, mut connection) =
            connected.map_err(|refusal| self.connector.hint_connect_failed(&refusal))?;
        let hints = self.clone();
        let mut driver = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(notification) = message
                    && let Some((sender, text)) = notification.payload().split_once(' ')
                    && sender != hints.name
                {
                    hints.receive(parse_payload(text));
                }
            }
        });
        self.connector.set_up(&client, Purpose::Hints).await?;
        if self.connector.can_listen() {
            let listen = format!("SET synchronous_commit TO off; LISTEN {}", self.channel);
            client.batch_execute(&listen).await.map_err(fail)?;
            // hints may have been sent before this connection listened
            self.receive(FULL_HINT);
        }
        *has_connected = true;
        tokio::select! {
            result = self.publish(&client) => result.map_err(fail),
            _ = &mut driver => Err(StoreError::Unavailable(format!("{action}: the connection was lost"))),
        }
    }

    async fn publish(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        loop {
            self.send_requested.notified().await;
            let number = self.sends_begun.fetch_add(1, SeqCst) + 1;
            let hint = take_hint(&self.unsent);
            let payload = format!("{} {}", self.name, payload_text(hint));
            // this is an unnamed statement, which also works through a proxy that pools transactions
            let params: [(&(dyn ToSql + Sync), Type); 2] =
                [(&self.channel, Type::TEXT), (&payload, Type::TEXT)];
            let begun_at = Instant::now();
            if let Err(error) = client.query_typed("SELECT pg_notify($1, $2)", &params).await {
                // the next connection sends this hint
                merge_hint(&self.unsent, hint);
                self.send_requested.notify_one();
                return Err(error);
            }
            self.last_sent.send_replace(number);
            tokio::time::sleep((begun_at.elapsed() * NOTIFY_PAUSE.0).min(NOTIFY_PAUSE.1)).await;
        }
    }
}

/// Returns the hint for a flush: whether other processes may claim its executions, wait for them, or have to handle
/// requests.
pub(crate) fn hint_for_flush(flush: &Flush, outcomes: &[(usize, Outcome)]) -> Hint {
    let mut all = EMPTY_HINT;
    // a self-claiming Start has this outcome if its execution was queued instead of begun
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

fn merge_hint(target: &Mutex<Hint>, hint: Hint) {
    let mut all = target.lock();
    all.has_ready |= hint.has_ready;
    all.has_other |= hint.has_other;
}

fn take_hint(source: &Mutex<Hint>) -> Hint {
    std::mem::take(&mut *source.lock())
}

/// Returns the text of a hint, which follows the sender's name in the payload.
fn payload_text(hint: Hint) -> &'static str {
    match (hint.has_ready, hint.has_other) {
        (true, false) => "ready",
        (false, true) => "more",
        _ => "anything",
    }
}

/// Parses the text of a hint. An unknown text counts as a hint that anything may have changed.
fn parse_payload(text: &str) -> Hint {
    match text {
        "ready" => READY_HINT,
        "more" => Hint { has_other: true, ..EMPTY_HINT },
        _ => FULL_HINT,
    }
}
