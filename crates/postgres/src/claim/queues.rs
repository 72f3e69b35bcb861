//! [`QueueState`]: a queue as a claim finds it, with its limits and its remaining capacity.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use stepfast_core::clock::Timestamp;
use stepfast_core::queue::fairness::{FairShare, ReadyQueue};
use stepfast_core::queue::rate::{ClaimScope, Rate, RateUsage};
use stepfast_core::queue::{Limits, remaining};
use stepfast_core::store::{Route, StoreError, WorkerId};
use stepfast_core::sync::Mutex;
use tokio_postgres::Row;

use crate::conn::pipeline;
use crate::conn::pipeline::{Query, column, param};
use crate::conn::session::Session;
use crate::conn::session::TxPart;
use crate::conn::statements::Sql;
use crate::error::{DbError, corrupt};
use crate::rows::Columns;
use crate::rows::queues::parse_limits;
use crate::rows::types::Timestamptz;

/// The maximum number of keys of a queue that one claim reads.
const MAX_KEYS_PER_QUEUE: usize = 2_000;
/// A character that makes a successor: a key with this character appended sorts directly after the key itself. The
/// result sorts before every longer key with the same prefix, because keys have no control characters.
const KEY_SUCCESSOR: char = '\u{1}';

/// Whether a claim may take executions from a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The claim may take executions.
    Open,
    /// Another claim, or a change of the queue, has locked the queue's settings.
    Locked,
    /// Another claim has its turn. Claims take turns here although the queue's limits do not require one claim at a
    /// time.
    Contended,
    /// The queue is paused.
    Paused,
}

/// A queue with ready executions.
pub(crate) struct QueueState {
    pub(crate) name: Arc<str>,
    /// The version of the queue's settings; `None` for a queue that was not declared.
    pub(crate) version: Option<i64>,
    pub(crate) access: Access,
    /// The queue's routes that the worker can run; empty if the claim is from the quarantine.
    pub(crate) routes: Vec<Route>,
    has_keys: bool,
    pub(crate) limits: Limits,
    pub(crate) scope: ClaimScope,
    /// The number of further executions of the queue that may run.
    pub(crate) capacity: usize,
    /// The starts that count for the queue's rate, and the starts that count for the key rate, by queue key.
    rate_usage: RateUsage,
    key_rate_usage: HashMap<Arc<str>, RateUsage>,
    /// The queue keys of executions that were chosen from the quarantine.
    pub(crate) chosen_keys: HashSet<Arc<str>>,
}

/// A rate, and the queue or key to which it applies.
struct RateScope {
    queue: Arc<str>,
    /// The queue key to which a key rate applies. `None` for the rate of the queue.
    key: Option<Arc<str>>,
    rate: Rate,
}

/// The reasons for which a claim leaves ready executions in their queues.
#[derive(Default)]
pub(crate) struct Leftover {
    /// Whether concurrency limits keep executions from being taken.
    pub(crate) is_limited: bool,
    /// The earliest time at which an exhausted rate allows more starts. `None` if no rate is exhausted.
    pub(crate) retry_at: Option<Timestamp>,
}

impl Leftover {
    /// Returns the number of starts that a rate allows now, and notes when the rate allows more.
    fn allowed_starts(&mut self, rate: &Rate, usage: &RateUsage, now: Timestamp) -> usize {
        let allowance = rate.allowance(usage, now);
        if allowance.starts == 0 {
            self.retry_at = self.retry_at.into_iter().chain(allowance.more_at).min();
        }
        allowance.starts
    }
}

impl QueueState {
    /// Parses a row of lock_ready_queues.sql.
    pub(crate) fn parse(row: &Row) -> Result<Self, StoreError> {
        let mut row = Columns::new(row);
        let name: Arc<str> = row.next::<&str>()?.into();
        let version = row.next()?;
        let access = match row.next::<&str>()? {
            "open" => Access::Open,
            "locked" => Access::Locked,
            "contended" => Access::Contended,
            "paused" => Access::Paused,
            _ => return Err(corrupt("a queue's access")),
        };
        let limits = parse_limits(&mut row)?;
        let routes = row.next::<Vec<&str>>()?.into_iter().map(Route::from_text).collect();
        let has_keys = row.next()?;
        let has_woken: bool = row.next()?;
        let scope = match (limits.has_rate(), has_woken) {
            (false, _) => ClaimScope::All,
            (true, true) => ClaimScope::Woken,
            (true, false) => ClaimScope::Starting,
        };
        Ok(Self {
            name,
            version,
            access,
            routes,
            has_keys,
            limits,
            scope,
            capacity: usize::MAX,
            rate_usage: RateUsage::default(),
            key_rate_usage: HashMap::new(),
            chosen_keys: HashSet::new(),
        })
    }

