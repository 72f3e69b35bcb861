//! Helpers for tests of the program on a real Postgres server: a schema for each test, and SQL of foreign programs.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Returns the URL of a schema of its own on the server that `tests/with-postgres` has started, and the schema's name.
pub(crate) fn postgres() -> (String, String) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let url = std::env::var("STEPFAST_TEST_POSTGRES_URL");
    let url =
        url.expect("these tests need a Postgres server: run them by `make test`, or by tests/with-postgres");
    let number = NUMBER.fetch_add(1, SeqCst);
    let schema = format!("cli_{}_{}_{number}", env!("CARGO_CRATE_NAME"), std::process::id());
    (format!("{url}?schema={schema}"), schema)
}

/// Executes SQL on the server of this URL, like a foreign program.
pub(crate) async fn execute(url: &str, sql: &str) -> Result<(), tokio_postgres::Error> {
    let server = url.split('?').next().unwrap();
    let (client, connection) = tokio_postgres::connect(server, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let result = client.batch_execute(sql).await;
    drop(client);
    connection.await.unwrap().unwrap();
    result
}
