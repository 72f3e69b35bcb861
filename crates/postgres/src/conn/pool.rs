//! Connections for loads and lists: a bounded number, lent one at a time.

use std::sync::{Arc, Mutex, PoisonError};

use stepfast_core::store::StoreError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::conn::background::Background;
use crate::conn::connector::{Connector, Role};
use crate::conn::session::Session;
use crate::conn::statements::READ;
use crate::error::unavailable_error;

/// The connections that are there, and the right to have them.
pub(crate) struct ReaderPool {
    connector: Arc<Connector>,
    background: Arc<Background>,
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Session>>>,
}

/// A connection that is lent. Unless it is given back it is closed: nobody knows what is open on it.
pub(crate) struct PooledSession {
    session: Session,
    idle: Arc<Mutex<Vec<Session>>>,
    _permit: OwnedSemaphorePermit,
}

impl PooledSession {
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Gives it back with no transaction open.
    pub(crate) fn release(self) {
        if !self.session.is_closed() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.session);
        }
    }
}

impl ReaderPool {
    /// Makes connections when they are needed, and keeps them.
    pub(crate) fn new(connector: Arc<Connector>, background: Arc<Background>) -> Self {
        let permits = Arc::new(Semaphore::new(connector.options().readers.max(1)));
        Self { connector, background, permits, idle: Arc::default() }
    }

    /// A connection that nobody else uses; `Unavailable` if none becomes free, or can be made, in time.
    pub(crate) async fn acquire(&self) -> Result<PooledSession, StoreError> {
        let limit = self.connector.options().connect_timeout;
        // whoever reads may have a runtime without a clock, or none at all
        let deadline = self.background.sleep(limit);
        tokio::pin!(deadline);
        let permit = tokio::select! {
            permit = self.permits.clone().acquire_owned() => permit,
            () = &mut deadline => {
                return Err(StoreError::Unavailable(format!(
                    "all {} connections for loads and lists were busy for {limit:?}; raise readers= in the URL, \
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
                        "cannot connect to {}: no connection was to be had for {limit:?}",
                        self.connector.name()
                    )));
                }
            },
        };
        Ok(PooledSession { session, idle: self.idle.clone(), _permit: permit })
    }

    /// A new connection. While the server has none left, one is asked for again and again.
    async fn open(&self) -> Result<Session, StoreError> {
        let wire = self.connector.dial_with_retry(&self.background, Role::Reader).await;
        let wire = wire.map_err(|refusal| self.connector.connect_failed(&refusal))?;
        let set_up = async {
            self.connector.set_up(&wire.client, Role::Reader).await?;
            Session::from_client(&self.connector, wire, Role::Reader, READ).await
        };
        // also where somebody locks the tables, so that nothing can be prepared
        set_up.await.map_err(|error| unavailable_error(error.into()))
    }
}
