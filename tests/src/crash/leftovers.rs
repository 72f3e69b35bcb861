//! Leftovers: rows that a finished database must not contain, found through the store and by SQL.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OpenFlags};
use stepfast::Status;
use stepfast::store::Filter;

use crate::StoreFixture;

/// Names of leftovers, with the SQL that counts them. All are zero when every execution has ended.
const CHECKS: &[(&str, &str)] = &[
    ("rows in ready", "SELECT count(*) FROM ready"),
    ("rows in quarantine", "SELECT count(*) FROM quarantine"),
    ("rows in timers", "SELECT count(*) FROM timers"),
    ("rows in waits", "SELECT count(*) FROM waits"),
    ("rows in requests", "SELECT count(*) FROM requests"),
    ("rows in slots", "SELECT count(*) FROM slots"),
    ("rows in batches", "SELECT count(*) FROM batches"),
    ("rows in inbox", "SELECT count(*) FROM inbox"),
    ("executions without an end", "SELECT count(*) FROM executions WHERE status < 4 OR ended_at IS NULL"),
    ("executions with an owner", "SELECT count(*) FROM executions WHERE owner IS NOT NULL"),
    (
        "running executions of owners that are not registered",
        "SELECT count(*) FROM executions e WHERE status = 2 AND NOT EXISTS \
         (SELECT 1 FROM workers w WHERE w.worker_id = e.owner)",
    ),
    (
        "children of no execution",
        "SELECT count(*) FROM executions c WHERE parent IS NOT NULL AND NOT EXISTS \
         (SELECT 1 FROM executions e WHERE e.key = c.parent)",
    ),
    (
        "deliveries with the same number",
        "SELECT count(*) FROM (SELECT 1 FROM checkpoints GROUP BY execution, order_no HAVING count(*) > 1) twice",
    ),
    (
        "executions whose deliveries are not numbered 1 to n",
        "SELECT count(*) FROM (SELECT 1 FROM checkpoints GROUP BY execution \
         HAVING min(order_no) <> 1 OR max(order_no) <> count(*)) gaps",
    ),
];

/// Leftovers that only SQLite has.
const SQLITE_CHECKS: &[(&str, &str)] = &[
    (
        // the checkpoints of an item belong to its batch
        "checkpoints of no execution",
        "SELECT count(*) FROM checkpoints c WHERE NOT EXISTS (SELECT 1 FROM executions e WHERE e.key = CASE \
         WHEN substr(c.execution, 9, 1) < x'C0' THEN c.execution \
         ELSE substr(c.execution, 1, 10) || x'FFFFFFFF' || substr(c.execution, 15) END)",
    ),
    (
        "assignments of no registration",
        "SELECT count(*) FROM assignments WHERE worker_id NOT IN (SELECT worker_id FROM workers)",
    ),
    (
        "lanes of no registration",
        "SELECT count(*) FROM lanes WHERE worker_id NOT IN (SELECT worker_id FROM workers)",
    ),
    (
        "chunks of no value",
        "SELECT count(*) FROM chunks c WHERE NOT EXISTS (\
       SELECT 1 FROM (SELECT key AS execution, input AS payload FROM executions \
                      UNION ALL SELECT key, outcome FROM executions \
                      UNION ALL SELECT execution, outcome FROM checkpoints) p \
       WHERE p.execution = c.execution AND hex(substr(p.payload, 1, 9)) = printf('81%016X', c.value))",
    ),
];

/// Leftovers that only Postgres has.
const POSTGRES_CHECKS: &[(&str, &str)] = &[
    (
        // the checkpoints of an item belong to its batch
        "checkpoints of no execution",
        "SELECT count(*) FROM checkpoints c WHERE NOT EXISTS (SELECT 1 FROM executions e WHERE e.key = CASE \
         WHEN get_byte(uuid_send(c.execution), 8) < 192 THEN c.execution \
         ELSE overlay(replace(c.execution::text, '-', '') PLACING 'ffffffff' FROM 21)::uuid END)",
    ),
    ("rows in deadlines", "SELECT count(*) FROM deadlines"),
    (
        "lanes that no later registration deletes",
        "SELECT count(*) FROM lanes l WHERE ended_at IS NULL AND NOT EXISTS \
         (SELECT 1 FROM workers w WHERE w.worker_id = l.worker_id)",
    ),
    (
        "assignments of no registration",
        "SELECT count(*) FROM assignments c WHERE NOT EXISTS \
         (SELECT 1 FROM workers w WHERE w.worker_id = c.worker_id)",
    ),
    (
        "chunks of no value",
        "SELECT count(*) FROM chunks c WHERE NOT EXISTS (\
           SELECT 1 FROM (SELECT key AS execution, input AS payload FROM executions \
                          UNION ALL SELECT key, outcome FROM executions \
                          UNION ALL SELECT execution, outcome FROM checkpoints) p \
           WHERE p.execution = c.execution \
             AND substring(p.payload FROM 1 FOR 9) = '\\x81'::bytea || int8send(c.value))",
    ),
];

