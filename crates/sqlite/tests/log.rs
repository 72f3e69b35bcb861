//! The write-ahead log while readers are always there.

#![allow(clippy::unwrap_used)]

mod kit;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use kit::*;
use rusqlite::Connection;
use stepfast_core::key::Key;
use stepfast_core::store::{Chunk, Write};
use tokio::time::Instant;

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn readers_that_overlap_do_not_let_the_log_grow_without_bound() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    // Each of two readers ends its snapshot when the other has begun one, and two flushes have come since, or a moment has
    // passed. None is long, and one is always there.
    let (is_over, commits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (to_second, from_first) = mpsc::channel();
    let (to_first, from_second) = mpsc::channel();
    let read = |tell: mpsc::Sender<()>, told: mpsc::Receiver<()>| {
        let (path, is_over, commits) = (path.clone(), is_over.clone(), commits.clone());
        move || {
            let conn = Connection::open(&path).unwrap();
            while !is_over.load(SeqCst) {
                conn.execute_batch("BEGIN; SELECT count(*) FROM workers").unwrap();
                let (begun_at, seen) = (Instant::now(), commits.load(SeqCst));
                if tell.send(()).is_err() || told.recv().is_err() {
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
    worker.commit(vec![put(start(execution, running()))]).await;
    let bytes = Bytes::from(vec![7; MIB as usize]);
    let mut longest = 0;
    for value in 0..60 {
        let chunk = |n| Write::Chunk(Chunk { execution, value, n, bytes: bytes.clone(), is_unowned: false });
        worker.commit((0..4).map(chunk).collect()).await;
        commits.fetch_add(1, SeqCst);
        longest = longest.max(std::fs::metadata(path.with_extension("db-wal")).unwrap().len());
    }
    is_over.store(true, SeqCst);
    for reader in readers {
        reader.join().unwrap();
    }
    assert!(longest > 64 * MIB, "the readers were not in the way: {longest} bytes");
    assert!(longest < 200 * MIB, "{longest} bytes");
}

#[tokio::test]
async fn a_reader_that_stays_holds_up_no_commit_for_long() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let execution = Key::mint(0);
    worker.commit(vec![put(start(execution, running()))]).await;
    let reader = Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM workers").unwrap();
    let bytes = Bytes::from(vec![7; MIB as usize]);
    let log = || std::fs::metadata(path.with_extension("db-wal")).unwrap().len();
    for value in 0..40 {
        let chunk = |n| Write::Chunk(Chunk { execution, value, n, bytes: bytes.clone(), is_unowned: false });
        worker.commit((0..4).map(chunk).collect()).await;
    }
    assert!(log() > 150 * MIB, "the reader was in the way");
    reader.execute_batch("COMMIT").unwrap();
    // from its beginning again
    worker.commit(vec![put(start(Key::mint(0), running()))]).await;
    worker.commit(vec![put(start(Key::mint(0), running()))]).await;
    let before = log();
    let chunk = |n| Write::Chunk(Chunk { execution, value: 99, n, bytes: bytes.clone(), is_unowned: false });
    worker.commit((0..4).map(chunk).collect()).await;
    assert_eq!(log(), before);
}
