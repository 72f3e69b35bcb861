//! What connections are set up with, read back.

use std::collections::HashMap;
use std::time::Duration;

use stepfast_postgres::PostgresOptions;
use tokio_postgres::Client;

use super::support::*;

/// Where a setting stands after each connection was set up, by what it is for.
async fn read_back(db: &Fixture, setting: &str) -> HashMap<&'static str, String> {
    let mut found = HashMap::new();
    for (role, settings) in db.store.settings() {
        let sql: Client = client(&db.schema).await;
        sql.batch_execute(&settings).await.unwrap();
        found.insert(role, current(&sql, setting).await);
    }
    found
}

async fn current(sql: &Client, setting: &str) -> String {
    sql.query_one("SELECT current_setting($1)", &[&setting]).await.unwrap().get(0)
}

#[tokio::test]
async fn nothing_may_take_for_ever_but_a_migration() {
    let lease = Duration::from_secs(6);
    let db = Fixture::with(|options: PostgresOptions| {
        options.lease(lease).lock_timeout(Duration::from_millis(123))
    })
    .await;
    for (setting, expected) in [
        (
            "statement_timeout",
            [("lane", "1min"), ("control", "30s"), ("reader", "5min"), ("migration", "0"), ("hints", "30s")],
        ),
        (
            "lock_timeout",
            [("lane", "123ms"), ("control", "1s"), ("reader", "10s"), ("migration", "0"), ("hints", "10s")],
        ),
        (
            "idle_in_transaction_session_timeout",
            [("lane", "4s"), ("control", "6s"), ("reader", "1min"), ("migration", "0"), ("hints", "1min")],
        ),
        ("search_path", [("lane", ""), ("control", ""), ("reader", ""), ("migration", ""), ("hints", "")]),
    ] {
        let found = read_back(&db, setting).await;
        assert_eq!(found.len(), expected.len());
        for (role, value) in expected {
            let schema = format!("\"{}\"", db.schema);
            let value = if value.is_empty() { schema.as_str() } else { value };
            let same = found[role] == value || found[role] == value.trim_matches('"');
            assert!(same, "{setting} of {role}: {}", found[role]);
        }
    }
}

#[tokio::test]
async fn a_statement_that_takes_too_long_is_given_up() {
    let db = Fixture::new().await;
    let (_, lane) = db.store.settings().into_iter().find(|(role, _)| *role == "lane").unwrap();
    let sql = client(&db.schema).await;
    sql.batch_execute(&lane).await.unwrap();
    sql.batch_execute("SET statement_timeout TO 50").await.unwrap();
    let error = sql.batch_execute("SELECT pg_sleep(600)").await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "57014");
}
