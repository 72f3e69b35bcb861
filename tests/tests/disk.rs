//! A disk whose syncs fail below SQLite: what is acknowledged is durable all the same, when the power is cut.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepfast::store::StoreError;
use stepfast::{SqliteOptions, SqliteStore, Store};
use stepfast_core::key::Key;
use stepfast_core::store::{Detail, ExecutionId, Flush, State, Write};
use stepfast_tests::disk::{Cut, Disk};
use stepfast_tests::vfs;
use stepfast_tests::worker::Worker;
use stepfast_tests::{leftovers, make};
use tempfile::TempDir;

/// A database on a disk whose syncs may fail.
struct Place {
    directory: TempDir,
    disk: Arc<Disk>,
    vfs: &'static str,
    /// Executions that were acknowledged.
    acknowledged: Vec<Key>,
}

impl Place {
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

    /// Commits a start in this state, and sends it again until the store has an answer. Returns how often it was sent.
    async fn start(&mut self, worker: &mut Worker, state: State) -> usize {
        let key = Key::mint(0);
        let mut flush = worker.flush(vec![Write::Start(Box::new(make::start(key, state)))]);
        for sent in 1..99 {
            match worker.store.commit(&flush).await {
                Ok(outcomes) => {
                    assert_eq!(outcomes, []);
                    worker.number = flush.number + 1;
                    self.acknowledged.push(key);
                    return sent;
                }
                Err(StoreError::Unavailable(_)) => flush = Flush { is_resent: true, ..flush },
                Err(error) => panic!("{error}"),
            }
        }
        panic!("the disk was mended long ago");
    }

    /// Cuts the power, and looks for what was acknowledged in what is left.
    async fn check(&self, rng: &mut fastrand::Rng) {
        for cut in Cut::ALL {
            let after = TempDir::new().unwrap();
            self.disk.cut(cut, rng, after.path());
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
    assert_eq!(leftovers::damage(path.to_str().unwrap()), Vec::<String>::new());
}

fn running() -> State {
    State::Running { armed: Vec::new() }
}

fn queued() -> State {
    State::Queued { armed: Vec::new() }
}

#[tokio::test]
async fn flush_with_failed_log_sync_is_durable_once_acknowledged() {
    let mut place = Place::new();
    let mut worker = Worker::register(&place.open().unwrap()).await;
    place.start(&mut worker, running()).await;
    // that of COMMIT, and that of the connection as it is closed: what the log has is read from memory then
    place.disk.fail_syncs("-wal", 0, 2);
    assert_eq!(place.start(&mut worker, running()).await, 2);
    assert_eq!(place.start(&mut worker, running()).await, 1);
    place.check(&mut fastrand::Rng::with_seed(7)).await;
}

#[tokio::test]
async fn unsynced_log_of_dead_process_is_rewritten() {
    let mut place = Place::new();
    let store = place.open().unwrap();
    let mut worker = Worker::register(&store).await;
    place.start(&mut worker, running()).await;
    // all that a killed process could do after it
    place.disk.fail_syncs("-wal", 0, 9);
    let lost = worker.flush(vec![Write::Start(Box::new(make::start(Key::mint(0), running())))]);
    assert!(matches!(worker.store.commit(&lost).await, Err(StoreError::Unavailable(_))));
    drop((worker, store));
    place.disk.mend();
    let mut worker = Worker::register(&place.open().unwrap()).await;
    // a peer that never saw the error goes on behind what is not on the disk
    place.start(&mut worker, running()).await;
    place.check(&mut fastrand::Rng::with_seed(7)).await;
}

#[tokio::test]
async fn acknowledged_starts_survive_any_failed_sync() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut failures = 0;
    for _ in 0..40 {
        let mut place = Place::new();
        let mut store = place.open().unwrap();
        let mut worker = Worker::register(&store).await;
        for _ in 0..rng.usize(1..12) {
            match rng.u8(0..6) {
                0 => {
                    place.disk.fail_syncs("-wal", rng.u32(0..3), rng.u32(1..4));
                }
                1 => {
                    place.disk.fail_syncs(".db", rng.u32(0..2), rng.u32(1..3));
                }
                2 => {
                    // the last connection folds the log into the database, or fails to
                    drop((worker, store));
                    store = loop {
                        match place.open() {
                            Ok(store) => break store,
                            Err(_) => failures += 1,
                        }
                    };
                    place.disk.mend();
                    worker = Worker::register(&store).await;
                }
                n => {
                    let state = if n == 3 { queued() } else { running() };
                    failures += place.start(&mut worker, state).await - 1;
                }
            }
        }
        place.check(&mut rng).await;
    }
    assert!(failures > 0, "no sync failed: the test proves nothing");
}
