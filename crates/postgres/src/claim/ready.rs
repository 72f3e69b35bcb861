//! Claims of ready executions, allocated by fair share among queues and keys.

use stepfast_core::clock::Timestamp;
use stepfast_core::queue::QueueKey;
use stepfast_core::queue::fairness::Allocation;
use stepfast_core::queue::rate::ClaimScope;
use stepfast_core::store::{ClaimReply, Record, Route};

use crate::claim::cursors::{ScanPlan, ScanRange};
use crate::claim::queues::{self, Access, QueueState};
use crate::claim::transaction::{ClaimTx, parse_queue_states, parse_time, time_query};
use crate::claim::usage::count_claimed;
use crate::conn::pipeline::{Query, column, param};
use crate::conn::session::TxPart;
use crate::conn::statements::Sql;
use crate::error::{DbError, corrupt};

impl ClaimTx<'_> {
    /// Takes due executions that have no queue, and ready executions of each queue and queue key, as many as its fair
    /// share and its limits allow. Returns false if the claim has to be rolled back.
    pub(super) async fn claim_ready(
        &mut self,
        mut queues: Vec<QueueState>,
        mut now: Timestamp,
        reply: &mut ClaimReply,
    ) -> Result<bool, DbError> {
        if let Some(busy) = first_if_all_busy(&queues) {
            // another claim holds the lock for a short time, so this claim waits
            let wait = self.wait_query(&BusyQueue::of(busy));
            let (clock, lock) = (self.clock, self.lock_queues_query(None));
            let results = self.send(TxPart::Middle, vec![wait, lock, time_query()]).await?;
            let [_, locked, time] = results else { return Err(corrupt("a query result").into()) };
            // the other claim may have recorded starts after this claim first read the clock
            (queues, now) = (parse_queue_states(locked)?, parse_time(clock, time)?);
            self.is_waiting_for_turn = false;
        }
        self.note_serial_queues(&queues);
        let busy = queues.iter().find(|queue| queue.is_busy()).map(BusyQueue::of);
        reply.has_more = busy.is_some();
        if !self.claim_from_queues(&mut queues, now, reply).await? {
            return Ok(false);
        }
        // executions that have waited came first, and do not count for rates; executions that begin get the remaining
        // capacity
        queues.retain(|queue| queue.is_open() && queue.scope == ClaimScope::Woken);
        for queue in &mut queues {
            queue.restrict_to_starting();
        }
        if self.remaining_executions(reply) == 0 || self.remaining_bytes(reply) == 0 {
            reply.has_more |= !queues.is_empty();
        } else if !queues.is_empty() && !self.claim_from_queues(&mut queues, now, reply).await? {
            return Ok(false);
        }
        if !self.due_routes.is_empty()
            && self.remaining_executions(reply) > 0
            && self.remaining_bytes(reply) > 0
        {
            // ready executions have left room for further due ones
            let claimed = self.claim_allocations(&[], &[], &[], &[], now, reply).await?;
            if claimed.is_none() {
                self.discard(reply);
                return Ok(false);
            }
        }
        reply.has_more &= !reply.records.is_empty();
        // the claim that holds the lock may be at its limit, and nothing else announces what it leaves
        self.skipped_queue = busy.filter(|_| reply.records.is_empty());
        Ok(true)
    }

    /// Returns the query that waits for the claim that has locked a queue.
    pub(super) fn wait_query(&mut self, busy: &BusyQueue) -> Query<'static> {
        self.is_waiting_for_turn = busy.is_contended();
        Query {
            sql: busy.lock,
            action: "waiting for another claim",
            params: vec![param(busy.lock_name.clone())],
        }
    }

    /// Returns the number of further executions that the claim may take.
    fn remaining_executions(&self, reply: &ClaimReply) -> usize {
        self.claim.limit.min(100_000).saturating_sub(reply.records.len())
    }

    /// Returns the number of further bytes of inputs and items that the claim may take.
    fn remaining_bytes(&self, reply: &ClaimReply) -> usize {
        let taken = reply.records.iter().map(Record::claim_bytes);
        self.claim.max_bytes.saturating_sub(taken.sum())
    }

    /// Takes executions from each of these queues and its queue keys, as many as its fair share and its limits allow.
    /// Returns false if the claim has to be rolled back.
    async fn claim_from_queues(
        &mut self,
        queues: &mut [QueueState],
        now: Timestamp,
        reply: &mut ClaimReply,
    ) -> Result<bool, DbError> {
        let session = &self.lane.session;
        let mut leftover = queues::load_capacities(session, queues, self.claim.worker, now).await?;
        let (fair_share, limit) = (self.memory.fair_share, self.remaining_executions(reply));
        let ready = queues::load_ready_queues(session, queues, fair_share, limit, now, &mut leftover).await?;
        let allocations = fair_share.lock().allocate(&ready, limit);
        let scope_of = |allocation: &Allocation| {
            let queue = queues.iter().find(|queue| queue.name == allocation.queue);
            queue.map_or(ClaimScope::All, |queue| queue.scope)
        };
        let scan = |allocation: &Allocation| {
            // executions that have waited have an index of their own
            let has_cursor = scope_of(allocation) != ClaimScope::Woken;
            let plan =
                has_cursor.then(|| self.memory.cursors.plan_scan(&allocation.queue, &allocation.key, now));
            ((allocation.queue.clone(), allocation.key.clone()), plan.unwrap_or_default())
        };
        self.is_truncated |= allocations.iter().any(|allocation| allocation.is_truncated);
        let scans: Vec<(QueueKey, ScanPlan)> = allocations.iter().map(scan).collect();
        // the position of each scanned route's allocation, from 1, with the route
        let routes: Vec<(i64, Route)> = (1..)
            .zip(&allocations)
            .flat_map(|(n, allocation)| {
                let queue = queues.iter().find(|queue| queue.name == allocation.queue);
                let routes = queue.map_or(&[][..], |queue| &queue.routes);
                routes.iter().map(move |route| (n, route.clone()))
            })
            .collect();
        let before = reply.records.len();
        let Some(now) = self.claim_allocations(queues, &allocations, &scans, &routes, now, reply).await?
        else {
            self.discard(reply);
            return Ok(false);
        };
        self.scans.extend(scans);
        let scanned = routes.into_iter().map(|(n, route)| (route, allocations[n as usize - 1].key.clone()));
        self.scanned_routes.extend(scanned);
        let records = &reply.records[before..];
        let counts = count_claimed(records);
        for allocation in &allocations {
            let is_exhausted =
                counts.get(&(allocation.queue.clone(), allocation.key.clone())) >= Some(&allocation.limit);
            // under a rate, another claim finds out when more executions may begin
            let is_rated = scope_of(allocation) == ClaimScope::Starting && is_exhausted;
            reply.has_more |= is_rated || is_exhausted && allocation.is_truncated;
            reply.is_limited |= is_exhausted && !allocation.is_truncated;
        }
        reply.is_limited |= leftover.is_limited;
        reply.retry_at = reply.retry_at.into_iter().chain(leftover.retry_at).min();
        self.record_usage(queues, &counts, now, records).await?;
        Ok(true)
    }

    /// Discards what the claim has taken, before the caller rolls it back. Another claim begins from scratch.
    fn discard(&mut self, reply: &mut ClaimReply) {
        *reply = ClaimReply { has_more: true, ..ClaimReply::default() };
        self.scans.clear();
        self.scanned_routes.clear();
    }

    /// Claims executions as allocated. Returns the time of the claim, or `None` if the transaction has to be rolled
    /// back.
    async fn claim_allocations(
        &mut self,
        queues: &[QueueState],
        allocations: &[Allocation],
        scans: &[(QueueKey, ScanPlan)],
        routes: &[(i64, Route)],
        now: Timestamp,
        reply: &mut ClaimReply,
    ) -> Result<Option<Timestamp>, DbError> {
        if allocations.is_empty() && self.due_routes.is_empty() {
            return Ok(Some(now));
        }
        let claim = self.claim;
        let remaining = self.remaining_executions(reply);
        let due_limit = if allocations.is_empty() {
            remaining
        } else {
            claim.due_share().saturating_sub(reply.records.len()).min(remaining)
        };
        let is_woken = |allocation: &Allocation| {
            let queue = queues.iter().find(|queue| queue.name == allocation.queue);
            queue.and_then(|queue| queue.scope.is_woken())
        };
        let ranges: Vec<(i64, ScanRange)> = (1..)
            .zip(scans)
            .flat_map(|(n, (_, plan))| plan.ranges.iter().map(move |range| (n, *range)))
            .collect();
        let query = Query {
            sql: Sql::Claim,
            action: "claiming executions",
            params: vec![
                param(claim.worker.0),
                column(&self.due_routes, |route| route.as_str().to_owned()),
                param(remaining as i64),
                param(i64::try_from(self.remaining_bytes(reply)).unwrap_or(i64::MAX)),
                param(self.now()),
                column(allocations, |allocation| allocation.key.to_string()),
                column(allocations, |allocation| i64::try_from(allocation.limit).unwrap_or(i64::MAX)),
                column(allocations, is_woken),
                column(&ranges, |(n, _)| *n),
                column(&ranges, |(_, range)| range.priorities.0),
                column(&ranges, |(_, range)| range.priorities.1),
                column(&ranges, |(_, range)| range.seqs.map(|seqs| seqs.0)),
                column(&ranges, |(_, range)| range.seqs.map(|seqs| seqs.1)),
                column(routes, |(n, _)| *n),
                column(routes, |(_, route)| route.as_str().to_owned()),
                column(queues, |queue| queue.name.to_string()),
                column(queues, |queue| queue.version),
                param(due_limit as i64),
                column(allocations, |allocation| {
                    let bundles = claim.bundle_budget(&allocation.queue, &allocation.key);
                    i64::try_from(bundles.0).unwrap_or(i64::MAX)
                }),
            ],
        };
        let (rows, now) = self.run_claim_query(query, queues, now).await?;
        // a row that became ready again during the statement must not count as the row that was ready before
        let is_complete = rows.iter().all(|row| row.is_complete);
        reply.has_more |= rows.iter().any(|row| row.has_more);
        let due_count = rows.iter().filter(|row| row.seq.is_none()).count();
        if due_count < due_limit {
            self.due_routes.clear();
        }
        self.add_claimed(rows, reply);
        Ok(is_complete.then_some(now))
    }
}

/// A queue that another claim has locked.
#[derive(Clone)]
pub(super) struct BusyQueue {
    /// The text whose hash is the lock: the queue, or its first route.
    lock_name: String,
    /// The statement that waits for the lock. A claim that does not exclude others must not wait for an exclusive lock:
    /// that wait alone would keep all others from the queue.
    lock: Sql,
}

impl BusyQueue {
    fn of(queue: &QueueState) -> Self {
        let lock = if queue.access == Access::Contended {
            Sql::AwaitClaimLock
        } else if queue.limits.serializes_claims() {
            Sql::LockQueue
        } else {
            Sql::ShareQueue
        };
        let route = queue.routes.first().filter(|_| lock == Sql::AwaitClaimLock);
        Self { lock_name: route.map_or(&*queue.name, Route::as_str).to_owned(), lock }
    }

    /// Whether the other claim has its turn, and does not exclude this one.
    pub(super) fn is_contended(&self) -> bool {
        self.lock == Sql::AwaitClaimLock
    }
}

/// Returns the first of the queues if other claims hold all of them.
fn first_if_all_busy(queues: &[QueueState]) -> Option<&QueueState> {
    queues.first().filter(|_| queues.iter().all(QueueState::is_busy))
}