/// Leftovers of a database whose engines have all ended.
const CLOSED_CHECKS: &[(&str, &str)] = &[
    ("rows in workers", "SELECT count(*) FROM workers"),
    // the last start of each key counts
    ("old rows in rates", "SELECT max(0, count(*) - 8) FROM rates"),
];

/// Every table of both schemas, with the rule that says what deletes its rows. A table without a rule would grow for ever
/// unnoticed.
pub const RULES: &[(&str, &str)] = &[
    ("executions", "kept: the history"),
    ("checkpoints", "kept: the history; a resume deletes the failures at the end"),
    ("attempts", "kept: the history; a resume deletes those of the failures at the end"),
    ("attributes", "kept: the history"),
    ("payloads", "deleted with the column that refers to them"),
    ("chunks", "withdrawn when no row will refer to their value, or deleted by the next run"),
    ("batches", "the end of the batch"),
    ("bundles", "kept: the history"),
    ("packs", "kept: the history"),
    ("ready", "claims and requests"),
    ("quarantine", "claims and requests"),
    ("timers", "claims, Wakes and requests"),
    ("deadlines", "claims, ends and requests"),
    ("waits", "Wakes, claims and requests"),
    ("messages", "their receipt; messages that nothing receives are kept with their execution"),
    ("message_ids", "kept with their execution"),
    ("stream_entries", "kept with their execution"),
    ("requests", "the owner, the end of the execution, resumes"),
    ("slots", "the end of a run, takeovers and the sweep"),
    ("assignments", "heartbeats of the worker, and the end of its registration"),
    ("rates", "later claims of the queue"),
    ("depths", "changes of the queue; one row per queue"),
    ("queues", "kept: one row per queue"),
    ("graphs", "kept: one row per graph"),
    ("inbox", "claims"),
    ("dead_letters", "operators"),
    ("workers", "the end of the registration"),
    ("lanes", "the end of the registration; on Postgres, of another one a day later"),
    ("shard", "kept: one row"),
    ("flushes", "kept: one row"),
    ("schema_version", "kept: one row per migration"),
    ("sqlite_sequence", "kept: one row per table, by SQLite"),
    ("probe", "the test that makes it"),
    ("tenants", "the tests' later version of the schema"),
    ("strangers", "the tests' later version of the schema"),
];

/// Returns the SQL that counts the tables without a rule. `tables` selects the column `name` of all tables.
fn count_tables_without_rule(tables: &str) -> String {
    let names: Vec<String> = RULES.iter().map(|(name, _)| format!("'{name}'")).collect();
    format!("SELECT count(*) FROM ({tables}) AS t WHERE name NOT IN ({})", names.join(", "))
}

const SQLITE_TABLES: &str = "SELECT name FROM sqlite_master WHERE type = 'table'";
const POSTGRES_TABLES: &str =
    "SELECT table_name AS name FROM information_schema.tables WHERE table_schema = current_schema()";

/// Returns the leftovers of the database of a fixture, in which every execution and every engine has ended. Returns none
/// for a store without SQL.
pub async fn find_in_fixture(fixture: &dyn StoreFixture) -> Vec<String> {
    let Some(version) = fixture.try_execute("SELECT sqlite_version()").await else { return Vec::new() };
    let (checks, tables) =
        if version.is_ok() { (SQLITE_CHECKS, SQLITE_TABLES) } else { (POSTGRES_CHECKS, POSTGRES_TABLES) };
    let without_rule = count_tables_without_rule(tables);
    let all = CHECKS.iter().chain(CLOSED_CHECKS).chain(checks).copied();
    let mut left = Vec::new();
    for (what, sql) in all.chain([("tables without a rule", without_rule.as_str())]) {
        // a fixture executes SQL and returns no rows: the check of a column rejects every count but zero
        let sql = if version.is_ok() { sql.to_owned() } else { sql.replace("max(0, ", "greatest(0, ") };
        let probe = format!(
            "DROP TABLE IF EXISTS probe; CREATE TABLE probe (n integer CHECK (n = 0)); \
             INSERT INTO probe {sql}; DROP TABLE probe;"
        );
        if let Some(Err(error)) = fixture.try_execute(&probe).await {
            left.push(format!("{what}: {error}"));
        }
    }
    left
}

