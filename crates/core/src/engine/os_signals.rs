//! Being told to end: by a supervisor, a deploy, or somebody at a terminal.

use std::time::Duration;

use crate::engine::Engine;
use crate::error::Error;

impl Engine {
    /// Works until the process is told to end, by SIGTERM or by SIGINT (Ctrl-C), then [drains](Engine::drain) for at
    /// most `grace`. Told a second time, it hands back at once what still runs.
    ///
    /// From the first call on these signals no longer end the process by themselves.
    ///
    /// Returns [`Error::NewerSchema`] if the engine ends by itself, as the database has a newer schema. The supervisor of the
    /// process may then start the newer version of the program.
    pub async fn work(&self, grace: Duration) -> Result<(), Error> {
        let mut told = Told::listen().map_err(|error| {
            let reason = format!("the signals that end the process cannot be listened to: {error}");
            Error::Invalid { what: "work", reason }
        })?;
        tokio::select! {
            () = told.again() => {}
            ended = self.ended() => match ended {
                // the program that closed the engine goes on
                Ok(()) => told.again().await,
                ended => return ended,
            },
        }
        tracing::info!(?grace, "told to end: draining");
        tokio::select! {
            drained = self.drain(grace) => drained,
            () = told.again() => {
                tracing::info!("told to end again: what runs is handed back");
                self.drain(Duration::ZERO).await
            }
        }
    }
}

#[cfg(unix)]
struct Told {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Told {
    fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(Self { terminate: signal(terminate)?, interrupt: signal(interrupt)? })
    }

    /// Resolves when the process is told to end, each time once.
    async fn again(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Told;

#[cfg(not(unix))]
impl Told {
    fn listen() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn again(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
