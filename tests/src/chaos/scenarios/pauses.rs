//! A busy queue that is paused, resumed and given other limits at random, while its workers are killed.
//!
//! Workers start and run as many executions as they can. An [`Operator`] changes the queue, and after each change a
//! [`Census`] compares slots, what runs, and limits: see [`Shift`]. Every now and then the operator rests, and the queue
//! comes to a quiet point, where counts alone tell that nothing is stuck.

use std::collections::HashMap;
use std::time::Duration;

use fastrand::Rng;
use stepfast::queue::Limits;
use stepfast::store::{Outcome, StoreError, Transition, Write};
use tokio::time::Instant;

use crate::Worker;
use crate::chaos::Form;
use crate::chaos::queue_snapshot::Census;
use crate::chaos::deployment::Site;
use crate::chaos::operator::Operator;
use crate::chaos::report::Report;
use crate::chaos::busy_queue::{BACKLOG, Ears, FEED, Figures, Shift, plain};
use crate::chaos::throughput::Dent;
use crate::fixtures::builders::queued;
use crate::fixtures::postgres_server::PostgresServer;

const WORKERS: usize = 3;
/// How long it is from change to change, in milliseconds.
const PAUSE: std::ops::Range<u64> = 0..120;
/// So many claims may be empty although there is room: one that meets another claim for long gives way to it.
const EMPTY_CLAIMS: usize = 20;

/// A queue under load is paused, resumed and given other limits, while workers are killed: no count exceeds its limit,
/// slots are always what runs, and what has room begins.
pub(crate) async fn on_postgres(form: Form, mut rng: Rng) -> Report {
    let mut reports = Vec::new();
    for round in Round::all(form, &mut rng) {
        reports.push(round.run(Site::on(PostgresServer::shared(), form).await).await);
    }
    sum(reports)
}

/// The same on a file.
pub(crate) async fn on_sqlite(form: Form, mut rng: Rng) -> Report {
    let mut reports = Vec::new();
    for round in Round::all(form, &mut rng) {
        reports.push(round.run(Site::sqlite(form)).await);
    }
    sum(reports)
}

fn sum(reports: Vec<Report>) -> Report {
    let (mut all, rounds) = (Report::default(), reports.len() as f64);
    for report in reports {
        (all.fault, all.store) = (report.fault, report.store);
        all.executions += report.executions;
        all.times += report.times;
        all.takeovers += report.takeovers;
        all.dent.during += report.dent.during / rounds;
        all.violations.extend(report.violations);
        all.notes.extend(report.notes);
    }
    all
}

/// What happens to one database.
struct Round {
    rng: Rng,
    changes: u64,
    kills: u64,
    has_rates: bool,
}

impl Round {
    /// Returns those of a form: every other one has rates.
    fn all(form: Form, rng: &mut Rng) -> Vec<Self> {
        let rounds = form.pick(1, 5);
        let first = rng.bool();
        let round = |n: u64| Round {
            rng: rng.fork(),
            changes: form.pick(40, 1_000) / rounds,
            kills: form.pick(4, 60) / rounds,
            has_rates: first == n.is_multiple_of(2),
        };
        (0..rounds).map(round).collect()
    }

    async fn run(self, site: Site) -> Report {
        let Self { mut rng, changes, mut kills, has_rates } = self;
        let operator = Operator::new(&site.url, rng.fork(), has_rates).await.unwrap();
        let to_quiet_point = site.form.pick(13, 25);
        let mut quiet =
            Quiet { shift: Shift::new(site, operator), points: 0, claimed: 0, slowest: Duration::ZERO };
        quiet.shift.hire(WORKERS).await;
        for change in 0..changes {
            if rng.u64(0..changes - change) < kills {
                kills = kills.saturating_sub(quiet.shift.act_and_kill(&mut rng).await);
            } else {
                quiet.shift.operator.act().await;
            }
            quiet.shift.listen(Duration::from_millis(rng.u64(PAUSE))).await;
            if change % to_quiet_point == to_quiet_point - 1 {
                match quiet.points % 3 {
                    0 => quiet.with_closed_gates(&mut rng).await,
                    1 => quiet.without_workers().await,
                    _ => quiet.paused().await,
                }
                quiet.points += 1;
            }
        }
        quiet.end(has_rates).await
    }
}

