//! Termination signals: from a supervisor, a deploy, or a terminal.

use std::time::Duration;

use crate::engine::Engine;
use crate::error::Error;

impl Engine {
    /// Runs executions until the process receives SIGTERM or SIGINT (Ctrl-C), then [drains](Engine::drain) for at most
    /// `grace`. A second signal requeues at once the executions that still run.
    ///
    /// From the first call on, these signals no longer end the process by themselves.
    ///
    /// Returns [`Error::NewerSchema`] if the engine ends by itself because the database has a newer schema. The
    /// process's supervisor may then start the newer version of the program.
    pub async fn work(&self, grace: Duration) -> Result<(), Error> {
        let mut signals = TerminationSignals::listen().map_err(|error| {
            let reason = format!("cannot listen for the signals that end the process: {error}");
            Error::Invalid { input: "work", reason }
        })?;
        tokio::select! {
            () = signals.recv() => {}
            ended = self.wait_until_ended() => match ended {
                // the program has shut the engine down, and continues
                Ok(()) => signals.recv().await,
                ended => return ended,
            },
        }
        tracing::info!(?grace, "received a termination signal: draining");
        tokio::select! {
            drained = self.drain(grace) => drained,
            () = signals.recv() => {
                tracing::info!("received another termination signal: running executions are requeued");
                self.drain(Duration::ZERO).await
            }
        }
    }
}

#[cfg(unix)]
struct TerminationSignals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl TerminationSignals {
    fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(Self { terminate: signal(terminate)?, interrupt: signal(interrupt)? })
    }

    /// Waits for the next termination signal.
    async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct TerminationSignals;

#[cfg(not(unix))]
impl TerminationSignals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn recv(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
