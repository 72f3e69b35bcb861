//! [`Hints`]: hints to and from other processes, by LISTEN and NOTIFY. A NOTIFY is never part of a flush, and one
//! NOTIFY stands for many changes. Each names what it concerns, so that only the workers that can act are woken.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use stepfast_core::store::{ClaimHint, Hint, StoreError, WorkerId, WorkerInfo};
use stepfast_core::sync::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client};
use xxhash_rust::xxh3::xxh3_64;

use crate::changes::{Changes, WOKEN_WORKERS, workflow_tag};
use crate::conn::background::BackgroundRuntime;
use crate::conn::connector::{Connector, Purpose, with_jitter};
use crate::error::store_error;

/// The pause after each NOTIFY, as a multiple of the time that the NOTIFY took, and the maximum of that. The pauses are
/// needed because a NOTIFY takes a lock of the whole server.
const NOTIFY_PAUSE: (u32, Duration) = (4, Duration::from_millis(5));

/// The pause after each NOTIFY for each registered worker and each process that sends hints, and the maximum of that. A
/// NOTIFY wakes every connection that listens, so the pauses limit what all hints together cost the server: one wake per
/// 50 us, about a fourth of a processor.
const WAKE_PAUSE: (Duration, Duration) = (Duration::from_micros(50), Duration::from_secs(5));

/// The time after which further workers look whether executions of a hint are still ready, until as many workers as there are
/// executions are awake. A look costs far less than a claim, and the first workers often take all. The next heartbeat of any
/// worker without work finds executions for which none of these had a place.
const LOOK_DELAY: Duration = Duration::from_millis(100);

/// The average time from one such look to the next. Workers that find something claim, often on a new connection. Hundreds
/// of them at once would keep a server busy for seconds, while the first workers wait for it too.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// The pause after each NOTIFY of a process that was alone at its last renewal. Another process may have come since.
const LONE_PAUSE: Duration = Duration::from_secs(1);

/// The time for which a process counts as a sender after its last hint.
const SENDER_MEMORY: Duration = Duration::from_secs(10);

/// The maximum time for which a closing worker waits until its last hint is sent.
const FINAL_SEND_TIMEOUT: Duration = Duration::from_millis(500);

/// The pause before a new connection, which doubles from the first value to the second, with jitter.
const RECONNECT_PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Returns the channel on which the workers of a schema listen. A program that writes rows for these workers sends
/// `<name> ready`, with any name that contains no blank.
pub fn hint_channel(schema: &str) -> String {
    format!("stepfast_{:016x}", xxh3_64(schema.as_bytes()))
}

/// The hints that a store sends to other processes and receives from them.
pub(crate) struct Hints {
    connector: Arc<Connector>,
    is_running: AtomicBool,
    /// Whether the connection for hints listens.
    is_listening: AtomicBool,
    /// Whether other workers may exist. False once a renewal has found no other worker. Then hints are sent seldom.
    has_peers: AtomicBool,
    /// The number of registered workers, as of the last count.
    worker_count: AtomicU32,
    send_requested: Notify,
    /// Ends a [`LONE_PAUSE`].
    lone_pause_ended: Notify,
    /// The changes that are still to be announced.
    unsent: Mutex<Changes>,
    /// The registered workers of this store.
    listeners: Mutex<HashMap<WorkerId, Listener>>,
    /// The other processes that have sent hints, by name, each with the time of its last hint.
    senders: Mutex<HashMap<String, Instant>>,
    /// The number of NOTIFYs begun. `last_sent` contains the number of the last one that succeeded.
    sends_begun: AtomicU64,
    last_sent: watch::Sender<u64>,
    channel: String,
    /// The sender's name in payloads, which distinguishes this store's hints from those of others.
    name: String,
}

/// A worker that receives hints.
struct Listener {
    /// The tags of the workflows that the worker can run.
    workflows: HashSet<u32>,
    is_client: bool,
    /// The number of workers that can run exactly the same executions, as of the last count; 0 before the first one.
    peers: u32,
    /// Whether the worker will soon look whether executions of an earlier hint are still ready.
    is_look_planned: bool,
    /// The union of the hints that were received since the last return of [`Hints::next_hint`].
    pending: Hint,
    changed: Arc<Notify>,
}

