//! Claims: executions to run, many at once, on a lane of their own.
//!
//! One transaction: it locks the queues of which something is ready, counts what runs of those that limit that, divides
//! its places among them, and takes. Each of these sees what the one before has waited for.

pub(crate) mod cursors;
pub(crate) mod queues;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use stepfast_core::Key;
use stepfast_core::clock::{Clock, Timestamp};
use stepfast_core::queue::fairness::{Allocation, FairShare};
use stepfast_core::queue::rate::ClaimScope;
use stepfast_core::queue::{DEFAULT_QUEUE, Placement};
use stepfast_core::store::counters::Counters;
use stepfast_core::store::{Claim, ClaimReply, Record, StoreError};
use stepfast_core::sync::Mutex;
use stepfast_core::text::escape_controls;

use crate::claim::cursors::{Heads, Name, Step, Walk};
use crate::claim::queues::{Access, Line};
use crate::conn::connector::Connector;
use crate::conn::pipeline;
use crate::conn::pipeline::discard_plans;
use crate::conn::pipeline::{QueryResult, Query, Param, column, optional_text_array, param, text_array};
use crate::conn::row_counts::count_changes;
use crate::conn::session::TxPart;
use crate::conn::statements::{CLAIM, Sql};
use crate::error::{DbError, corrupt};
use crate::lane::{Lane, Lanes, lost_history, parse_lane_state};
use crate::ownership::Ownership;
use crate::rows::types::{Instant, uuid};
use crate::rows::{Columns, Details, TakenRow, bare};

/// Takes executions to run; see [`Store::claim`](stepfast_core::Store::claim).
pub(crate) async fn claim(
    connector: &Connector,
    lanes: &Lanes,
    remembered: Remembered<'_>,
    counters: &Counters,
    claim: &Claim,
) -> Result<ClaimReply, StoreError> {
    let slot = lanes.shared_lane(claim.worker, claim.lane);
    let mut place = slot.lock().await;
    let lane = Lane::open(connector, place.take(), (claim.worker, claim.lane), CLAIM).await?;
    lanes.set_claim_lane(claim.worker, claim.lane);
    let mut claiming = Claiming {
        lane,
        claim,
        remembered,
        last: lanes.last_claim(claim.worker).map_or(0, |mark| mark.number),
        clock: connector.options().clock.as_deref(),
        jobs: Vec::new(),
        answers: Vec::new(),
        asked: Vec::new(),
        taken: Vec::new(),
        serial: Vec::new(),
        in_turn: true,
        is_awaiting_turn: false,
        is_cut: false,
        receiving: None,
    };
    let mut result = claiming.run(counters).await;
    for _ in 0..RECEIVE_TRIES {
        let Err(trouble) = &result else { break };
        if !claiming.blames_letters(trouble) || !pipeline::roll_back(&claiming.lane.session).await {
            break;
        }
        claiming.begin_anew();
        result = claiming.run(counters).await;
    }
    if claiming.is_awaiting_turn && result.is_err() && pipeline::roll_back(&claiming.lane.session).await {
        // who is in front has stopped, as it seems: nobody has to wait for that
        claiming.in_turn = false;
        claiming.begin_anew();
        result = claiming.run(counters).await;
    }
    let is_empty = matches!(&result, Ok((claimed, false)) if claimed.records.is_empty());
    if is_empty && claiming.is_cut && !remembered.heads.recent_queues().is_empty() {
        // the places went to queues that were remembered, of which nothing is left: others may have had use for them
        remembered.heads.forget();
        if pipeline::roll_back(&claiming.lane.session).await {
            claiming.begin_anew();
            result = claiming.run(counters).await;
        }
    }
    // a claim that took nothing, or not for sure, leaves nothing behind
    let is_over = matches!(&result, Ok((_, true)));
    if is_over {
        lanes.record_durable(claim.worker, claim.lane, claim.number, claiming.lane.ctid_hint());
    }
    let is_clean = is_over || pipeline::roll_back(&claiming.lane.session).await;
    if !is_over {
        remembered.heads.forget();
    }
    if is_clean && !is_over {
        remembered.windows.cancel_claim(claim.worker, claim.number);
    }
    let result = match result {
        Ok((claimed, is_over)) => {
            if is_clean && !is_over && !claiming.asked.is_empty() {
                claiming.sweep().await.map_err(DbError::into_store_error)?;
            }
            Ok(claimed)
        }
        Err(trouble) => Err(match trouble.into_store_error() {
            // somebody else was faster; nothing was taken
            StoreError::Blocked(_) => {
                if is_clean && claiming.lane.is_usable() {
                    *place = Some(claiming.lane);
                }
                return Ok(ClaimReply::default());
            }
            StoreError::Rejected(reason) => StoreError::Unavailable(reason),
            error => error,
        }),
    };
    if is_clean && claiming.lane.is_usable() && !matches!(result, Err(StoreError::Fenced)) {
        *place = Some(claiming.lane);
    }
    result
}

