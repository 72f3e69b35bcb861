//! Outcomes that are read after the fact: of Starts that lost, and of a flush that proved to be applied.

use std::collections::{HashMap, HashSet};

use stepfast_core::Key;
use stepfast_core::clock::Timestamp;
use stepfast_core::record::Status;
use stepfast_core::store::StoreError;
use stepfast_core::write::{
    Answer as Answered, Existing, Flush, Outcome, Request, RequestKind, Start, WorkerId, Write,
};

use crate::apply::one;
use crate::connect::Session;
use crate::error::Trouble;
use crate::pipeline::{self, Job, Part};
use crate::rows::{Columns, found};
use crate::statements::Sql;
use crate::types::uuid;

/// Executions by key and by the caller's id.
#[derive(Default)]
struct Known {
    by_key: HashMap<Key, (Existing, Timestamp)>,
    /// Of what runs without a claim, who runs it.
    owners: HashMap<Key, WorkerId>,
    by_id: HashMap<String, Key>,
    by_dedup_id: HashMap<(String, String), Key>,
}

impl Known {
    fn winner(&self, start: &Start) -> Option<&Existing> {
        let key = if self.by_key.contains_key(&start.key) {
            &start.key
        } else {
            self.by_id.get(start.workflow_id.as_deref()?)?
        };
        self.by_key.get(key).map(|(existing, _)| existing)
    }

    fn duplicate(&self, start: &Start) -> Result<Outcome, StoreError> {
        if let (None, Some(dedup)) = (self.winner(start), dedup(start)) {
            let key = self.by_dedup_id.get(&(dedup.0.to_owned(), dedup.1.to_owned()));
            let existing = key.and_then(|key| self.by_key.get(key));
            return Ok(Outcome::Deduplicated(existing.map(|(existing, _)| Box::new(existing.clone()))));
        }
        let existing = self.winner(start).ok_or_else(|| {
            StoreError::Corrupt(format!(
                "execution {} could not be inserted, but nothing has its key or workflow_id",
                start.key
            ))
        })?;
        Ok(Outcome::Duplicate(Box::new(existing.clone())))
    }
}

/// Its queue and what it alone is to have there.
fn dedup(start: &Start) -> Option<(&str, &str)> {
    Some((&start.ticket.as_deref()?.queue, start.dedup_id.as_deref()?))
}

async fn known<'a>(
    session: &Session,
    keys: impl Iterator<Item = Key>,
    starts: impl Iterator<Item = &'a Start> + Clone,
) -> Result<Known, Trouble> {
    let keys: Vec<_> = keys.map(uuid).collect();
    let ids: Vec<&str> = starts.clone().filter_map(|start| start.workflow_id.as_deref()).collect();
    let (queues, dedup_ids): (Vec<&str>, Vec<&str>) = starts.filter_map(dedup).unzip();
    let params = vec![one(keys), one(ids), one(queues), one(dedup_ids)];
    let job = Job { sql: Sql::Existing, what: "reading executions", params };
    let answers = pipeline::run(session, Part::Apart, &[job]).await?;
    let mut known = Known::default();
    for row in answers.iter().flat_map(|answer| &answer.rows) {
        let found = found(row)?;
        if let Some(id) = found.given_id {
            known.by_id.insert(id, found.existing.key);
        }
        known.by_dedup_id.extend(found.dedup.map(|dedup| (dedup, found.existing.key)));
        known.owners.extend(found.owner.map(|owner| (found.existing.key, owner)));
        known.by_key.insert(found.existing.key, (found.existing, found.created_at));
    }
    Ok(known)
}

/// The outcomes of Starts that lost, by index.
pub(crate) async fn losers(
    session: &Session,
    flush: &Flush,
    losers: &[usize],
) -> Result<Vec<(usize, Outcome)>, Trouble> {
    let starts = || {
        losers.iter().filter_map(|&i| match flush.writes.get(i) {
            Some(Write::Start(start)) => Some((i, start.as_ref())),
            _ => None,
        })
    };
    let all = starts().map(|(_, start)| start);
    let known = known(session, all.clone().map(|start| start.key), all).await?;
    starts().map(|(i, start)| Ok((i, known.duplicate(start)?))).collect()
}

/// The outcomes of a flush that was applied before, as far as its rows still show them.
pub(crate) async fn applied_before(
    session: &Session,
    flush: &Flush,
) -> Result<Vec<(usize, Outcome)>, Trouble> {
    let is_of_interest =
        |write: &&Write| matches!(write, Write::Start(_) | Write::Wake(_) | Write::Request(_));
    let keys = flush.writes.iter().filter(is_of_interest).map(Write::execution);
    let starts = flush.writes.iter().filter_map(|write| match write {
        Write::Start(start) => Some(&**start),
        _ => None,
    });
    let known = known(session, keys, starts).await?;
    let asked = asked(session, flush).await?;
    let mut outcomes = Vec::new();
    for (i, write) in flush.writes.iter().enumerate() {
        match write {
            // its own row is known by its time; any other was there first
            Write::Start(start) => match known.by_key.get(&start.key) {
                Some((_, created_at)) if *created_at == start.created_at => {
                    // it has begun, or somebody has claimed it meanwhile, who runs it
                    if start.yields && known.owners.get(&start.key) != Some(&flush.worker) {
                        outcomes.push((i, Outcome::Queued));
                    }
                }
                _ => outcomes.push((i, known.duplicate(start)?)),
            },
            // woken, and perhaps gone on since; still waiting means that there was no reason to wake it
            Write::Wake(key) => match known.by_key.get(key) {
                Some((existing, _)) if existing.status != Status::Waiting => {}
                _ => outcomes.push((i, Outcome::NotFound)),
            },
            Write::Request(request) => {
                let existing = known.by_key.get(&request.execution).map(|(existing, _)| existing);
                let is_asked = asked.contains(&(request.execution, request.n));
                outcomes.push((i, answer(request, existing, is_asked)));
            }
            _ => {}
        }
    }
    Ok(outcomes)
}

async fn asked(session: &Session, flush: &Flush) -> Result<HashSet<(Key, Key)>, Trouble> {
    let requests = flush.writes.iter().filter(|write| matches!(write, Write::Request(_)));
    let keys: Vec<_> = requests.map(|write| uuid(write.execution())).collect();
    if keys.is_empty() {
        return Ok(HashSet::new());
    }
    let job = Job { sql: Sql::Asked, what: "reading requests", params: vec![one(keys)] };
    let answers = pipeline::run(session, Part::Apart, &[job]).await?;
    let mut asked = HashSet::new();
    for row in answers.iter().flat_map(|answer| &answer.rows) {
        let mut row = Columns::of(row);
        asked.insert((row.key()?, row.key()?));
    }
    Ok(asked)
}

/// How a request was answered, judged by what is there now.
fn answer(request: &Request, existing: Option<&Existing>, is_asked: bool) -> Outcome {
    let Some(existing) = existing else { return Outcome::NotFound };
    let status = existing.status;
    match request.kind {
        RequestKind::Cancel if is_asked => Outcome::Answered(Answered::Requested, None),
        RequestKind::Cancel if status == Status::Cancelled => {
            Outcome::Answered(Answered::Done, existing.parent)
        }
        RequestKind::Cancel if status.is_terminal() => Outcome::Answered(Answered::Declined(status), None),
        // its row is gone: the owner has answered it
        RequestKind::Cancel => Outcome::Answered(Answered::Requested, None),
        RequestKind::Resume if status == Status::Completed => {
            Outcome::Answered(Answered::Declined(status), None)
        }
        RequestKind::Resume => Outcome::Answered(Answered::Done, None),
    }
}
