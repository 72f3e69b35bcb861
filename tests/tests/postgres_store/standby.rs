//! Synchronous standbys: acknowledged flushes are on the standby, even if the wait for it is cancelled.

use std::sync::Arc;

use stepfast_core::store::{Flush, Outcome, StoreError};
use stepfast_core::{Key, Store};
use stepfast_postgres::{PostgresOptions, PostgresStore};
use stepfast_tests::fixtures::postgres_cluster::set_synchronous_standbys;
use stepfast_tests::fixtures::postgres_server::PostgresServer;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

use super::support::*;

/// A server of its own, whose commits can be made to wait for a standby that does not exist.
struct OwnServer {
    store: Arc<PostgresStore>,
    sql: Client,
    // dropped last
    _server: PostgresServer,
}

impl OwnServer {
    async fn new() -> Self {
        let server = PostgresServer::start();
        let store = PostgresStore::open_with(server.url(), PostgresOptions::default()).await.unwrap();
        let (sql, connection) = tokio_postgres::connect(server.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        Self { store: Arc::new(store), sql, _server: server }
    }

    /// Waits until `commit` waits for the standby, and applies the function `what` to its session.
    async fn interrupt(&self, commit: &Commit, what: &str) {
        let interrupt = format!("SELECT {what} FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
        while self.sql.query(&interrupt, &[]).await.unwrap().is_empty() {
            assert!(!commit.is_finished(), "the commit does not wait for a standby");
        }
    }
}

type Commit = JoinHandle<Result<Vec<(usize, Outcome)>, StoreError>>;

async fn expect_no_acknowledgement(how: &str) {
    let own_server = OwnServer::new().await;
    let worker = own_server.store.register(2, &worker_info(&[])).await.unwrap();
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
        let (store, flush) = (own_server.store.clone(), Flush { is_resent, ..flush.clone() });
        tokio::spawn(async move { store.commit(&flush).await })
    };
    set_synchronous_standbys(&own_server.sql, "absent").await;
    let first = send(false);
    own_server.interrupt(&first, how).await;
    let answer = first.await.unwrap();
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{how}: {answer:?}");
    // the flush is committed on this server only: resending it waits for the standby again, after every interruption
    for _ in 0..2 {
        let again = send(true);
        own_server.interrupt(&again, how).await;
        let answer = again.await.unwrap();
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{how}: {answer:?}");
    }
    let again = send(true);
    own_server.interrupt(&again, "pid").await;
    set_synchronous_standbys(&own_server.sql, "").await;
    assert_eq!(again.await.unwrap().unwrap(), [], "{how}");
    let next = Flush { number: 2, writes: vec![checkpoint(key, 1)], ..flush };
    assert_eq!(own_server.store.commit(&next).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_standby_wait_acknowledges_nothing() {
    expect_no_acknowledgement("pg_cancel_backend(pid)").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminated_standby_wait_acknowledges_nothing() {
    expect_no_acknowledgement("pg_terminate_backend(pid)").await;
}