/// Most rows of the inbox that one statement receives.
const MOST_LETTERS: i64 = 1_000;

/// How often one claim goes on behind rows of the inbox that the database has refused.
const RECEIVE_TRIES: usize = 8;

/// An execution of the quarantine that may be tried, and where it stands.
struct Candidate {
    execution: Key,
    queue: Arc<str>,
    key: Arc<str>,
}

/// What claims know of each other.
#[derive(Clone, Copy)]
pub(crate) struct Remembered<'a> {
    pub(crate) windows: &'a Ownership,
    pub(crate) turns: &'a Mutex<FairShare>,
    pub(crate) heads: &'a Heads,
    pub(crate) inbox: &'a Inbox,
}

/// A claim in its transaction.
struct Claiming<'a> {
    lane: Lane,
    claim: &'a Claim,
    remembered: Remembered<'a>,
    /// The number of the last claim that is known to have happened.
    last: i64,
    /// What takes the place of the server's clock.
    clock: Option<&'a dyn Clock>,
    /// What was sent, and the answers, to be counted if it is committed.
    jobs: Vec<Query<'a>>,
    answers: Vec<QueryResult>,
    /// Queues and keys of which something was to be taken, and what was looked through.
    asked: Vec<(Name, Walk)>,
    /// Of each record of the claim: whether something is recorded of it, and its place in ready.
    taken: Vec<(bool, Option<i64>)>,
    /// Queues with limits that one claim after the other has to heed.
    serial: Vec<Arc<str>>,
    /// One claim after the other, also where nothing speaks against two at a time.
    in_turn: bool,
    is_awaiting_turn: bool,
    /// There were fewer places than limits allow for.
    is_cut: bool,
    /// What is being received, until the database has answered.
    receiving: Option<Letters>,
}

/// What claims know of the inbox: its rows are received in portions, smaller ones behind a row that the database refuses.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// Most rows of the next portion.
    most: AtomicI64,
    /// A row that the database has refused, and why.
    refused: Mutex<Option<(i64, String)>>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self { most: AtomicI64::new(MOST_LETTERS), refused: Mutex::default() }
    }
}

/// Rows of the inbox that are received in one statement.
#[derive(Clone, Copy, Debug)]
struct Letters {
    most: i64,
    /// Only this row.
    id: Option<i64>,
}

impl<'a> Claiming<'a> {
    /// The try before this one was rolled back.
    fn begin_anew(&mut self) {
        self.is_awaiting_turn = false;
        self.is_cut = false;
        self.jobs.clear();
        self.answers.clear();
        self.asked.clear();
        self.taken.clear();
    }

