//! Claims: [`claim`] takes executions to run, many at once. Claims have a lane of their own.
//!
//! A claim is one transaction of several statements. The transaction locks the queues that have ready executions, and
//! counts the running executions of queues that limit their number. Then it allocates the claim's capacity among the
//! queues, and takes the executions. If a statement has waited for another transaction, the next statement sees the
//! changes of that transaction.

pub(crate) mod cursors;
mod inbox;
mod inbox_state;
mod quarantine;
pub(crate) mod queues;
mod ready;
mod transaction;
mod usage;

pub(crate) use inbox_state::InboxState;
pub(crate) use transaction::ClaimMemory;

use stepfast_core::Key;
use stepfast_core::clock::Timestamp;
use stepfast_core::queue::queue_key;
use stepfast_core::store::counters::Counters;
use stepfast_core::store::{AssignmentId, Claim, ClaimReply, Record, Route, StoreError};

use crate::changes::Changes;
use crate::claim::quarantine::parse_candidates;
use crate::claim::transaction::{
    ClaimTx, DueCheck, parse_due_check, parse_queue_states, parse_time, time_query,
};
use crate::conn::batches::item_queries;
use crate::conn::connector::Connector;
use crate::conn::pipeline;
use crate::conn::pipeline::discard_plans;
use crate::conn::pipeline::{Query, QueryResult, column, param};
use crate::conn::row_counts::count_changes;
use crate::conn::session::TxPart;
use crate::conn::statements::{CLAIM_STATEMENTS, Sql};
use crate::error::{DbError, corrupt};
use crate::lane::{Lane, Lanes, lost_history, parse_lane_state};
use crate::rows::RecordDetails;
use crate::rows::bundles::BundleItems;
use crate::rows::types::to_uuid;

/// Takes executions to run; see [`Store::claim`](stepfast_core::Store::claim). Also returns the changes that concern other
/// processes: the claim has made executions ready that it did not take.
pub(crate) async fn claim(
    connector: &Connector,
    lanes: &Lanes,
    memory: ClaimMemory<'_>,
    counters: &Counters,
    claim: &Claim,
) -> Result<(ClaimReply, Changes), StoreError> {
    let shared_lane = lanes.shared_lane(claim.worker, claim.lane);
    let mut kept_lane = shared_lane.lock().await;
    let lane = Lane::open(connector, kept_lane.take(), (claim.worker, claim.lane), CLAIM_STATEMENTS).await?;
    lanes.set_claim_lane(claim.worker, claim.lane);
    let mut tx = ClaimTx {
        lane,
        claim,
        memory,
        last_number: lanes.last_claim(claim.worker).map_or(0, |position| position.number),
        clock: connector.options().clock.as_deref(),
        queries: Vec::new(),
        results: Vec::new(),
        scans: Vec::new(),
        scanned_routes: Vec::new(),
        due_routes: Vec::new(),
        claimed_rows: Vec::new(),
        serial_queues: Vec::new(),
        takes_turns: true,
        is_waiting_for_turn: false,
        skipped_queue: None,
        awaited_queue: None,
        is_truncated: false,
        drained_rows: 0,
        inbox_batch: None,
    };
    let mut result = tx.run(counters).await;
    for _ in 0..INBOX_TRIES {
        let Err(error) = &result else { break };
        if !tx.handle_inbox_error(error) || !pipeline::roll_back(&tx.lane.session).await {
            break;
        }
        tx.reset();
        result = tx.run(counters).await;
    }
    if let (Ok((_, false)), Some(skipped)) = (&result, tx.skipped_queue.take())
        && pipeline::roll_back(&tx.lane.session).await
    {
        // wait for the other claim, holding no other lock meanwhile
        tx.reset();
        tx.awaited_queue = Some(skipped);
        result = tx.run(counters).await;
    }
    if tx.is_waiting_for_turn && result.is_err() && pipeline::roll_back(&tx.lane.session).await {
        // the claim that has its turn seems to have stopped, so this claim continues without taking turns
        tx.takes_turns = false;
        tx.reset();
        result = tx.run(counters).await;
    }
    let is_empty = matches!(&result, Ok((reply, false)) if reply.records.is_empty());
    if is_empty && tx.is_truncated && !memory.cursors.recent_routes().is_empty() {
        // the capacity was allocated to recent routes, which turned out to be empty; other queues may need it
        memory.cursors.forget_recent_routes();
        if pipeline::roll_back(&tx.lane.session).await {
            tx.reset();
            result = tx.run(counters).await;
        }
    }
    // a claim that took nothing, or whose outcome is unknown, does not influence the next claim
    let is_committed = matches!(&result, Ok((_, true)));
    if is_committed {
        lanes.record_durable(claim.worker, claim.lane, claim.number, tx.lane.ctid_hint());
    }
    let is_clean = is_committed || pipeline::roll_back(&tx.lane.session).await;
    if !is_committed {
        memory.cursors.forget_recent_routes();
    }
    let result = match result {
        Ok((reply, is_committed)) => {
            // a claim without a budget for bundles has left rows that are not stale
            if is_clean && !is_committed && !tx.scans.is_empty() && claim.max_bundles > 0 {
                tx.delete_stale_ready().await.map_err(DbError::into_store_error)?;
            }
            let changes = if is_committed { tx.changes(&reply) } else { Changes::default() };
            Ok((reply, changes))
        }
        Err(error) => Err(match error.into_store_error() {
            // another transaction was faster; nothing was claimed
            StoreError::Blocked(_) => {
                if is_clean && tx.lane.is_usable() {
                    *kept_lane = Some(tx.lane);
                }
                return Ok((ClaimReply::default(), Changes::default()));
            }
            StoreError::Rejected(reason) => StoreError::Unavailable(reason),
            error => error,
        }),
    };
    if is_clean && tx.lane.is_usable() && !matches!(result, Err(StoreError::Fenced)) {
        *kept_lane = Some(tx.lane);
    }
    result
}

