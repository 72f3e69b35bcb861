//! [`StoreFixture`]: what the suite needs of a store besides the contract.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use stepfast_core::MemoryStore;
use stepfast_core::clock::{Clock, ManualClock, Timestamp};
use stepfast_core::store::Store;
use stepfast_core::write::WorkerId;

/// Midnight of the first of January 2026: where the clocks of tests begin.
pub const EPOCH: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

/// A fresh database of one kind, for one test.
#[async_trait]
pub trait StoreFixture: Send + Sync {
    /// The first handle on the database.
    fn store(&self) -> Arc<dyn Store>;

    /// A second handle, as another process has one.
    async fn second(&self) -> Arc<dyn Store>;

    /// The clock of all its handles.
    fn clock(&self) -> &ManualClock;

    /// Makes a worker look lost to all others, as if its process had been killed.
    async fn lose(&self, worker: WorkerId);

    /// True if `changed` tells of changes by other handles.
    fn has_hints(&self) -> bool {
        true
    }

    /// True if a flush whose number does not follow on the last one is found out.
    fn numbers_flushes(&self) -> bool {
        true
    }

    /// The time now.
    fn now(&self) -> Timestamp {
        self.clock().now()
    }
}

/// Makes a fresh database.
pub type Fresh = fn() -> BoxFuture<'static, Box<dyn StoreFixture>>;

/// The stores that there are, by name; the first is the model of the others.
pub const STORES: &[(&str, Fresh)] = &[("memory", || Box::pin(MemoryFixture::fresh()))];

/// A [`MemoryStore`]; the second handle is the same store, as engines of one process share it.
pub struct MemoryFixture {
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore>,
}

impl MemoryFixture {
    /// A fresh store.
    #[allow(clippy::unused_async)] // others wait for a database
    pub async fn fresh() -> Box<dyn StoreFixture> {
        let clock = Arc::new(ManualClock::at(EPOCH));
        Box::new(Self { store: Arc::new(MemoryStore::with_clock(clock.clone())), clock })
    }
}

#[async_trait]
impl StoreFixture for MemoryFixture {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn second(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    async fn lose(&self, worker: WorkerId) {
        self.store.lose(worker);
    }
}
