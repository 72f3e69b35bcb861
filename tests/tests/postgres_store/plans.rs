//! Plans: every hot statement finds its rows by index, independent of the statistics.

use regex::Regex;
use stepfast_postgres::statements::Sql;
use tokio_postgres::SimpleQueryMessage;

use super::support::*;

/// Statements of flushes, claims and heartbeats, with the scans that may walk an index without a condition.
const HOT_STATEMENTS: &[(Sql, &[&str])] = &[
    (Sql::Fence, &[]),
    (Sql::TouchLane, &[]),
    (Sql::RegressedLanes, &[]),
    (Sql::LaneState, &[]),
    (Sql::LockExecutions, &[]),
    (Sql::Finish, &[]),
    (Sql::Transition, &[]),
    (Sql::RequeueRequested, &[]),
    (Sql::SettlePauses, &[]),
    // checks whether any request exists
    (Sql::DeleteRequests, &["on requests others"]),
    (Sql::Wake, &[]),
    (Sql::StartRunning, &[]),
    (Sql::StartEnded, &[]),
    (Sql::StartNamed, &[]),
    (Sql::StartQueued, &[]),
    (Sql::StartSelfClaiming, &[]),
    (Sql::Start, &[]),
    (Sql::InsertBatches, &[]),
    (Sql::InsertRetriedItems, &[]),
    (Sql::StartBundles, &[]),
    (Sql::LockBatches, &[]),
    (Sql::CloseBatches, &[]),
    (Sql::EndBatches, &[]),
    (Sql::DeleteBatches, &[]),
    (Sql::InsertPacks, &[]),
    (Sql::InsertCheckpoints, &["on requests others"]),
    (Sql::InsertAttempts, &["on requests others"]),
    (Sql::InsertChunks, &[]),
    (Sql::WithdrawValues, &[]),
    (Sql::DeleteChunks, &[]),
    (Sql::Ready, &[]),
    (Sql::ReadyResumed, &[]),
    (Sql::FreeSlots, &[]),
    (Sql::InsertTimers, &[]),
    (Sql::InsertWaits, &[]),
    (Sql::SendMessages, &[]),
    (Sql::ForwardMessages, &[]),
    (Sql::DeleteMessages, &[]),
    (Sql::InsertStreamEntries, &[]),
    (Sql::ClearRequests, &[]),
    (Sql::DeletePauses, &[]),
    (Sql::Cancel, &[]),
    (Sql::Park, &[]),
    (Sql::Resume, &[]),
    (Sql::RetractFailures, &[]),
    (Sql::InsertRequests, &[]),
    (Sql::DeleteReady, &[]),
    (Sql::DeleteQuarantine, &[]),
    (Sql::DeleteTimers, &[]),
    (Sql::DeleteWaits, &[]),
    (Sql::KeepRejected, &[]),
    (Sql::KeepDecided, &[]),
    (Sql::PendingRequests, &[]),
    // the first of an order
    (Sql::StartDebounced, &[]),
    (Sql::AssertNoDepthLimit, &[]),
    (Sql::LockDepths, &[]),
    // the first pair of workflow and version
    (Sql::CountDepths, &["timers_scheduled", "ready_order"]),
    (Sql::UpdateDepths, &[]),
    (Sql::LockReadyQueues, &[]),
    (Sql::LockQueues, &[]),
    (Sql::AwaitClaimLock, &[]),
    (Sql::LockQueue, &[]),
    (Sql::ShareQueue, &[]),
    (Sql::AwaitExecution, &[]),
    (Sql::CountSlots, &[]),
    (Sql::CountKeySlots, &[]),
    (Sql::RateUsage, &[]),
    (Sql::RecordStarts, &[]),
    (Sql::NextKeys, &[]),
    (Sql::CheckDue, &["inbox_id"]),
    (Sql::DrainInbox, &["inbox_id", "on shard"]),
    (Sql::FirstInboxRow, &["inbox_id"]),
    (Sql::InsertDeadLetter, &[]),
    (Sql::QueueDue, &[]),
    (Sql::Claim, &[]),
    (Sql::TakeSlots, &[]),
    (Sql::QuarantineCandidates, &[]),
    (Sql::ClaimQuarantined, &[]),
    (Sql::Checkpoints, &[]),
    (Sql::Attempts, &[]),
    (Sql::CheckpointsOfPart, &[]),
    (Sql::AttemptsOfPart, &[]),
    (Sql::Requests, &[]),
    (Sql::Packs, &[]),
    (Sql::PromotedItems, &[]),
    (Sql::ItemCheckpoints, &[]),
    (Sql::ItemAttempts, &[]),
    (Sql::Find, &[]),
    (Sql::NewestBatch, &[]),
    (Sql::Bundles, &[]),
    (Sql::BatchItems, &[]),
    (Sql::PendingMessages, &[]),
    (Sql::PendingTopics, &[]),
    (Sql::Events, &[]),
    (Sql::EventWaiters, &[]),
    (Sql::StreamEntries, &[]),
    (Sql::Waits, &[]),
    // one row
    (Sql::Renew, &["on shard"]),
    // the first rows of an order
    (Sql::Look, &["inbox_id"]),
    (Sql::HasInboxRows, &["inbox_id"]),
    (Sql::BeginSweep, &["on shard"]),
    (Sql::OwnedExecutions, &[]),
    (Sql::TidyAssignments, &[]),
    (Sql::Load, &[]),
    (Sql::InsertAttributes, &[]),
    (Sql::Attributes, &[]),
    (Sql::ListByAttribute, &[]),
    (Sql::CountByAttribute, &[]),
    // the newest version is the first row of a walk
    (Sql::LockWorker, &["Backward using schema_version_pkey"]),
    (Sql::LockLanes, &[]),
    (Sql::RaiseLaneEpochs, &[]),
    (Sql::RaiseWorkerEpoch, &[]),
    (Sql::Unregister, &[]),
    (Sql::Requeue, &[]),
    (Sql::LoadChunks, &[]),
    // small tables, walked in the order of an index
    (Sql::DeleteStaleReady, &[]),
    (Sql::SatisfiedWaits, &["on waits", "on batches"]),
    (Sql::ClosedBatches, &[]),
    (Sql::CompleteBatches, &[]),
    (Sql::DeleteOrphanedSlots, &["on slots"]),
];

