//! Several processes on one file. The children are this test binary, started again with a role.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::future::{Future, poll_fn};
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::pin::pin;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

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
use support::*;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Number of rows in each flush of a busy child.
const ROWS_PER_FLUSH: usize = 50;

/// Number of flushes of a child that commits.
const COMMIT_COUNT: u64 = 20;

/// A child process, killed when it is dropped.
struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Peer {
    fn start(role: &str, path: &Path) -> Self {
        // a file that grows too large must cause an error: a shell ignores the signal, and the child inherits this
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

    /// Returns the next line that the child prints.
    fn next_line(&mut self) -> String {
        loop {
            let line = self.lines.next().expect("the child has ended").unwrap();
            if let Some((_, text)) = line.split_once("child: ") {
                return text.to_owned();
            }
        }
    }

    fn send_line(&mut self) {
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

fn print_line(text: &str) {
    println!("child: {text}");
}

/// Waits for a line from the parent; exits if the parent is gone.
fn wait_for_parent() {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).unwrap() == 0 {
        std::process::exit(0);
    }
}

/// The entry point of child processes. Does nothing when the suite runs it.
#[tokio::test]
async fn child() {
    let Ok(role) = std::env::var("STEPFAST_CHILD") else { return };
    let path = std::env::var("STEPFAST_PATH").unwrap();
    if role == "opener" {
        print_line("ready");
        wait_for_parent();
    }
    let worker = Worker::at(Path::new(&path)).await;
    match &*role {
        "owner" => own_execution(&worker).await,
        "committer" => {
            for _ in 0..COMMIT_COUNT {
                worker.commit(vec![start_write(start(Key::mint(0), queued()))]).await;
            }
            print_line("committed");
            wait_for_parent();
        }
        "heartbeats" => loop {
            match worker.renew().await {
                Ok(seen) if seen.is_fenced => print_line("fenced"),
                Ok(_) => print_line("fine"),
                Err(error) => print_line(&error.to_string()),
            }
            wait_for_parent();
        },
        "parent" => {
            let mut grandchild =
                Command::new("sleep").arg("600").stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
            print_line(&grandchild.id().to_string());
            own_execution(&worker).await;
            grandchild.wait().unwrap();
        }
        "opener" => print_line("opened"),
        "busy" => {
            print_line("ready");
            wait_for_parent();
            worker.heartbeat().await;
            print_line("started");
            loop {
                worker
                    .commit(
                        (0..ROWS_PER_FLUSH)
                            .map(|_| start_write(start(Key::mint(0), completed("x"))))
                            .collect(),
                    )
                    .await;
            }
        }
        "listener" => {
            let mut changed = pin!(worker.store.next_hint(worker.registration.worker));
            let is_pending = poll_fn(|cx| Poll::Ready(changed.as_mut().poll(cx).is_pending())).await;
            assert!(is_pending);
            print_line("ready");
            changed.await;
            print_line("changed");
        }
        "stopped" => {
            // as a process that is stopped inside its transaction
            let file = std::fs::OpenOptions::new().write(true).open(format!("{path}-turnstile")).unwrap();
            let mut lock: libc::flock = byte_lock(1);
            lock.l_type = libc::F_WRLCK as libc::c_short;
            fcntl(&file, FcntlArg::F_SETLKW(&lock)).unwrap();
            let conn = Connection::open(&path).unwrap();
            conn.execute_batch("BEGIN IMMEDIATE").unwrap();
            print_line("inside");
            wait_for_parent();
            conn.execute_batch("ROLLBACK").unwrap();
            drop(file);
            print_line("outside");
            wait_for_parent();
        }
        "full disk" => fill_disk(&worker).await,
        role => panic!("{role}"),
    }
}

/// Returns the lock of one byte of a file.
fn byte_lock(byte: i64) -> libc::flock {
    libc::flock { l_type: 0, l_whence: libc::SEEK_SET as libc::c_short, l_start: byte, l_len: 1, l_pid: 0 }
}

/// Owns a running execution until the parent continues or kills this process.
async fn own_execution(worker: &Worker) {
    let id = Key::mint(0);
    worker.commit(vec![start_write(start(id, running()))]).await;
    print_line(&id.to_string());
    wait_for_parent();
    match worker.try_commit(vec![transition(id, completed("done"))]).await {
        Ok(outcomes) => print_line(&format!("{outcomes:?}")),
        Err(error) => print_line(&error.to_string()),
    }
    wait_for_parent();
}

/// Commits until the disk is full, and again after it has space.
async fn fill_disk(worker: &Worker) {
    let count = async || {
        let all = Filter { limit: 0, ..Filter::default() };
        worker.store.list(&all).await.unwrap().total.unwrap() as usize
    };
    // leaves a reader open, which prevents the log from being emptied when the writer is opened again
    assert_eq!(count().await, 0);
    let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, 512 * 1024, hard).unwrap();
    let mut acknowledged = 0;
    let mut flush = loop {
        let flush = worker.flush((0..100).map(|_| start_write(start(Key::mint(0), running()))).collect());
        match worker.send(&flush).await {
            Ok(outcomes) => assert_eq!(outcomes, []),
            Err(StoreError::Unavailable(_)) => break flush,
            Err(error) => panic!("{error}"),
        }
        acknowledged += 100;
    };
    assert!(acknowledged > 0);
    flush.is_resent = true;
    let again = worker.send(&flush).await;
    assert!(matches!(again, Err(StoreError::Unavailable(_))), "{again:?}");
    assert_eq!(count().await, acknowledged, "no execution is lost or half applied");
    setrlimit(Resource::RLIMIT_FSIZE, soft, hard).unwrap();
    for _ in 0..2 {
        assert_eq!(worker.send(&flush).await.unwrap(), []);
        assert_eq!(count().await, acknowledged + 100, "applied once");
    }
    worker.commit(vec![start_write(start(Key::mint(0), running()))]).await;
    print_line("recovered");
}

#[tokio::test]
async fn only_killed_worker_is_taken_over() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let mut peer = Peer::start("owner", &path);
    let id = Key::from_text(&peer.next_line()).unwrap();
    assert_eq!(worker.heartbeat().await.recovered, 0, "the worker is alive");
    peer.signal(Signal::SIGSTOP);
    assert_eq!(worker.heartbeat().await.recovered, 0, "the worker is stopped");
    peer.signal(Signal::SIGCONT);
    let owner = worker.record(id).await.execution.owner;
    assert!(owner.is_some_and(|owner| owner != worker.registration.worker));
    peer.end();
    assert_eq!(worker.heartbeat().await.recovered, 1);
    let claimed = worker.claim(9, &["w"]).await;
    assert_eq!((claimed[0].execution.key, claimed[0].execution.recoveries), (id, 1));
}