    /// Whether the claim may take executions from the queue.
    pub(crate) fn is_open(&self) -> bool {
        self.access == Access::Open
    }

    /// Whether another claim keeps this one from the queue.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.access, Access::Locked | Access::Contended)
    }

    /// Restricts the claim to executions that begin. Executions that have waited are claimed before.
    pub(crate) fn restrict_to_starting(&mut self) {
        self.scope = ClaimScope::Starting;
        self.capacity = usize::MAX;
    }

    /// Returns the number of further executions of a key that may run, if `running` executions of the key run already.
    fn key_capacity(&self, running: Option<i64>) -> usize {
        remaining(self.limits.key_concurrency, running.unwrap_or_default().unsigned_abs())
    }

    pub(crate) fn has_key_limits(&self) -> bool {
        self.limits.key_concurrency.is_some() || self.limits.key_rate.is_some()
    }
}

/// Sets the capacities of open queues, from their running executions and from the starts that count for their rates.
pub(crate) async fn load_capacities(
    session: &Session,
    queues: &mut [QueueState],
    worker: WorkerId,
    now: Timestamp,
) -> Result<Leftover, DbError> {
    let mut leftover = Leftover::default();
    let needs_count =
        |queue: &QueueState| queue.limits.concurrency.is_some() || queue.limits.worker_concurrency.is_some();
    let counted = queues.iter().filter(|queue| queue.is_open() && needs_count(queue));
    let counted: Vec<String> = counted.map(|queue| queue.name.to_string()).collect();
    if !counted.is_empty() {
        let query = Query {
            sql: Sql::CountSlots,
            action: "counting slots",
            params: vec![param(counted), param(worker.0)],
        };
        let results = pipeline::run(session, TxPart::Middle, &[query]).await?;
        for row in results.iter().flat_map(|result| &result.rows) {
            let mut row = Columns::new(row);
            let (name, running, running_here): (&str, i64, i64) = (row.next()?, row.next()?, row.next()?);
            if let Some(queue) = queues.iter_mut().find(|queue| *queue.name == *name) {
                let Limits { concurrency, worker_concurrency, .. } = queue.limits;
                let capacity = remaining(concurrency, running.unsigned_abs());
                queue.capacity = capacity.min(remaining(worker_concurrency, running_here.unsigned_abs()));
                leftover.is_limited |= queue.capacity == 0;
            }
        }
    }
    let mut rated: Vec<(&mut QueueState, Rate)> = (queues.iter_mut())
        .filter(|queue| queue.is_open() && queue.scope == ClaimScope::Starting)
        .filter_map(|queue| queue.limits.rate.map(|rate| (queue, rate)))
        .collect();
    let scopes = rated
        .iter()
        .map(|(queue, rate)| RateScope { queue: queue.name.clone(), key: None, rate: *rate })
        .collect();
    for ((queue, rate), usage) in rated.iter_mut().zip(load_rate_usage(session, scopes, now).await?) {
        queue.rate_usage = usage;
        queue.capacity = queue.capacity.min(leftover.allowed_starts(rate, &usage, now));
    }
    Ok(leftover)
}

/// Reads the starts that count for rates of queues or keys, in the order of `scopes`.
async fn load_rate_usage(
    session: &Session,
    scopes: Vec<RateScope>,
    now: Timestamp,
) -> Result<Vec<RateUsage>, DbError> {
    if scopes.is_empty() {
        return Ok(Vec::new());
    }
    let params = vec![
        column(&scopes, |scope| scope.queue.to_string()),
        column(&scopes, |scope| scope.key.is_some()),
        column(&scopes, |scope| scope.key.as_deref().unwrap_or_default().to_owned()),
        column(&scopes, |scope| Timestamptz(scope.rate.window_start(now))),
    ];
    let query = Query { sql: Sql::RateUsage, action: "counting starts", params };
    let results = pipeline::run(session, TxPart::Middle, &[query]).await?;
    let parse = |row| {
        let mut row = Columns::new(row);
        let _: i64 = row.next()?;
        Ok(RateUsage {
            starts: row.next::<i64>()? as u64,
            first_at: row.opt_time()?,
            last_at: row.opt_time()?,
        })
    };
    results.iter().flat_map(|result| &result.rows).map(parse).collect()
}

