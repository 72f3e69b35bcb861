//! A disk below SQLite whose syncs fail: acknowledged data survives power cuts nevertheless.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepfast::store::StoreError;
use stepfast::{SqliteOptions, SqliteStore, Store};
use stepfast_core::key::Key;
use stepfast_core::store::{Detail, ExecutionId, Flush, State, Write};
use stepfast_tests::crash::disk::{Disk, PowerCut};
use stepfast_tests::crash::leftovers;
use stepfast_tests::crash::vfs;
use stepfast_tests::fixtures::builders;
use stepfast_tests::fixtures::registration::Worker;
use tempfile::TempDir;

/// A database on a disk whose syncs can fail.
struct FaultyDisk {
    directory: TempDir,
    disk: Arc<Disk>,
    vfs: &'static str,
    /// Keys of the acknowledged executions.
    acknowledged: Vec<Key>,
}

impl FaultyDisk {
    fn new() -> Self {
        let disk = Arc::new(Disk::default());
        let vfs = vfs::register(disk.clone());
        Self { directory: TempDir::new().unwrap(), disk, vfs, acknowledged: Vec::new() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("test.db")
    }

    fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        let options = SqliteOptions { vfs: Some(self.vfs), ..SqliteOptions::default() };
        Ok(Arc::new(SqliteStore::open(self.path(), options)?))
    }

    /// Commits a start in this state, and resends it until the outcome is known. Returns how often it was sent.
    async fn start(&mut self, worker: &mut Worker, state: State) -> usize {
        let key = Key::mint(0);
        let mut flush = worker.new_flush(vec![Write::Start(Box::new(builders::start(key, state)))]);
        for sent in 1..99 {
            match worker.store.commit(&flush).await {
                Ok(outcomes) => {
                    assert_eq!(outcomes, []);
                    worker.flush_number = flush.number + 1;
                    self.acknowledged.push(key);
                    return sent;
                }
                Err(StoreError::Unavailable(_)) => flush = Flush { is_resent: true, ..flush },
                Err(error) => panic!("{error}"),
            }
        }
        panic!("the disk was repaired long ago");
    }

    /// Cuts the power, and checks that the remaining data contains all acknowledged executions.
    async fn check(&self, rng: &mut fastrand::Rng) {
        for cut in PowerCut::ALL {
            let after = TempDir::new().unwrap();
            self.disk.cut_power(cut, rng, after.path());
            check(&after.path().join("test.db"), &self.acknowledged).await;
        }
    }
}

async fn check(path: &Path, acknowledged: &[Key]) {
    let store = SqliteStore::open(path, SqliteOptions::default()).unwrap();
    let ids: Vec<ExecutionId> = acknowledged.iter().copied().map(ExecutionId::Key).collect();
    let found = store.load(&ids, Detail::Outcome).await.unwrap();
    let lost = found.iter().filter(|found| found.is_none()).count();
    assert_eq!(lost, 0, "of {} that were acknowledged", ids.len());
    drop(store);
    assert_eq!(leftovers::integrity_errors(path.to_str().unwrap()), Vec::<String>::new());
}

fn running() -> State {
    State::Running { pending_sleeps: Vec::new() }
}

fn queued() -> State {
    State::Queued { pending_sleeps: Vec::new() }
}

#[tokio::test]
async fn flush_with_failed_log_sync_is_durable_once_acknowledged() {
    let mut database = FaultyDisk::new();
    let mut worker = Worker::register(&database.open().unwrap()).await;
    database.start(&mut worker, running()).await;
    // the syncs of COMMIT and of closing the connection; afterwards, the log is read from memory
    database.disk.fail_syncs("-wal", 0, 2);
    assert_eq!(database.start(&mut worker, running()).await, 2);
    assert_eq!(database.start(&mut worker, running()).await, 1);
    database.check(&mut fastrand::Rng::with_seed(7)).await;
}

#[tokio::test]
async fn unsynced_log_of_dead_process_is_rewritten() {
    let mut database = FaultyDisk::new();
    let store = database.open().unwrap();
    let mut worker = Worker::register(&store).await;
    database.start(&mut worker, running()).await;
    // all later syncs of a process that is killed
    database.disk.fail_syncs("-wal", 0, 9);
    let lost = worker.new_flush(vec![Write::Start(Box::new(builders::start(Key::mint(0), running())))]);
    assert!(matches!(worker.store.commit(&lost).await, Err(StoreError::Unavailable(_))));
    drop((worker, store));
    database.disk.heal();
    let mut worker = Worker::register(&database.open().unwrap()).await;
    // a peer that never saw the error continues after data that is not on the disk
    database.start(&mut worker, running()).await;
    database.check(&mut fastrand::Rng::with_seed(7)).await;
}

#[tokio::test]
async fn acknowledged_starts_survive_any_failed_sync() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut failures = 0;
    for _ in 0..40 {
        let mut database = FaultyDisk::new();
        let mut store = database.open().unwrap();
        let mut worker = Worker::register(&store).await;
        for _ in 0..rng.usize(1..12) {
            match rng.u8(0..6) {
                0 => {
                    database.disk.fail_syncs("-wal", rng.u32(0..3), rng.u32(1..4));
                }
                1 => {
                    database.disk.fail_syncs(".db", rng.u32(0..2), rng.u32(1..3));
                }
                2 => {
                    // closing the last connection writes the log into the database, or fails
                    drop((worker, store));
                    store = loop {
                        match database.open() {
                            Ok(store) => break store,
                            Err(_) => failures += 1,
                        }
                    };
                    database.disk.heal();
                    worker = Worker::register(&store).await;
                }
                n => {
                    let state = if n == 3 { queued() } else { running() };
                    failures += database.start(&mut worker, state).await - 1;
                }
            }
        }
        database.check(&mut rng).await;
    }
    assert!(failures > 0, "no sync failed: the test proves nothing");
}