    /// One try; false if the transaction is still open, and has changed nothing.
    async fn run(&mut self, counters: &Counters) -> Result<(ClaimReply, bool), DbError> {
        let (claim, last) = (self.claim, self.last);
        let first = if claim.from_quarantine { self.quarantined() } else { self.open(None) };
        let due = self.due();
        let answers = self.send(TxPart::Begin, vec![self.lane.state_query(), first, due]).await?;
        let [row, first, due] = answers else { return Err(corrupt("an answer").into()) };
        let number = last_number(row, claim.epoch)?;
        if number < last {
            return Err(lost_history(claim.lane, last, number).into());
        }
        if number >= claim.number {
            // sent again: it has happened, and the next look shows what it took
            return Ok((ClaimReply::default(), false));
        }
        let mut due = Columns::of(due.rows.first().ok_or_else(|| corrupt("an answer"))?);
        let (now, has_due, has_mail): (Timestamp, bool, bool) = (due.time()?, due.next()?, due.next()?);
        let mut claimed = ClaimReply::default();
        let mut is_admitted = false;
        if claim.from_quarantine {
            let candidates = quarantined(first)?;
            self.try_out(candidates, now, &mut claimed).await?;
        } else {
            let (mut lines, mut now) = (lines(first)?, now);
            if has_due || has_mail {
                is_admitted = true;
                if has_mail {
                    self.receive().await?;
                }
                let mut jobs = Vec::new();
                jobs.extend(has_due.then(|| self.admit()));
                jobs.extend([self.open(None), time()]);
                let clock = self.clock;
                let answers = self.send(TxPart::Middle, jobs).await?;
                let [.., opened, time] = answers else { return Err(corrupt("an answer").into()) };
                (lines, now) = (self::lines(opened)?, time_of(clock, time)?);
            }
            if !self.take_ready(lines, now, &mut claimed).await? {
                return Ok((claimed, false));
            }
        }
        if claimed.records.is_empty() && !is_admitted {
            return Ok((claimed, false));
        }
        self.end(&mut claimed).await?;
        self.remember(&claimed, now);
        count_changes(counters, &self.jobs, &self.answers)?;
        counters.add_claim();
        self.lane.record_fence(&self.jobs, &self.answers, None);
        Ok((claimed, true))
    }

    /// Takes what is due and has no queue, and of each queue and key what its turn and its limits allow for. False if all
    /// of it has to be taken back.
    async fn take_ready(
        &mut self,
        mut lines: Vec<Line>,
        mut now: Timestamp,
        claimed: &mut ClaimReply,
    ) -> Result<bool, DbError> {
        if let Some(busy) = only_busy(&lines) {
            // somebody claims from it: he will have done in a moment
            self.is_awaiting_turn = busy.access == Access::Awaited;
            let wait = Query {
                sql: if self.is_awaiting_turn { Sql::AwaitTurn } else { Sql::LockQueue },
                action: "waiting for another claim",
                params: vec![param(busy.name.to_string())],
            };
            let (clock, open) = (self.clock, self.open(None));
            let answers = self.send(TxPart::Middle, vec![wait, open, time()]).await?;
            let [_, opened, time] = answers else { return Err(corrupt("an answer").into()) };
            // what the other claim has begun counts from later than when this one asked first
            (lines, now) = (self::lines(opened)?, time_of(clock, time)?);
            self.is_awaiting_turn = false;
        }
        let serial = lines.iter().filter(|line| line.limits.serializes_claims());
        self.serial = serial.map(|line| line.name.clone()).collect();
        claimed.has_more = lines.iter().any(Line::is_busy);
        if !self.take_of(&mut lines, now, claimed).await? {
            return Ok(false);
        }
        // what has waited needs no start, and came first: the places that it has left are those of the starts
        lines.retain(|line| line.is_open() && line.which == ClaimScope::Woken);
        for line in &mut lines {
            line.expect_starts();
        }
        if self.places(claimed) == 0 || self.bytes(claimed) == 0 {
            claimed.has_more |= !lines.is_empty();
        } else if !lines.is_empty() && !self.take_of(&mut lines, now, claimed).await? {
            return Ok(false);
        }
        claimed.has_more &= !claimed.records.is_empty();
        Ok(true)
    }

    /// How many more executions the claim may take.
    fn places(&self, claimed: &ClaimReply) -> usize {
        self.claim.limit.min(100_000).saturating_sub(claimed.records.len())
    }

    /// How many more bytes the claim may take.
    fn bytes(&self, claimed: &ClaimReply) -> usize {
        let inputs = claimed.records.iter().map(|record| record.execution.input.len());
        self.claim.max_bytes.saturating_sub(inputs.sum())
    }