/// Statements without a plan that could degrade: no queries, inserts of single rows, scans of the few workers, or lists
/// for people.
const OTHER_STATEMENTS: &[Sql] = &[
    Sql::DiscardPlans,
    Sql::ServerTime,
    Sql::IsTableLocked,
    Sql::Register,
    Sql::ReadVersions,
    Sql::DeadWorkers,
    Sql::Peers,
    Sql::CountWorkers,
    Sql::List,
    Sql::Count,
    Sql::Workers,
    Sql::WaitingWork,
    Sql::DeadLetters,
    Sql::Queues,
    Sql::Graphs,
    Sql::SetGraphs,
    Sql::SetQueue,
    Sql::AssignSlots,
    Sql::SavepointBeforeSlots,
    Sql::RollBackToSavepoint,
];

#[test]
fn every_statement_is_classified() {
    for sql in Sql::ALL {
        let is_hot = HOT_STATEMENTS.iter().any(|(hot, _)| hot == sql);
        assert!(
            is_hot != OTHER_STATEMENTS.contains(sql),
            "{sql:?} belongs to one of HOT_STATEMENTS and OTHER_STATEMENTS"
        );
    }
}

/// Scans that read all rows of a CTE or of an array for each row of another one, in statements that have few of them.
const CORRELATED_SCANS: &[(Sql, &str)] = &[
    // the queue keys that the claim has seen, for a few ranges of them
    (Sql::NextKeys, "hops"),
    // only for repeated rows of the inbox
    (Sql::DrainInbox, "started"),
    // a few ranges of the index for each queue key
    (Sql::Claim, "g"),
];

