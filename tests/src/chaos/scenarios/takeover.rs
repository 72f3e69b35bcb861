//! Taking over: exactly once, of very many at once, and how long it takes.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use rustix::process::Signal;
use stepfast::payload::Payload;
use tokio::time::Instant;

use crate::chaos::Form;
use crate::chaos::deployment::{Site, connect};
use crate::chaos::load::BEATS;
use crate::chaos::report::Report;
use crate::chaos::throughput::Dent;
use crate::chaos::worker::Calls;
use crate::chaos::worker_process::{Heard, Terms};
use crate::fixtures::postgres_server::PostgresServer;

/// Two workers want to take over the same dead one at the same moment: what it ran is recovered exactly once.
///
/// The lanes of the dead worker are locked until both have tried and know that it is dead; then both try at once.
pub(crate) async fn races(form: Form, _rng: Rng) -> Report {
    let mut site = Site::on(PostgresServer::shared(), form).await;
    let terms = Terms::orders(8);
    let racers = site.hire_some(2, &terms);
    site.until_registered(2).await;
    let mut sql = connect(&site.url).await.unwrap();
    let times = form.pick(2, 20);
    let dent = site
        .struck(async |site| {
            for _ in 0..times {
                race(site, &mut sql, &racers, &terms).await;
            }
        })
        .await;
    site.finish("two race for a takeover", times, dent).await
}

async fn race(site: &mut Site, sql: &mut tokio_postgres::Client, racers: &[usize], terms: &Terms) {
    let victim = site.hire(terms);
    site.until_registered(racers.len() + 1).await;
    site.hear_until("work of the victim", |site| site.hands[victim].ends >= 10).await;
    let worker = site.number("SELECT max(worker_id) FROM workers").await.unwrap();
    let owned =
        "SELECT key::text, recoveries FROM executions WHERE coalesce(owner, started_by) = $1 AND status = 2";
    let lock = sql.transaction().await.unwrap();
    // none of its flushes is under way any more, and none begins
    lock.execute("SELECT FROM lanes WHERE worker_id = $1 FOR UPDATE", &[&worker]).await.unwrap();
    site.hands[victim].kill();
    let rows = lock.query(owned, &[&worker]).await.unwrap();
    let before: HashMap<String, i32> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    site.expect(!before.is_empty(), || "the victim ran nothing".into());
    let waiting = "SELECT coalesce(max(pid), 0)::bigint FROM pg_stat_activity \
                   WHERE datname = current_database() \
                   AND application_name = 'stepfast control' AND wait_event_type = 'Lock'";
    let (began, mut seen) = (Instant::now(), HashSet::new());
    // one waits in front of the lanes, and the other leaves it to that one; so they are seen there in turns
    while seen.len() < racers.len() {
        if began.elapsed() > Duration::from_secs(90) {
            site.expect(false, || "not all racers came for the victim".into());
            break;
        }
        site.hear_for(Duration::from_millis(20)).await;
        seen.extend(site.number(waiting).await.filter(|pid| *pid > 0));
        if began.elapsed().as_secs() % 7 == 6 {
            stand_still(site, racers, async {}).await;
        }
    }
    // all of them know now; after they have stood still they come at the same moment
    stand_still(site, racers, async { lock.rollback().await.unwrap() }).await;
    site.until_registered(racers.len()).await;
    site.until_number(
        "what it ran is taken over",
        &format!(
            "SELECT count(*) FROM executions WHERE coalesce(owner, started_by) = {worker} AND status = 2"
        ),
        |it| it == 0,
    )
    .await;
    let keys = before.keys().map(|key| format!("'{key}'")).collect::<Vec<_>>().join(",");
    let rows = format!("SELECT key::text, recoveries FROM executions WHERE key::text IN ({keys})");
    for row in sql.query(&rows, &[]).await.unwrap() {
        let (key, recoveries): (String, i32) = (row.get(0), row.get(1));
        let wanted = before[&key] + 1;
        site.expect(recoveries == wanted, || {
            format!("{key} was recovered {recoveries} times in all, not {wanted} times")
        });
    }
}

/// The racers stand still, for less than their leases, and go on together after `then`.
async fn stand_still(site: &mut Site, racers: &[usize], then: impl Future<Output = ()>) {
    for &racer in racers {
        site.hands[racer].signal(Signal::STOP);
    }
    site.hear_for(Duration::from_millis(1200)).await;
    then.await;
    for &racer in racers {
        site.hands[racer].signal(Signal::CONT);
    }
}

