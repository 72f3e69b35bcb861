//! Queues: what a claim finds of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use stepfast_core::clock::Timestamp;
use stepfast_core::queue::fairness::{ReadyQueue, FairShare};
use stepfast_core::queue::rate::{Rate, RateUsage, ClaimScope};
use stepfast_core::queue::{Limits, remaining};
use stepfast_core::store::{StoreError, WorkerId};
use stepfast_core::sync::Mutex;
use tokio_postgres::Row;

use crate::conn::pipeline;
use crate::conn::pipeline::{Query, column, param};
use crate::conn::session::TxPart;
use crate::conn::session::Session;
use crate::conn::statements::Sql;
use crate::error::DbError;
use crate::rows::Columns;
use crate::rows::queues::limits;
use crate::rows::types::Instant;

/// Most keys of a queue that one claim looks at.
const KEYS: usize = 2_000;
/// Sorts behind the text that it is put to, and before all that begins with it: keys have no control characters.
const NEXT: char = '\u{1}';

/// Whether a claim may take of a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Open,
    /// Somebody else has locked it at the moment.
    Locked,
    /// Somebody else claims from it at the moment, although nothing speaks against two claims at a time.
    Awaited,
    /// It is paused.
    Closed,
}

/// A queue of which something is ready.
pub(crate) struct Line {
    pub(crate) name: Arc<str>,
    pub(crate) access: Access,
    has_keys: bool,
    pub(crate) limits: Limits,
    pub(crate) which: ClaimScope,
    /// How many more of it may run.
    pub(crate) room: usize,
    /// Its starts that count for its rate, and those of its keys.
    used: RateUsage,
    used_of: HashMap<Arc<str>, RateUsage>,
    /// Keys of which something was chosen from the quarantine.
    pub(crate) tried: HashSet<Arc<str>>,
}

/// A rate, and of what it is.
struct Rated {
    queue: Arc<str>,
    /// The key, if it is about one.
    key: Option<Arc<str>>,
    rate: Rate,
}

/// What its limits have left of what is ready.
#[derive(Default)]
pub(crate) struct Left {
    pub(crate) is_limited: bool,
    pub(crate) again_at: Option<Timestamp>,
}

impl Left {
    /// How many starts a rate allows for.
    fn allowed(&mut self, rate: &Rate, used: &RateUsage, now: Timestamp) -> usize {
        let allowance = rate.allowance(used, now);
        if allowance.starts == 0 {
            self.again_at = self.again_at.into_iter().chain(allowance.more_at).min();
        }
        allowance.starts
    }
}

impl Line {
    /// A row of open.sql.
    pub(crate) fn of(row: &Row) -> Result<Self, StoreError> {
        let mut row = Columns::of(row);
        let name = row.next::<&str>()?.into();
        let is_held: bool = row.next()?;
        let is_locked: bool = row.next()?;
        let is_free: bool = row.next()?;
        let is_awaited: bool = row.next()?;
        let limits = limits(&mut row)?;
        let has_keys = row.next()?;
        let has_woken: bool = row.next()?;
        let which = match (limits.has_rate(), has_woken) {
            (false, _) => ClaimScope::All,
            (true, true) => ClaimScope::Woken,
            (true, false) => ClaimScope::Starting,
        };
        Ok(Self {
            name,
            access: match (is_locked, is_awaited) {
                (true, _) => Access::Locked,
                (_, true) => Access::Awaited,
                _ if is_held || is_free => Access::Open,
                _ => Access::Closed,
            },
            has_keys,
            limits,
            which,
            room: usize::MAX,
            used: RateUsage::default(),
            used_of: HashMap::new(),
            tried: HashSet::new(),
        })
    }

    /// Something may be taken of it.
    pub(crate) fn is_open(&self) -> bool {
        self.access == Access::Open
    }

    /// Nothing is taken of it because of somebody else.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.access, Access::Locked | Access::Awaited)
    }

    /// What begins may be taken of it from here on, and no more what has waited.
    pub(crate) fn expect_starts(&mut self) {
        self.which = ClaimScope::Starting;
        self.room = usize::MAX;
    }

    /// How many more of one of its keys may run, of which so many do.
    fn room_of(&self, used: Option<i64>) -> usize {
        remaining(self.limits.key_concurrency, used.unwrap_or_default().unsigned_abs())
    }

    pub(crate) fn has_key_limits(&self) -> bool {
        self.limits.key_concurrency.is_some() || self.limits.key_rate.is_some()
    }
}

