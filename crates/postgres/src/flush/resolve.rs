//! Outcomes that are read after the fact: of Starts that lost, and of a flush that proved to be applied.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use stepfast_core::Key;
use stepfast_core::store::{
    RequestResult as Answered, ExistingExecution, Flush, Move, Outcome, Request, RequestKind, Start, State, Status,
    StoreError, UNKNOWN_STATUS_MESSAGE, Write,
};

use crate::conn::pipeline;
use crate::conn::pipeline::{Query, param};
use crate::conn::session::TxPart;
use crate::conn::session::Session;
use crate::conn::statements::Sql;
use crate::error::DbError;
use crate::flush::starts::held;
use crate::rows::types::uuid;
use crate::rows::{Columns, Found, found};

/// Executions by key, by the caller's id, and by queue and dedup_id.
#[derive(Default)]
struct Known {
    by_key: HashMap<Key, Found>,
    by_id: HashMap<Arc<str>, Key>,
    by_dedup_id: HashMap<(String, String), Key>,
}

impl Known {
    fn of(&self, key: &Key) -> Option<&ExistingExecution> {
        self.by_key.get(key).map(|found| &found.existing)
    }

    fn winner(&self, start: &Start) -> Option<&ExistingExecution> {
        self.of(&start.key).or_else(|| self.of(self.by_id.get(start.workflow_id.as_deref()?)?))
    }

    /// What a Start has come to that was not inserted; `is_refused` if its queue is known to have been full.
    fn loser(&self, start: &Start, is_refused: bool) -> Result<Outcome, StoreError> {
        if let Some(winner) = self.winner(start) {
            return Ok(Outcome::Duplicate(Box::new(winner.clone())));
        }
        let holder = held(start)
            .and_then(|(queue, id)| self.by_dedup_id.get(&(queue.to_owned(), id.to_owned())))
            .and_then(|key| self.of(key));
        if let Some(holder) = holder.filter(|_| start.debounce_window.is_some()) {
            return Ok(Outcome::Duplicate(Box::new(holder.clone())));
        }
        if holder.is_some() || start.dedup_id.is_some() && !is_refused {
            return Ok(Outcome::Deduplicated(holder.cloned().map(Box::new)));
        }
        if start.waiting_placement().is_some() && start.can_be_rejected() {
            return Ok(Outcome::Full);
        }
        Err(StoreError::Corrupt(format!(
            "execution {} could not be inserted, but nothing has its key or workflow_id",
            start.key
        )))
    }
}

async fn known<'a>(
    session: &Session,
    keys: impl Iterator<Item = Key>,
    starts: impl Iterator<Item = &'a Start> + Clone,
) -> Result<Known, DbError> {
    let keys: Vec<_> = keys.map(uuid).collect();
    let ids: Vec<&str> = starts.clone().filter_map(|start| start.workflow_id.as_deref()).collect();
    let (queues, dedup_ids): (Vec<&str>, Vec<&str>) = starts.filter_map(held).unzip();
    let params = vec![param(keys), param(ids), param(queues), param(dedup_ids)];
    let job = Query { sql: Sql::Existing, action: "reading executions", params };
    let answers = pipeline::run(session, TxPart::Standalone, &[job]).await?;
    let mut known = Known::default();
    for row in answers.iter().flat_map(|answer| &answer.rows) {
        let found = found(row)?;
        let key = found.existing.key;
        known.by_id.extend(found.existing.given_id.clone().map(|id| (id, key)));
        known.by_dedup_id.extend(found.dedup.clone().map(|dedup| (dedup, key)));
        known.by_key.insert(key, found);
    }
    Ok(known)
}

