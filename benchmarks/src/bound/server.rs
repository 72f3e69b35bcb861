//! [`Watch`]: what a Postgres server's sessions do, looked at from a connection and a thread of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use stepfast::Error;
use tokio::sync::oneshot;
use tokio_postgres::Client;

use super::{Bound, Share, shares};
use crate::target::{connect, unanswered};

/// Shortest and longest pause between two looks, in microseconds. At random, so as not to march in step with what is
/// looked at.
const PAUSE: std::ops::Range<u64> = 8_000..16_000;
/// So many waits are told by name.
const WAITS: usize = 8;

/// Sessions of ours, by their names, and the two processes that flush the log and the tables for all.
const LOOK: &str = "
    SELECT backend_type, state, wait_event_type, wait_event FROM pg_stat_activity
    WHERE (datname = current_database() AND application_name LIKE 'stepfast %' AND state <> 'idle')
       OR backend_type IN ('walwriter', 'checkpointer')";

/// What a session is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Doing {
    Flush,
    Locks,
    Processor,
    Client,
    OtherIo,
    Other,
}

impl Doing {
    /// What it is at if it waits for this, by the names of Postgres 13 to 18.
    fn of(wait: Option<(&str, &str)>) -> Self {
        let Some((kind, event)) = wait else { return Doing::Processor };
        let event = event.to_ascii_lowercase();
        match kind {
            "IO" if event.starts_with("wal") => Doing::Flush,
            "LWLock" if event == "walwrite" => Doing::Flush,
            // the flush of a synchronous standby
            "IPC" if event == "syncrep" => Doing::Flush,
            "IO" => Doing::OtherIo,
            "Lock" | "LWLock" | "BufferPin" | "Buffer" => Doing::Locks,
            "Client" => Doing::Client,
            _ => Doing::Other,
        }
    }
}

/// All that was seen.
#[derive(Default)]
pub(super) struct Sessions {
    looks: u64,
    busy: u64,
    /// Each look counts as one, divided among the sessions that were busy then.
    doing: BTreeMap<Doing, f64>,
    waits: BTreeMap<String, f64>,
}

/// One process at one look.
struct Session<'r> {
    backend: &'r str,
    state: Option<&'r str>,
    wait: Option<(&'r str, &'r str)>,
}

impl Sessions {
    fn look(&mut self, sessions: &[Session<'_>]) {
        self.looks += 1;
        let is_background = |it: &&Session<'_>| matches!(it.backend, "walwriter" | "checkpointer");
        for it in sessions.iter().filter(is_background) {
            // `Activity` is waiting for work; what it does without waiting cannot be told from that everywhere
            if let Some((kind, event)) = it.wait
                && kind != "Activity"
            {
                *self.waits.entry(format!("{} {kind}:{event}", it.backend)).or_default() += 1.0;
            }
        }
        let at: Vec<_> = sessions.iter().filter(|it| !is_background(it)).collect();
        if at.is_empty() {
            *self.doing.entry(Doing::Client).or_default() += 1.0;
            return;
        }
        let part = 1.0 / at.len() as f64;
        for it in at {
            let doing = match it.state {
                Some("active" | "fastpath function call") => Doing::of(it.wait),
                // the server does not tell: track_activities is off
                None | Some("disabled") => Doing::Other,
                _ => Doing::Client,
            };
            if doing != Doing::Client {
                self.busy += 1;
            }
            *self.doing.entry(doing).or_default() += part;
            if let Some((kind, event)) = it.wait {
                *self.waits.entry(format!("{kind}:{event}")).or_default() += part;
            }
        }
    }

    pub(super) fn fill(self, bound: &mut Bound) {
        let of = |doing| self.doing.get(&doing).copied().unwrap_or_default();
        bound.shares = shares([
            ("log flush", of(Doing::Flush)),
            ("locks", of(Doing::Locks)),
            ("server CPU", of(Doing::Processor)),
            ("client", of(Doing::Client)),
            ("other I/O", of(Doing::OtherIo)),
            ("other", of(Doing::Other)),
        ]);
        let looks = self.looks.max(1) as f64;
        bound.samples = Some(self.looks);
        bound.busy_sessions = Some(self.busy as f64 / looks);
        let tenths = |part: f64| (part / looks * 1_000.0).round() / 10.0;
        bound.waits = self.waits.into_iter().map(|(name, part)| Share::new(name, tenths(part))).collect();
        bound.waits.sort_by(|a, b| b.percent.total_cmp(&a.percent));
        bound.waits.truncate(WAITS);
    }
}

/// The thread that looks, until it is stopped.
pub(super) struct Watch {
    stop: oneshot::Sender<()>,
    seen: oneshot::Receiver<Result<Sessions, Error>>,
}

impl Watch {
    /// Connects, and begins to look.
    pub(super) async fn start(url: &str) -> Result<Self, Error> {
        let (stop, stopped) = oneshot::channel();
        let (tell, seen) = oneshot::channel();
        let (is_ready, ready) = oneshot::channel();
        let url = url.to_owned();
        let unavailable =
            |error: std::io::Error| Error::Unavailable(format!("cannot start a thread: {error}"));
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(unavailable)?;
        // not in the runtime of those who are measured: it would look when they let it
        let watch = move || {
            let seen = runtime.block_on(async {
                let client = connect(&url, "stepfast-bench watch").await?;
                let look = client.prepare(LOOK).await.map_err(unanswered)?;
                let _ = is_ready.send(());
                watch(&client, &look, stopped).await
            });
            let _ = tell.send(seen);
        };
        std::thread::Builder::new().name("stepfast-watch".into()).spawn(watch).map_err(unavailable)?;
        match ready.await {
            Ok(()) => Ok(Self { stop, seen }),
            Err(_) => Err(seen.await.ok().and_then(Result::err).unwrap_or_else(gone)),
        }
    }

