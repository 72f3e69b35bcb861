//! [`FlushSender`]: numbers the flushes of a lane and finds out the outcome of each.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::lane::Lane;
use crate::failure::Failure;
use crate::store::{Flush, Outcome, Registration, Store, StoreError, Write};

/// First and longest pause before an unanswered flush is sent again. The pause doubles each time, with
/// jitter.
pub(super) const RESEND_BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Sender of the numbered flushes of one lane of a registration. It resends a flush until its outcome is
/// known.
pub(super) struct FlushSender {
    pub(super) lane: Lane,
    /// The lane's number in the registration.
    pub(super) lane_number: u16,
    pub(super) store: Arc<dyn Store>,
    /// The registration of the last flush, and the number of its last committed flush; 0 if it has none.
    pub(super) last_sent: Option<(Registration, i64)>,
}

impl FlushSender {
    /// Commits `writes` as the next flush. `is_bisecting` means that they are a part of a flush that the
    /// database did not accept. Returns `Unavailable` only when the lane is abandoned.
    pub(super) async fn commit(
        &mut self,
        registration: Registration,
        writes: &mut Vec<Write>,
        is_bisecting: bool,
    ) -> Result<Vec<(usize, Outcome)>, StoreError> {
        let last = match self.last_sent {
            Some((registered, last)) if registered.worker == registration.worker => last,
            _ => 0,
        };
        let mut flush = Flush {
            worker: registration.worker,
            lane: self.lane_number,
            epoch: registration.epoch,
            number: last + 1,
            is_resent: false,
            is_bisecting,
            writes: std::mem::take(writes),
        };
        let mut pause = RESEND_BACKOFF.0;
        let result = loop {
            let result = tokio::select! {
                biased;
                reply = AssertUnwindSafe(self.store.commit(&flush)).catch_unwind() => {
                    // the state that a panicking store leaves behind is unknown
                    reply.unwrap_or_else(|panic| {
                        Err(StoreError::Corrupt(format!("the store failed: {}", Failure::from_panic(&*panic).message)))
                    })
                }
                () = self.lane.wait_abandoned() => Err(StoreError::Unavailable("the database is unreachable".into())),
            };
            match result {
                Err(StoreError::Unavailable(reason)) => {
                    if self.lane.is_abandoned() {
                        break Err(StoreError::Unavailable(reason));
                    }
                    if !flush.is_resent {
                        tracing::warn!(
                            lane = self.lane_number,
                            reason,
                            "the database is unreachable; retrying"
                        );
                    }
                    flush.is_resent = true;
                    tokio::select! {
                        () = tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())) => {}
                        () = self.lane.wait_abandoned() => {}
                    }
                    pause = (pause * 2).min(RESEND_BACKOFF.1);
                }
                result => {
                    if flush.is_resent {
                        tracing::info!(lane = self.lane_number, "the database is reachable again");
                    }
                    break result;
                }
            }
        };
        *writes = flush.writes;
        self.last_sent = Some((registration, if result.is_ok() { last + 1 } else { last }));
        result
    }
}