/// Quiet points of a shift.
struct Quiet {
    shift: Shift,
    /// How many there were.
    points: u64,
    /// What claims have taken there.
    claimed: u64,
    /// How long it took at most until workers had taken all that had room.
    slowest: Duration,
}

impl Quiet {
    /// Starts more, until enough wait. Nothing may begin or end meanwhile.
    async fn fill(&mut self) {
        while self.shift.look().await.is_none_or(|census| census.waiting() < BACKLOG) {
            self.shift.ask_all(&format!("feed {FEED}")).await;
        }
        self.shift.all_answered().await;
    }

    /// Pauses the queue, and waits until nothing runs.
    async fn come_to_rest(&mut self) {
        self.shift.operator.pause().await;
        self.fill().await;
        let census = self.shift.until("the end of all that runs", |it| it.running.is_empty()).await;
        let is_at_rest = census.is_paused && census.slots.is_empty() && census.waiting() >= BACKLOG;
        self.shift.site.expect(is_at_rest, || format!("paused, and not at rest: {census}"));
    }

    /// The queue is paused until nothing runs.
    async fn paused(&mut self) {
        self.come_to_rest().await;
        self.shift.operator.resume().await;
        let census = self.shift.now().await;
        self.shift.go_on(&census);
    }

    /// All workers are killed at rest, and one that takes their place claims by itself. The limits say how many come.
    async fn without_workers(&mut self) {
        self.come_to_rest().await;
        let working = self.shift.site.working();
        self.shift.kill(&working);
        self.shift.operator.resume().await;
        self.claim(true).await;
        self.shift.hire(WORKERS).await;
        let census = self.shift.now().await;
        self.shift.go_on(&census);
    }

    /// Nothing ends: workers take what the limits have room for, and then nothing has room. Now and then one of them is
    /// killed, and others take what has room then.
    async fn with_closed_gates(&mut self, rng: &mut Rng) {
        self.shift.ask_all("close").await;
        self.shift.operator.pause().await;
        self.fill().await;
        let limits = self.shift.operator.limits();
        self.shift.operator.set(limits).await;
        self.shift.operator.resume().await;
        self.all_has_begun().await;
        if rng.bool() {
            let working = self.shift.site.working();
            self.shift.kill(&[working[rng.usize(0..working.len())]]);
            self.shift.hire(1).await;
            self.shift.ask_all("close").await;
            self.all_has_begun().await;
        }
        self.claim(false).await;
        self.shift.ask_all("open").await;
        let census = self.shift.now().await;
        self.shift.go_on(&census);
    }

    /// Waits until workers that live have taken all that the limits have room for.
    async fn all_has_begun(&mut self) {
        let (began, pids) = (Instant::now(), self.shift.pids());
        let is_full = |census: &Census| {
            let workers = census.of_processes(&pids);
            let is_suspended = census.statuses.get(&3).is_some_and(|count| *count > 0);
            workers.len() == pids.len()
                && census.room_of(&workers) == 0
                && census.strange_owners(&workers).is_empty()
                && !is_suspended
        };
        self.shift.until("workers that have taken all that has room", is_full).await;
        self.slowest = self.slowest.max(began.elapsed());
    }

    /// A worker claims until the queue has no room for it, and hands back what it has taken. If it `is_alone`, it takes
    /// just as many as the limits allow for.
    async fn claim(&mut self, is_alone: bool) {
        let shift = &mut self.shift;
        let store = stepfast::connect(&shift.site.url).await.unwrap();
        let mut worker = Worker::register_for(&store, &["pass"]).await;
        let census = shift.now().await;
        let (room, mut empty, mut taken) = (census.room_of(&[worker.id.0]), 0, Vec::new());
        // what a rate has left comes later
        let is_rated = loop {
            let claim = worker.new_claim(10_000);
            let claimed = match worker.send_claim(&claim).await {
                // another process kept the turn for more than a second
                Err(StoreError::Unavailable(_)) if shift.site.is_sqlite() => continue,
                claimed => claimed.unwrap(),
            };
            let (is_empty, is_rated) = (claimed.records.is_empty(), claimed.retry_at.is_some());
            taken.extend(claimed.records);
            let census = shift.now().await;
            if is_empty && (is_rated || census.room_of(&[worker.id.0]) == 0) {
                break is_rated;
            }
            empty += usize::from(is_empty);
            if empty > EMPTY_CLAIMS {
                let violation = format!("{EMPTY_CLAIMS} claims were empty, with room: {census}");
                shift.site.told.violations.push(violation);
                break is_rated;
            }
        };
        let count = taken.len() as u64;
        self.claimed += count;
        shift.site.expect(!is_alone || is_rated || count == room, || {
            format!("{count} were claimed, where there was room for {room}: {census}")
        });
        let back = taken.into_iter().map(|record| {
            let (key, ticket) = (record.execution.key, record.execution.placement);
            Write::Transition(Transition { key, placement: ticket, state: queued() })
        });
        let outcomes = worker.commit_with_retry(back.collect()).await;
        let is_ours = outcomes.iter().all(|outcome| *outcome == Outcome::Applied);
        shift.site.expect(is_ours, || format!("what a claim took was not its own: {outcomes:?}"));
        worker.close_with_retry().await;
        let census = shift.now().await;
        shift.site.expect(!is_alone || census.slots.is_empty(), || {
            format!("all was handed back, and slots are left: {census}")
        });
    }