    /// Takes of each of these queues and of its keys what its turn and its limits allow for. False if all that the claim
    /// has taken has to be taken back.
    async fn take_of(
        &mut self,
        lines: &mut [Line],
        now: Timestamp,
        claimed: &mut ClaimReply,
    ) -> Result<bool, DbError> {
        let session = &self.lane.session;
        let mut left = queues::count(session, lines, self.claim.worker, now).await?;
        let candidates = queues::candidates(session, lines, self.remembered.turns, now, &mut left).await?;
        let portions = self.remembered.turns.lock().allocate(&candidates, self.places(claimed));
        let which = |portion: &Allocation| {
            let line = lines.iter().find(|line| line.name == portion.queue);
            line.map_or(ClaimScope::All, |line| line.which)
        };
        let walk = |it: &Allocation| {
            // what has waited has an index of its own
            let is_walked = which(it) != ClaimScope::Woken;
            let walk = is_walked.then(|| self.remembered.heads.plan_scan(&it.queue, &it.key, now));
            ((it.queue.clone(), it.key.clone()), walk.unwrap_or_default())
        };
        self.is_cut |= portions.iter().any(|portion| portion.is_truncated);
        let walks: Vec<(Name, Walk)> = portions.iter().map(walk).collect();
        let before = claimed.records.len();
        let Some(now) = self.take(lines, &portions, &walks, now, claimed).await? else {
            // once more, from the beginning
            *claimed = ClaimReply { has_more: true, ..ClaimReply::default() };
            self.asked.clear();
            return Ok(false);
        };
        self.asked.extend(walks);
        let records = &claimed.records[before..];
        let taken = taken(records);
        for portion in &portions {
            let is_used_up = taken.get(&(portion.queue.clone(), portion.key.clone())) >= Some(&portion.limit);
            // of a rate another claim tells when there is more
            let is_rated = which(portion) == ClaimScope::Starting && is_used_up;
            claimed.has_more |= is_rated || is_used_up && portion.is_truncated;
            claimed.is_limited |= is_used_up && !portion.is_truncated;
        }
        claimed.is_limited |= left.is_limited;
        claimed.retry_at = claimed.retry_at.into_iter().chain(left.again_at).min();
        self.enter(lines, &taken, now, records).await?;
        Ok(true)
    }

    /// Takes these portions, and returns when they were taken; `None` if all that the claim has taken has to be taken back.
    async fn take(
        &mut self,
        lines: &[Line],
        portions: &[Allocation],
        walks: &[(Name, Walk)],
        now: Timestamp,
        claimed: &mut ClaimReply,
    ) -> Result<Option<Timestamp>, DbError> {
        let claim = self.claim;
        let which = |portion: &Allocation| {
            let line = lines.iter().find(|line| line.name == portion.queue);
            line.and_then(|line| line.which.is_woken())
        };
        let steps: Vec<(i64, Step)> = (1..)
            .zip(walks)
            .flat_map(|(n, (_, walk))| walk.steps.iter().map(move |step| (n, *step)))
            .collect();
        let job = Query {
            sql: Sql::Take,
            action: "claiming executions",
            params: vec![
                param(claim.worker.0),
                text_array(&claim.workflows),
                param(self.places(claimed) as i64),
                param(i64::try_from(self.bytes(claimed)).unwrap_or(i64::MAX)),
                param(self.now()),
                param(claim.app_version.as_deref()),
                param(claim.serves(DEFAULT_QUEUE)),
                column(portions, |it| it.queue.to_string()),
                column(portions, |it| it.key.to_string()),
                column(portions, |it| i64::try_from(it.limit).unwrap_or(i64::MAX)),
                column(portions, which),
                param(claim.number),
                column(&steps, |(n, _)| *n),
                column(&steps, |(_, step)| step.priorities.0),
                column(&steps, |(_, step)| step.priorities.1),
                column(&steps, |(_, step)| step.seqs.map(|seqs| seqs.0)),
                column(&steps, |(_, step)| step.seqs.map(|seqs| seqs.1)),
            ],
        };
        let (rows, now) = self.taken(job, lines, now).await?;
        // what became ready again after the statement had looked must not be taken for what was ready before
        let is_whole = rows.iter().all(|row| row.is_whole);
        self.keep(rows, claimed);
        Ok(is_whole.then_some(now))
    }

    /// What `job` takes, and when it had done so: starts count for rates from then on. Without a rate the time does not
    /// matter.
    async fn taken(
        &mut self,
        job: Query<'a>,
        lines: &[Line],
        now: Timestamp,
    ) -> Result<(Vec<TakenRow>, Timestamp), DbError> {
        let (clock, mut jobs) = (self.clock, vec![job]);
        jobs.extend(lines.iter().any(|line| line.limits.has_rate()).then(time));
        match self.send(TxPart::Middle, jobs).await? {
            [taken] => Ok((taken_rows(taken)?, now)),
            [taken, time] => Ok((taken_rows(taken)?, time_of(clock, time)?)),
            _ => Err(corrupt("an answer").into()),
        }
    }