impl Listener {
    fn add(&mut self, hint: Hint) {
        if !hint.is_empty() {
            self.pending.merge(hint);
            self.changed.notify_one();
        }
    }
}

/// Draws lots: whether a worker is one of `count` among `peers` workers.
fn is_chosen(peers: u32, count: u32) -> bool {
    peers <= count || fastrand::u32(..peers) < count
}

impl Hints {
    pub(crate) fn new(connector: Arc<Connector>) -> Self {
        let channel = hint_channel(&connector.options().schema);
        Self {
            connector,
            is_running: AtomicBool::new(false),
            is_listening: AtomicBool::new(false),
            has_peers: AtomicBool::new(true),
            worker_count: AtomicU32::new(1),
            send_requested: Notify::new(),
            lone_pause_ended: Notify::new(),
            unsent: Mutex::default(),
            listeners: Mutex::default(),
            senders: Mutex::default(),
            sends_begun: AtomicU64::new(0),
            last_sent: watch::Sender::new(0),
            channel,
            name: format!("{:016x}", fastrand::u64(..)),
        }
    }

    /// Sets whether other workers exist.
    pub(crate) fn set_has_peers(&self, has_peers: bool) {
        if !self.has_peers.swap(has_peers, Relaxed) && has_peers {
            self.lone_pause_ended.notify_one();
        }
    }

    /// Whether hints of other processes are received.
    pub(crate) fn is_listening(&self) -> bool {
        self.is_listening.load(Relaxed)
    }

    /// Adds a worker that receives hints.
    pub(crate) fn add_worker(&self, worker: WorkerId, info: &WorkerInfo) {
        let workflows = info.workflows.iter().map(|name| workflow_tag(name)).collect();
        let mut listeners = self.listeners.lock();
        // Other processes may have changed something before the worker was added. A new connection announces this later.
        let pending = if self.is_listening() { Hint::ANY_CHANGE } else { Hint::default() };
        let listener = Listener {
            workflows,
            is_client: info.is_client,
            peers: 0,
            is_look_planned: false,
            pending,
            changed: Arc::default(),
        };
        listeners.insert(worker, listener);
    }

    /// Removes a worker. Its hints are lost.
    pub(crate) fn remove_worker(&self, worker: WorkerId) {
        self.listeners.lock().remove(&worker);
    }

    /// Whether the worker is a client of this store.
    pub(crate) fn is_client(&self, worker: WorkerId) -> bool {
        self.listeners.lock().get(&worker).is_some_and(|listener| listener.is_client)
    }

    /// Sets the number of registered workers, and of those that can run exactly what this worker can.
    pub(crate) fn set_worker_counts(&self, worker: WorkerId, count: u32, peers: u32) {
        self.worker_count.store(count, Relaxed);
        if let Some(listener) = self.listeners.lock().get_mut(&worker) {
            listener.peers = peers;
        }
    }

    /// Announces changes to other processes, soon.
    pub(crate) fn send(self: &Arc<Self>, background: &BackgroundRuntime, changes: Changes) {
        if !changes.is_empty() {
            self.unsent.lock().merge(changes);
            self.ensure_running(background);
            self.send_requested.notify_one();
        }
    }

    /// Announces changes and waits until the hint is sent, for [`FINAL_SEND_TIMEOUT`] at most: the process may end next.
    pub(crate) async fn send_and_wait(self: &Arc<Self>, background: &BackgroundRuntime, changes: Changes) {
        // a NOTIFY in progress may be older than this hint
        let next = self.sends_begun.load(SeqCst) + 1;
        let mut last_sent = self.last_sent.subscribe();
        self.send(background, changes);
        self.lone_pause_ended.notify_one();
        let _ = tokio::time::timeout(FINAL_SEND_TIMEOUT, last_sent.wait_for(|last| *last >= next)).await;
    }

    /// Waits for a hint of another process that concerns the worker. Returns the union of all hints that were received
    /// since the last return for this worker.
    pub(crate) async fn next_hint(
        self: &Arc<Self>,
        background: &BackgroundRuntime,
        worker: WorkerId,
    ) -> Hint {
        if !self.connector.can_listen() {
            return std::future::pending().await;
        }
        self.ensure_running(background);
        loop {
            let changed = {
                let mut listeners = self.listeners.lock();
                let Some(listener) = listeners.get_mut(&worker) else { break };
                if !listener.pending.is_empty() {
                    return std::mem::take(&mut listener.pending);
                }
                listener.changed.clone()
            };
            changed.notified().await;
        }
        // the registration has ended
        std::future::pending().await
    }

