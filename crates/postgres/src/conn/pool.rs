//! A bounded pool of connections for loads and lists.

use std::sync::{Arc, Mutex, PoisonError};

use stepfast_core::store::StoreError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::conn::background::BackgroundRuntime;
use crate::conn::connector::{Connector, Purpose};
use crate::conn::session::Session;
use crate::conn::statements::READ_STATEMENTS;
use crate::error::unavailable_error;

/// A pool of sessions for reads: the idle sessions, and permits that limit the number of sessions in use and idle.
pub(crate) struct ReaderPool {
    connector: Arc<Connector>,
    background: Arc<BackgroundRuntime>,
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Session>>>,
}

/// A session taken from the pool. Dropping this value closes the connection, because a transaction may be open on it.
/// [`release`](Self::release) returns the session to the pool.
pub(crate) struct PooledSession {
    session: Session,
    idle: Arc<Mutex<Vec<Session>>>,
    _permit: OwnedSemaphorePermit,
}

impl PooledSession {
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the session to the pool. No transaction may be open on it.
    pub(crate) fn release(self) {
        if !self.session.is_closed() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.session);
        }
    }
}

impl ReaderPool {
    /// Creates an empty pool. Connections are opened on demand and kept.
    pub(crate) fn new(connector: Arc<Connector>, background: Arc<BackgroundRuntime>) -> Self {
        let permits = Arc::new(Semaphore::new(connector.options().readers.max(1)));
        Self { connector, background, permits, idle: Arc::default() }
    }

    /// Takes a session for exclusive use. Returns `Unavailable` if no session becomes free or can be opened within the
    /// connect timeout.
    pub(crate) async fn acquire(&self) -> Result<PooledSession, StoreError> {
        let timeout = self.connector.options().connect_timeout;
        // the caller's runtime may have no timer, or the caller may have no runtime at all
        let deadline = self.background.sleep(timeout);
        tokio::pin!(deadline);
        let permit = tokio::select! {
            permit = self.permits.clone().acquire_owned() => permit,
            () = &mut deadline => {
                return Err(StoreError::Unavailable(format!(
                    "all {} connections for loads and lists were busy for {timeout:?}; raise readers= in the URL, \
                     or read less at a time",
                    self.connector.options().readers.max(1)
                )));
            }
        };
        let permit = permit
            .map_err(|_| StoreError::Unavailable("the connections for loads and lists are closed".into()))?;
        let idle = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.retain(|session| !session.is_closed());
            idle.pop()
        };
        let session = match idle {
            Some(session) => session,
            None => tokio::select! {
                session = self.open() => session?,
                () = deadline => {
                    return Err(StoreError::Unavailable(format!(
                        "cannot connect to {}: no connection could be opened within {timeout:?}",
                        self.connector.name()
                    )));
                }
            },
        };
        Ok(PooledSession { session, idle: self.idle.clone(), _permit: permit })
    }

    /// Opens a session, retrying while the server has no free connection.
    async fn open(&self) -> Result<Session, StoreError> {
        let dialed = self.connector.dial_with_retry(&self.background, Purpose::Reader).await;
        let dialed = dialed.map_err(|error| self.connector.connect_failed(&error))?;
        let set_up = async {
            self.connector.set_up(&dialed.client, Purpose::Reader).await?;
            Session::from_client(&self.connector, dialed, Purpose::Reader, READ_STATEMENTS).await
        };
        // `Blocked` becomes `Unavailable`, too: a lock of another transaction can keep statements from being prepared
        set_up.await.map_err(|error| unavailable_error(error.into()))
    }
}
