//! Synchronous standbys: what is acknowledged is there, too, also when somebody cancels the wait for them.

use std::sync::Arc;

use stepfast_core::store::{Flush, Outcome, StoreError};
use stepfast_core::{Key, Store};
use stepfast_postgres::{PostgresOptions, PostgresStore};
use stepfast_tests::postgres_server::PostgresServer;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

use super::support::*;

/// A server of its own, whose commits wait for a standby that does not exist once they are told to.
struct Alone {
    store: Arc<PostgresStore>,
    sql: Client,
    // the last to go
    _server: PostgresServer,
}

impl Alone {
    async fn new() -> Self {
        let server = PostgresServer::start();
        let store = PostgresStore::open_with(server.url(), PostgresOptions::default()).await.unwrap();
        let (sql, connection) = tokio_postgres::connect(server.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        Self { store: Arc::new(store), sql, _server: server }
    }

    async fn set_standby(&self, name: &str) {
        let alter = format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'");
        self.sql.batch_execute(&alter).await.unwrap();
        self.sql.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        // whoever waits has heard of it when everybody has
        while self.shown().await != name {}
    }

    async fn shown(&self) -> String {
        self.sql.query_one("SHOW synchronous_standby_names", &[]).await.unwrap().get(0)
    }

    /// Waits until `commit` waits for the standby, and does `what` to its session.
    async fn strike(&self, commit: &Commit, what: &str) {
        let strike = format!("SELECT {what} FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
        while self.sql.query(&strike, &[]).await.unwrap().is_empty() {
            assert!(!commit.is_finished(), "it waits for no standby");
        }
    }
}

type Commit = JoinHandle<Result<Vec<(usize, Outcome)>, StoreError>>;

async fn is_not_acknowledged_without_the_standby(how: &str) {
    let alone = Alone::new().await;
    let worker = alone.store.register(2, &info(&[])).await.unwrap();
    let key = Key::mint(0);
    let flush = Flush {
        worker: worker.worker,
        lane: 0,
        epoch: worker.epoch,
        number: 1,
        is_resent: false,
        is_bisecting: false,
        writes: vec![start(key, RUNNING)],
    };
    let send = |is_resent: bool| {
        let (store, flush) = (alone.store.clone(), Flush { is_resent, ..flush.clone() });
        tokio::spawn(async move { store.commit(&flush).await })
    };
    alone.set_standby("nobody").await;
    let first = send(false);
    alone.strike(&first, how).await;
    let answer = first.await.unwrap();
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{how}: {answer:?}");
    // it is there, but only here: whoever sends it again waits for the standby, too, however often that is cut short
    for _ in 0..2 {
        let again = send(true);
        alone.strike(&again, how).await;
        let answer = again.await.unwrap();
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{how}: {answer:?}");
    }
    let again = send(true);
    alone.strike(&again, "pid").await;
    alone.set_standby("").await;
    assert_eq!(again.await.unwrap().unwrap(), [], "{how}");
    let next = Flush { number: 2, writes: vec![checkpoint(key, 1)], ..flush };
    assert_eq!(alone.store.commit(&next).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_standby_wait_acknowledges_nothing() {
    is_not_acknowledged_without_the_standby("pg_cancel_backend(pid)").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminated_standby_wait_acknowledges_nothing() {
    is_not_acknowledged_without_the_standby("pg_terminate_backend(pid)").await;
}
