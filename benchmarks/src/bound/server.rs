//! [`ServerWatch`]: samples the activity of a Postgres server's sessions, on its own connection and thread.

use std::collections::BTreeMap;
use std::time::Duration;

use stepfast::Error;
use tokio::sync::oneshot;
use tokio_postgres::Client;

use super::{Bound, Share, to_shares};
use crate::target::{connect, postgres_error};

/// The range of pauses between two samples, in microseconds. Pauses are random, so that sampling does not run in step with
/// the sampled activity.
const SAMPLE_PAUSE_MICROS: std::ops::Range<u64> = 8_000..16_000;
/// The maximum number of wait events that a report lists.
const MAX_LISTED_WAITS: usize = 8;

/// Selects Stepfast's sessions by their names, and the two processes that flush the log and the tables for all sessions.
const SAMPLE_QUERY: &str = "
    SELECT backend_type, state, wait_event_type, wait_event FROM pg_stat_activity
    WHERE (datname = current_database() AND application_name LIKE 'stepfast %' AND state <> 'idle')
       OR backend_type IN ('walwriter', 'checkpointer')";

/// The activity of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Activity {
    Flush,
    Locks,
    Processor,
    Client,
    OtherIo,
    Other,
}

impl Activity {
    /// Returns the activity for a wait event, by the names of Postgres 13 to 18.
    fn from_wait(wait: Option<(&str, &str)>) -> Self {
        let Some((kind, event)) = wait else { return Activity::Processor };
        let event = event.to_ascii_lowercase();
        match kind {
            "IO" if event.starts_with("wal") => Activity::Flush,
            "LWLock" if event == "walwrite" => Activity::Flush,
            // the wait for the flush of a synchronous standby
            "IPC" if event == "syncrep" => Activity::Flush,
            "IO" => Activity::OtherIo,
            "Lock" | "LWLock" | "BufferPin" | "Buffer" => Activity::Locks,
            "Client" => Activity::Client,
            _ => Activity::Other,
        }
    }
}

/// All samples of a run.
#[derive(Default)]
pub(super) struct SessionSamples {
    samples: u64,
    busy: u64,
    /// The samples by activity. Each sample counts as 1, divided among the sessions that were busy in it.
    activities: BTreeMap<Activity, f64>,
    waits: BTreeMap<String, f64>,
}

/// A process in one sample.
struct SampledSession<'r> {
    backend: &'r str,
    state: Option<&'r str>,
    wait: Option<(&'r str, &'r str)>,
}

impl SessionSamples {
    fn add_sample(&mut self, sessions: &[SampledSession<'_>]) {
        self.samples += 1;
        let is_background = |it: &&SampledSession<'_>| matches!(it.backend, "walwriter" | "checkpointer");
        for it in sessions.iter().filter(is_background) {
            // `Activity` means waiting for work; not every version distinguishes that from running without a wait
            if let Some((kind, event)) = it.wait
                && kind != "Activity"
            {
                *self.waits.entry(format!("{} {kind}:{event}", it.backend)).or_default() += 1.0;
            }
        }
        let at: Vec<_> = sessions.iter().filter(|it| !is_background(it)).collect();
        if at.is_empty() {
            *self.activities.entry(Activity::Client).or_default() += 1.0;
            return;
        }
        let part = 1.0 / at.len() as f64;
        for it in at {
            let activity = match it.state {
                Some("active" | "fastpath function call") => Activity::from_wait(it.wait),
                // unknown, as track_activities is off
                None | Some("disabled") => Activity::Other,
                _ => Activity::Client,
            };
            if activity != Activity::Client {
                self.busy += 1;
            }
            *self.activities.entry(activity).or_default() += part;
            if let Some((kind, event)) = it.wait {
                *self.waits.entry(format!("{kind}:{event}")).or_default() += part;
            }
        }
    }

    pub(super) fn fill(self, bound: &mut Bound) {
        let total = |activity| self.activities.get(&activity).copied().unwrap_or_default();
        bound.shares = to_shares([
            ("log flush", total(Activity::Flush)),
            ("locks", total(Activity::Locks)),
            ("server CPU", total(Activity::Processor)),
            ("client", total(Activity::Client)),
            ("other I/O", total(Activity::OtherIo)),
            ("other", total(Activity::Other)),
        ]);
        let samples = self.samples.max(1) as f64;
        bound.samples = Some(self.samples);
        bound.busy_sessions = Some(self.busy as f64 / samples);
        let tenths = |part: f64| (part / samples * 1_000.0).round() / 10.0;
        bound.waits = self.waits.into_iter().map(|(name, part)| Share::new(name, tenths(part))).collect();
        bound.waits.sort_by(|a, b| b.percent.total_cmp(&a.percent));
        bound.waits.truncate(MAX_LISTED_WAITS);
    }
}

/// The sampling thread, which runs until it is stopped.
pub(super) struct ServerWatch {
    stop: oneshot::Sender<()>,
    result: oneshot::Receiver<Result<SessionSamples, Error>>,
}

impl ServerWatch {
    /// Connects, and starts sampling.
    pub(super) async fn start(url: &str) -> Result<Self, Error> {
        let (stop, stopped) = oneshot::channel();
        let (result_sender, result) = oneshot::channel();
        let (is_ready, ready) = oneshot::channel();
        let url = url.to_owned();
        let unavailable =
            |error: std::io::Error| Error::Unavailable(format!("cannot start a thread: {error}"));
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(unavailable)?;
        // not in the measured runtime, whose load would decide when samples are taken
        let watch = move || {
            let samples = runtime.block_on(async {
                let client = connect(&url, "stepfast-bench watch").await?;
                let statement = client.prepare(SAMPLE_QUERY).await.map_err(postgres_error)?;
                let _ = is_ready.send(());
                sample_until_stopped(&client, &statement, stopped).await
            });
            let _ = result_sender.send(samples);
        };
        std::thread::Builder::new().name("stepfast-watch".into()).spawn(watch).map_err(unavailable)?;
        match ready.await {
            Ok(()) => Ok(Self { stop, result }),
            Err(_) => Err(result.await.ok().and_then(Result::err).unwrap_or_else(watch_ended_error)),
        }
    }

