//! Preparations: indexes that a migration of a large schema needs, built before older engines are asked to end.

use futures_util::future::join_all;
use stepfast_core::store::StoreError;
use stepfast_postgres::{PostgresOptions, PostgresStore};
use stepfast_tests::fixtures::postgres_server::PostgresServer;
use tokio_postgres::Client;

use super::support::*;

const OLDER_MIGRATIONS: [&str; 3] = [
    include_str!("../../../crates/postgres/migrations/V1__initial.sql"),
    include_str!("../../../crates/postgres/migrations/V2__queues.sql"),
    include_str!("../../../crates/postgres/migrations/V3__claims.sql"),
];
const MIGRATION_V4: &str = include_str!("../../../crates/postgres/migrations/V4__hardening.sql");

/// Inserts an execution that waits with a deadline, as an engine of the earlier version does.
const INSERT: &str = "INSERT INTO executions (created_at, shard, status, key, workflow, input, deadline_at) \
                      VALUES (now(), 1, 3, gen_random_uuid(), 'order', '\\x0001', now() + interval '1 hour')";

/// The state of an index build that waits for an earlier flush.
const BUILD_WAITS: (i64, &str) = (1, "query LIKE '%CREATE INDEX%' AND wait_event = 'virtualxid'");

/// A schema of version 3. Few of its executions wait with a deadline.
struct OlderSchema {
    schema: String,
    sql: Client,
}

impl OlderSchema {
    async fn new() -> Self {
        let newest = Fixture::new().await.schema;
        let schema = PostgresServer::shared().fresh_schema_name();
        let sql = client(&schema).await;
        sql.batch_execute(&format!(
            "CREATE SCHEMA {schema}; {}
             CREATE TABLE schema_version (LIKE {newest}.schema_version INCLUDING ALL);
             INSERT INTO schema_version SELECT * FROM {newest}.schema_version WHERE version < 4;
             ALTER TABLE executions SET (autovacuum_enabled = off);
             INSERT INTO executions (created_at, shard, status, key, workflow, input, deadline_at)
             SELECT now(), 1, CASE n % 100 WHEN 0 THEN n / 100 % 4 ELSE 4 + n % 3 END, gen_random_uuid(), 'order',
                    '\\x0001', CASE WHEN n % 3 > 0 THEN now() + n * interval '1 minute' END
             FROM generate_series(1, 10000) AS n;
             ANALYZE executions",
            OLDER_MIGRATIONS.concat()
        ))
        .await
        .unwrap();
        let older = Self { schema, sql };
        older.enlarge().await;
        older
    }

    /// Makes the server estimate millions of executions. An index build corrects the estimate.
    async fn enlarge(&self) {
        let large = "UPDATE pg_class SET reltuples = 2000000 WHERE oid = 'executions'::regclass";
        self.sql.batch_execute(large).await.unwrap();
    }

    fn options(&self) -> PostgresOptions {
        PostgresOptions::default().schema(&self.schema).application_name(&self.schema)
    }

    async fn migrate(&self) -> Result<Vec<String>, StoreError> {
        Ok(PostgresStore::migrate(url(), self.options(), None, false).await?.migrations)
    }

    /// Returns the script that `db migrate --print` prints.
    async fn print_script(&self) -> String {
        PostgresStore::migrate(url(), self.options(), None, true).await.unwrap().sql
    }

    /// Returns the index of the preparation, and whether it is valid.
    async fn index(&self) -> Option<(u32, bool)> {
        let index = "SELECT indexrelid, indisvalid FROM pg_index \
                     WHERE indexrelid = to_regclass('executions_with_deadline')";
        self.sql.query_opt(index, &[]).await.unwrap().map(|row| (row.get(0), row.get(1)))
    }

    /// Returns the application name of migrating connections.
    fn name(&self) -> String {
        format!("{} migration", self.schema)
    }

    /// Waits until the condition holds for `count` of those connections.
    async fn wait_until(&self, (count, what): (i64, &str)) {
        let query = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND {what}");
        while self.sql.query_one(&query, &[&self.name()]).await.unwrap().get::<_, i64>(0) < count {}
    }

    async fn expect_migrated(&self) {
        assert_eq!(self.index().await, None);
        let differing = "WITH wanted AS (SELECT deadline_at, key FROM executions \
                             WHERE deadline_at IS NOT NULL AND status NOT IN (2, 4, 5, 6)), \
                         found AS (SELECT due_at, execution FROM deadlines) \
                         SELECT (SELECT count(*) FROM found), \
                             (SELECT count(*) FROM (TABLE wanted EXCEPT TABLE found) AS a) \
                             + (SELECT count(*) FROM (TABLE found EXCEPT TABLE wanted) AS b)";
        let row = self.sql.query_one(differing, &[]).await.unwrap();
        let (found, differing): (i64, i64) = (row.get(0), row.get(1));
        assert!(found > 40 && differing == 0, "{found} rows, and {differing} differ");
        PostgresStore::open_with(url(), self.options()).await.unwrap();
    }
}

fn reason(error: StoreError) -> String {
    match error {
        StoreError::Open { reason, .. } | StoreError::Unreachable { reason, .. } => reason,
        error => panic!("{error}"),
    }
}

/// The migrations that follow the older schema.
const MIGRATIONS: [&str; 8] = [
    "V4__hardening",
    "V5__graphs",
    "V6__neighbours",
    "V7__batches",
    "V8__compression",
    "V9__messages",
    "V10__events",
    "V11__streams",
];

/// Inserts a live worker, as an older program registers it.
const OLDER_WORKER: &str = "INSERT INTO workers (registered_at, lease_expires_at, pid, is_client, from_key, to_key, host, \
                      engine, workflows) \
                  SELECT now(), now() + interval '1 hour', 1, false, key, key, 'here', 'before', '{}' \
                  FROM executions LIMIT 1";

