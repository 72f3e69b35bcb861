//! Finds outcomes by reading rows after the commit: the outcomes of Starts that were not inserted, and of a flush that
//! was applied before.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use stepfast_core::Key;
use stepfast_core::store::{
    ExistingExecution, Flush, Outcome, Request, Start, State, Status, StoreError, Transition,
    UNKNOWN_STATUS_MESSAGE, Write,
};

use crate::conn::pipeline;
use crate::conn::pipeline::{Query, param};
use crate::conn::session::Session;
use crate::conn::session::TxPart;
use crate::conn::statements::Sql;
use crate::error::DbError;
use crate::flush::starts::dedup_key;
use crate::rows::types::to_uuid;
use crate::rows::{Columns, ExistingRow, parse_existing_row};

/// Existing executions: by key, by the workflow_id that a caller gave, and by queue and dedup_id.
#[derive(Default)]
struct KnownExecutions {
    by_key: HashMap<Key, ExistingRow>,
    by_id: HashMap<Arc<str>, Key>,
    by_dedup_id: HashMap<(String, String), Key>,
}

impl KnownExecutions {
    fn find_existing(&self, key: &Key) -> Option<&ExistingExecution> {
        self.by_key.get(key).map(|found| &found.existing)
    }

    fn find_duplicate(&self, start: &Start) -> Option<&ExistingExecution> {
        self.find_existing(&start.key)
            .or_else(|| self.find_existing(self.by_id.get(start.workflow_id.as_deref()?)?))
    }

    /// Returns the outcome of a Start that was not inserted. `is_rejected`: whether the Start was rejected because its
    /// queue is full.
    fn outcome_of(&self, start: &Start, is_rejected: bool) -> Result<Outcome, StoreError> {
        if let Some(existing) = self.find_duplicate(start) {
            return Ok(Outcome::Duplicate(Box::new(existing.clone())));
        }
        let holder = dedup_key(start)
            .and_then(|(queue, id)| self.by_dedup_id.get(&(queue.to_owned(), id.to_owned())))
            .and_then(|key| self.find_existing(key));
        if let Some(holder) = holder.filter(|_| start.debounce_window.is_some()) {
            return Ok(Outcome::Duplicate(Box::new(holder.clone())));
        }
        if holder.is_some() || start.dedup_id.is_some() && !is_rejected {
            return Ok(Outcome::Deduplicated(holder.cloned().map(Box::new)));
        }
        if start.waiting_placement().is_some() && start.can_be_rejected() {
            return Ok(Outcome::Full);
        }
        Err(StoreError::Corrupt(format!(
            "execution {} could not be inserted, but no other execution has its key or workflow_id",
            start.key
        )))
    }
}

/// Loads the executions that have one of these keys, or the workflow_id or dedup_id of one of these Starts.
async fn load_known<'a>(
    session: &Session,
    keys: impl Iterator<Item = Key>,
    starts: impl Iterator<Item = &'a Start> + Clone,
) -> Result<KnownExecutions, DbError> {
    let keys: Vec<_> = keys.map(to_uuid).collect();
    let ids: Vec<&str> = starts.clone().filter_map(|start| start.workflow_id.as_deref()).collect();
    let (queues, dedup_ids): (Vec<&str>, Vec<&str>) = starts.filter_map(dedup_key).unzip();
    let params = vec![param(keys), param(ids), param(queues), param(dedup_ids)];
    let query = Query { sql: Sql::Existing, action: "reading executions", params };
    let results = pipeline::run(session, TxPart::Standalone, &[query]).await?;
    let mut known = KnownExecutions::default();
    for row in results.iter().flat_map(|result| &result.rows) {
        let found = parse_existing_row(row)?;
        let key = found.existing.key;
        known.by_id.extend(found.existing.given_id.clone().map(|id| (id, key)));
        known.by_dedup_id.extend(found.dedup_key.clone().map(|dedup| (dedup, key)));
        known.by_key.insert(key, found);
    }
    Ok(known)
}