    /// Stops sampling, and returns the samples.
    pub(super) async fn stop(self) -> Result<SessionSamples, Error> {
        let _ = self.stop.send(());
        self.result.await.unwrap_or_else(|_| Err(watch_ended_error()))
    }
}

fn watch_ended_error() -> Error {
    Error::Unavailable("the thread that watches the server has ended".into())
}

/// Takes samples until it is stopped, at least one.
async fn sample_until_stopped(
    client: &Client,
    statement: &tokio_postgres::Statement,
    mut stopped: oneshot::Receiver<()>,
) -> Result<SessionSamples, Error> {
    let mut samples = SessionSamples::default();
    loop {
        let rows = client.query(statement, &[]).await.map_err(postgres_error)?;
        let sessions: Vec<_> = rows
            .iter()
            .map(|row| SampledSession {
                backend: row.get(0),
                state: row.get(1),
                wait: row.get::<_, Option<&str>>(2).zip(row.get(3)),
            })
            .collect();
        samples.add_sample(&sessions);
        let pause = Duration::from_micros(fastrand::u64(SAMPLE_PAUSE_MICROS));
        tokio::select! {
            biased;
            _ = &mut stopped => return Ok(samples),
            () = tokio::time::sleep(pause) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client<'r>(state: &'r str, wait: Option<(&'r str, &'r str)>) -> SampledSession<'r> {
        SampledSession { backend: "client backend", state: Some(state), wait }
    }

    #[test]
    fn wait_events_are_classified_for_all_server_versions() {
        for (wait, activity) in [
            (None, Activity::Processor),
            (Some(("IO", "WALSync")), Activity::Flush),
            (Some(("IO", "WalSync")), Activity::Flush),
            (Some(("IO", "WALInitSync")), Activity::Flush),
            (Some(("LWLock", "WALWrite")), Activity::Flush),
            (Some(("LWLock", "WALInsert")), Activity::Locks),
            (Some(("IPC", "SyncRep")), Activity::Flush),
            (Some(("IO", "DataFileRead")), Activity::OtherIo),
            (Some(("Lock", "transactionid")), Activity::Locks),
            (Some(("Client", "ClientRead")), Activity::Client),
            (Some(("Timeout", "VacuumDelay")), Activity::Other),
        ] {
            assert_eq!(Activity::from_wait(wait), activity, "{wait:?}");
        }
    }

    #[test]
    fn samples_count_once_for_any_number_of_busy_sessions() {
        let mut sessions = SessionSamples::default();
        // no session is busy: the server waits for the clients
        sessions.add_sample(&[]);
        sessions.add_sample(&[SampledSession {
            backend: "checkpointer",
            state: None,
            wait: Some(("IO", "DataFileSync")),
        }]);
        sessions.add_sample(&[client("active", Some(("IO", "WALSync")))]);
        sessions.add_sample(&[
            client("active", Some(("LWLock", "WALWrite"))),
            client("active", None),
            client("active", Some(("Lock", "tuple"))),
            client("idle in transaction", Some(("Client", "ClientRead"))),
        ]);
        let mut bound = Bound::default();
        sessions.fill(&mut bound);
        let shares: Vec<_> = bound.shares.iter().map(|it| format!("{} {}", it.name, it.percent)).collect();
        assert_eq!(
            shares,
            ["log flush 31.3", "locks 6.3", "server CPU 6.2", "client 56.2", "other I/O 0", "other 0"]
        );
        assert_eq!((bound.samples, bound.busy_sessions), (Some(4), Some(1.0)));
        assert_eq!(bound.waits[0].percent.to_string(), "25");
        assert!(bound.waits.iter().any(|it| it.name == "checkpointer IO:DataFileSync"), "{:?}", bound.waits);
    }
}
