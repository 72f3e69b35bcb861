//! Claims: executions to run, many at once, on a lane of their own.

use std::sync::Arc;

use stepfast_core::counters::Counters;
use stepfast_core::record::Record;
use stepfast_core::store::{Claim, StoreError};

use crate::apply::{count, one, replan};
use crate::connect::{Connector, Session};
use crate::error::{Trouble, damaged};
use crate::lane::{Lane, Lanes, state_of};
use crate::pipeline::{self, Answer, Job, Param, Part};
use crate::rows::{Details, bare, execution};
use crate::statements::{CLAIM, Sql};
use crate::types::{Instant, uuid};

/// Position of the column that says whether there is more than the row; see take.sql.
const HAS_MORE: usize = 21;

/// Takes executions to run; see [`Store::claim`](stepfast_core::Store::claim).
pub(crate) async fn claim(
    connector: &Connector,
    lanes: &Lanes,
    counters: &Counters,
    claim: &Claim,
) -> Result<Vec<Record>, StoreError> {
    let slot = lanes.slot(claim.worker, claim.lane);
    let mut place = slot.lock().await;
    let mut lane = Lane::open(connector, place.take(), (claim.worker, claim.lane), CLAIM).await?;
    let result = attempt(connector, &mut lane, counters, claim).await;
    // a claim that took nothing, or not for sure, leaves nothing behind
    let is_clean = matches!(result, Ok(Some(_))) || pipeline::roll_back(&lane.session).await;
    let result = match result {
        Ok(Some(records)) => Ok(records),
        Ok(None) => {
            if is_clean && !claim.from_quarantine {
                sweep(&lane.session, claim).await.map_err(Trouble::into_store_error)?;
            }
            Ok(Vec::new())
        }
        Err(trouble) => Err(match trouble.into_store_error() {
            // somebody else was faster; nothing was taken
            StoreError::Blocked(_) => {
                if is_clean && lane.is_usable() {
                    *place = Some(lane);
                }
                return Ok(Vec::new());
            }
            StoreError::Rejected(reason) => StoreError::Unavailable(reason),
            error => error,
        }),
    };
    if is_clean && lane.is_usable() && !matches!(result, Err(StoreError::Fenced)) {
        *place = Some(lane);
    }
    result
}

/// One try: `None` if nothing was taken, with the transaction still open.
async fn attempt(
    connector: &Connector,
    lane: &mut Lane,
    counters: &Counters,
    claim: &Claim,
) -> Result<Option<Vec<Record>>, Trouble> {
    let now = connector.options().clock.as_ref().map(|clock| clock.now());
    let session = &lane.session;
    let mut jobs = vec![
        lane.read(),
        Job {
            sql: if claim.from_quarantine { Sql::TakeQuarantined } else { Sql::Take },
            what: "claiming executions",
            params: vec![
                one(claim.worker.0),
                texts(&claim.workflows),
                one(claim.limit.min(100_000) as i64),
                one(i64::try_from(claim.max_bytes).unwrap_or(i64::MAX)),
                one(now.map(Instant)),
                one(claim.app_version.as_deref()),
            ],
        },
    ];
    let mut answers = pipeline::run(session, Part::Begin, &jobs).await?;
    let [row, taken] = answers.as_slice() else { return Err(damaged("an answer").into()) };
    if last_number(row, claim.epoch)? >= claim.number {
        // sent again: it has happened, and the next look shows what it took
        return Ok(None);
    }
    let mut records = taken.rows.iter().map(|row| execution(row).map(bare)).collect::<Result<Vec<_>, _>>()?;
    if records.is_empty() {
        return Ok(None);
    }
    let mut keys = Vec::new();
    for (row, record) in taken.rows.iter().zip(&records) {
        if row.try_get(HAS_MORE).map_err(|_| damaged("a row"))? {
            keys.push(uuid(record.execution.key));
        }
    }
    let mut more = Vec::new();
    if session.needs_new_plans(records.len()) {
        more.push(replan());
    }
    more.push(lane.fence(claim.epoch, claim.number, true));
    if !keys.is_empty() {
        for (sql, what) in [
            (Sql::Checkpoints, "reading checkpoints"),
            (Sql::Attempts, "reading attempts"),
            (Sql::Requests, "reading requests"),
        ] {
            more.push(Job { sql, what, params: vec![one(keys.clone())] });
        }
    }
    stepfast_core::crash_point!("postgres claim open");
    let read = pipeline::run(session, Part::End, &more).await?;
    // durable from here on
    stepfast_core::crash_point!("postgres after claim");
    let details = Details::new(&records);
    if let [.., checkpoints, attempts, requests] = read.as_slice() {
        details.checkpoints(&checkpoints.rows, &mut records)?;
        details.attempts(&attempts.rows, &mut records)?;
        details.requests(&requests.rows, &mut records)?;
    }
    jobs.extend(more);
    answers.extend(read);
    count(counters, &jobs, &answers)?;
    counters.claimed();
    lane.fenced(&jobs, &answers);
    Ok(Some(records))
}

fn last_number(lane: &Answer, epoch: i64) -> Result<i64, Trouble> {
    match state_of(lane)? {
        Some((current, last)) if current == epoch => Ok(last),
        _ => Err(Trouble::Fence),
    }
}

/// Removes what made it seem that there was something to claim.
async fn sweep(session: &Session, claim: &Claim) -> Result<(), Trouble> {
    let job = Job { sql: Sql::Stale, what: "sweeping ready", params: vec![texts(&claim.workflows)] };
    let answers = pipeline::run(session, Part::Apart, &[job]).await?;
    if let Some(swept) = answers.first().filter(|answer| answer.affected > 0) {
        tracing::warn!(rows = swept.affected, "removed rows of ready that led nowhere");
    }
    Ok(())
}

/// Names as an array.
pub(crate) fn texts(names: &Arc<[Arc<str>]>) -> Param<'static> {
    one(names.iter().map(ToString::to_string).collect::<Vec<_>>())
}
