//! Costs of searches: they do not grow with the rows of the worker's own routes, nor with those of other services.

#![allow(clippy::unwrap_used)]

mod support;

use rusqlite::{Connection, Statement, StatementStatus, params_from_iter};
use stepfast_core::key::Key;
use stepfast_core::path::Path;
use stepfast_core::store::{Checkpoint, CheckpointKind, Route, Write};
use support::*;

/// Maximum number of steps of SQLite's virtual machine for a search that visits a few rows.
const MAX_STEPS: i32 = 400;

/// Inserts rows of `ready` and of `timers` for a workflow.
fn insert_rows(conn: &Connection, workflow: &str, count: u32) {
    for table in ["ready (execution, route, seq)", "timers (execution, route, due_at, is_scheduled)"] {
        let column = if table.starts_with("ready") { "1000 + n" } else { "4000000000000000, 1" };
        let sql = format!(
            "WITH RECURSIVE numbers (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})
             INSERT INTO {table} SELECT randomblob(16), ?1, {column} FROM numbers"
        );
        conn.execute(&sql, [Route::new(workflow, None, "default").as_str()]).unwrap();
    }
}

/// Asserts that a query returns these texts, and takes few steps.
fn assert_cheap(conn: &Connection, query: &str, params: &[&str], expected: Option<(&str, &str)>) {
    let mut statement = conn.prepare(query).unwrap();
    let mut rows = statement.query(params_from_iter(params)).unwrap();
    let text = |row: &rusqlite::Row<'_>, i| match row.get_ref(i).unwrap() {
        rusqlite::types::ValueRef::Integer(number) => number.to_string(),
        value => value.as_str().unwrap().to_owned(),
    };
    let found = rows.next().unwrap().map(|row| (text(row, 0), text(row, row.as_ref().column_count() - 1)));
    assert_eq!(found.as_ref().map(|(a, b)| (a.as_str(), b.as_str())), expected, "{query}");
    drop(rows);
    assert_steps(&statement, query, MAX_STEPS);
}

/// Asserts that the statement has taken fewer steps than this.
fn assert_steps(statement: &Statement<'_>, query: &str, limit: i32) {
    let steps = statement.get_status(StatementStatus::VmStep);
    assert!(steps < limit, "{steps} steps: {query}");
}

#[tokio::test]
async fn hops_do_not_step_over_rows() {
    let (_dir, path) = temp_database();
    let _worker = Worker::at(&path).await;
    let conn = Connection::open(&path).unwrap();
    for workflow in ["a", "b", "c"] {
        insert_rows(&conn, workflow, 5_000);
    }
    let ready = include_str!("../queries/next_ready_route.sql");
    let timer = include_str!("../queries/next_timer_route.sql");
    for query in [ready, timer] {
        let (before, end) = Route::bounds("b");
        let route = Route::new("b", None, "default");
        assert_cheap(&conn, query, &[&before, &end], Some((route.as_str(), route.as_str())));
        assert_cheap(&conn, query, &[route.as_str(), &end], None);
    }
    let depth = include_str!("../queries/count_depth.sql");
    assert_cheap(&conn, depth, &["another"], Some(("0", "0")));
    // executions that sleep do not count
    let naps = Route::new("b", None, "naps");
    let sleepers =
        "INSERT INTO timers (execution, route, due_at) SELECT randomblob(16), ?1, due_at FROM timers";
    conn.execute(sleepers, [naps.as_str()]).unwrap();
    let scheduled =
        "INSERT INTO timers (execution, route, due_at, is_scheduled) VALUES (randomblob(16), ?1, 9, 1)";
    conn.execute(scheduled, [naps.as_str()]).unwrap();
    assert_cheap(&conn, depth, &["naps"], Some(("1", "1")));
}

#[tokio::test]
async fn search_for_last_part_does_not_step_over_earlier_parts() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let (key, parts, calls) = (Key::mint(0), 515, 20);
    worker.commit(vec![start_write(start(key, running()))]).await;
    let mut writes = Vec::new();
    let mut order = 0;
    for part in 0..parts {
        let begin = Path::root().child((1 << 23) + part);
        let paths = (0..=calls).map(|call| if call == 0 { begin.clone() } else { begin.child(call) });
        for (path, kind) in
            paths.zip([CheckpointKind::Continued].into_iter().chain(std::iter::repeat(CheckpointKind::Step)))
        {
            order += 1;
            writes.push(Write::Checkpoint(Checkpoint { path, kind, order, ..checkpoint(key, 1, "") }));
        }
    }
    worker.commit(writes).await;
    let conn = Connection::open(&path).unwrap();
    let find_cheaply = |query: &str, params: &[&[u8]], rows: usize| {
        let mut statement = conn.prepare(query).unwrap();
        let first_bytes =
            |row: &rusqlite::Row<'_>| Ok(row.get_ref(0)?.as_bytes().unwrap_or_default().to_vec());
        let found: Vec<Vec<u8>> =
            statement.query_map(params_from_iter(params), first_bytes).unwrap().map(Result::unwrap).collect();
        assert_eq!(found.len(), rows, "{query}");
        assert_steps(&statement, query, MAX_STEPS * (1 + rows as i32 / 10));
        found
    };
    let begin =
        find_cheaply(include_str!("../queries/last_continuation.sql"), &[key.as_bytes()], 1).remove(0);
    assert_eq!(begin, Path::root().child((1 << 23) + parts - 1).as_bytes());
    let rows = 1 + calls as usize;
    find_cheaply(include_str!("../queries/checkpoints.sql"), &[key.as_bytes(), &begin], rows);
    find_cheaply(include_str!("../queries/progress.sql"), &[key.as_bytes(), &begin], 1);
}