/// Returns the scans of CTEs and arrays whose filter refers to another relation: their names, each with the text of the scan.
fn correlated_scans(plan: &[String]) -> Vec<(String, String)> {
    let scan = Regex::new(r"(?:CTE|Function) Scan on (\w+)(?: (\w+))?$").unwrap();
    let reference = Regex::new(r"\b([a-z_][a-z_0-9]*)\.").unwrap();
    let mut found = Vec::new();
    for lines in plan.windows(2) {
        let Some(scanned) = scan.captures(&lines[0]) else { continue };
        let alias = scanned.get(2).map_or(&scanned[1], |alias| alias.as_str());
        let Some(filter) = lines[1].trim_start().strip_prefix("Filter: ") else { continue };
        if reference.captures_iter(filter).any(|it| &it[1] != alias) {
            found.push((scanned[1].to_owned(), format!("{} {}", lines[0].trim(), lines[1].trim())));
        }
    }
    found
}

async fn fill(db: &Fixture, rows: u32) {
    db.sql
        .batch_execute(&format!(
            "INSERT INTO executions (created_at, status, key, owner, parent, workflow, workflow_id, input) \
             SELECT now(), i % 5, gen_random_uuid(), CASE WHEN i % 5 = 2 THEN i % 3 END, \
                    CASE WHEN i % 4 = 0 THEN gen_random_uuid() END, 'order', 'id-' || gen_random_uuid(), 'x' \
             FROM generate_series(1, {rows}) i; \
             TRUNCATE attributes, checkpoints, attempts, chunks, ready, timers, waits, requests, queues, depths, slots, rates, assignments, inbox, deadlines, batches, bundles, packs, messages, message_ids, stream_entries; \
             INSERT INTO checkpoints SELECT now(), 1, 1, null, 1, 1 + 8 * (hashtext(key::text) & 1), key, 'a', 's', 'o' \
               FROM executions; \
             INSERT INTO attempts SELECT now(), 1, key, 'a', 'f' FROM executions; \
             INSERT INTO attributes SELECT key, 'n', 'v' FROM executions; \
             INSERT INTO stream_entries SELECT n, n, now(), key, 's', '', 'v' FROM executions, generate_series(1, 3) AS n; \
             INSERT INTO chunks SELECT 1, 1, key, 'x' FROM executions; \
             INSERT INTO ready (execution, route) SELECT key, E'order\\x01\\x01default' FROM executions; \
             INSERT INTO queues (version, changed_at, is_paused, is_serial, name) \
             SELECT 1, now(), false, true, key::text FROM executions; \
             INSERT INTO inbox (key, workflow, input) SELECT key, 'order', '' FROM executions; \
             INSERT INTO depths SELECT 1, 1, key::text FROM executions; \
             INSERT INTO rates SELECT now(), 1, true, 'default', key::text FROM executions; \
             INSERT INTO slots SELECT 1, key, 'default', key::text FROM executions; \
             INSERT INTO assignments SELECT 1, row_number() OVER (ORDER BY key), 0, ARRAY[key] FROM executions; \
             INSERT INTO timers SELECT now(), key, E'order\\x01\\x01default', true FROM executions; \
             INSERT INTO deadlines SELECT now(), key FROM executions; \
             INSERT INTO waits (execution, kind, subject, name) SELECT key, 2 + (hashtext(key::text) & 1), key, 't' \
               FROM executions; \
             INSERT INTO messages (sent_at, execution, topic, value) SELECT now(), key, 't', 'x' FROM executions; \
             INSERT INTO message_ids SELECT key, 'id' FROM executions; \
             INSERT INTO batches SELECT 1, key FROM executions; \
             INSERT INTO bundles SELECT 1, key FROM executions; \
             INSERT INTO packs SELECT 1, 1, 0, 0, key, 'x' FROM executions; \
             INSERT INTO requests SELECT now(), 1, key, key FROM executions",
        ))
        .await
        .unwrap();
}