/// Returns the statement that records starts for the rates of these queues, if any have rates. `claimed`: the number of
/// executions that begin with this claim, by queue and queue key.
pub(crate) fn record_starts_query(
    queues: &[QueueState],
    claimed: &HashMap<(Arc<str>, Arc<str>), usize>,
    now: Timestamp,
) -> Option<Query<'static>> {
    let mut entries = Vec::new();
    for queue in queues.iter().filter(|queue| queue.scope == ClaimScope::Starting) {
        let of_queue = || claimed.iter().filter(|((name, _), _)| *name == queue.name);
        let all: usize = of_queue().map(|(_, starts)| starts).sum();
        if let Some(rate) = queue.limits.rate.filter(|_| all > 0) {
            let scope = RateScope { queue: queue.name.clone(), key: None, rate };
            entries.push((scope, rate.entry(&queue.rate_usage, now, all)));
        }
        if let Some(rate) = queue.limits.key_rate {
            for ((name, key), starts) in of_queue() {
                let usage = queue.key_rate_usage.get(key).copied().unwrap_or_default();
                let scope = RateScope { queue: name.clone(), key: Some(key.clone()), rate };
                entries.push((scope, rate.entry(&usage, now, *starts)));
            }
        }
    }
    if entries.is_empty() {
        return None;
    }
    entries.sort_by(|(a, _), (b, _)| (&a.queue, &a.key).cmp(&(&b.queue, &b.key)));
    let params = vec![
        column(&entries, |(scope, _)| scope.queue.to_string()),
        column(&entries, |(scope, _)| scope.key.is_some()),
        column(&entries, |(scope, _)| scope.key.as_deref().unwrap_or_default().to_owned()),
        column(&entries, |(_, entry)| Timestamptz(entry.prune_until)),
        column(&entries, |(_, entry)| Timestamptz(entry.at)),
        column(&entries, |(_, entry)| entry.starts as i64),
    ];
    Some(Query { sql: Sql::RecordStarts, action: "recording starts", params })
}

/// Returns the number of further executions of a key that the limits of the key allow.
pub(crate) async fn load_key_capacity(
    session: &Session,
    queue: &mut QueueState,
    key: &Arc<str>,
    now: Timestamp,
) -> Result<usize, DbError> {
    let mut capacity = usize::MAX;
    if queue.limits.key_concurrency.is_some() {
        let params = vec![param(queue.name.to_string()), param(key.to_string())];
        let query = Query { sql: Sql::CountKeySlots, action: "counting slots", params };
        let results = pipeline::run(session, TxPart::Middle, &[query]).await?;
        let row = results.first().and_then(|result| result.rows.first());
        capacity = queue.key_capacity(row.map(|row| Columns::new(row).next()).transpose()?);
    }
    if let Some(rate) = queue.limits.key_rate {
        let scopes = vec![RateScope { queue: queue.name.clone(), key: Some(key.clone()), rate }];
        for usage in load_rate_usage(session, scopes, now).await? {
            queue.key_rate_usage.insert(key.clone(), usage);
            capacity = capacity.min(rate.allowance(&usage, now).starts);
        }
    }
    Ok(capacity)
}

/// Returns the number of keys below their limits that a claim needs, which may take `limit` executions.
fn wanted_keys(queue: &QueueState, limit: usize) -> usize {
    match queue.limits.key_rate {
        // the rates of the keys are read later, and may allow no start
        Some(_) => MAX_KEYS_PER_QUEUE,
        None => queue.capacity.min(limit),
    }
}