#[tokio::test]
async fn large_schema_is_prepared_while_older_workers_run() {
    let db = OlderSchema::new().await;
    db.sql.batch_execute(OLDER_WORKER).await.unwrap();
    // an open flush blocks the build, and the build blocks no other flush
    let flush = client(&db.schema).await;
    flush.batch_execute(&format!("BEGIN; {INSERT}")).await.unwrap();
    let cancelled = async {
        db.wait_until(BUILD_WAITS).await;
        db.sql.batch_execute(INSERT).await.unwrap();
        let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity \
                      WHERE application_name = $1 AND query LIKE '%CREATE INDEX%'";
        db.sql.query(cancel, &[&db.name()]).await.unwrap();
    };
    let (migrated, ()) = tokio::join!(db.migrate(), cancelled);
    let message = reason(migrated.unwrap_err());
    assert!(message.contains("preparing the migration") && message.contains("user request"), "{message}");
    assert!(matches!(db.index().await, Some((_, false))), "{:?}", db.index().await);
    flush.batch_execute("COMMIT").await.unwrap();

    // an interrupted build is repaired, and a finished index is kept until the workers have ended
    let mut built = None;
    for _ in 0..2 {
        db.enlarge().await;
        let message = reason(db.migrate().await.unwrap_err());
        assert!(
            message.contains(
                "workers of an older program use it, and a migration cannot stop them: here (pid 1); stop"
            ),
            "{message}"
        );
        let index = db.index().await;
        assert!(matches!(index, Some((_, true))), "{index:?}");
        assert_eq!(*built.get_or_insert(index), index, "the index is built once");
    }
    let fill = MIGRATION_V4.split_once("INSERT INTO deadlines (due_at, execution)").unwrap().1;
    let plan = db.sql.query(&format!("EXPLAIN {}", fill.split_once(';').unwrap().0), &[]).await.unwrap();
    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    assert!(plan.join("\n").contains("executions_with_deadline"), "{plan:#?}");

    db.sql.batch_execute("DELETE FROM workers").await.unwrap();
    db.enlarge().await;
    assert_eq!(db.migrate().await.unwrap(), MIGRATIONS);
    db.expect_migrated().await;
}

#[tokio::test]
async fn printed_script_prepares_large_schema() {
    let db = OlderSchema::new().await;
    // a build that failed
    let build = "CREATE UNIQUE INDEX CONCURRENTLY executions_with_deadline ON executions (workflow)";
    db.sql.batch_execute(build).await.unwrap_err();
    assert!(matches!(db.index().await, Some((_, false))), "{:?}", db.index().await);
    db.enlarge().await;
    let script = db.print_script().await;
    let (before, migration) = script.split_once("BEGIN;").unwrap();
    // as psql sends the script, in a session with another search path
    let sql = client("public").await;
    for statement in before.split_inclusive(";\n") {
        sql.batch_execute(statement).await.unwrap();
    }
    assert!(matches!(db.index().await, Some((_, true))), "{:?}", db.index().await);
    db.enlarge().await;
    assert!(db.print_script().await.starts_with("BEGIN;"), "nothing is left to prepare");
    let migration = format!("BEGIN;{migration}");
    db.sql.batch_execute(OLDER_WORKER).await.unwrap();
    let message = sql.batch_execute(&migration).await.unwrap_err();
    let message = message.as_db_error().unwrap().message();
    assert!(message.contains("workers of an older program use schema"), "{message}");
    sql.batch_execute("ROLLBACK").await.unwrap();
    db.sql.batch_execute("DELETE FROM workers").await.unwrap();
    sql.batch_execute(&migration).await.unwrap();
    assert_eq!(db.migrate().await.unwrap(), [""; 0]);
    db.expect_migrated().await;
}

#[tokio::test]
async fn small_schema_needs_no_preparation() {
    let db = OlderSchema::new().await;
    db.sql.batch_execute("ANALYZE executions").await.unwrap();
    assert!(db.print_script().await.starts_with("BEGIN;"));
    PostgresStore::open_with(url(), db.options()).await.unwrap();
    db.expect_migrated().await;
}

#[tokio::test]
async fn processes_prepare_schema_concurrently() {
    let db = OlderSchema::new().await;
    let flush = client(&db.schema).await;
    flush.batch_execute(&format!("BEGIN; {INSERT}")).await.unwrap();
    let wait_for_all = async {
        // each process has a connection that waits for its turn
        db.wait_until((8, "true")).await;
        flush.batch_execute("COMMIT").await.unwrap();
    };
    let (applied, ()) = tokio::join!(join_all((0..4).map(|_| db.migrate())), wait_for_all);
    let applied: Vec<String> = applied.into_iter().flat_map(Result::unwrap).collect();
    assert_eq!(applied, MIGRATIONS);
    db.expect_migrated().await;
}

#[tokio::test]
async fn index_build_of_dead_process_is_replaced_or_kept() {
    let db = OlderSchema::new().await;
    let flush = client(&db.schema).await;
    flush.batch_execute(&format!("BEGIN; {INSERT}")).await.unwrap();
    tokio::select! {
        migrated = db.migrate() => panic!("{migrated:?}"),
        () = db.wait_until(BUILD_WAITS) => {}
    }
    let continue_build = async {
        db.wait_until((1, "query LIKE 'DROP INDEX%' AND wait_event_type = 'Lock'")).await;
        db.wait_until(BUILD_WAITS).await;
        flush.batch_execute("COMMIT").await.unwrap();
    };
    let (applied, ()) = tokio::join!(db.migrate(), continue_build);
    assert_eq!(applied.unwrap(), MIGRATIONS);
    db.expect_migrated().await;
}