/// Counts what runs of those that limit that, and what has begun of those that have a rate.
pub(crate) async fn count(
    session: &Session,
    lines: &mut [Line],
    worker: WorkerId,
    now: Timestamp,
) -> Result<Left, DbError> {
    let mut left_over = Left::default();
    let is_counted =
        |line: &Line| line.limits.concurrency.is_some() || line.limits.worker_concurrency.is_some();
    let counted = lines.iter().filter(|line| line.is_open() && is_counted(line));
    let counted: Vec<String> = counted.map(|line| line.name.to_string()).collect();
    if !counted.is_empty() {
        let job = Query { sql: Sql::Slots, action: "counting slots", params: vec![param(counted), param(worker.0)] };
        let answers = pipeline::run(session, TxPart::Middle, &[job]).await?;
        for row in answers.iter().flat_map(|answer| &answer.rows) {
            let mut row = Columns::of(row);
            let (name, used, here): (&str, i64, i64) = (row.next()?, row.next()?, row.next()?);
            if let Some(line) = lines.iter_mut().find(|line| *line.name == *name) {
                let Limits { concurrency, worker_concurrency, .. } = line.limits;
                let room = remaining(concurrency, used.unsigned_abs());
                line.room = room.min(remaining(worker_concurrency, here.unsigned_abs()));
                left_over.is_limited |= line.room == 0;
            }
        }
    }
    let mut rated: Vec<(&mut Line, Rate)> = (lines.iter_mut())
        .filter(|line| line.is_open() && line.which == ClaimScope::Starting)
        .filter_map(|line| line.limits.rate.map(|rate| (line, rate)))
        .collect();
    let asked =
        rated.iter().map(|(line, rate)| Rated { queue: line.name.clone(), key: None, rate: *rate }).collect();
    for ((line, rate), used) in rated.iter_mut().zip(used(session, asked, now).await?) {
        line.used = used;
        line.room = line.room.min(left_over.allowed(rate, &used, now));
    }
    Ok(left_over)
}

/// Starts that count for rates, of queues or of their keys.
async fn used(session: &Session, asked: Vec<Rated>, now: Timestamp) -> Result<Vec<RateUsage>, DbError> {
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let params = vec![
        column(&asked, |it| it.queue.to_string()),
        column(&asked, |it| it.key.is_some()),
        column(&asked, |it| it.key.as_deref().unwrap_or_default().to_owned()),
        column(&asked, |it| Instant(it.rate.window_start(now))),
    ];
    let job = Query { sql: Sql::Used, action: "counting starts", params };
    let answers = pipeline::run(session, TxPart::Middle, &[job]).await?;
    let read = |row| {
        let mut row = Columns::of(row);
        let _: i64 = row.next()?;
        Ok(RateUsage { starts: row.next::<i64>()? as u64, first_at: row.opt_time()?, last_at: row.opt_time()? })
    };
    answers.iter().flat_map(|answer| &answer.rows).map(read).collect()
}

/// What counts for the rates of these lines from now on: so many of which queue and key have begun.
pub(crate) fn starts(
    lines: &[Line],
    begun: &HashMap<(Arc<str>, Arc<str>), usize>,
    now: Timestamp,
) -> Option<Query<'static>> {
    let mut entries = Vec::new();
    for line in lines.iter().filter(|line| line.which == ClaimScope::Starting) {
        let of_line = || begun.iter().filter(|((queue, _), _)| *queue == line.name);
        let all: usize = of_line().map(|(_, starts)| starts).sum();
        if let Some(rate) = line.limits.rate.filter(|_| all > 0) {
            let rated = Rated { queue: line.name.clone(), key: None, rate };
            entries.push((rated, rate.entry(&line.used, now, all)));
        }
        if let Some(rate) = line.limits.key_rate {
            for ((queue, key), starts) in of_line() {
                let used = line.used_of.get(key).copied().unwrap_or_default();
                let rated = Rated { queue: queue.clone(), key: Some(key.clone()), rate };
                entries.push((rated, rate.entry(&used, now, *starts)));
            }
        }
    }
    if entries.is_empty() {
        return None;
    }
    entries.sort_by(|(a, _), (b, _)| (&a.queue, &a.key).cmp(&(&b.queue, &b.key)));
    let params = vec![
        column(&entries, |(it, _)| it.queue.to_string()),
        column(&entries, |(it, _)| it.key.is_some()),
        column(&entries, |(it, _)| it.key.as_deref().unwrap_or_default().to_owned()),
        column(&entries, |(_, entry)| Instant(entry.prune_until)),
        column(&entries, |(_, entry)| Instant(entry.at)),
        column(&entries, |(_, entry)| entry.starts as i64),
    ];
    Some(Query { sql: Sql::EnterStarts, action: "entering starts", params })
}