    /// Lets everything come to its end, and compares what was told with what is there.
    async fn end(self, has_rates: bool) -> Report {
        let Self { mut shift, points, claimed, slowest } = self;
        shift.is_closing = true;
        let limits = Limits { concurrency: Some(200), key_concurrency: Some(50), ..Limits::default() };
        shift.operator.set(limits).await;
        shift.operator.resume().await;
        shift.all_answered().await;
        while !shift.is_stalled && shift.last.as_ref().is_none_or(|census| census.going() > 0) {
            shift.listen(Duration::from_millis(50)).await;
        }
        let census = shift.now().await;
        let is_over = census.slots.is_empty() && census.waiting() == 0 && census.going() == 0;
        shift.site.expect(is_over, || format!("all is over, and something is left: {census}"));
        compare(&mut shift).await;
        let Shift { site, operator, figures, .. } = shift;
        let Figures { busy: (time, ended), peaks: [most_ended, most_running, most_waiting], looks, .. } =
            figures;
        let pace = ended as f64 / time.as_secs_f64();
        let kinds: Vec<String> =
            operator.actions.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let notes = vec![
            format!(
                "{} changes ({}), the slowest in {:.0} ms; {} kills, {} workers left; {looks} looks",
                operator.count(),
                kinds.join(", "),
                operator.slowest.as_secs_f64() * 1_000.0,
                figures.kills,
                figures.leaves,
            ),
            format!(
                "{} quiet points: all that had room had begun in {:.1} s at most, other claims took {claimed}",
                points,
                slowest.as_secs_f64(),
            ),
            format!(
                "{} rates: {pace:.0} ended per second, at most {most_ended}; at most {most_running} ran, {most_waiting} \
                 waited",
                if has_rates { "with" } else { "without" },
            ),
        ];
        operator.leave().await;
        let dent = Dent { during: pace, ..Dent::default() };
        let mut report = site.finish("changes of a busy queue", figures.kills, dent).await;
        report.notes = notes;
        report
    }
}

/// What was acknowledged is there, and bodies ran again only where a worker was lost or has left.
async fn compare(shift: &mut Shift) {
    let Ears { started, bodies, .. } = shift.take_told();
    let (leaves, site) = (shift.figures.leaves, &mut shift.site);
    let key = if site.is_sqlite() { "hex(key)" } else { "key::text" };
    let rows = site.rows(&format!("SELECT {key}, CAST(recoveries AS TEXT) FROM executions")).await.unwrap();
    let text = |row: &[Option<String>], i: usize| row[i].clone().unwrap_or_default();
    let recoveries: HashMap<String, u64> =
        rows.iter().map(|row| (plain(&text(row, 0)), text(row, 1).parse().unwrap())).collect();
    let lost = started.iter().filter(|it| !recoveries.contains_key(*it)).count();
    site.expect(lost == 0, || format!("{lost} starts were acknowledged and are gone"));
    site.expect(!started.is_empty() && !bodies.is_empty(), || "no start or no body was heard of".into());
    for (execution, count) in bodies {
        let may = 1 + recoveries.get(&execution).copied().unwrap_or_default() + leaves;
        site.expect(u64::from(count) <= may, || {
            format!("the body of {execution} ran {count} times, where {may} may")
        });
    }
}
