//! Settings of connections, read back from the server.

use std::collections::HashMap;
use std::time::Duration;

use stepfast_postgres::PostgresOptions;
use tokio_postgres::Client;

use super::support::*;

/// Returns the value of a setting after the set-up of each connection, by its purpose.
async fn read_back(db: &Fixture, setting: &str) -> HashMap<&'static str, String> {
    let mut found = HashMap::new();
    for (role, settings) in db.store.session_settings() {
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
async fn timeouts_bound_every_session_except_migration() {
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
            // temporary tables of other clients of a pooler's session are searched last
            let schema = format!("{}, pg_temp", db.schema);
            let value = if value.is_empty() { schema.as_str() } else { value };
            assert_eq!(found[role].replace('"', ""), value, "{setting} of {role}");
        }
    }
}

#[tokio::test]
async fn slow_statement_is_cancelled_by_timeout() {
    let db = Fixture::new().await;
    let (_, lane) = db.store.session_settings().into_iter().find(|(role, _)| *role == "lane").unwrap();
    let sql = client(&db.schema).await;
    sql.batch_execute(&lane).await.unwrap();
    sql.batch_execute("SET statement_timeout TO 50").await.unwrap();
    let error = sql.batch_execute("SELECT pg_sleep(600)").await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "57014");
}

#[tokio::test]
async fn temporary_table_of_other_client_shadows_no_table() {
    let db = Fixture::new().await;
    for (role, settings) in db.store.session_settings() {
        // a session of the server that a pooler has lent to another client before
        let sql: Client = client(&db.schema).await;
        for table in TABLES.into_iter().chain(["lanes", "workers", "queues", "inbox"]) {
            sql.batch_execute(&format!("CREATE TEMPORARY TABLE {table} (x integer)")).await.unwrap();
        }
        sql.batch_execute(&settings).await.unwrap();
        for table in TABLES.into_iter().chain(["lanes", "workers", "queues", "inbox"]) {
            let ask = "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass($1)";
            let found: String = sql.query_one(ask, &[&table]).await.unwrap().get(0);
            assert_eq!(found, db.schema, "{table} for {role}");
        }
    }
}