/// The maximum number of retries of a claim after the database has rejected rows of the inbox.
const INBOX_TRIES: usize = 8;

impl ClaimTx<'_> {
    /// Tries the claim once. Returns the reply and whether the claim was committed. If not, the transaction is still
    /// open, and the caller rolls it back.
    async fn run(&mut self, counters: &Counters) -> Result<(ClaimReply, bool), DbError> {
        let (claim, last_number) = (self.claim, self.last_number);
        let first =
            if claim.from_quarantine { self.quarantine_query() } else { self.lock_queues_query(None) };
        let due = self.check_due_query();
        let mut queries = vec![self.lane.state_query()];
        if let Some(awaited) = self.awaited_queue.take() {
            queries.insert(0, self.wait_query(&awaited));
        }
        queries.extend([first, due]);
        self.send(TxPart::Begin, queries).await?;
        self.is_waiting_for_turn = false;
        let [.., lane_state, first, due] = &self.results[..] else {
            return Err(corrupt("a query result").into());
        };
        let number = last_claim_number(lane_state, claim.epoch)?;
        if number < last_number {
            return Err(lost_history(claim.lane, last_number, number).into());
        }
        if number >= claim.number {
            // the claim was sent again although it is durable; the next heartbeat returns its executions
            return Ok((ClaimReply::default(), false));
        }
        let DueCheck { now, default_routes, named_routes, has_inbox_rows } = parse_due_check(due)?;
        let mut reply = ClaimReply::default();
        if claim.from_quarantine {
            let candidates = parse_candidates(first)?;
            self.claim_quarantined(candidates, now, &mut reply).await?;
        } else {
            let (mut queues, mut now) = (parse_queue_states(first)?, now);
            self.due_routes = default_routes;
            let has_due = !named_routes.is_empty();
            if has_due || has_inbox_rows {
                if has_inbox_rows {
                    self.drain_inbox().await?;
                }
                let mut queries = Vec::new();
                queries.extend(has_due.then(|| self.queue_due_query(&named_routes)));
                queries.extend([self.lock_queues_query(None), time_query()]);
                let clock = self.clock;
                let results = self.send(TxPart::Middle, queries).await?;
                let [.., locked, time] = results else { return Err(corrupt("a query result").into()) };
                (queues, now) = (parse_queue_states(locked)?, parse_time(clock, time)?);
            }
            if !self.claim_ready(queues, now, &mut reply).await? {
                return Ok((reply, false));
            }
        }
        if reply.records.is_empty() && !self.has_queued() {
            return Ok((reply, false));
        }
        // the capacity was allocated to recent routes, which turned out to be empty; the next claim finds the others
        reply.has_more |= reply.records.is_empty() && self.is_truncated;
        self.commit(&mut reply).await?;
        self.update_cursors(&reply, now);
        count_changes(counters, &self.queries, &self.results)?;
        counters.add_claim();
        self.lane.record_fence(&self.queries, &self.results, None);
        Ok((reply, true))
    }

    /// Commits the claim, and loads the checkpoints, attempts and requests of its executions.
    async fn commit(&mut self, reply: &mut ClaimReply) -> Result<(), DbError> {
        let session = &self.lane.session;
        let id = AssignmentId { lane: self.claim.lane, number: self.claim.number };
        let claimed: Vec<Key> = reply.records.iter().map(|record| record.execution.key).collect();
        let mut queries = Vec::new();
        if session.needs_new_plans(reply.records.len()) {
            queries.push(discard_plans());
        }
        let (epoch, number) = (self.claim.epoch, self.claim.number);
        queries.push(self.lane.fence_query(epoch, number, true, None, claimed.clone()));
        let rows = self.claimed_rows.iter().zip(&reply.records);
        let with_history = rows.filter(|((has_history, _), _)| *has_history);
        let keys: Vec<_> = with_history.map(|(_, record)| to_uuid(record.execution.key)).collect();
        let has_details = !keys.is_empty();
        if has_details {
            for (sql, action) in [
                (Sql::CheckpointsOfPart, "reading checkpoints"),
                (Sql::AttemptsOfPart, "reading attempts"),
                (Sql::Requests, "reading requests"),
            ] {
                queries.push(Query { sql, action, params: vec![param(keys.clone())] });
            }
        }
        let bundles = BundleItems::new(&reply.records);
        if !bundles.is_empty() {
            queries.extend(item_queries(&bundles, "reading items of bundles"));
        }
        stepfast_core::crash_point!("postgres claim open");
        let (claim, assignments) = (self.claim, self.memory.assignments);
        let mut results = self.send(TxPart::End, queries).await?;
        // the claim is durable from here on
        if !claimed.is_empty() {
            assignments.add(claim.worker, id, claimed);
        }
        stepfast_core::crash_point!("postgres after claim");
        let details = RecordDetails::new(&reply.records);
        if let ([rest @ .., packs, promoted, checkpoints, attempts], false) = (results, bundles.is_empty()) {
            bundles.add_packs(&packs.rows, &mut reply.records)?;
            bundles.add_promoted(&promoted.rows, &mut reply.records)?;
            bundles.add_checkpoints(&checkpoints.rows, &mut reply.records)?;
            bundles.add_attempts(&attempts.rows, &mut reply.records)?;
            results = rest;
        }
        if let [.., checkpoints, attempts, requests] = results
            && has_details
        {
            details.add_checkpoints(&checkpoints.rows, &mut reply.records)?;
            details.add_attempts(&attempts.rows, &mut reply.records)?;
            details.add_requests(&requests.rows, &mut reply.records)?;
        }
        self.set_queue_limits(reply);
        Ok(())
    }

    /// Sets whether the queues of claimed bundles limit their executions.
    fn set_queue_limits(&self, reply: &mut ClaimReply) {
        for Record { execution, bundle, .. } in &mut reply.records {
            if let Some(bundle) = bundle {
                bundle.has_queue_limits = self.serial_queues.iter().any(|it| **it == *execution.queue());
            }
        }
    }

    /// Returns the changes by the claim that concern other processes.
    fn changes(&self, reply: &ClaimReply) -> Changes {
        if self.drained_rows > 0 {
            // the rows of the inbox may be for any worker
            Changes::any_ready_or_due()
        } else if self.has_queued() && (reply.has_more || reply.records.is_empty()) {
            Changes::any_ready()
        } else {
            Changes::default()
        }
    }

    /// Updates the cursors for the next claim.
    fn update_cursors(&mut self, reply: &ClaimReply, now: Timestamp) {
        let position = |(&(_, seq), record): (&(bool, Option<i64>), &Record)| {
            let execution = &record.execution;
            let placement = execution.placement.as_deref();
            let (queue, key) = queue_key(placement);
            let route = Route::new(&execution.workflow, execution.app_version.as_deref(), &queue);
            Some((route, (queue, key), (placement.map_or(0, |placement| placement.priority), seq?)))
        };
        let claimed = self.claimed_rows.iter().zip(&reply.records).filter_map(position).collect();
        let scans = std::mem::take(&mut self.scans);
        let is_serial = |queue: &str| self.serial_queues.iter().any(|serial| **serial == *queue);
        self.memory.cursors.record_scan(scans, claimed, is_serial, now);
    }

    /// Deletes rows of `ready` whose executions cannot be claimed, after a claim that scanned queues and took nothing.
    async fn delete_stale_ready(&self) -> Result<(), DbError> {
        let params = vec![
            column(&self.scanned_routes, |(route, _)| route.as_str().to_owned()),
            column(&self.scanned_routes, |(_, key)| key.to_string()),
        ];
        let query = Query { sql: Sql::DeleteStaleReady, action: "deleting stale rows of ready", params };
        let results = pipeline::run(&self.lane.session, TxPart::Standalone, &[query]).await?;
        if let Some(deleted) = results.first().filter(|result| result.affected_rows > 0) {
            tracing::warn!(
                rows = deleted.affected_rows,
                "removed rows of ready without a claimable execution"
            );
        }
        Ok(())
    }
}

fn last_claim_number(lane_state: &QueryResult, epoch: i64) -> Result<i64, DbError> {
    match parse_lane_state(lane_state)? {
        Some((current, last)) if current == epoch => Ok(last),
        _ => Err(DbError::Fenced),
    }
}
