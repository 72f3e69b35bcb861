//! Claims of ready executions, allocated by fair share among queues and keys.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rusqlite::{ToSql, params};
use stepfast_core::key::Key;
use stepfast_core::queue::fairness::{Allocation, FairShare};
use stepfast_core::queue::rate::ClaimScope;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{Route, Status};

use crate::claim::queues::QueueState;
use crate::claim::{ClaimTx, PAGE_ROWS, capability};
use crate::conn::statements::Sql;
use crate::error::DbResult;
use crate::rows::{key_bytes, key_of};

/// The position of a `ready` row within its queue key: priority, seq, execution.
type ReadyPosition = (i64, i64, Key);

/// Successive ready rows of a route in a queue key.
struct ReadyPage<'s> {
    route: &'s Route,
    rows: VecDeque<ReadyPosition>,
    /// The first and the last row that were taken and not deleted yet. No other row of the claim's scope is between them.
    taken: Option<(ReadyPosition, ReadyPosition)>,
}

impl ReadyPage<'_> {
    fn take_first(&mut self) -> Option<ReadyPosition> {
        let position = self.rows.pop_front()?;
        let first = self.taken.map_or(position, |(first, _)| first);
        self.taken = Some((first, position));
        Some(position)
    }
}

impl ClaimTx<'_, '_> {
    /// Claims ready executions from each queue and queue key, as far as fairness and limits allow.
    pub(super) fn claim_ready(&mut self, fair_share: &mut FairShare) -> DbResult<()> {
        if self.is_full() {
            return Ok(());
        }
        let mut queues: BTreeMap<Arc<str>, Vec<Route>> = BTreeMap::new();
        for route in capability(self.claim).routes(&mut self.sql, Sql::NextReadyRoute)? {
            queues.entry(route.queue().into()).or_default().push(route);
        }
        let woken = self.claim_from_queues(fair_share, queues, false)?;
        if woken.is_empty() {
            return Ok(());
        }
        // woken executions go first; starts get the remaining capacity
        if self.is_full() {
            self.reply.has_more = true;
        } else {
            self.claim_from_queues(fair_share, woken, true)?;
        }
        Ok(())
    }

    /// Claims ready executions from these queues. If a queue with a rate has woken executions, only these are claimed
    /// from it, unless `claims_starts`. Returns the queues from which only woken executions were claimed.
    fn claim_from_queues(
        &mut self,
        fair_share: &mut FairShare,
        queues: BTreeMap<Arc<str>, Vec<Route>>,
        claims_starts: bool,
    ) -> DbResult<BTreeMap<Arc<str>, Vec<Route>>> {
        let limit = self.claim.limit - self.reply.records.len();
        let mut states = Vec::with_capacity(queues.len());
        let mut ready_queues = Vec::with_capacity(queues.len());
        for (queue, routes) in queues {
            let Some(mut state) = QueueState::read(&mut self.sql, &queue, self.claim.worker.0, self.now)?
            else {
                continue;
            };
            state.choose_scope(&mut self.sql, if claims_starts { &[] } else { &routes })?;
            let last_key = fair_share.last_key(&queue);
            ready_queues.push(state.ready_queue(&mut self.sql, &routes, &last_key, limit)?);
            self.reply.is_limited |= state.is_limited;
            self.reply.retry_at = self.reply.retry_at.into_iter().chain(state.retry_at).min();
            states.push((state, routes));
        }
        let mut all = states.iter().zip(&ready_queues).peekable();
        for allocation in fair_share.allocate(&ready_queues, limit) {
            while all.next_if(|(_, ready_queue)| ready_queue.queue != allocation.queue).is_some() {}
            let Some(((state, routes), _)) = all.peek() else { break };
            self.claim_allocation(&allocation, state, routes)?;
        }
        let woken = states.into_iter().filter(|(state, _)| state.scope == ClaimScope::Woken);
        Ok(woken.map(|(state, routes)| (state.name, routes)).collect())
    }