/// Registrations of workers that are gone, and executions of each.
const LOST: i64 = 1000;
const OF_EACH: i64 = 3;

/// A thousand workers have left their registrations and executions behind: two live ones recover all of them
/// once, renew their own leases meanwhile, and go on working.
pub(crate) async fn thousand(form: Form, _rng: Rng) -> Report {
    let mut site = Site::on(PostgresServer::shared(), form).await;
    let terms = Terms::orders(4);
    site.hire_some(2, &terms);
    site.until_registered(2).await;
    let sql = connect(&site.url).await.unwrap();
    let mut notes = Vec::new();
    let dent = site.struck(async |site| notes = lose(site, &sql).await).await;
    let of_living = "SELECT count(*) FROM executions WHERE recoveries > 0 AND workflow_id NOT LIKE 'lost-%'";
    let is_so = site.number(of_living).await == Some(0);
    site.expect(is_so, || "what living workers ran was taken over".into());
    let of_lost = "SELECT count(*) FROM executions WHERE recoveries <> 1 AND workflow_id LIKE 'lost-%'";
    let is_so = site.number(of_lost).await == Some(0);
    site.expect(is_so, || "something lost was not recovered exactly once".into());
    let mut report = site.finish("1,000 workers lost at once", 1, dent).await;
    report.notes.extend(notes);
    report
}

async fn lose(site: &mut Site, sql: &tokio_postgres::Client) -> Vec<String> {
    let n: u32 = 4;
    let input = Payload::encode(&n).unwrap();
    let insert = format!(
        "WITH lost AS (
             INSERT INTO workers (registered_at, lease_expires_at, pid, host, engine, workflows, is_client,
                                  from_key, to_key)
             SELECT now() - interval '1 hour', now() - interval '1 minute', pid, host, engine, workflows, false,
                    from_key, to_key
             FROM generate_series(1, {LOST}), (SELECT * FROM workers LIMIT 1) AS living
             RETURNING worker_id, from_key
         ), lanes AS (
             INSERT INTO lanes (worker_id, epoch, lane)
             SELECT worker_id, 1, lane FROM lost, generate_series(0, 4) AS lane
         )
         -- every second one only by its key, which is of the first millisecond of the window
         INSERT INTO executions (created_at, owner, started_by, status, key, workflow, workflow_id, input)
         SELECT now(), CASE WHEN n % 2 = 0 THEN worker_id END, CASE WHEN n % 2 = 1 THEN worker_id END, 2,
                overlay(gen_random_uuid()::text PLACING left(from_key::text, 13) FROM 1)::uuid,
                'order', 'lost-' || worker_id || '-' || n, $1::bytea
         FROM lost, generate_series(1, {OF_EACH}) AS n"
    );
    let lost = "SELECT count(*) FROM workers WHERE registered_at < now() - interval '30 minutes'";
    let last = site.number("SELECT max(worker_id) FROM workers").await.unwrap();
    let bytes = input.as_bytes();
    sql.execute(&insert, &[&bytes]).await.unwrap();
    let began = Instant::now();
    let left = format!(
        "SELECT (1000 * extract(epoch FROM min(lease_expires_at) - clock_timestamp()))::bigint FROM workers \
         WHERE worker_id <= {last}"
    );
    let ended = "SELECT count(*) FROM executions WHERE workflow_id LIKE 'lost-%' AND status = 4";
    let (mut shortest, mut fenced_after) = (i64::MAX, None);
    while site.number(ended).await != Some(LOST * OF_EACH) && began.elapsed() < Duration::from_secs(180) {
        shortest = shortest.min(site.number(&left).await.unwrap_or(i64::MAX));
        if fenced_after.is_none() && site.number(lost).await == Some(0) {
            fenced_after = Some(began.elapsed());
        }
        site.hear_for(Duration::from_millis(20)).await;
    }
    let took = began.elapsed();
    let is_so = site.number(ended).await == Some(LOST * OF_EACH);
    site.expect(is_so, || "what was lost has not ended within three minutes".into());
    let ids = site.number("SELECT max(worker_id) FROM workers WHERE lease_expires_at > now()").await;
    site.expect(ids == Some(last), || "a living worker was taken over while it recovered others".into());
    site.expect(shortest > 0, || format!("a living worker was {} ms late to renew its lease", -shortest));
    vec![format!(
        "all fenced after {:.1} s, all of their {} executions ended after {:.1} s; a living lease had {shortest} ms \
         left, at least",
        fenced_after.unwrap_or(took).as_secs_f64(),
        LOST * OF_EACH,
        took.as_secs_f64()
    )]
}