    /// Ends it: what it saw.
    pub(super) async fn stop(self) -> Result<Sessions, Error> {
        let _ = self.stop.send(());
        self.seen.await.unwrap_or_else(|_| Err(gone()))
    }
}

fn gone() -> Error {
    Error::Unavailable("the thread that watches the server has ended".into())
}

/// Looks at least once.
async fn watch(
    client: &Client,
    look: &tokio_postgres::Statement,
    mut stopped: oneshot::Receiver<()>,
) -> Result<Sessions, Error> {
    let mut seen = Sessions::default();
    loop {
        let rows = client.query(look, &[]).await.map_err(unanswered)?;
        let sessions: Vec<_> = rows
            .iter()
            .map(|row| Session {
                backend: row.get(0),
                state: row.get(1),
                wait: row.get::<_, Option<&str>>(2).zip(row.get(3)),
            })
            .collect();
        seen.look(&sessions);
        let pause = Duration::from_micros(fastrand::u64(PAUSE));
        tokio::select! {
            biased;
            _ = &mut stopped => return Ok(seen),
            () = tokio::time::sleep(pause) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client<'r>(state: &'r str, wait: Option<(&'r str, &'r str)>) -> Session<'r> {
        Session { backend: "client backend", state: Some(state), wait }
    }

    #[test]
    fn waits_are_known_by_the_names_of_all_versions() {
        for (wait, doing) in [
            (None, Doing::Processor),
            (Some(("IO", "WALSync")), Doing::Flush),
            (Some(("IO", "WalSync")), Doing::Flush),
            (Some(("IO", "WALInitSync")), Doing::Flush),
            (Some(("LWLock", "WALWrite")), Doing::Flush),
            (Some(("LWLock", "WALInsert")), Doing::Locks),
            (Some(("IPC", "SyncRep")), Doing::Flush),
            (Some(("IO", "DataFileRead")), Doing::OtherIo),
            (Some(("Lock", "transactionid")), Doing::Locks),
            (Some(("Client", "ClientRead")), Doing::Client),
            (Some(("Timeout", "VacuumDelay")), Doing::Other),
        ] {
            assert_eq!(Doing::of(wait), doing, "{wait:?}");
        }
    }

    #[test]
    fn each_moment_counts_once_however_many_are_busy() {
        let mut sessions = Sessions::default();
        // nobody: the server waits for the clients
        sessions.look(&[]);
        sessions.look(&[Session {
            backend: "checkpointer",
            state: None,
            wait: Some(("IO", "DataFileSync")),
        }]);
        sessions.look(&[client("active", Some(("IO", "WALSync")))]);
        sessions.look(&[
            client("active", Some(("LWLock", "WALWrite"))),
            client("active", None),
            client("active", Some(("Lock", "tuple"))),
            client("idle in transaction", Some(("Client", "ClientRead"))),
        ]);
        let mut bound = Bound::default();
        sessions.fill(&mut bound);
        let said: Vec<_> = bound.shares.iter().map(|it| format!("{} {}", it.name, it.percent)).collect();
        assert_eq!(
            said,
            ["log flush 31.3", "locks 6.3", "server CPU 6.2", "client 56.2", "other I/O 0", "other 0"]
        );
        assert_eq!((bound.samples, bound.busy_sessions), (Some(4), Some(1.0)));
        assert_eq!(bound.waits[0].percent.to_string(), "25");
        assert!(bound.waits.iter().any(|it| it.name == "checkpointer IO:DataFileSync"), "{:?}", bound.waits);
    }
}