#[tokio::test]
async fn missing_or_truncated_log_is_detected_on_open() {
    let (_dir, path) = temp_database();
    let mut peer = Peer::start("committer", &path);
    assert_eq!(peer.next_line(), "committed");
    peer.end();
    let log = path.with_extension("db-wal");
    let whole = std::fs::read(&log).unwrap();
    let rejection = || match SqliteStore::open(&path, SqliteOptions::default()) {
        Err(StoreError::Open { reason, .. }) => reason,
        other => panic!("{:?}", other.map(drop)),
    };
    std::fs::remove_file(&log).unwrap();
    assert!(rejection().contains("test.db-wal was lost or cut"));
    // cut to its header and a frame
    std::fs::write(&log, &whole[..32 + 24 + 4096]).unwrap();
    assert!(rejection().contains("test.db-wal was lost or cut"));
    // failed attempts do no harm
    std::fs::write(&log, &whole).unwrap();
    let worker = Worker::at(&path).await;
    let all = Filter { limit: 0, ..Filter::default() };
    assert_eq!(worker.store.list(&all).await.unwrap().total, Some(COMMIT_COUNT));
}

#[tokio::test]
async fn worker_stops_when_its_presence_file_is_deleted() {
    let (_dir, path) = temp_database();
    let mut old = Peer::start("heartbeats", &path);
    assert_eq!(old.next_line(), "fine");
    std::fs::remove_file(path.with_extension("db-presence")).unwrap();
    let worker = Worker::at(&path).await;
    worker.commit(vec![start_write(start(Key::mint(0), running()))]).await;
    old.send_line();
    let line = old.next_line();
    assert!(line.contains("test.db-presence was replaced"), "{line}");
    worker.heartbeat().await;
    assert!(!worker.heartbeat().await.is_fenced);
    let second = Peer::start("heartbeats", &path).next_line();
    assert_eq!(second, "fine");
}

#[tokio::test]
async fn fenced_worker_cannot_write_while_alive() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let mut peer = Peer::start("owner", &path);
    let id = Key::from_text(&peer.next_line()).unwrap();
    // the first step of a takeover, although the worker is alive
    let conn = Connection::open(&path).unwrap();
    conn.execute("DELETE FROM lanes WHERE worker_id <> ?1", [worker.registration.worker.0]).unwrap();
    // its presence is locked, so other workers leave its executions to it
    assert_eq!(worker.heartbeat().await.recovered, 0);
    peer.send_line();
    assert_eq!(peer.next_line(), "another worker has taken over");
    assert_eq!(worker.status(id).await, Status::Running);
}

#[tokio::test]
async fn child_process_does_not_keep_dead_worker_alive() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let mut peer = Peer::start("parent", &path);
    let grandchild = Pid::from_raw(peer.next_line().parse().unwrap());
    let id = Key::from_text(&peer.next_line()).unwrap();
    peer.end();
    kill(grandchild, None).expect("the grandchild lives");
    let recovered = worker.heartbeat().await.recovered;
    kill(grandchild, Signal::SIGKILL).unwrap();
    assert_eq!(recovered, 1);
    assert_eq!(worker.claim_keys(9, &["w"]).await, [id]);
}

