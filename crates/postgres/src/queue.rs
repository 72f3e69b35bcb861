//! Queues: how they are stored, and what a claim finds of them.

use std::collections::HashSet;
use std::sync::Arc;

use stepfast_core::clock::Timestamp;
use stepfast_core::queue::{Limits, Queue, QueueChange, QueueRow};
use stepfast_core::store::StoreError;
use stepfast_core::turns::{Candidate, Turns};
use stepfast_core::write::WorkerId;
use tokio_postgres::Row;

use crate::apply::one;
use crate::connect::Session;
use crate::error::Trouble;
use crate::pipeline::{self, Job, Part};
use crate::read::Reader;
use crate::rows::Columns;
use crate::statements::Sql;
use crate::types::Instant;

/// Most keys of a queue that one claim looks at.
const KEYS: usize = 2_000;
/// Sorts behind the text that it is put to, and before all that begins with it: keys have no control characters.
const NEXT: char = '\u{1}';

/// Stores a queue, if it is as whoever changes it has seen it.
pub(crate) async fn change(
    session: &Session,
    change: &QueueChange,
    now: Option<Timestamp>,
) -> Result<Option<QueueRow>, Trouble> {
    let QueueChange { queue, is_paused, seen_version } = change.clone();
    let limits = &queue.limits;
    let version = seen_version + 1;
    let set = Job {
        sql: Sql::SetQueue,
        what: "changing a queue",
        params: vec![
            one(queue.name.to_string()),
            one(version),
            one(now.map(Instant)),
            one(is_paused),
            one(limits.is_serial()),
            one(number(limits.concurrency)),
            one(number(limits.worker_concurrency)),
            one(number(limits.key_concurrency)),
        ],
    };
    let answers = pipeline::run(session, Part::Begin, &[set]).await?;
    let stored = answers.first().and_then(|answer| answer.rows.first());
    let changed_at = stored.map(|row| Columns::of(row).time()).transpose()?;
    let mut jobs = Vec::new();
    if changed_at.is_some() && limits.has_slots() {
        // a fresh snapshot: it shows what claims have taken for which the row was waited for
        let params = vec![one(queue.name.to_string())];
        jobs.push(Job { sql: Sql::RunningIn, what: "counting what runs of a queue", params });
    }
    pipeline::run(session, Part::End, &jobs).await?;
    Ok(changed_at.map(|changed_at| QueueRow { queue, is_paused, version, changed_at }))
}

fn number(limit: Option<u32>) -> Option<i32> {
    limit.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX))
}

impl Reader {
    /// See [`Store::queues`](stepfast_core::Store::queues).
    pub(crate) async fn queues(&self, names: Option<&[Arc<str>]>) -> Result<Vec<QueueRow>, StoreError> {
        let names: Option<Vec<String>> = names.map(|names| names.iter().map(ToString::to_string).collect());
        let job = Job { sql: Sql::Queues, what: "listing queues", params: vec![one(names)] };
        self.ask(job).await?.iter().map(queue).collect()
    }
}

fn queue(row: &Row) -> Result<QueueRow, StoreError> {
    let mut row = Columns::of(row);
    let name = row.next::<&str>()?.into();
    let (version, changed_at, is_paused) = (row.next()?, row.time()?, row.next()?);
    Ok(QueueRow { queue: Queue { name, limits: limits(&mut row)? }, is_paused, version, changed_at })
}

/// Limits, as queries select them.
fn limits(row: &mut Columns<'_>) -> Result<Limits, StoreError> {
    let mut next =
        || -> Result<Option<u32>, StoreError> { Ok(row.next::<Option<i32>>()?.map(i32::cast_unsigned)) };
    Ok(Limits { concurrency: next()?, worker_concurrency: next()?, key_concurrency: next()? })
}

/// A queue of which something is ready.
pub(crate) struct Line {
    pub(crate) name: Arc<str>,
    /// Somebody else claims from it at the moment.
    pub(crate) is_busy: bool,
    /// This claim may take of it.
    pub(crate) is_open: bool,
    has_keys: bool,
    pub(crate) limits: Limits,
    /// How many more of it may run.
    pub(crate) room: usize,
    /// Keys of which something was chosen from the quarantine.
    pub(crate) tried: HashSet<Arc<str>>,
}

impl Line {
    /// A row of open.sql.
    pub(crate) fn of(row: &Row) -> Result<Self, StoreError> {
        let mut row = Columns::of(row);
        let name = row.next::<&str>()?.into();
        let is_held: bool = row.next()?;
        let is_busy = row.next()?;
        let is_free: bool = row.next()?;
        let limits = limits(&mut row)?;
        let has_keys = row.next()?;
        let (is_open, room, tried) = (is_held || is_free, usize::MAX, HashSet::new());
        Ok(Self { name, is_busy, is_open, has_keys, limits, room, tried })
    }