/// How many more of a key may run, as far as the key is concerned.
pub(crate) async fn room_of(
    session: &Session,
    line: &mut Line,
    key: &Arc<str>,
    now: Timestamp,
) -> Result<usize, DbError> {
    let mut room = usize::MAX;
    if line.limits.key_concurrency.is_some() {
        let params = vec![param(line.name.to_string()), param(key.to_string())];
        let job = Query { sql: Sql::KeySlots, action: "counting slots", params };
        let answers = pipeline::run(session, TxPart::Middle, &[job]).await?;
        let row = answers.first().and_then(|answer| answer.rows.first());
        room = line.room_of(row.map(|row| Columns::of(row).next()).transpose()?);
    }
    if let Some(rate) = line.limits.key_rate {
        let asked = vec![Rated { queue: line.name.clone(), key: Some(key.clone()), rate }];
        for used in used(session, asked, now).await? {
            line.used_of.insert(key.clone(), used);
            room = room.min(rate.allowance(&used, now).starts);
        }
    }
    Ok(room)
}

/// The lines as candidates, with their keys.
pub(crate) async fn candidates(
    session: &Session,
    lines: &mut [Line],
    turns: &Mutex<FairShare>,
    now: Timestamp,
    left_over: &mut Left,
) -> Result<Vec<ReadyQueue>, DbError> {
    let mut open: Vec<&mut Line> = lines.iter_mut().filter(|line| line.is_open()).collect();
    let mut candidates: Vec<ReadyQueue> = (open.iter())
        .map(|line| ReadyQueue {
            queue: line.name.clone(),
            capacity: line.room,
            keys: if line.has_keys { Vec::new() } else { vec![("".into(), usize::MAX)] },
            has_more_keys: false,
            weights: line.limits.key_weights.clone(),
        })
        .collect();
    let has_keys = |line: &Line| line.has_keys || line.has_key_limits();
    let keyed: Vec<usize> = (0..open.len()).filter(|i| open[*i].room > 0 && has_keys(open[*i])).collect();
    if keyed.is_empty() {
        return Ok(candidates);
    }
    let last: Vec<Arc<str>> = keyed.iter().map(|i| turns.lock().last_key(&open[*i].name)).collect();
    let ask = |first: Vec<String>, end: Vec<Option<String>>| Query {
        sql: Sql::Keys,
        action: "looking for keys",
        params: vec![
            param(keyed.iter().map(|i| open[*i].name.to_string()).collect::<Vec<_>>()),
            param(first),
            param(end),
            param(keyed.iter().map(|i| open[*i].limits.key_concurrency.is_some()).collect::<Vec<_>>()),
            param(KEYS as i32),
            param(keyed.iter().map(|i| open[*i].which == ClaimScope::Woken).collect::<Vec<_>>()),
        ],
    };
    // from the key after the one that had the last turn, and around
    let behind = ask(last.iter().map(|last| format!("{last}{NEXT}")).collect(), vec![None; keyed.len()]);
    let around =
        ask(vec![String::new(); keyed.len()], last.iter().map(|last| Some(last.to_string())).collect());
    let answers = pipeline::run(session, TxPart::Middle, &[behind, around]).await?;
    for i in &keyed {
        candidates[*i].keys.clear();
    }
    for row in answers.iter().flat_map(|answer| &answer.rows) {
        let mut row = Columns::of(row);
        let n = row.next::<i64>()?;
        let Some(&i) = usize::try_from(n - 1).ok().and_then(|n| keyed.get(n)) else { continue };
        let key: &str = row.next()?;
        let room = open[i].room_of(row.next()?);
        left_over.is_limited |= room == 0;
        let candidate = &mut candidates[i];
        if candidate.keys.len() < KEYS {
            candidate.keys.push((key.into(), room));
        }
        candidate.has_more_keys = candidate.keys.len() == KEYS;
    }
    // what the rates of keys allow for
    let mut asked = Vec::new();
    let mut places = Vec::new();
    for &i in &keyed {
        let Some(rate) = open[i].limits.key_rate.filter(|_| open[i].which == ClaimScope::Starting) else { continue };
        for (n, (key, _)) in candidates[i].keys.iter().enumerate() {
            asked.push(Rated { queue: open[i].name.clone(), key: Some(key.clone()), rate });
            places.push((i, n, rate));
        }
    }
    for ((i, n, rate), used) in places.into_iter().zip(used(session, asked, now).await?) {
        let (key, room) = &mut candidates[i].keys[n];
        open[i].used_of.insert(key.clone(), used);
        *room = (*room).min(left_over.allowed(&rate, &used, now));
    }
    Ok(candidates)
}
