//! What a finished database must not contain, asked of the store, and in SQL past its own code.

use rusqlite::{Connection, OpenFlags};
use stepfast::Status;
use stepfast::record::Filter;

/// What to count, and what it is called. All are zero when every execution has ended.
const QUESTIONS: &[(&str, &str)] = &[
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

/// Asks a store for what has not ended.
pub fn unended() -> Filter {
    let statuses = vec![Status::Scheduled, Status::Queued, Status::Running, Status::Waiting];
    Filter { statuses, ..Filter::default() }
}

/// What is left in the database at `url` although all is done.
pub async fn of(url: &str) -> Vec<String> {
    match url.strip_prefix("sqlite:") {
        Some(path) => of_sqlite(path),
        None => of_postgres(url).await,
    }
}

fn of_sqlite(path: &str) -> Vec<String> {
    let mut left = Vec::new();
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
    for (what, sql) in QUESTIONS {
        let count: i64 = db.query_row(sql, [], |row| row.get(0)).unwrap();
        if count > 0 {
            left.push(format!("{count} {what}"));
        }
    }
    let integrity: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    if integrity != "ok" {
        left.push(format!("integrity_check: {integrity}"));
    }
    left
}

async fn of_postgres(url: &str) -> Vec<String> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("SET search_path TO stepfast").await.unwrap();
    let mut left = Vec::new();
    for (what, sql) in QUESTIONS {
        let count: i64 = client.query_one(*sql, &[]).await.unwrap().get(0);
        if count > 0 {
            left.push(format!("{count} {what}"));
        }
    }
    left
}

/// What is wrong with the file itself, finished or not: damage, and deliveries that are not numbered 1 to n.
pub fn damage(path: &str) -> Vec<String> {
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
    let integrity: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    if integrity == "ok" { Vec::new() } else { vec![format!("integrity_check: {integrity}")] }
}
