//! Several processes on one file. The children are this test binary, started again with a role.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod kit;

use std::future::{Future, poll_fn};
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::pin::pin;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use kit::*;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rusqlite::Connection;
use stepfast_core::key::Key;
use stepfast_core::store::{Detail, ExecutionId, Filter, Status, Store, StoreError, WorkerInfo};
use stepfast_core::{Context, Engine, Failure, Workflow};
use stepfast_sqlite::{SqliteOptions, SqliteStore};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Rows in each flush of a greedy child.
const GREEDY: usize = 50;

/// Flushes of a child that commits.
const COMMITS: u64 = 20;

/// A child process; killed when dropped.
struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Peer {
    fn start(role: &str, path: &Path) -> Self {
        // files that grow too large must be errors, not signals; only a shell can ask for that safely
        let mut child = Command::new("sh")
            .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env("STEPFAST_CHILD", role)
            .env("STEPFAST_PATH", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { stdin: child.stdin.take(), child, lines }
    }

    /// The next thing the child says.
    fn hear(&mut self) -> String {
        loop {
            let line = self.lines.next().expect("the child has ended").unwrap();
            if let Some((_, said)) = line.split_once("child: ") {
                return said.to_owned();
            }
        }
    }

    fn tell(&mut self) {
        writeln!(self.stdin.as_mut().unwrap(), "go").unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    fn end(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(what: &str) {
    println!("child: {what}");
}

/// Waits for the parent's word; ends the process if the parent is gone.
fn hear() {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).unwrap() == 0 {
        std::process::exit(0);
    }
}

/// What children do. Does nothing when the suite runs it.
#[tokio::test]
async fn child() {
    let Ok(role) = std::env::var("STEPFAST_CHILD") else { return };
    let path = std::env::var("STEPFAST_PATH").unwrap();
    if role == "opener" {
        say("ready");
        hear();
    }
    let worker = Worker::at(Path::new(&path)).await;
    match &*role {
        "owner" => own(&worker).await,
        "committer" => {
            for _ in 0..COMMITS {
                worker.commit(vec![put(start(Key::mint(0), queued()))]).await;
            }
            say("committed");
            hear();
        }
        "looker" => loop {
            match worker.store.heartbeat(&worker.look_of(&["w"])).await {
                Ok(seen) if seen.is_fenced => say("fenced"),
                Ok(_) => say("fine"),
                Err(error) => say(&error.to_string()),
            }
            hear();
        },
        "parent" => {
            let mut grandchild =
                Command::new("sleep").arg("600").stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
            say(&grandchild.id().to_string());
            own(&worker).await;
            grandchild.wait().unwrap();
        }
        "opener" => say("opened"),
        "greedy" => {
            say("ready");
            hear();
            worker.look().await;
            say("going");
            loop {
                worker.commit((0..GREEDY).map(|_| put(start(Key::mint(0), completed("x")))).collect()).await;
            }
        }
        "listener" => {
            let mut changed = pin!(worker.store.next_hint());
            let is_pending = poll_fn(|cx| Poll::Ready(changed.as_mut().poll(cx).is_pending())).await;
            assert!(is_pending);
            say("ready");
            changed.await;
            say("changed");
        }
        "stopped" => {
            // as a process that is stopped inside of its transaction
            let file = std::fs::OpenOptions::new().write(true).open(format!("{path}-turnstile")).unwrap();
            let mut gate: libc::flock = range(1);
            gate.l_type = libc::F_WRLCK as libc::c_short;
            fcntl(&file, FcntlArg::F_SETLKW(&gate)).unwrap();
            let conn = Connection::open(&path).unwrap();
            conn.execute_batch("BEGIN IMMEDIATE").unwrap();
            say("inside");
            hear();
            conn.execute_batch("ROLLBACK").unwrap();
            drop(file);
            say("outside");
            hear();
        }
        "full disk" => fill_the_disk(&worker).await,
        role => panic!("{role}"),
    }
}

/// One byte of a file, as it is locked.
fn range(byte: i64) -> libc::flock {
    libc::flock { l_type: 0, l_whence: libc::SEEK_SET as libc::c_short, l_start: byte, l_len: 1, l_pid: 0 }
}

/// Runs an execution until it is told to go on, or dies.
async fn own(worker: &Worker) {
    let id = Key::mint(0);
    worker.commit(vec![put(start(id, running()))]).await;
    say(&id.to_string());
    hear();
    match worker.try_commit(vec![change(id, completed("done"))]).await {
        Ok(outcomes) => say(&format!("{outcomes:?}")),
        Err(error) => say(&error.to_string()),
    }
    hear();
}

/// Commits until the disk takes no more, and again when it does.
async fn fill_the_disk(worker: &Worker) {
    let count = async || {
        let all = Filter { limit: 0, ..Filter::default() };
        worker.store.list(&all).await.unwrap().total.unwrap() as usize
    };
    // the reader that this leaves open keeps the log from being emptied when the writer is opened anew
    assert_eq!(count().await, 0);
    let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, 512 * 1024, hard).unwrap();
    let mut acknowledged = 0;
    let mut flush = loop {
        let flush = worker.flush((0..100).map(|_| put(start(Key::mint(0), running()))).collect());
        match worker.store.commit(&flush).await {
            Ok(outcomes) => assert_eq!(outcomes, []),
            Err(StoreError::Unavailable(_)) => break flush,
            Err(error) => panic!("{error}"),
        }
        acknowledged += 100;
    };
    assert!(acknowledged > 0);
    flush.is_resent = true;
    let again = worker.store.commit(&flush).await;
    assert!(matches!(again, Err(StoreError::Unavailable(_))), "{again:?}");
    assert_eq!(count().await, acknowledged, "nothing is lost, nothing half done");
    setrlimit(Resource::RLIMIT_FSIZE, soft, hard).unwrap();
    for _ in 0..2 {
        assert_eq!(worker.store.commit(&flush).await.unwrap(), []);
        assert_eq!(count().await, acknowledged + 100, "once");
    }
    worker.commit(vec![put(start(Key::mint(0), running()))]).await;
    say("recovered");
}

#[tokio::test]
async fn a_worker_that_is_killed_is_taken_over_and_one_that_lives_or_stands_still_is_not() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let mut peer = Peer::start("owner", &path);
    let id = Key::from_text(&peer.hear()).unwrap();
    assert_eq!(worker.look().await.recovered, 0, "it lives");
    peer.signal(Signal::SIGSTOP);
    assert_eq!(worker.look().await.recovered, 0, "it stands still");
    peer.signal(Signal::SIGCONT);
    let owner = worker.record(id).await.execution.owner;
    assert!(owner.is_some_and(|owner| owner != worker.registration.worker));
    peer.end();
    assert_eq!(worker.look().await.recovered, 1);
    let claimed = worker.claim(9, &["w"]).await;
    assert_eq!((claimed[0].execution.key, claimed[0].execution.recoveries), (id, 1));
}

#[tokio::test]
async fn a_log_that_is_lost_or_cut_is_noticed_when_the_database_is_opened() {
    let (_dir, path) = place();
    let mut peer = Peer::start("committer", &path);
    assert_eq!(peer.hear(), "committed");
    peer.end();
    let log = path.with_extension("db-wal");
    let whole = std::fs::read(&log).unwrap();
    let refusal = || match SqliteStore::open(&path, SqliteOptions::default()) {
        Err(StoreError::Open { reason, .. }) => reason,
        other => panic!("{:?}", other.map(drop)),
    };
    std::fs::remove_file(&log).unwrap();
    assert!(refusal().contains("test.db-wal was lost or cut"));
    // to its header, and a frame
    std::fs::write(&log, &whole[..32 + 24 + 4096]).unwrap();
    assert!(refusal().contains("test.db-wal was lost or cut"));
    // no harm is done by trying
    std::fs::write(&log, &whole).unwrap();
    let worker = Worker::at(&path).await;
    let all = Filter { limit: 0, ..Filter::default() };
    assert_eq!(worker.store.list(&all).await.unwrap().total, Some(COMMITS));
}

#[tokio::test]
async fn workers_whose_presence_file_is_deleted_stop_and_do_not_fight_newcomers() {
    let (_dir, path) = place();
    let mut old = Peer::start("looker", &path);
    assert_eq!(old.hear(), "fine");
    std::fs::remove_file(path.with_extension("db-presence")).unwrap();
    let worker = Worker::at(&path).await;
    worker.commit(vec![put(start(Key::mint(0), running()))]).await;
    old.tell();
    let said = old.hear();
    assert!(said.contains("test.db-presence was replaced"), "{said}");
    worker.look().await;
    assert!(!worker.look().await.is_fenced);
    let again = Peer::start("looker", &path).hear();
    assert_eq!(again, "fine");
}

#[tokio::test]
async fn a_worker_that_was_taken_over_while_it_lived_can_write_nothing() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let mut peer = Peer::start("owner", &path);
    let id = Key::from_text(&peer.hear()).unwrap();
    // as if its lock had been lost: what takeover does, without its death
    let conn = Connection::open(&path).unwrap();
    conn.execute("DELETE FROM lanes WHERE worker_id <> ?1", [worker.registration.worker.0]).unwrap();
    conn.execute("DELETE FROM workers WHERE worker_id <> ?1", [worker.registration.worker.0]).unwrap();
    assert_eq!(worker.look().await.recovered, 1);
    peer.tell();
    assert_eq!(peer.hear(), "another worker has taken over");
    assert_eq!(worker.status(id).await, Status::Queued);
}