    fn keep(&mut self, rows: Vec<TakenRow>, claimed: &mut ClaimReply) {
        self.taken.extend(rows.iter().map(|row| (row.has_more, row.seq)));
        claimed.records.extend(rows.into_iter().map(|row| bare(row.execution)));
    }

    /// Takes what may be tried of the quarantine, as far as their queues have room for them.
    async fn try_out(
        &mut self,
        candidates: Vec<Candidate>,
        now: Timestamp,
        claimed: &mut ClaimReply,
    ) -> Result<(), DbError> {
        let mut names: Vec<String> = candidates.iter().map(|it| it.queue.to_string()).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return Ok(());
        }
        let answers = self.send(TxPart::Middle, vec![self.open(Some(names))]).await?;
        let [opened] = answers else { return Err(corrupt("an answer").into()) };
        let mut lines = lines(opened)?;
        for line in lines.iter_mut().filter(|line| line.which == ClaimScope::Woken) {
            // none of these has waited
            line.expect_starts();
        }
        queues::count(&self.lane.session, &mut lines, self.claim.worker, now).await?;
        let mut chosen = Vec::new();
        for Candidate { execution, queue: name, key } in candidates {
            let line = lines.iter_mut().find(|line| line.name == name);
            let Some(line) = line.filter(|line| line.is_open() && line.room > 0) else { continue };
            let room = queues::room_of(&self.lane.session, line, &key, now).await?;
            // one of a key with limits at a time: what was chosen before is not counted yet
            let is_alone = !line.has_key_limits() || line.tried.insert(key);
            if room > 0 && is_alone && chosen.len() < self.claim.limit {
                line.room = line.room.saturating_sub(1);
                chosen.push(uuid(execution));
            }
        }
        let what = "trying executions of the quarantine";
        let params = vec![param(self.claim.worker.0), param(chosen)];
        let job = Query { sql: Sql::TakeQuarantined, action: what, params };
        let (rows, now) = self.taken(job, &lines, now).await?;
        self.keep(rows, claimed);
        let taken = taken(&claimed.records);
        self.enter(&lines, &taken, now, &claimed.records).await
    }

    /// What was taken counts for the limits of its queue.
    async fn enter(
        &mut self,
        lines: &[Line],
        taken: &Taken,
        now: Timestamp,
        records: &[Record],
    ) -> Result<(), DbError> {
        let limited =
            |ticket: &Placement| lines.iter().any(|line| line.name == ticket.queue && line.limits.has_slots());
        let slots: Vec<(Key, Arc<Placement>)> = (records.iter())
            .filter_map(|record| Some((record.execution.key, record.execution.placement.clone()?)))
            .filter(|(_, ticket)| limited(ticket))
            .collect();
        let mut jobs: Vec<Query<'_>> = queues::starts(lines, taken, now).into_iter().collect();
        if !slots.is_empty() {
            jobs.push(Query {
                sql: Sql::Slot,
                action: "inserting slots",
                params: vec![
                    param(self.claim.worker.0),
                    column(&slots, |(key, _)| uuid(*key)),
                    column(&slots, |(_, ticket)| ticket.queue.to_string()),
                    column(&slots, |(_, ticket)| ticket.key.to_string()),
                ],
            });
        }
        if !jobs.is_empty() {
            self.send(TxPart::Middle, jobs).await?;
        }
        Ok(())
    }

    /// Commits, and brings what was recorded of what was taken.
    async fn end(&mut self, claimed: &mut ClaimReply) -> Result<(), DbError> {
        let session = &self.lane.session;
        let mut more = Vec::new();
        if session.needs_new_plans(claimed.records.len()) {
            more.push(discard_plans());
        }
        more.push(self.lane.fence_query(self.claim.epoch, self.claim.number, true, None));
        let taken = self.taken.iter().zip(&claimed.records);
        let with_more = taken.filter(|((has_more, _), _)| *has_more);
        let keys: Vec<_> = with_more.map(|(_, record)| uuid(record.execution.key)).collect();
        if !keys.is_empty() {
            for (sql, what) in [
                (Sql::Checkpoints, "reading checkpoints"),
                (Sql::Attempts, "reading attempts"),
                (Sql::Requests, "reading requests"),
            ] {
                more.push(Query { sql, action: what, params: vec![param(keys.clone())] });
            }
        }
        stepfast_core::crash_point!("postgres claim open");
        let (claim, windows) = (self.claim, self.remembered.windows);
        windows.begin_claim(claim.worker, claim.number);
        let read = self.send(TxPart::End, more).await?;
        // durable from here on
        windows.record_claim(
            claim.worker,
            claim.number,
            claimed.records.iter().map(|record| record.execution.key),
        );
        stepfast_core::crash_point!("postgres after claim");
        let details = Details::new(&claimed.records);
        if let [.., checkpoints, attempts, requests] = read {
            details.checkpoints(&checkpoints.rows, &mut claimed.records)?;
            details.attempts(&attempts.rows, &mut claimed.records)?;
            details.requests(&requests.rows, &mut claimed.records)?;
        }
        Ok(())
    }

    /// Keeps for the next claim what this one has taken, and from where.
    fn remember(&mut self, claimed: &ClaimReply, now: Timestamp) {
        let place = |(&(_, seq), record): (&(bool, Option<i64>), &Record)| {
            let ticket = record.execution.placement.as_deref();
            Some((name(ticket), (ticket.map_or(0, |ticket| ticket.priority), seq?)))
        };
        let taken = self.taken.iter().zip(&claimed.records).filter_map(place).collect();
        let walks = std::mem::take(&mut self.asked);
        let is_serial = |queue: &Arc<str>| self.serial.contains(queue);
        self.remembered.heads.record_scan(walks, taken, is_serial, now);
    }

    /// Nothing came, and nothing stood in the way: removes what made it seem that there was something.
    async fn sweep(&self) -> Result<(), DbError> {
        let params = vec![
            text_array(&self.claim.workflows),
            column(&self.asked, |((queue, _), _)| queue.to_string()),
            column(&self.asked, |((_, key), _)| key.to_string()),
        ];
        let job = Query { sql: Sql::Stale, action: "sweeping ready", params };
        let answers = pipeline::run(&self.lane.session, TxPart::Standalone, &[job]).await?;
        if let Some(swept) = answers.first().filter(|answer| answer.affected_rows > 0) {
            tracing::warn!(rows = swept.affected_rows, "removed rows of ready that led nowhere");
        }
        Ok(())
    }

    /// Sends statements of the transaction, and keeps them to be counted.
    async fn send(&mut self, part: TxPart, jobs: Vec<Query<'a>>) -> Result<&[QueryResult], DbError> {
        let answers = pipeline::run(&self.lane.session, part, &jobs).await?;
        let before = self.answers.len();
        self.jobs.extend(jobs);
        self.answers.extend(answers);
        Ok(&self.answers[before..])
    }

    fn now(&self) -> Option<Instant> {
        self.clock.map(|clock| Instant(clock.now()))
    }

    fn served(&self) -> Param<'a> {
        optional_text_array(self.claim.queues.as_ref())
    }

    fn open(&self, names: Option<Vec<String>>) -> Query<'a> {
        let known: Vec<String> = self.remembered.heads.recent_queues().iter().map(ToString::to_string).collect();
        let in_turn = self.in_turn && names.is_none();
        let params = vec![self.served(), param(names), param(known), param(in_turn)];
        Query { sql: Sql::Open, action: "looking what is ready", params }
    }

    fn about_due(&self, sql: Sql, what: &'static str) -> Query<'a> {
        let params = vec![
            text_array(&self.claim.workflows),
            param(self.now()),
            param(self.claim.app_version.as_deref()),
            self.served(),
        ];
        Query { sql, action: what, params }
    }

    fn due(&self) -> Query<'a> {
        self.about_due(Sql::Due, "looking what is due")
    }

    fn admit(&self) -> Query<'a> {
        self.about_due(Sql::Admit, "queueing what is due")
    }

    /// Receives what is in the inbox, as much as a portion may hold.
    async fn receive(&mut self) -> Result<(), DbError> {
        let refused = self.remembered.inbox.refused.lock().take();
        if let Some((id, reason)) = refused {
            let params = vec![param(id), param(reason.clone())];
            let bury = Query { sql: Sql::Bury, action: "keeping a dead letter", params };
            if let Some(row) = self.send(TxPart::Middle, vec![bury]).await?[0].rows.first() {
                let mut row = Columns::of(row);
                let (id, workflow): (i64, &str) = (row.next()?, row.next()?);
                tracing::warn!(
                    id,
                    workflow = escape_controls(workflow),
                    reason = escape_controls(&reason),
                    "a row of the inbox becomes a dead letter: see stepfast queue dead-letters"
                );
            }
        }
        let mut portion = Letters { most: self.remembered.inbox.most.load(Relaxed), id: None };
        if portion.most == 1 {
            let first = Query { sql: Sql::FirstLetter, action: "looking into the inbox", params: Vec::new() };
            let rows = &self.send(TxPart::Middle, vec![first]).await?[0].rows;
            portion.id = rows.first().map(|row| Columns::of(row).next()).transpose()?;
        }
        self.receiving = Some(portion);
        let params = vec![param(self.now()), param(portion.most), param(portion.id)];
        self.send(TxPart::Middle, vec![Query { sql: Sql::Receive, action: "emptying the inbox", params }]).await?;
        self.receiving = None;
        self.remembered.inbox.most.store((portion.most * 2).min(MOST_LETTERS), Relaxed);
        Ok(())
    }

    /// True if the database has refused what was received: then the next try receives less, or makes a dead letter of the
    /// row that is to blame.
    fn blames_letters(&mut self, trouble: &DbError) -> bool {
        let Some(portion) = self.receiving.take() else { return false };
        let (DbError::Store(StoreError::Rejected(reason))
        | DbError::Unexplained(reason)
        | DbError::Cancelled(reason)) = trouble
        else {
            return false;
        };
        match portion.id {
            Some(id) => *self.remembered.inbox.refused.lock() = Some((id, reason.clone())),
            None => self.remembered.inbox.most.store((portion.most / 10).max(1), Relaxed),
        }
        true
    }

    fn quarantined(&self) -> Query<'a> {
        self.about_due(Sql::Quarantined, "looking into the quarantine")
    }
}