/// Returns the open queues with their keys, as the fair share needs them. `limit`: the number of executions that the claim
/// may take. At most as many keys of a queue can get a turn, so no more of those below their limits are read.
pub(crate) async fn load_ready_queues(
    session: &Session,
    queues: &mut [QueueState],
    fair_share: &Mutex<FairShare>,
    limit: usize,
    now: Timestamp,
    leftover: &mut Leftover,
) -> Result<Vec<ReadyQueue>, DbError> {
    let mut open: Vec<&mut QueueState> = queues.iter_mut().filter(|queue| queue.is_open()).collect();
    let mut ready: Vec<ReadyQueue> = (open.iter())
        .map(|queue| ReadyQueue {
            queue: queue.name.clone(),
            capacity: queue.capacity,
            keys: if queue.has_keys { Vec::new() } else { vec![("".into(), usize::MAX)] },
            has_more_keys: false,
            weights: queue.limits.key_weights.clone(),
        })
        .collect();
    let has_keys = |queue: &QueueState| queue.has_keys || queue.has_key_limits();
    let keyed: Vec<usize> = (0..open.len()).filter(|i| open[*i].capacity > 0 && has_keys(open[*i])).collect();
    if keyed.is_empty() {
        return Ok(ready);
    }
    let last_keys: Vec<Arc<str>> = keyed.iter().map(|i| fair_share.lock().last_key(&open[*i].name)).collect();
    // the position in `keyed` of each route's queue, with the route
    let routes: Vec<(usize, &Route)> = (keyed.iter().enumerate())
        .flat_map(|(n, i)| open[*i].routes.iter().map(move |route| (n, route)))
        .collect();
    let queue_of = |n: &usize| &open[keyed[*n]];
    let keys_query = |first: &dyn Fn(usize) -> String, end: &dyn Fn(usize) -> Option<String>| Query {
        sql: Sql::NextKeys,
        action: "reading keys",
        params: vec![
            param(routes.iter().map(|(_, route)| route.queue().to_owned()).collect::<Vec<_>>()),
            param(routes.iter().map(|(n, _)| first(*n)).collect::<Vec<_>>()),
            param(routes.iter().map(|(n, _)| end(*n)).collect::<Vec<_>>()),
            param(
                (routes.iter().map(|(n, _)| queue_of(n).limits.key_concurrency.map(i64::from)))
                    .collect::<Vec<_>>(),
            ),
            param(MAX_KEYS_PER_QUEUE as i32),
            param(routes.iter().map(|(n, _)| queue_of(n).scope == ClaimScope::Woken).collect::<Vec<_>>()),
            param(routes.iter().map(|(_, route)| route.as_str().to_owned()).collect::<Vec<_>>()),
            param(routes.iter().map(|(n, _)| wanted_keys(queue_of(n), limit) as i64).collect::<Vec<_>>()),
        ],
    };
    // from the key after the one that had the last turn; then from the first key up to the one that had it
    let after_last = keys_query(&|n| format!("{}{KEY_SUCCESSOR}", last_keys[n]), &|_| None);
    let up_to_last = keys_query(&|_| String::new(), &|n| Some(last_keys[n].to_string()));
    let results = pipeline::run(session, TxPart::Middle, &[after_last, up_to_last]).await?;
    let route_queues: Vec<usize> = routes.iter().map(|(n, _)| keyed[*n]).collect();
    for i in &keyed {
        ready[*i].keys.clear();
    }
    let mut free_keys = vec![0; open.len()];
    for result in &results {
        // a key of several routes is returned for each of them
        let mut found: Vec<(usize, Arc<str>, Option<i64>)> = Vec::with_capacity(result.rows.len());
        for row in &result.rows {
            let mut row = Columns::new(row);
            let n = usize::try_from(row.next::<i64>()? - 1).ok();
            let Some(&i) = n.and_then(|n| route_queues.get(n)) else { continue };
            found.push((i, row.next::<&str>()?.into(), row.next()?));
        }
        found.sort_unstable();
        found.dedup_by(|(i, key, _), (j, other, _)| i == j && key == other);
        for (i, key, running) in found {
            let capacity = open[i].key_capacity(running);
            leftover.is_limited |= capacity == 0;
            let (ready_queue, free_keys) = (&mut ready[i], &mut free_keys[i]);
            if ready_queue.keys.len() < MAX_KEYS_PER_QUEUE && *free_keys < wanted_keys(open[i], limit) {
                ready_queue.keys.push((key, capacity));
                *free_keys += usize::from(capacity > 0);
            }
            ready_queue.has_more_keys =
                ready_queue.keys.len() == MAX_KEYS_PER_QUEUE || *free_keys == wanted_keys(open[i], limit);
        }
    }
    // the rates of keys limit their capacities
    let mut scopes = Vec::new();
    let mut rated_keys = Vec::new();
    for &i in &keyed {
        let Some(rate) = open[i].limits.key_rate.filter(|_| open[i].scope == ClaimScope::Starting) else {
            continue;
        };
        for (n, (key, _)) in ready[i].keys.iter().enumerate() {
            scopes.push(RateScope { queue: open[i].name.clone(), key: Some(key.clone()), rate });
            rated_keys.push((i, n, rate));
        }
    }
    for ((i, n, rate), usage) in rated_keys.into_iter().zip(load_rate_usage(session, scopes, now).await?) {
        let (key, capacity) = &mut ready[i].keys[n];
        open[i].key_rate_usage.insert(key.clone(), usage);
        *capacity = (*capacity).min(leftover.allowed_starts(&rate, &usage, now));
    }
    Ok(ready)
}
