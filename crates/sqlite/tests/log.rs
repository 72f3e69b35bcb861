//! The write-ahead log while readers are always active.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::Connection;
use stepfast_core::key::Key;
use stepfast_core::store::{Chunk, Write};
use support::*;
use tokio::time::Instant;

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn log_size_is_bounded_with_overlapping_readers() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    // Each of two readers ends its snapshot when the other one has begun a snapshot and two flushes have followed, or a
    // moment has passed. No snapshot is long, and one is always open.
    let (is_finished, commits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (to_second, from_first) = mpsc::channel();
    let (to_first, from_second) = mpsc::channel();
    let read = |sender: mpsc::Sender<()>, receiver: mpsc::Receiver<()>| {
        let (path, is_finished, commits) = (path.clone(), is_finished.clone(), commits.clone());
        move || {
            let conn = Connection::open(&path).unwrap();
            while !is_finished.load(SeqCst) {
                conn.execute_batch("BEGIN; SELECT count(*) FROM workers").unwrap();
                let (begun_at, seen) = (Instant::now(), commits.load(SeqCst));
                if sender.send(()).is_err() || receiver.recv().is_err() {
                    return;
                }
                while commits.load(SeqCst) < seen + 2 && begun_at.elapsed() < Duration::from_millis(10) {
                    thread::yield_now();
                }
                conn.execute_batch("COMMIT").unwrap();
            }
        }
    };
    let readers = [thread::spawn(read(to_second, from_second)), thread::spawn(read(to_first, from_first))];
    let execution = Key::mint(0);
    worker.commit(vec![start_write(start(execution, running()))]).await;
    let bytes = Bytes::from(vec![7; MIB as usize]);
    let mut longest = 0;
    for value in 0..60 {
        let chunk =
            |n| Write::Chunk(Chunk { execution, value, index: n, bytes: bytes.clone(), is_unowned: false });
        worker.commit((0..4).map(chunk).collect()).await;
        commits.fetch_add(1, SeqCst);
        longest = longest.max(std::fs::metadata(path.with_extension("db-wal")).unwrap().len());
    }
    is_finished.store(true, SeqCst);
    for reader in readers {
        reader.join().unwrap();
    }
    assert!(longest > 64 * MIB, "the readers did not block the log: {longest} bytes");
    assert!(longest < 200 * MIB, "{longest} bytes");
}

#[tokio::test]
async fn commits_continue_while_reader_keeps_snapshot() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let execution = Key::mint(0);
    worker.commit(vec![start_write(start(execution, running()))]).await;
    let reader = Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM workers").unwrap();
    let bytes = Bytes::from(vec![7; MIB as usize]);
    let log = || std::fs::metadata(path.with_extension("db-wal")).unwrap().len();
    for value in 0..40 {
        let chunk =
            |n| Write::Chunk(Chunk { execution, value, index: n, bytes: bytes.clone(), is_unowned: false });
        worker.commit((0..4).map(chunk).collect()).await;
    }
    assert!(log() > 150 * MIB, "the reader blocks the log");
    reader.execute_batch("COMMIT").unwrap();
    // SQLite writes to the beginning of the log again
    worker.commit(vec![start_write(start(Key::mint(0), running()))]).await;
    worker.commit(vec![start_write(start(Key::mint(0), running()))]).await;
    let before = log();
    let chunk =
        |n| Write::Chunk(Chunk { execution, value: 99, index: n, bytes: bytes.clone(), is_unowned: false });
    worker.commit((0..4).map(chunk).collect()).await;
    assert_eq!(log(), before);
}
