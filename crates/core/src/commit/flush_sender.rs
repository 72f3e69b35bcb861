//! [`FlushSender`]: numbers the flushes of a lane, and finds out what became of each.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::lane::Lane;
use crate::failure::Failure;
use crate::store::{Flush, Outcome, Registration, Store, StoreError, Write};

/// Pause before an unanswered flush is sent again: doubles from the first to the second, with jitter.
pub(super) const RESEND_AFTER: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Numbers the flushes of a lane of a registration, and finds out what becomes of each.
pub(super) struct FlushSender {
    pub(super) lane: Lane,
    /// The lane's number in the registration.
    pub(super) number: u16,
    pub(super) store: Arc<dyn Store>,
    /// The registration whose flushes are being numbered, and the last number.
    pub(super) sent: Option<(Registration, i64)>,
}

impl FlushSender {
    /// Commits `writes` as the next flush. Returns `Unavailable` only when the lane is giving up.
    pub(super) async fn commit(
        &mut self,
        registration: Registration,
        writes: &mut Vec<Write>,
        is_bisecting: bool,
    ) -> Result<Vec<(usize, Outcome)>, StoreError> {
        let last = match self.sent {
            Some((sent, last)) if sent.worker == registration.worker => last,
            _ => 0,
        };
        let mut flush = Flush {
            worker: registration.worker,
            lane: self.number,
            epoch: registration.epoch,
            number: last + 1,
            is_resent: false,
            is_bisecting,
            writes: std::mem::take(writes),
        };
        let mut pause = RESEND_AFTER.0;
        let result = loop {
            let result = tokio::select! {
                biased;
                answer = AssertUnwindSafe(self.store.commit(&flush)).catch_unwind() => {
                    // nobody knows what a store that panics has left behind
                    answer.unwrap_or_else(|panic| {
                        Err(StoreError::Corrupt(format!("the store failed: {}", Failure::from_panic(&*panic).message)))
                    })
                }
                () = self.lane.gave_up() => Err(StoreError::Unavailable("the database does not answer".into())),
            };
            match result {
                Err(StoreError::Unavailable(reason)) => {
                    if self.lane.is_giving_up() {
                        break Err(StoreError::Unavailable(reason));
                    }
                    if !flush.is_resent {
                        tracing::warn!(
                            lane = self.number,
                            reason,
                            "the database does not answer; trying again"
                        );
                    }
                    flush.is_resent = true;
                    tokio::select! {
                        () = tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())) => {}
                        () = self.lane.gave_up() => {}
                    }
                    pause = (pause * 2).min(RESEND_AFTER.1);
                }
                result => {
                    if flush.is_resent {
                        tracing::info!(lane = self.number, "the database answers again");
                    }
                    break result;
                }
            }
        };
        *writes = flush.writes;
        self.sent = Some((registration, if result.is_ok() { last + 1 } else { last }));
        result
    }
}
