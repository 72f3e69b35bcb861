//! Claims of executions in quarantine.

use std::sync::Arc;

use stepfast_core::Key;
use stepfast_core::clock::Timestamp;
use stepfast_core::queue::rate::ClaimScope;
use stepfast_core::store::{ClaimReply, StoreError};

use crate::claim::queues;
use crate::claim::transaction::{ClaimTx, parse_queue_states};
use crate::claim::usage::count_claimed;
use crate::conn::pipeline::{Query, QueryResult, column, param};
use crate::conn::session::TxPart;
use crate::conn::statements::Sql;
use crate::error::{DbError, corrupt};
use crate::rows::Columns;
use crate::rows::types::to_uuid;

/// An execution of the quarantine that may be tried, with its queue and key.
pub(super) struct QuarantineCandidate {
    execution: Key,
    queue: Arc<str>,
    key: Arc<str>,
}

impl<'a> ClaimTx<'a> {
    pub(super) fn quarantine_query(&self) -> Query<'a> {
        self.capability_query(Sql::QuarantineCandidates, "reading the quarantine")
    }

    /// Takes executions of the quarantine, as far as their queues have capacity.
    pub(super) async fn claim_quarantined(
        &mut self,
        candidates: Vec<QuarantineCandidate>,
        now: Timestamp,
        reply: &mut ClaimReply,
    ) -> Result<(), DbError> {
        let mut names: Vec<String> = candidates.iter().map(|candidate| candidate.queue.to_string()).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return Ok(());
        }
        let results = self.send(TxPart::Middle, vec![self.lock_queues_query(Some(names))]).await?;
        let [locked] = results else { return Err(corrupt("a query result").into()) };
        let mut queues = parse_queue_states(locked)?;
        self.note_serial_queues(&queues);
        for queue in queues.iter_mut().filter(|queue| queue.scope == ClaimScope::Woken) {
            // no execution in quarantine counts as one that has waited
            queue.restrict_to_starting();
        }
        queues::load_capacities(&self.lane.session, &mut queues, self.claim.worker, now).await?;
        let mut chosen = Vec::new();
        for QuarantineCandidate { execution, queue: name, key } in candidates {
            let queue = queues.iter_mut().find(|queue| queue.name == name);
            let Some(queue) = queue.filter(|queue| queue.is_open() && queue.capacity > 0) else { continue };
            let capacity = queues::load_key_capacity(&self.lane.session, queue, &key, now).await?;
            // at most one execution of a key with limits is chosen, because the key's capacity does not take
            // account of executions chosen before
            let is_only_of_key = !queue.has_key_limits() || queue.chosen_keys.insert(key);
            if capacity > 0 && is_only_of_key && chosen.len() < self.claim.limit {
                queue.capacity = queue.capacity.saturating_sub(1);
                chosen.push(to_uuid(execution));
            }
        }
        let action = "claiming executions of the quarantine";
        let params = vec![
            param(self.claim.worker.0),
            param(chosen),
            column(&queues, |queue| queue.name.to_string()),
            column(&queues, |queue| queue.version),
        ];
        let query = Query { sql: Sql::ClaimQuarantined, action, params };
        let (rows, now) = self.run_claim_query(query, &queues, now).await?;
        if rows.iter().any(|row| !row.is_complete) {
            return Err(DbError::Retry("the settings of a queue were changed".into()));
        }
        self.add_claimed(rows, reply);
        let counts = count_claimed(&reply.records);
        self.record_usage(&queues, &counts, now, &reply.records).await
    }
}

pub(super) fn parse_candidates(result: &QueryResult) -> Result<Vec<QuarantineCandidate>, StoreError> {
    let parse = |row| {
        let mut row = Columns::new(row);
        Ok(QuarantineCandidate {
            execution: row.key()?,
            queue: row.next::<&str>()?.into(),
            key: row.next::<&str>()?.into(),
        })
    };
    result.rows.iter().map(parse).collect()
}
