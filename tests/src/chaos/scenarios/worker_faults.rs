//! Workers that are killed, and workers that stand still.

use std::time::Duration;

use fastrand::Rng;
use rustix::process::Signal;

use crate::chaos::Form;
use crate::chaos::deployment::Site;
use crate::chaos::report::Report;
use crate::chaos::worker_process::Terms;
use crate::fixtures::postgres_server::PostgresServer;

const WORKERS: usize = 3;

/// Workers are killed at random under load, now and then all at once, and replaced: nothing that was
/// acknowledged is lost, everything is recorded once, and what they ran ends elsewhere.
pub(crate) async fn killed_on_postgres(form: Form, rng: Rng) -> Report {
    let site = Site::on(PostgresServer::shared(), form).await;
    killed(site, form.pick(4, 40), rng).await
}

/// The same on a file.
pub(crate) async fn killed_on_sqlite(form: Form, rng: Rng) -> Report {
    killed(Site::sqlite(form), form.pick(8, 100), rng).await
}

async fn killed(mut site: Site, kills: u64, mut rng: Rng) -> Report {
    let terms = Terms::orders(8);
    site.hire_some(WORKERS, &terms);
    let mut done = 0;
    let dent = site
        .struck(async |site| {
            while done < kills {
                let working = site.working();
                let all = rng.u8(0..6) == 0;
                let chosen = working[rng.usize(0..working.len())];
                for number in working.into_iter().filter(|number| all || *number == chosen) {
                    site.hands[number].kill();
                    site.hire(&terms);
                    done += 1;
                }
                site.more_ends(rng.usize(1..200)).await;
                if rng.u8(0..4) == 0 {
                    site.check().await;
                }
            }
        })
        .await;
    site.finish("SIGKILL of random workers", done, dent).await
}

/// A worker stands still for longer than its lease, and is taken over; then it goes on. What it had on its way
/// is fenced, no step is recorded twice, and it registers anew by itself and does work again.
pub(crate) async fn stopped_on_postgres(form: Form, mut rng: Rng) -> Report {
    let mut site = Site::on(PostgresServer::shared(), form).await;
    site.hire_some(WORKERS, &Terms::orders(8));
    site.until_registered(WORKERS).await;
    let times = form.pick(1, 10);
    let dent = site
        .struck(async |site| {
            for _ in 0..times {
                let number = rng.usize(0..WORKERS);
                site.hands[number].signal(Signal::STOP);
                site.until_registered(WORKERS - 1).await;
                // its executions are run elsewhere
                site.more_ends(50).await;
                site.hands[number].signal(Signal::CONT);
                site.until_registered(WORKERS).await;
            }
        })
        .await;
    site.ends_of_each(20).await;
    site.check().await;
    let recovered = site.number("SELECT count(*) FROM executions WHERE recoveries > 0").await;
    site.expect(recovered > Some(0), || {
        "a worker that stood still had nothing that others could take".into()
    });
    site.finish("SIGSTOP beyond the lease", times, dent).await
}

/// A worker that stands still on a file keeps its executions, however long, until it goes on or dies.
pub(crate) async fn stopped_on_sqlite(form: Form, mut rng: Rng) -> Report {
    let mut site = Site::sqlite(form);
    site.hire_some(WORKERS, &Terms::orders(4));
    site.until_registered(WORKERS).await;
    let times = form.pick(2, 6);
    let stopped = form.pick(Duration::from_secs(4), Duration::from_secs(20));
    let dent = site
        .struck(async |site| {
            for _ in 0..times {
                let number = rng.usize(0..WORKERS);
                site.hands[number].signal(Signal::STOP);
                // one that stands still in the middle of a transaction holds up everybody
                site.hear_for(stopped).await;
                site.hands[number].signal(Signal::CONT);
                site.ends_of_each(5).await;
            }
        })
        .await;
    let is_so = site.number("SELECT count(*) FROM executions WHERE recoveries > 0").await == Some(0);
    site.expect(is_so, || "a worker that stood still was taken over".into());
    let is_so = site.number("SELECT max(worker_id) FROM workers").await == Some(WORKERS as i64);
    site.expect(is_so, || "a worker registered anew".into());
    // and when it dies instead of going on?
    site.hands[0].signal(Signal::STOP);
    site.hands[0].kill();
    site.until_number("the dead worker is taken over", "SELECT count(*) FROM workers", |it| it == 2).await;
    site.finish("SIGSTOP", times, dent).await
}
