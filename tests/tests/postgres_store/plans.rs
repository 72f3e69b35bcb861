//! Plans: every hot statement finds its rows by index, whatever the statistics say.

use stepfast_postgres::statements::Sql;
use tokio_postgres::SimpleQueryMessage;

use super::support::*;

/// Statements of flushes, claims and looks, with the scans that may walk an index without a condition.
const HOT: &[(Sql, &[&str])] = &[
    (Sql::Fence, &[]),
    (Sql::Prove, &[]),
    (Sql::Behind, &[]),
    (Sql::Lane, &[]),
    (Sql::Lock, &[]),
    (Sql::MoveEnded, &[]),
    (Sql::Move, &[]),
    (Sql::RequeueRequested, &[]),
    // whether there are any
    (Sql::Forget, &["on requests others"]),
    (Sql::Wake, &[]),
    (Sql::StartRunning, &[]),
    (Sql::StartEnded, &[]),
    (Sql::StartNamed, &[]),
    (Sql::StartQueued, &[]),
    (Sql::StartYielding, &[]),
    (Sql::Start, &[]),
    (Sql::Checkpoint, &["on requests others"]),
    (Sql::Attempt, &["on requests others"]),
    (Sql::Chunk, &[]),
    (Sql::Discard, &[]),
    (Sql::Ready, &[]),
    (Sql::ReadyAgain, &[]),
    (Sql::Unslot, &[]),
    (Sql::Timer, &[]),
    (Sql::Wait, &[]),
    (Sql::Answer, &[]),
    (Sql::Cancel, &[]),
    (Sql::Resume, &[]),
    (Sql::Withdraw, &[]),
    (Sql::Request, &[]),
    (Sql::Unready, &[]),
    (Sql::Unquarantine, &[]),
    (Sql::Untimer, &[]),
    (Sql::Unwait, &[]),
    (Sql::Existing, &[]),
    (Sql::Asked, &[]),
    // the first of an order
    (Sql::Merge, &[]),
    (Sql::Boundless, &[]),
    (Sql::Depths, &[]),
    (Sql::CountDepths, &[]),
    (Sql::KeepDepths, &[]),
    (Sql::Open, &["ready_order"]),
    (Sql::AwaitTurn, &[]),
    (Sql::LockQueue, &[]),
    (Sql::AwaitExecution, &[]),
    (Sql::Slots, &[]),
    (Sql::KeySlots, &[]),
    (Sql::Used, &[]),
    (Sql::EnterStarts, &[]),
    (Sql::Keys, &[]),
    (Sql::Due, &["timers_due", "inbox_id"]),
    (Sql::Receive, &["inbox_id", "on shard"]),
    (Sql::FirstLetter, &["inbox_id"]),
    (Sql::Bury, &[]),
    (Sql::Admit, &["timers_due"]),
    (Sql::Take, &["timers_due"]),
    (Sql::Slot, &[]),
    (Sql::Quarantined, &["quarantine_due"]),
    (Sql::TakeQuarantined, &[]),
    (Sql::Checkpoints, &[]),
    (Sql::Attempts, &[]),
    (Sql::Requests, &[]),
    // small tables, the first of an order, and owners hopped over
    (
        Sql::Look,
        &[
            "inbox_id",
            "on requests",
            "on ready",
            "timers_due",
            "quarantine_due",
            "on workers",
            "executions_owner",
            // one row
            "on shard",
        ],
    ),
    (Sql::Owned, &[]),
    (Sql::Enter, &[]),
    (Sql::Unentered, &[]),
    (Sql::ForgetClaims, &[]),
    (Sql::ForgetAllClaims, &[]),
    (Sql::ClaimedBy, &[]),
    (Sql::Load, &[]),
    (Sql::Attribute, &[]),
    (Sql::Attributes, &[]),
    (Sql::ListByAttribute, &[]),
    (Sql::CountByAttribute, &[]),
    (Sql::LockWorker, &[]),
    (Sql::LockLanes, &[]),
    (Sql::BumpLanes, &[]),
    (Sql::BumpWorker, &[]),
    (Sql::EnterAll, &[]),
    (Sql::Unregister, &[]),
    (Sql::Requeue, &[]),
    (Sql::Value, &[]),
    // small tables, walked in the order of an index
    (Sql::Stale, &[]),
    (Sql::Satisfied, &["on waits"]),
    (Sql::StraySlots, &["on slots"]),
];

/// What has no plan that could rot: it is no query, inserts a row, looks at the few workers, or is a list for people.
const OTHERS: &[Sql] = &[
    Sql::Replan,
    Sql::Time,
    Sql::Register,
    Sql::Versions,
    Sql::Lost,
    Sql::List,
    Sql::Count,
    Sql::Workers,
    Sql::Waiting,
    Sql::DeadLetters,
    Sql::Queues,
    Sql::SetQueue,
    Sql::RunningIn,
    Sql::BeforeSlots,
    Sql::TakeSlotsBack,
];

#[test]
fn every_statement_is_classified() {
    for sql in Sql::ALL {
        let is_hot = HOT.iter().any(|(hot, _)| hot == sql);
        assert!(is_hot != OTHERS.contains(sql), "{sql:?} belongs to one of HOT and OTHERS");
    }
}