#[tokio::test]
async fn a_child_of_a_worker_does_not_keep_it_alive() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let mut peer = Peer::start("parent", &path);
    let grandchild = Pid::from_raw(peer.hear().parse().unwrap());
    let id = Key::from_text(&peer.hear()).unwrap();
    peer.end();
    kill(grandchild, None).expect("the grandchild lives");
    let recovered = worker.look().await.recovered;
    kill(grandchild, Signal::SIGKILL).unwrap();
    assert_eq!(recovered, 1);
    assert_eq!(worker.claim_keys(9, &["w"]).await, [id]);
}

#[tokio::test]
async fn a_lone_commit_gets_its_turn_among_four_greedy_processes() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let mut peers: Vec<Peer> = (0..4).map(|_| Peer::start("greedy", &path)).collect();
    for peer in &mut peers {
        assert_eq!(peer.hear(), "ready");
    }
    for peer in &mut peers {
        peer.tell();
        assert_eq!(peer.hear(), "going");
    }
    worker.look().await;
    // how many flushes of others pass while it waits for its own
    let passed = async || {
        let all = Filter { limit: 0, ..Filter::default() };
        worker.store.list(&all).await.unwrap().total.unwrap() as usize / GREEDY
    };
    let mut waits = Vec::new();
    let mut keys = Vec::new();
    for _ in 0..25 {
        let before = passed().await;
        keys.push(Key::mint(0));
        assert_eq!(worker.commit(vec![put(start(keys[keys.len() - 1], running()))]).await, []);
        waits.push(passed().await - before);
    }
    for peer in peers {
        peer.end();
    }
    waits.sort_unstable();
    // without the turnstile it is hundreds
    assert!(waits[22] <= 20 && waits[24] <= 100, "{waits:?}");
    // nobody has waited long enough to be told about a lock, and all that was acknowledged is there
    let ids: Vec<ExecutionId> = keys.into_iter().map(ExecutionId::Key).collect();
    assert!(worker.store.load(&ids, Detail::Outcome).await.unwrap().iter().all(Option::is_some));
    worker.look().await;
    let conn = Connection::open(&path).unwrap();
    let rows: i64 = conn.query_row("SELECT count(*) FROM workers", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 1, "the dead are forgotten");
    let check: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}