/// Reads the server's clock.
fn time() -> Query<'static> {
    Query { sql: Sql::Time, action: "reading the clock", params: Vec::new() }
}

/// The time that was read, or that of the clock that takes the place of the server's.
fn time_of(clock: Option<&dyn Clock>, answer: &QueryResult) -> Result<Timestamp, StoreError> {
    let read = Columns::of(answer.rows.first().ok_or_else(|| corrupt("an answer"))?).time()?;
    Ok(clock.map_or(read, Clock::now))
}

fn taken_rows(answer: &QueryResult) -> Result<Vec<TakenRow>, StoreError> {
    answer.rows.iter().map(TakenRow::of).collect()
}

/// The queues that an answer of open.sql tells of.
fn lines(answer: &QueryResult) -> Result<Vec<Line>, StoreError> {
    answer.rows.iter().map(Line::of).collect()
}

/// One of the queues, if somebody else claims from each of them.
fn only_busy(lines: &[Line]) -> Option<&Line> {
    lines.first().filter(|_| lines.iter().all(Line::is_busy))
}

fn quarantined(answer: &QueryResult) -> Result<Vec<Candidate>, StoreError> {
    let read = |row| {
        let mut row = Columns::of(row);
        Ok(Candidate {
            execution: row.key()?,
            queue: row.next::<&str>()?.into(),
            key: row.next::<&str>()?.into(),
        })
    };
    answer.rows.iter().map(read).collect()
}

/// How many were taken of each queue and key.
type Taken = HashMap<Name, usize>;

fn taken(records: &[Record]) -> Taken {
    let mut taken = Taken::new();
    for record in records {
        *taken.entry(name(record.execution.placement.as_deref())).or_default() += 1;
    }
    taken
}

/// The queue and key of a ticket.
fn name(ticket: Option<&Placement>) -> Name {
    ticket.map_or_else(
        || (DEFAULT_QUEUE.into(), "".into()),
        |Placement { queue, key, .. }| (queue.clone(), key.clone()),
    )
}

fn last_number(lane: &QueryResult, epoch: i64) -> Result<i64, DbError> {
    match parse_lane_state(lane)? {
        Some((current, last)) if current == epoch => Ok(last),
        _ => Err(DbError::Fenced),
    }
}
