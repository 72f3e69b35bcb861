//! Records claimed executions, as the limits of their queues require.

use std::collections::HashMap;
use std::sync::Arc;

use stepfast_core::Key;
use stepfast_core::clock::Timestamp;
use stepfast_core::queue::{Placement, QueueKey, queue_key};
use stepfast_core::store::Record;

use crate::claim::queues::{self, QueueState};
use crate::claim::transaction::ClaimTx;
use crate::conn::pipeline::{Query, column, param};
use crate::conn::session::TxPart;
use crate::conn::statements::Sql;
use crate::error::DbError;
use crate::rows::types::to_uuid;

/// The numbers of claimed executions by queue and key.
pub(super) type ClaimCounts = HashMap<QueueKey, usize>;

pub(super) fn count_claimed(records: &[Record]) -> ClaimCounts {
    let mut counts = ClaimCounts::new();
    for record in records {
        *counts.entry(queue_key(record.execution.placement.as_deref())).or_default() += 1;
    }
    counts
}

impl ClaimTx<'_> {
    /// Records the starts of the claimed executions for rates, and their slots for concurrency limits.
    pub(super) async fn record_usage(
        &mut self,
        queues: &[QueueState],
        counts: &ClaimCounts,
        now: Timestamp,
        records: &[Record],
    ) -> Result<(), DbError> {
        let has_slots = |placement: &Placement| {
            queues.iter().any(|queue| queue.name == placement.queue && queue.limits.has_slots())
        };
        let slots: Vec<(Key, Arc<Placement>)> = (records.iter())
            .filter_map(|record| Some((record.execution.key, record.execution.placement.clone()?)))
            .filter(|(_, placement)| has_slots(placement))
            .collect();
        let mut queries: Vec<Query<'_>> =
            queues::record_starts_query(queues, counts, now).into_iter().collect();
        if !slots.is_empty() {
            queries.push(Query {
                sql: Sql::TakeSlots,
                action: "inserting slots",
                params: vec![
                    param(self.claim.worker.0),
                    column(&slots, |(key, _)| to_uuid(*key)),
                    column(&slots, |(_, placement)| placement.queue.to_string()),
                    column(&slots, |(_, placement)| placement.key.to_string()),
                ],
            });
        }
        if !queries.is_empty() {
            self.send(TxPart::Middle, queries).await?;
        }
        Ok(())
    }
}
