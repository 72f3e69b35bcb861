//! [`IdClaim`]: the right to start an id that a caller has given, one at a time in a process.

use std::sync::Arc;

use tokio::sync::watch;

use crate::commit::{Durable, Lane, Lsn};
use crate::engine::Core;

/// A start in this process of an id given by a caller, whose outcome is not known yet.
pub(crate) type StartUnderWay = watch::Receiver<()>;

/// The right to start an id given by a caller: one at a time in a process.
pub(crate) struct IdClaim {
    core: Arc<Core>,
    id: Arc<str>,
    _settled: watch::Sender<()>,
}

impl IdClaim {
    pub(crate) async fn take(core: &Arc<Core>, id: &Arc<str>) -> Self {
        loop {
            let mut other = {
                let mut starting = core.starting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                match starting.get(id) {
                    Some(other) => other.clone(),
                    None => {
                        let (settled, receiver) = watch::channel(());
                        starting.insert(id.clone(), receiver);
                        return Self { core: core.clone(), id: id.clone(), _settled: settled };
                    }
                }
            };
            // resolves, with an error, when the other claim is dropped
            let _ = other.changed().await;
        }
    }
}

impl Drop for IdClaim {
    fn drop(&mut self) {
        self.core.starting.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&self.id);
    }
}

/// Keeps the right to start an id until the outcome of its Start is known, also if nobody waits for that.
pub(crate) struct Claimed {
    pub(crate) claim: Option<IdClaim>,
    pub(crate) lane: Lane,
    pub(crate) lsn: Lsn,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take()
            && !self.lane.is_settled(self.lsn)
        {
            let settled = Durable::new(self.lane.clone(), self.lsn);
            let runtime = claim.core.runtime.clone();
            runtime.spawn(async move {
                settled.await;
                drop(claim);
            });
        }
    }
}