async fn fill(db: &Fixture, rows: u32) {
    db.sql
        .batch_execute(&format!(
            "INSERT INTO executions (created_at, status, key, owner, parent, workflow, workflow_id, input) \
             SELECT now(), i % 5, gen_random_uuid(), CASE WHEN i % 5 = 2 THEN i % 3 END, \
                    CASE WHEN i % 4 = 0 THEN gen_random_uuid() END, 'order', 'id-' || gen_random_uuid(), 'x' \
             FROM generate_series(1, {rows}) i; \
             TRUNCATE attributes, checkpoints, attempts, chunks, ready, timers, waits, requests, queues, depths, slots, rates, claims, inbox, deadlines; \
             INSERT INTO checkpoints SELECT now(), 1, 1, null, 1, 1, key, 'a', 's', 'o' FROM executions; \
             INSERT INTO attempts SELECT now(), 1, key, 'a', 'f' FROM executions; \
             INSERT INTO attributes SELECT key, 'n', 'v' FROM executions; \
             INSERT INTO chunks SELECT 1, 1, key, 'x' FROM executions; \
             INSERT INTO ready (execution, workflow) SELECT key, 'order' FROM executions; \
             INSERT INTO queues (version, changed_at, is_paused, is_serial, name) \
             SELECT 1, now(), false, true, key::text FROM executions; \
             INSERT INTO inbox (key, workflow, input) SELECT key, 'order', '' FROM executions; \
             INSERT INTO depths SELECT 1, 1, key::text FROM executions; \
             INSERT INTO rates SELECT now(), 1, true, 'default', key::text FROM executions; \
             INSERT INTO slots SELECT 1, key, 'default', key::text FROM executions; \
             INSERT INTO claims SELECT 1, row_number() OVER (ORDER BY key), ARRAY[key] FROM executions; \
             INSERT INTO timers SELECT now(), key FROM executions; \
             INSERT INTO deadlines SELECT now(), key FROM executions; \
             INSERT INTO waits SELECT key, key FROM executions; \
             INSERT INTO requests SELECT now(), 1, key, key FROM executions",
        ))
        .await
        .unwrap();
}

#[tokio::test]
async fn every_hot_statement_uses_an_index() {
    let db = Fixture::new().await;
    db.sql.batch_execute(&db.store.lane_settings()).await.unwrap();
    // somebody may look after a table when it is to be changed
    db.sql.batch_execute("SET lock_timeout = 0").await.unwrap();
    let more = [
        "workers",
        "lanes",
        "queues",
        "depths",
        "slots",
        "rates",
        "claims",
        "inbox",
        "attributes",
        "deadlines",
    ];
    for table in TABLES.iter().chain(&more) {
        let no_surprises = format!("ALTER TABLE {table} SET (autovacuum_enabled = off)");
        db.sql.batch_execute(&no_surprises).await.unwrap();
    }
    // A plan is kept for a while: one that was made for few rows must do for many. Below a few hundred rows any plan
    // is good, and lanes plan again while the tables grow.
    for (statistics, rows, analyze) in [
        ("empty", 0, false),
        ("400 rows, old statistics", 400, false),
        ("400 rows, analyzed", 0, true),
        ("3,000 rows, old statistics", 3000, false),
        ("3,000 rows, analyzed", 0, true),
        ("3,000 rows, roles analyzed while they were empty", 0, true),
    ] {
        if rows > 0 {
            fill(&db, rows).await;
        }
        if statistics.contains("while they were empty") {
            let roles = "TRUNCATE attempts, chunks, ready, timers, waits, requests, queues, depths, slots, rates, \
                 claims";
            db.sql.batch_execute(roles).await.unwrap();
        }
        if analyze {
            db.sql.batch_execute("ANALYZE").await.unwrap();
        }
        for &(sql, walks) in HOT {
            let types = db.sql.prepare(sql.text()).await.unwrap();
            let types: Vec<String> = types.params().iter().map(|ty| sql_name(ty.name())).collect();
            let nulls = vec!["NULL"; types.len()].join(", ");
            let arguments = |list: &str| if types.is_empty() { String::new() } else { format!("({list})") };
            db.sql
                .batch_execute(&format!("PREPARE hot{} AS {}", arguments(&types.join(", ")), sql.text()))
                .await
                .unwrap();
            let explain = format!("EXPLAIN (COSTS OFF) EXECUTE hot{}", arguments(&nulls));
            let plan: Vec<String> = (db.sql.simple_query(&explain).await.unwrap().into_iter())
                .filter_map(|message| match message {
                    SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                    _ => None,
                })
                .collect();
            check(sql, statistics, walks, &plan);
            db.sql.batch_execute("DEALLOCATE hot").await.unwrap();
        }
    }
}

fn sql_name(name: &str) -> String {
    match name.strip_prefix('_') {
        Some(element) => format!("{element}[]"),
        None => name.to_owned(),
    }
}

fn check(sql: Sql, statistics: &str, walks: &[&str], plan: &[String]) {
    let text = plan.join("\n");
    for (i, line) in plan.iter().enumerate() {
        let is_walk = walks.iter().any(|walk| line.contains(walk));
        assert!(is_walk || !line.contains("Seq Scan"), "{sql:?}, statistics: {statistics}\n{text}");
        let is_scan = line.contains("Index Scan") || line.contains("Index Only Scan");
        if is_scan && !is_walk {
            let condition = plan.get(i + 1).is_some_and(|next| next.trim_start().starts_with("Index Cond"));
            assert!(condition, "{sql:?}, statistics: {statistics}: {line}\n{text}");
        }
    }
    // what has waited is found without a walk through what has not
    if matches!(sql, Sql::Take | Sql::Open) {
        assert!(text.contains("ready_woken"), "{sql:?}, statistics: {statistics}\n{text}");
    }
    // owned rows are found by key too, not by going through all that the worker owns
    if matches!(sql, Sql::Move | Sql::MoveEnded | Sql::RequeueRequested | Sql::Cancel | Sql::Resume | Sql::Wake) {
        assert!(text.contains("executions_key"), "{sql:?}\n{text}");
        assert!(!text.contains("executions_owner"), "{sql:?}\n{text}");
    }
}