#[tokio::test]
async fn single_commit_gets_turn_among_four_busy_processes() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let mut peers: Vec<Peer> = (0..4).map(|_| Peer::start("busy", &path)).collect();
    for peer in &mut peers {
        assert_eq!(peer.next_line(), "ready");
    }
    for peer in &mut peers {
        peer.send_line();
        assert_eq!(peer.next_line(), "started");
    }
    worker.heartbeat().await;
    // the number of flushes by other processes while the worker waits for its own
    let passed = async || {
        let all = Filter { limit: 0, ..Filter::default() };
        worker.store.list(&all).await.unwrap().total.unwrap() as usize / ROWS_PER_FLUSH
    };
    let mut waits = Vec::new();
    let mut keys = Vec::new();
    for _ in 0..25 {
        let before = passed().await;
        keys.push(Key::mint(0));
        assert_eq!(worker.commit(vec![start_write(start(keys[keys.len() - 1], running()))]).await, []);
        waits.push(passed().await - before);
    }
    for peer in peers {
        peer.end();
    }
    waits.sort_unstable();
    // without the turnstile, these numbers are hundreds
    assert!(waits[22] <= 20 && waits[24] <= 100, "{waits:?}");
    // no commit waited long enough for a lock error, and all acknowledged executions exist
    let ids: Vec<ExecutionId> = keys.into_iter().map(ExecutionId::Key).collect();
    assert!(worker.store.load(&ids, Detail::Outcome).await.unwrap().iter().all(Option::is_some));
    worker.heartbeat().await;
    let conn = Connection::open(&path).unwrap();
    let rows: i64 = conn.query_row("SELECT count(*) FROM workers", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 1, "dead workers are deleted");
    let check: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}

#[tokio::test]
async fn engine_shuts_down_while_peer_stalls_in_transaction() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let begun = Arc::new(Notify::new());
    let notify = begun.clone();
    let patient = Workflow::new("patient", move |mut cx: Context, (): ()| {
        let notify = notify.clone();
        async move {
            let body = async || {
                notify.notify_one();
                std::future::pending::<Result<(), Failure>>().await
            };
            cx.step("wait", body).await
        }
    });
    let engine = Engine::builder(worker.store.clone()).register(&patient).open().await.unwrap();
    engine.start(&patient, ()).workflow_id("patient").await.unwrap();
    begun.notified().await;
    let mut peer = Peer::start("stopped", &path);
    assert_eq!(peer.next_line(), "inside");
    // this heartbeat finds the peer, as the next heartbeat of the engine would
    worker.heartbeat().await;
    let requested_at = Instant::now();
    let error =
        worker.try_commit(vec![start_write(start(Key::mint(0), queued()))]).await.unwrap_err().to_string();
    assert!(error.contains("stopped process"), "{error}");
    let info = WorkerInfo::default();
    let registering = tokio::time::timeout(Duration::from_secs(1), worker.store.register(1, &info));
    assert!(registering.await.is_err(), "a registering engine can be stopped");
    let starting = engine.clone();
    let starting = tokio::spawn(async move { starting.start(&patient, ()).await.map(drop) });
    engine.shutdown(Duration::from_secs(1)).await.unwrap();
    assert!(requested_at.elapsed() < Duration::from_secs(20), "{:?}", requested_at.elapsed());
    assert!(starting.await.unwrap().is_err());
    peer.send_line();
    assert_eq!(peer.next_line(), "outside");
    // the thread that still waited at the turnstile has released its lock
    for _ in 0..3 {
        worker.commit(vec![start_write(start(Key::mint(0), queued()))]).await;
    }
    assert_eq!(worker.heartbeat().await.recovered, 1, "the engine could not requeue its executions");
    let patient = [ExecutionId::Given("patient".into())];
    let found = worker.store.load(&patient, Detail::Outcome).await.unwrap().remove(0).unwrap();
    assert_eq!(found.execution.status, Status::Queued);
}

#[tokio::test]
async fn commit_wakes_another_process() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let mut peer = Peer::start("listener", &path);
    assert_eq!(peer.next_line(), "ready");
    worker.heartbeat().await;
    worker.commit(vec![start_write(start(Key::mint(0), running()))]).await;
    assert_eq!(peer.next_line(), "changed");
}

#[test]
fn processes_open_new_file_concurrently() {
    let (_dir, path) = temp_database();
    let mut peers: Vec<Peer> = (0..6).map(|_| Peer::start("opener", &path)).collect();
    for peer in &mut peers {
        assert_eq!(peer.next_line(), "ready");
    }
    for peer in &mut peers {
        peer.send_line();
    }
    for peer in &mut peers {
        assert_eq!(peer.next_line(), "opened");
    }
}

#[test]
fn commit_on_full_disk_is_resolved_by_resending() {
    let (_dir, path) = temp_database();
    let mut peer = Peer::start("full disk", &path);
    assert_eq!(peer.next_line(), "recovered");
    let conn = Connection::open(&path).unwrap();
    let check: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}