/// Returns a filter for executions that have not ended.
pub fn unfinished_filter() -> Filter {
    let statuses = vec![Status::Scheduled, Status::Queued, Status::Running, Status::Waiting];
    Filter { statuses, ..Filter::default() }
}

/// Returns the leftovers of the database at `url`, in which every execution has ended.
pub async fn find_leftovers(url: &str) -> Vec<String> {
    match url.strip_prefix("sqlite:") {
        Some(path) => find_in_sqlite(path),
        None => find_in_postgres(url).await,
    }
}

fn find_in_sqlite(path: &str) -> Vec<String> {
    let mut left = Vec::new();
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
    for (what, sql) in CHECKS {
        let count: i64 = db.query_row(sql, [], |row| row.get(0)).unwrap();
        if count > 0 {
            left.push(format!("{count} {what}"));
        }
    }
    let without_rule: i64 =
        db.query_row(&count_tables_without_rule(SQLITE_TABLES), [], |row| row.get(0)).unwrap();
    if without_rule > 0 {
        left.push(format!("{without_rule} tables without a rule"));
    }
    left.extend(find_integrity_errors(&db));
    left
}

async fn find_in_postgres(url: &str) -> Vec<String> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("SET search_path TO stepfast").await.unwrap();
    let mut left = Vec::new();
    let without_rule = count_tables_without_rule(POSTGRES_TABLES);
    let chunks = |(what, _): &&(&str, &str)| !what.contains("chunks");
    let all = CHECKS.iter().chain(POSTGRES_CHECKS.iter().filter(chunks)).copied();
    for (what, sql) in all.chain([("tables without a rule", without_rule.as_str())]) {
        let count: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
        if count > 0 {
            left.push(format!("{count} {what}"));
        }
    }
    left
}

/// Returns the integrity errors of a SQLite file, finished or not.
pub fn integrity_errors(path: &str) -> Vec<String> {
    find_integrity_errors(&Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap())
}

fn find_integrity_errors(db: &Connection) -> Vec<String> {
    let integrity: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    let mut damage =
        if integrity == "ok" { Vec::new() } else { vec![format!("integrity_check: {integrity}")] };
    damage.extend(find_inconsistent_pieces(db));
    damage
}

/// Columns with payloads, which may refer to pieces.
const PAYLOAD_COLUMNS_SQL: &str = "SELECT input FROM executions UNION ALL SELECT outcome FROM executions \
    UNION ALL SELECT outcome FROM checkpoints UNION ALL SELECT failure FROM attempts UNION ALL SELECT outcomes FROM packs";

/// Returns the pieces of payloads to which not exactly one column refers.
fn find_inconsistent_pieces(db: &Connection) -> Vec<String> {
    let mut references = BTreeMap::new();
    let referring =
        format!("SELECT p.input FROM ({PAYLOAD_COLUMNS_SQL}) AS p WHERE hex(substr(p.input, 1, 1)) = 'FF'");
    let mut statement = db.prepare(&referring).unwrap();
    let mut rows = statement.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let bytes: [u8; 17] = row.get(0).unwrap();
        let first = i64::from_be_bytes(*bytes[1..].first_chunk().unwrap());
        let pieces = u32::from_be_bytes(*bytes[13..].first_chunk().unwrap());
        for piece in first..first + i64::from(pieces) {
            *references.entry(piece).or_insert(0) += 1;
        }
    }
    let mut pieces = db.prepare("SELECT id FROM payloads").unwrap();
    let pieces: BTreeSet<i64> = pieces.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let without_reference = pieces.iter().filter(|piece| !references.contains_key(piece));
    let mut unreferenced: Vec<String> =
        without_reference.map(|piece| format!("piece {piece} of no payload")).collect();
    for (piece, count) in references {
        if count != 1 || !pieces.contains(&piece) {
            let state = if pieces.contains(&piece) { "exists" } else { "is missing" };
            unreferenced.push(format!("{count} references to piece {piece}, which {state}"));
        }
    }
    unreferenced
}