    /// Claims the first ready executions of a queue key, of all routes that the worker can run.
    fn claim_allocation(
        &mut self,
        allocation: &Allocation,
        state: &QueueState,
        routes: &[Route],
    ) -> DbResult<()> {
        // a page per route, refilled when it is used up: no rows of other routes are read
        let mut pages = Vec::with_capacity(routes.len());
        for route in routes {
            let first = (i64::MIN, i64::MIN, Key::default());
            let rows = self.read_page(allocation, state, route, first)?;
            pages.push(ReadyPage { route, rows, taken: None });
        }
        let mut claimed_count = 0;
        let mut bundles = self.claim.bundle_budget(&allocation.queue, &allocation.key);
        while !self.is_full() {
            let first = pages.iter_mut().filter(|page| !page.rows.is_empty()).min_by_key(|page| page.rows[0]);
            let Some(page) = first else { break };
            if claimed_count == allocation.limit {
                // the next claim finds out whether the rate allows more starts
                self.reply.has_more |= allocation.is_truncated || state.scope == ClaimScope::Starting;
                break;
            }
            if page.rows.front().is_some_and(|(.., id)| !bundles.allows(*id)) {
                // the worker has enough bundles of this key
                break;
            }
            let Some(position) = page.take_first() else { break };
            if page.rows.is_empty() {
                self.delete_taken(allocation, state, page)?;
                page.rows = self.read_page(allocation, state, page.route, position)?;
            }
            let (_, seq, id) = position;
            // a negative seq marks an execution that has begun: its record is loaded
            if self.claim_execution(id, Status::Queued, seq < 0)? {
                self.note_queue_limits(state);
                state.take_slot(&mut self.sql, &allocation.key, id, self.claim.worker.0)?;
                claimed_count += 1;
            }
        }
        for page in &mut pages {
            self.delete_taken(allocation, state, page)?;
        }
        // perhaps the limit is used up, and another key has ready executions
        self.reply.is_limited |= claimed_count == allocation.limit && !allocation.is_truncated;
        state.record_starts(&mut self.sql, &allocation.key, claimed_count)
    }

    /// Notes in the last claimed record, if it is that of a bundle, whether the queue limits its executions.
    pub(super) fn note_queue_limits(&mut self, state: &QueueState) {
        if let Some(bundle) = self.reply.records.last_mut().and_then(|record| record.bundle.as_mut()) {
            bundle.has_queue_limits = state.serializes_claims();
        }
    }

    /// Deletes the ready rows taken from a page. A row whose execution was not claimed is stale.
    fn delete_taken(
        &mut self,
        allocation: &Allocation,
        state: &QueueState,
        page: &mut ReadyPage<'_>,
    ) -> DbResult<()> {
        let Some((first, last)) = page.taken.take() else { return Ok(()) };
        let is_woken = state.scope.is_woken();
        let params: &[&dyn ToSql] = params![
            page.route.as_str(),
            &*allocation.key,
            first.0,
            first.1,
            key_bytes(&first.2),
            last.0,
            last.1,
            key_bytes(&last.2),
            is_woken,
        ];
        let (sql, params) = match is_woken {
            None => (Sql::DeleteReadyRange, &params[..params.len() - 1]),
            Some(_) => (Sql::DeleteReadyRangeOfScope, params),
        };
        self.sql.delete(Table::Ready, sql, params)?;
        Ok(())
    }

    /// Reads the next ready rows of a route, after a position.
    fn read_page(
        &mut self,
        allocation: &Allocation,
        state: &QueueState,
        route: &Route,
        after: ReadyPosition,
    ) -> DbResult<VecDeque<ReadyPosition>> {
        let limit = PAGE_ROWS.min(allocation.limit.saturating_add(1));
        // woken executions have an index of their own
        let sql = if state.scope == ClaimScope::Woken { Sql::WokenPage } else { Sql::ReadyPage };
        let params = params![
            route.as_str(),
            &*allocation.key,
            after.0,
            after.1,
            key_bytes(&after.2),
            limit as i64,
            state.scope.is_woken(),
        ];
        let mut rows = self.sql.get(sql)?.query(params)?;
        let mut page = VecDeque::with_capacity(limit);
        while let Some(row) = rows.next()? {
            page.push_back((row.get(0)?, row.get(1)?, key_of(row, 2)?));
        }
        Ok(page)
    }
}