#[tokio::test]
async fn a_peer_that_stands_still_in_its_transaction_keeps_nobody_from_ending() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let begun = Arc::new(Notify::new());
    let told = begun.clone();
    let patient = Workflow::new("patient", move |mut cx: Context, (): ()| {
        let told = told.clone();
        async move {
            let body = async || {
                told.notify_one();
                std::future::pending::<Result<(), Failure>>().await
            };
            cx.step("wait", body).await
        }
    });
    let engine = Engine::builder(worker.store.clone()).register(&patient).open().await.unwrap();
    engine.start(&patient, ()).workflow_id("patient").await.unwrap();
    begun.notified().await;
    let mut peer = Peer::start("stopped", &path);
    assert_eq!(peer.hear(), "inside");
    // the engine has looked since, and knows of its peer
    worker.look().await;
    let asked_at = Instant::now();
    let error = worker.try_commit(vec![put(start(Key::mint(0), queued()))]).await.unwrap_err().to_string();
    assert!(error.contains("stopped process"), "{error}");
    let info = WorkerInfo::default();
    let registering = tokio::time::timeout(Duration::from_secs(1), worker.store.register(1, &info));
    assert!(registering.await.is_err(), "an engine that registers anew can be told to end");
    let starting = engine.clone();
    let starting = tokio::spawn(async move { starting.start(&patient, ()).await.map(drop) });
    engine.shutdown(Duration::from_secs(1)).await.unwrap();
    assert!(asked_at.elapsed() < Duration::from_secs(20), "{:?}", asked_at.elapsed());
    assert!(starting.await.unwrap().is_err());
    peer.tell();
    assert_eq!(peer.hear(), "outside");
    // the thread that still waited in line has given back what it got
    for _ in 0..3 {
        worker.commit(vec![put(start(Key::mint(0), queued()))]).await;
    }
    assert_eq!(worker.look().await.recovered, 1, "the engine could not hand on what it ran");
    let patient = [ExecutionId::Given("patient".into())];
    let found = worker.store.load(&patient, Detail::Outcome).await.unwrap().remove(0).unwrap();
    assert_eq!(found.execution.status, Status::Queued);
}

#[tokio::test]
async fn a_commit_wakes_another_process() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let mut peer = Peer::start("listener", &path);
    assert_eq!(peer.hear(), "ready");
    worker.look().await;
    worker.commit(vec![put(start(Key::mint(0), running()))]).await;
    assert_eq!(peer.hear(), "changed");
}

#[test]
fn many_processes_may_open_a_new_file_at_once() {
    let (_dir, path) = place();
    let mut peers: Vec<Peer> = (0..6).map(|_| Peer::start("opener", &path)).collect();
    for peer in &mut peers {
        assert_eq!(peer.hear(), "ready");
    }
    for peer in &mut peers {
        peer.tell();
    }
    for peer in &mut peers {
        assert_eq!(peer.hear(), "opened");
    }
}

#[test]
fn a_commit_that_the_disk_refuses_is_unknown_and_sending_it_again_decides() {
    let (_dir, path) = place();
    let mut peer = Peer::start("full disk", &path);
    assert_eq!(peer.hear(), "recovered");
    let conn = Connection::open(&path).unwrap();
    let check: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}