#[tokio::test]
async fn every_hot_statement_uses_an_index() {
    let db = Fixture::new().await;
    db.sql.batch_execute(&db.store.lane_settings()).await.unwrap();
    // autovacuum may hold locks on the tables
    db.sql.batch_execute("SET lock_timeout = 0").await.unwrap();
    // LockQueues sets it for the statements that follow
    db.sql.batch_execute("SET stepfast.locked_queues = ''").await.unwrap();
    let more = [
        "workers",
        "lanes",
        "queues",
        "depths",
        "slots",
        "rates",
        "assignments",
        "inbox",
        "attributes",
        "deadlines",
        "batches",
        "bundles",
        "packs",
        "messages",
        "message_ids",
    ];
    for table in TABLES.iter().chain(&more) {
        let no_surprises = format!("ALTER TABLE {table} SET (autovacuum_enabled = off)");
        db.sql.batch_execute(&no_surprises).await.unwrap();
    }
    // Plans are cached for a while: a plan made for few rows must be good for many. Below a few hundred rows any plan
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
                 assignments, batches, bundles, packs, messages, message_ids";
            db.sql.batch_execute(roles).await.unwrap();
        }
        if analyze {
            db.sql.batch_execute("ANALYZE").await.unwrap();
        }
        for &(sql, walks) in HOT_STATEMENTS {
            let text = match sql {
                Sql::KeepRejected => function_body(&db, "keep_conflicts").await,
                Sql::KeepDecided => function_body(&db, "keep_outcomes").await,
                sql => sql.text().to_owned(),
            };
            let types = db.sql.prepare(&text).await.unwrap();
            let types: Vec<String> = types.params().iter().map(|ty| sql_name(ty.name())).collect();
            let nulls = vec!["NULL"; types.len()].join(", ");
            let arguments = |list: &str| if types.is_empty() { String::new() } else { format!("({list})") };
            db.sql
                .batch_execute(&format!("PREPARE hot{} AS {}", arguments(&types.join(", ")), text))
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

/// Returns the statement in a function of the store.
async fn function_body(db: &Fixture, name: &str) -> String {
    let body =
        "SELECT prosrc FROM pg_proc WHERE proname = $1 AND pronamespace = current_schema()::regnamespace";
    let body: String = db.sql.query_one(body, &[&name]).await.unwrap().get(0);
    let body = body.split_once("BEGIN").unwrap().1.split_once(';').unwrap().0.trim();
    body.strip_prefix("RETURN (").map_or(body, |body| body.strip_suffix(')').unwrap()).to_owned()
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
    for (name, scan) in correlated_scans(plan) {
        let is_known = CORRELATED_SCANS.contains(&(sql, &*name));
        assert!(is_known, "{sql:?}, statistics: {statistics}: {scan}\n{text}");
    }
    // woken executions are found without a walk through the others
    if matches!(sql, Sql::Claim | Sql::LockReadyQueues) {
        assert!(text.contains("ready_woken"), "{sql:?}, statistics: {statistics}\n{text}");
    }
    // One node locks all rows of a scan. A node per row would repeat the whole statement for each row that another claim has
    // taken in the meantime.
    if sql == Sql::Claim {
        let locks: Vec<usize> = (0..plan.len()).filter(|i| plan[*i].contains("LockRows")).collect();
        let locks_join = |i: &usize| plan.get(i + 1).is_some_and(|below| below.contains("Nested Loop"));
        assert!(locks.len() == 2 && locks.iter().all(locks_join), "statistics: {statistics}\n{text}");
    }
    // owned rows are found by key, not by a walk through all rows of the worker
    if matches!(
        sql,
        Sql::Transition | Sql::Finish | Sql::RequeueRequested | Sql::Cancel | Sql::Resume | Sql::Wake
    ) {
        assert!(text.contains("executions_key"), "{sql:?}\n{text}");
    }
}