/// Who ran which execution last, and who ran it after a kill.
#[derive(Default)]
struct Watch {
    /// Executions that go on: who has begun a body last, and when.
    last: HashMap<String, (usize, Instant)>,
    /// Since then bodies elsewhere are looked for.
    armed: Option<(usize, Instant, HashSet<String>)>,
    /// How long it took, for each execution.
    took: Vec<Duration>,
}

impl Watch {
    fn hear(&mut self, heard: &Heard) {
        let words: Vec<&str> = heard.line.as_deref().unwrap_or_default().split(' ').collect();
        let ["body", _, execution, step, _] = words[..] else { return };
        if let Some((number, at, executions)) = &mut self.armed
            && *number != heard.number
            && executions.remove(execution)
        {
            self.took.push(heard.at.duration_since(*at));
        }
        if step == format!("beat{}", BEATS - 1) {
            self.last.remove(execution);
        } else {
            self.last.insert(execution.to_owned(), (heard.number, heard.at));
        }
    }
}

/// How long it takes from the end of a worker until what it ran goes on elsewhere, after kills and after workers
/// that leave in good order: a line for each, with what became of the first and of all executions; and what is not
/// as promised.
pub async fn measure(is_sqlite: bool, times: usize) -> (Vec<String>, Vec<String>) {
    let form = Form::Short;
    let mut site =
        if is_sqlite { Site::sqlite(form) } else { Site::on(PostgresServer::shared(), form).await };
    let watch = Arc::new(Mutex::new(Watch::default()));
    let ear = watch.clone();
    site.listener = Some(Box::new(move |heard| ear.lock().unwrap().hear(heard)));
    let terms = Terms { calls: Calls::Beats, ..Terms::orders(8) };
    site.hire_some(3, &terms);
    site.until_registered(3).await;
    let mut lines = Vec::new();
    for (what, is_kill) in [("SIGKILL", true), ("a drain", false)] {
        let (mut first, mut all) = (Vec::new(), Vec::new());
        for _ in 0..times {
            // all have found their rhythm
            site.hear_for(Duration::from_millis(1500)).await;
            let number = site.working()[0];
            {
                let mut watch = watch.lock().unwrap();
                let at = Instant::now();
                let lately = at - Duration::from_millis(500);
                let own = watch.last.iter().filter(|(_, (who, since))| *who == number && *since > lately);
                let own = own.map(|(execution, _)| execution.clone()).collect();
                watch.armed = Some((number, at, own));
            }
            if is_kill {
                site.hands[number].kill();
            } else {
                site.hands[number].ask("leave");
            }
            let heard = watch.clone();
            let wanted = heard.lock().unwrap().armed.as_ref().map_or(0, |armed| armed.2.len());
            site.hear_until("all of them elsewhere", |_| heard.lock().unwrap().took.len() >= wanted).await;
            let took = std::mem::take(&mut watch.lock().unwrap().took);
            if let (Some(least), Some(most)) = (took.iter().min(), took.iter().max()) {
                first.push(*least);
                all.push(*most);
            }
            watch.lock().unwrap().armed = None;
            site.hire(&terms);
            site.until_registered(3).await;
        }
        lines.push(format!(
            "{:<9} {what:<8} {:>3} times: next body elsewhere {}; all of them {}",
            site.store_name(),
            first.len(),
            spread(&mut first),
            spread(&mut all)
        ));
    }
    site.listener = None;
    let report = site.finish("takeovers", 0, Dent::default()).await;
    (lines, report.violations)
}

/// Least, median, 99th of a hundred, and most.
fn spread(times: &mut [Duration]) -> String {
    if times.is_empty() {
        return "never".to_owned();
    }
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part).round() as usize].as_secs_f64();
    format!("min {:.2} p50 {:.2} p99 {:.2} max {:.2} s", at(0.0), at(0.5), at(0.99), at(1.0))
}
