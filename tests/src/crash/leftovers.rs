//! Leftovers: rows that a finished database must not contain, found through the store and by SQL.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OpenFlags};
use stepfast::Status;
use stepfast::store::Filter;

/// Names of leftovers, with the SQL that counts them. All are zero when every execution has ended.
const CHECKS: &[(&str, &str)] = &[
    ("rows in ready", "SELECT count(*) FROM ready"),
    ("rows in quarantine", "SELECT count(*) FROM quarantine"),
    ("rows in timers", "SELECT count(*) FROM timers"),
    ("rows in waits", "SELECT count(*) FROM waits"),
    ("rows in requests", "SELECT count(*) FROM requests"),
    ("rows in slots", "SELECT count(*) FROM slots"),
    ("rows in inbox", "SELECT count(*) FROM inbox"),
    ("executions without an end", "SELECT count(*) FROM executions WHERE status < 4 OR ended_at IS NULL"),
    ("executions with an owner", "SELECT count(*) FROM executions WHERE owner IS NOT NULL"),
    (
        "running executions of owners that are not registered",
        "SELECT count(*) FROM executions e WHERE status = 2 AND NOT EXISTS \
         (SELECT 1 FROM workers w WHERE w.worker_id = e.owner)",
    ),
    (
        "checkpoints of no execution",
        "SELECT count(*) FROM checkpoints c WHERE NOT EXISTS \
         (SELECT 1 FROM executions e WHERE e.key = c.execution)",
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
    left.extend(find_integrity_errors(&db));
    left
}

async fn find_in_postgres(url: &str) -> Vec<String> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("SET search_path TO stepfast").await.unwrap();
    let mut left = Vec::new();
    for (what, sql) in CHECKS {
        let count: i64 = client.query_one(*sql, &[]).await.unwrap().get(0);
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
    UNION ALL SELECT outcome FROM checkpoints UNION ALL SELECT failure FROM attempts";

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