/// The outcomes of Starts that lost, by index.
pub(crate) async fn losers(
    session: &Session,
    flush: &Flush,
    losers: &[usize],
    refused: &HashSet<usize>,
) -> Result<Vec<(usize, Outcome)>, DbError> {
    let starts = || {
        losers.iter().filter_map(|&i| match flush.writes.get(i) {
            Some(Write::Start(start)) => Some((i, start.as_ref())),
            _ => None,
        })
    };
    let all = starts().map(|(_, start)| start);
    let known = known(session, all.clone().map(|start| start.key), all).await?;
    starts().map(|(i, start)| Ok((i, known.loser(start, refused.contains(&i))?))).collect()
}

/// The outcomes of a flush that was applied before, as far as its rows still show them.
pub(crate) async fn applied_before(
    session: &Session,
    flush: &Flush,
) -> Result<Vec<(usize, Outcome)>, DbError> {
    let is_of_interest = |write: &&Write| match write {
        Write::Start(_) | Write::Wake(_) | Write::Request(_) => true,
        Write::Transition(change) => matches!(change.state, State::Ended { .. }),
        _ => false,
    };
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
                Some(found) if found.created_at == start.created_at => {
                    // it has begun, or somebody has claimed it meanwhile, who runs it
                    if start.self_claims && found.owner != Some(flush.worker) {
                        outcomes.push((i, Outcome::Queued));
                    }
                }
                _ => outcomes.push((i, known.loser(start, false)?)),
            },
            // woken, and perhaps gone on since; still waiting means that there was no reason to wake it
            Write::Wake(key) => match known.of(key) {
                Some(existing) if existing.status != Status::Waiting => {}
                _ => outcomes.push((i, Outcome::NotFound)),
            },
            Write::Transition(Move { key, state: State::Ended { status, .. }, .. })
                if *status != Status::Cancelled
                    && known.of(key).is_some_and(|existing| existing.status == Status::Cancelled) =>
            {
                outcomes.push((i, Outcome::Cancelled));
            }
            Write::Request(request) => {
                let found = known.by_key.get(&request.execution);
                let is_asked = asked.contains(&(request.execution, request.id));
                outcomes.push((i, answer(request, found, is_asked)));
            }
            _ => {}
        }
    }
    Ok(outcomes)
}

async fn asked(session: &Session, flush: &Flush) -> Result<HashSet<(Key, Key)>, DbError> {
    let requests = flush.writes.iter().filter(|write| matches!(write, Write::Request(_)));
    let keys: Vec<_> = requests.map(|write| uuid(write.execution())).collect();
    if keys.is_empty() {
        return Ok(HashSet::new());
    }
    let job = Query { sql: Sql::Asked, action: "reading requests", params: vec![param(keys)] };
    let answers = pipeline::run(session, TxPart::Standalone, &[job]).await?;
    let mut asked = HashSet::new();
    for row in answers.iter().flat_map(|answer| &answer.rows) {
        let mut row = Columns::of(row);
        asked.insert((row.key()?, row.key()?));
    }
    Ok(asked)
}

/// How a request was answered, judged by what is there now.
fn answer(request: &Request, found: Option<&Found>, is_asked: bool) -> Outcome {
    let Some(Found { existing, has_known_status, .. }) = found else { return Outcome::NotFound };
    if !has_known_status {
        return Outcome::Rejected(UNKNOWN_STATUS_MESSAGE.into());
    }
    let status = existing.status;
    match request.kind {
        RequestKind::Cancel if is_asked => Outcome::RequestHandled(Answered::Pending, None),
        RequestKind::Cancel | RequestKind::Expire if status == Status::Cancelled => {
            Outcome::RequestHandled(Answered::Done, existing.parent)
        }
        RequestKind::Cancel if status.is_terminal() => Outcome::RequestHandled(Answered::NotApplicable(status), None),
        RequestKind::Expire => Outcome::RequestHandled(Answered::NotApplicable(status), None),
        // its row is gone: the owner has answered it
        RequestKind::Cancel => Outcome::RequestHandled(Answered::Pending, None),
        RequestKind::Resume if status == Status::Completed => {
            Outcome::RequestHandled(Answered::NotApplicable(status), None)
        }
        RequestKind::Resume => Outcome::RequestHandled(Answered::Done, None),
    }
}