    /// How many more of one of its keys may run, of which so many do.
    fn room_of(&self, used: Option<i64>) -> usize {
        left(self.limits.key_concurrency, used.unwrap_or_default())
    }
}

fn left(limit: Option<u32>, used: i64) -> usize {
    limit.map_or(usize::MAX, |limit| usize::try_from(i64::from(limit) - used).unwrap_or(0))
}

/// Counts what runs of those that limit that.
pub(crate) async fn count(session: &Session, lines: &mut [Line], worker: WorkerId) -> Result<(), Trouble> {
    let is_counted =
        |line: &Line| line.limits.concurrency.is_some() || line.limits.worker_concurrency.is_some();
    let names: Vec<String> = lines
        .iter()
        .filter(|line| line.is_open && is_counted(line))
        .map(|line| line.name.to_string())
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    let job = Job { sql: Sql::Slots, what: "counting slots", params: vec![one(names), one(worker.0)] };
    let answers = pipeline::run(session, Part::Middle, &[job]).await?;
    for row in answers.iter().flat_map(|answer| &answer.rows) {
        let mut row = Columns::of(row);
        let (name, used, here): (&str, i64, i64) = (row.next()?, row.next()?, row.next()?);
        if let Some(line) = lines.iter_mut().find(|line| *line.name == *name) {
            let Limits { concurrency, worker_concurrency, .. } = line.limits;
            line.room = left(concurrency, used).min(left(worker_concurrency, here));
        }
    }
    Ok(())
}

/// How many more of a key may run, as far as the key is concerned.
pub(crate) async fn room_of(session: &Session, line: &Line, key: &str) -> Result<usize, Trouble> {
    if line.limits.key_concurrency.is_none() {
        return Ok(usize::MAX);
    }
    let params = vec![one(line.name.to_string()), one(key.to_owned())];
    let job = Job { sql: Sql::KeySlots, what: "counting slots", params };
    let answers = pipeline::run(session, Part::Middle, &[job]).await?;
    let row = answers.first().and_then(|answer| answer.rows.first());
    let used = row.map(|row| Columns::of(row).next()).transpose()?;
    Ok(line.room_of(used))
}

/// The lines as candidates, with their keys; and whether limits leave something out.
pub(crate) async fn candidates(
    session: &Session,
    lines: &[Line],
    turns: &Turns,
) -> Result<(Vec<Candidate>, bool), Trouble> {
    let open: Vec<&Line> = lines.iter().filter(|line| line.is_open).collect();
    let mut is_limited = open.iter().any(|line| line.room == 0);
    let mut candidates: Vec<Candidate> = (open.iter())
        .map(|line| Candidate {
            queue: line.name.clone(),
            room: line.room,
            keys: if line.has_keys { Vec::new() } else { vec![("".into(), line.room_of(Some(0)))] },
            has_more_keys: false,
        })
        .collect();
    let with_keys = |line: &Line| line.has_keys || line.limits.key_concurrency.is_some();
    let keyed: Vec<usize> = (0..open.len()).filter(|i| open[*i].room > 0 && with_keys(open[*i])).collect();
    if keyed.is_empty() {
        return Ok((candidates, is_limited));
    }
    let last: Vec<Arc<str>> = keyed.iter().map(|i| turns.after(&open[*i].name)).collect();
    let ask = |first: Vec<String>, end: Vec<Option<String>>| Job {
        sql: Sql::Keys,
        what: "looking for keys",
        params: vec![
            one(keyed.iter().map(|i| open[*i].name.to_string()).collect::<Vec<_>>()),
            one(first),
            one(end),
            one(keyed.iter().map(|i| open[*i].limits.key_concurrency.is_some()).collect::<Vec<_>>()),
            one(KEYS as i32),
        ],
    };
    // from the key after the one that had the last turn, and around
    let behind = ask(last.iter().map(|last| format!("{last}{NEXT}")).collect(), vec![None; keyed.len()]);
    let around =
        ask(vec![String::new(); keyed.len()], last.iter().map(|last| Some(last.to_string())).collect());
    let answers = pipeline::run(session, Part::Middle, &[behind, around]).await?;
    for i in &keyed {
        candidates[*i].keys.clear();
    }
    for row in answers.iter().flat_map(|answer| &answer.rows) {
        let mut row = Columns::of(row);
        let n = row.next::<i64>()?;
        let Some(&i) = usize::try_from(n - 1).ok().and_then(|n| keyed.get(n)) else { continue };
        let key: &str = row.next()?;
        let room = open[i].room_of(row.next()?);
        is_limited |= room == 0;
        let candidate = &mut candidates[i];
        if candidate.keys.len() < KEYS {
            candidate.keys.push((key.into(), room));
        }
        candidate.has_more_keys = candidate.keys.len() == KEYS;
    }
    Ok((candidates, is_limited))
}