    /// Passes changes on to the workers that they concern.
    fn receive(self: &Arc<Self>, changes: &Changes) {
        let mut looking = Vec::new();
        for (worker, listener) in self.listeners.lock().iter_mut() {
            let mut hint = changes.hint_for(*worker, &listener.workflows);
            if hint.claim > ClaimHint::None && !is_chosen(listener.peers, WOKEN_WORKERS) {
                let is_ready = std::mem::take(&mut hint.claim) == ClaimHint::AtOnce;
                let looks = changes.ready_count().min(listener.peers);
                if is_ready && !listener.is_look_planned && is_chosen(listener.peers, looks) {
                    listener.is_look_planned = true;
                    let delay = LOOK_INTERVAL.mul_f64(f64::from(looks) * fastrand::f64());
                    looking.push((*worker, LOOK_DELAY + delay));
                }
            }
            listener.add(hint);
        }
        for (worker, delay) in looking {
            let hints = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                if let Some(listener) = hints.listeners.lock().get_mut(&worker) {
                    listener.is_look_planned = false;
                    listener.add(Hint { has_other: true, ..Hint::default() });
                }
            });
        }
    }

    /// Returns the pause after a NOTIFY that took this time.
    fn pause_after(&self, duration: Duration) -> Duration {
        let senders = {
            let mut senders = self.senders.lock();
            senders.retain(|_, heard_at| heard_at.elapsed() < SENDER_MEMORY);
            senders.len() as u32 + 1
        };
        let wakes = senders.saturating_mul(self.worker_count.load(Relaxed));
        let pause = (duration * NOTIFY_PAUSE.0).min(NOTIFY_PAUSE.1);
        pause.max(WAKE_PAUSE.0.saturating_mul(wakes).min(WAKE_PAUSE.1))
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
                let served = hints.serve_connection(&mut has_connected).await;
                hints.is_listening.store(false, Relaxed);
                if let Err(error) = served {
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
                    hints.set_has_peers(true);
                    hints.senders.lock().insert(sender.to_owned(), Instant::now());
                    hints.receive(&Changes::parse(text));
                }
            }
        });
        self.connector.set_up(&client, Purpose::Hints).await?;
        if self.connector.can_listen() {
            let listen = format!("SET synchronous_commit TO off; LISTEN {}", self.channel);
            client.batch_execute(&listen).await.map_err(fail)?;
            self.is_listening.store(true, Relaxed);
            // hints may have been sent before this connection listened
            for listener in self.listeners.lock().values_mut() {
                listener.add(Hint::ANY_CHANGE);
            }
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
            let changes = std::mem::take(&mut *self.unsent.lock()).without_repeated();
            let payload = format!("{} {changes}", self.name);
            // this is an unnamed statement, which also works through a proxy that pools transactions
            let params: [(&(dyn ToSql + Sync), Type); 2] =
                [(&self.channel, Type::TEXT), (&payload, Type::TEXT)];
            let begun_at = Instant::now();
            if let Err(error) = client.query_typed("SELECT pg_notify($1, $2)", &params).await {
                // the next connection sends this hint
                self.unsent.lock().merge(changes);
                self.send_requested.notify_one();
                return Err(error);
            }
            self.last_sent.send_replace(number);
            tokio::time::sleep(self.pause_after(begun_at.elapsed())).await;
            if !self.has_peers.load(Relaxed) {
                let _ = tokio::time::timeout(LONE_PAUSE, self.lone_pause_ended.notified()).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lots_choose_about_as_many_workers_as_wanted() {
        let chosen = |peers: u32, count: u32| (0..peers).filter(|_| is_chosen(peers, count)).count();
        assert_eq!([chosen(10, 10), chosen(40, 40), chosen(1_000, u32::MAX)], [10, 40, 1_000]);
        let rounds = 100;
        for count in [10, 200] {
            let mean = (0..rounds).map(|_| chosen(1_000, count)).sum::<usize>() / rounds;
            let count = count as usize;
            assert!((count * 8 / 10..count * 12 / 10).contains(&mean), "{mean} of {count}");
        }
    }
}