/// Returns the outcomes of Starts that were not inserted, with their indexes in the flush.
pub(crate) async fn resolve_not_inserted(
    session: &Session,
    flush: &Flush,
    not_inserted: &[usize],
    rejected: &HashSet<usize>,
) -> Result<Vec<(usize, Outcome)>, DbError> {
    let starts = || {
        not_inserted.iter().filter_map(|&i| match flush.writes.get(i) {
            Some(Write::Start(start)) => Some((i, start.as_ref())),
            _ => None,
        })
    };
    let all = starts().map(|(_, start)| start);
    let known = load_known(session, all.clone().map(|start| start.key), all).await?;
    starts().map(|(i, start)| Ok((i, known.outcome_of(start, rejected.contains(&i))?))).collect()
}

/// Returns the outcomes of a flush that was applied before, as far as the rows still show them.
pub(crate) async fn resolve_applied_flush(
    session: &Session,
    flush: &Flush,
) -> Result<Vec<(usize, Outcome)>, DbError> {
    let is_relevant = |write: &&Write| match write {
        Write::Start(_) | Write::Wake(_) | Write::Request(_) => true,
        Write::Transition(change) => matches!(change.state, State::Ended { .. }),
        _ => false,
    };
    let keys = flush.writes.iter().filter(is_relevant).map(Write::execution);
    let starts = flush.writes.iter().filter_map(|write| match write {
        Write::Start(start) => Some(&**start),
        _ => None,
    });
    let known = load_known(session, keys, starts).await?;
    let pending = load_pending_requests(session, flush).await?;
    let mut outcomes = Vec::new();
    for (i, write) in flush.writes.iter().enumerate() {
        match write {
            // a row that this Start inserted has the Start's creation time; any other row existed before
            Write::Start(start) => match known.by_key.get(&start.key) {
                Some(found) if found.created_at == start.created_at => {
                    // unless this worker runs the execution without a claim, it was queued, and may have been claimed since
                    if start.self_claims && found.owner != Some(flush.worker) {
                        outcomes.push((i, Outcome::Queued));
                    }
                }
                _ => outcomes.push((i, known.outcome_of(start, false)?)),
            },
            // A woken execution may have continued since. If the execution still waits, there was no reason to wake it.
            Write::Wake(key) => match known.find_existing(key) {
                Some(existing) if existing.status != Status::Waiting => {}
                _ => outcomes.push((i, Outcome::NotFound)),
            },
            Write::Transition(Transition { key, state: State::Ended { status, .. }, .. })
                if *status != Status::Cancelled
                    && known
                        .find_existing(key)
                        .is_some_and(|existing| existing.status == Status::Cancelled) =>
            {
                outcomes.push((i, Outcome::Cancelled));
            }
            Write::Request(request) => {
                let found = known.by_key.get(&request.execution);
                let is_pending = pending.contains(&(request.execution, request.id));
                outcomes.push((i, request_outcome(request, found, is_pending)));
            }
            _ => {}
        }
    }
    Ok(outcomes)
}

/// Loads the pending requests to the executions of the flush's requests, as pairs of execution and request id.
async fn load_pending_requests(session: &Session, flush: &Flush) -> Result<HashSet<(Key, Key)>, DbError> {
    let requests = flush.writes.iter().filter(|write| matches!(write, Write::Request(_)));
    let keys: Vec<_> = requests.map(|write| to_uuid(write.execution())).collect();
    if keys.is_empty() {
        return Ok(HashSet::new());
    }
    let query = Query { sql: Sql::PendingRequests, action: "reading requests", params: vec![param(keys)] };
    let results = pipeline::run(session, TxPart::Standalone, &[query]).await?;
    let mut pending = HashSet::new();
    for row in results.iter().flat_map(|result| &result.rows) {
        let mut row = Columns::new(row);
        pending.insert((row.key()?, row.key()?));
    }
    Ok(pending)
}

/// Infers the outcome of a request from the current state of its execution.
fn request_outcome(request: &Request, found: Option<&ExistingRow>, is_pending: bool) -> Outcome {
    let Some(ExistingRow { existing, has_known_status, .. }) = found else { return Outcome::NotFound };
    if !has_known_status {
        return Outcome::Rejected(UNKNOWN_STATUS_MESSAGE.into());
    }
    let result = request.infer_result(existing.status, existing.status == Status::Cancelled, is_pending);
    request.outcome(result, existing.parent)
}
