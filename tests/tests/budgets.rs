//! Budgets in counts for a workflow and for a step: allocations, instructions, bytes of the log, and index entries. Budgets
//! in rows, flushes and statements are cases of the engine's suite.
//!
//! A change that exceeds a budget costs every user: make it cheaper, or raise the budget and give the reason.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // this is test code, which prints its figures

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use libtest_mimic::{Arguments, Trial};
use stepfast::{
    Context, Engine, PostgresOptions, PostgresStore, SqliteOptions, SqliteStore, Store, Workflow,
};
use stepfast_tests::engine::support::BodyResult;
use stepfast_tests::fixtures::postgres_server::PostgresServer;
use tokio_postgres::{Client, NoTls};

/// Number of workflows that run at once.
const CALLERS: usize = 256;
/// The numbers of steps that are compared. The difference of the last two is the cost of a step.
const STEPS: [usize; 3] = [0, 3, 12];
/// The variable that makes this program a child that runs workflows, and describes them.
const CHILD_VARIABLE: &str = "STEPFAST_BUDGET_CHILD";

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

fn main() {
    if let Ok(child) = std::env::var(CHILD_VARIABLE) {
        return run_child(&child);
    }
    let mut arguments = Arguments::from_args();
    // one measurement at a time
    arguments.test_threads = Some(1);
    let trial = |name: &str, run: fn()| {
        Trial::test(name, move || {
            run();
            Ok(())
        })
    };
    let trials = vec![
        trial("allocations_on_sqlite", allocations_on_sqlite),
        trial("allocations_on_postgres", allocations_on_postgres),
        trial("instructions_on_sqlite", instructions_on_sqlite).with_ignored_flag(!has_callgrind()),
        trial("index_entries_on_postgres", index_entries_on_postgres),
        trial("log_bytes_on_postgres", log_bytes_on_postgres),
        trial("log_pages_on_sqlite", log_pages_on_sqlite),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

/// Returns the workflow whose steps each add one to its input.
fn workflow(steps: usize) -> Workflow<usize, usize> {
    Workflow::new("add", move |mut cx: Context, mut sum: usize| async move {
        for _ in 0..steps {
            sum = cx.step("add", async || BodyResult::Ok(sum + 1)).await?;
        }
        BodyResult::Ok(sum)
    })
}

/// Opens an engine with the workflow, and runs it once for each caller, so that all connections and buffers exist.
async fn open_warm(store: Arc<dyn Store>, workflow: &Workflow<usize, usize>, steps: usize) -> Engine {
    let engine = Engine::builder(store).register(workflow).open().await.unwrap();
    run_round(&engine, workflow, steps, CALLERS).await;
    engine
}

/// Runs the workflow once for each caller, all at once.
async fn run_round(engine: &Engine, workflow: &Workflow<usize, usize>, steps: usize, callers: usize) {
    let runs = (0..callers).map(|n| engine.run(workflow, n).into_future());
    let sums = try_join_all(runs).await.unwrap();
    assert!(sums.into_iter().enumerate().all(|(n, sum)| sum == n + steps));
}

async fn shut_down(engine: Engine) {
    engine.shutdown(Duration::from_secs(20)).await.unwrap();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

async fn fresh_postgres() -> Arc<dyn Store> {
    let server = PostgresServer::shared();
    let options = PostgresOptions::default().schema(server.fresh_schema_name());
    Arc::new(PostgresStore::open_with(server.url(), options).await.unwrap())
}

fn fresh_sqlite(folder: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(folder.join("budget.db"), SqliteOptions::default()).unwrap())
}

/// Returns the number of allocations per workflow with this number of steps, in the cheapest of some rounds: on a busy machine,
/// the callers share more and smaller flushes, and each flush allocates too.
async fn count_allocations(store: Arc<dyn Store>, steps: usize) -> f64 {
    const ROUNDS: usize = 16;
    let workflow = workflow(steps);
    let engine = open_warm(store, &workflow, steps).await;
    let mut cheapest = u64::MAX;
    for _ in 0..ROUNDS {
        let before = dhat::HeapStats::get().total_blocks;
        run_round(&engine, &workflow, steps, CALLERS).await;
        cheapest = cheapest.min(dhat::HeapStats::get().total_blocks - before);
    }
    shut_down(engine).await;
    cheapest as f64 / CALLERS as f64
}

fn check_allocations(name: &str, open: &impl AsyncFn(&Path) -> Arc<dyn Store>, budgets: [f64; 2]) {
    let _profiler = dhat::Profiler::builder().testing().build();
    runtime().block_on(async {
        let mut counts = Vec::new();
        for steps in STEPS {
            let folder = tempfile::tempdir().unwrap();
            counts.push(count_allocations(open(folder.path()).await, steps).await);
        }
        check(&format!("allocations on {name}"), &counts, budgets);
    });
}

fn allocations_on_sqlite() {
    check_allocations("sqlite", &async |folder| fresh_sqlite(folder), [6.0, 2.0]);
}

fn allocations_on_postgres() {
    check_allocations("postgres", &async |_| fresh_postgres().await, [11.0, 5.0]);
}

/// Checks the instructions of this program as it is built for tests: the budgets are not those of a release. The threads
/// share their work in other ways each time, so the cheapest of a few measurements counts.
fn instructions_on_sqlite() {
    const BUDGETS: [f64; 2] = [57_000.0, 36_000.0];
    const ROUNDS: [usize; 2] = [1, 3];
    for attempt in 1.. {
        let costs = STEPS.map(|steps| {
            let [few, many] = ROUNDS.map(|rounds| count_instructions(steps, rounds));
            (many - few) / ((ROUNDS[1] - ROUNDS[0]) * CALLERS) as f64
        });
        match excess("instructions on sqlite", &costs, BUDGETS) {
            None => break,
            Some(excess) => assert!(attempt < 4, "{excess}"),
        }
    }
}

/// Whether valgrind is installed.
fn has_callgrind() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Returns the number of instructions of a process that runs workflows.
fn count_instructions(steps: usize, rounds: usize) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("callgrind");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", &format!("--callgrind-out-file={}", file.display())])
        .arg(std::env::current_exe().unwrap())
        .env(CHILD_VARIABLE, format!("{steps} {rounds}"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let counts = std::fs::read_to_string(file).unwrap();
    let total = counts.lines().find_map(|line| line.strip_prefix("totals: ")).unwrap();
    total.trim().parse().unwrap()
}

/// Runs the workflows that the variable describes: the number of steps, and the number of rounds.
fn run_child(description: &str) {
    let (steps, rounds) = description.split_once(' ').unwrap();
    let (steps, rounds): (usize, usize) = (steps.parse().unwrap(), rounds.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let workflow = workflow(steps);
        let engine = open_warm(fresh_sqlite(folder.path()), &workflow, steps).await;
        for _ in 0..rounds {
            run_round(&engine, &workflow, steps, CALLERS).await;
        }
        shut_down(engine).await;
    });
}

/// The index entries of workflows with three steps on Postgres, and the updates that made new ones.
fn index_entries_on_postgres() {
    runtime().block_on(async {
        let server = PostgresServer::shared();
        let schema = server.fresh_schema_name();
        let options = PostgresOptions::default().schema(&schema);
        let store = Arc::new(PostgresStore::open_with(server.url(), options).await.unwrap());
        let workflow = workflow(3);
        let engine = open_warm(store, &workflow, 3).await;
        shut_down(engine).await;
        let sql = connect(server.url(), &schema).await;
        let mut entries = 0;
        for row in sql.query(INDEXES, &[&schema]).await.unwrap() {
            let (table, condition): (String, Option<String>) = (row.get(0), row.get(1));
            let condition = condition.unwrap_or_else(|| "true".to_owned());
            let count = format!("SELECT count(*) FROM {table} WHERE {condition}");
            let count: i64 = sql.query_one(&count, &[]).await.unwrap().get(0);
            entries += count;
        }
        // the key of the execution, and that of each checkpoint
        assert_eq!(entries, 4 * CALLERS as i64);
        // an update whose new version needs no index entries
        let updates = "SELECT sum(n_tup_upd)::bigint, sum(n_tup_hot_upd)::bigint FROM pg_stat_user_tables \
                       WHERE schemaname = $1 AND relname = 'executions'";
        loop {
            // the statistics of a connection arrive after a while
            let row = sql.query_one(updates, &[&schema]).await.unwrap();
            let (all, hot): (i64, i64) = (row.get(0), row.get(1));
            assert_eq!(all, hot);
            if all >= CALLERS as i64 {
                break;
            }
        }
    });
}

/// The indexes of `executions` and `checkpoints`, each with its table and the condition of its rows.
const INDEXES: &str = "SELECT i.indrelid::regclass::text, pg_get_expr(i.indpred, i.indrelid) \
                       FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid \
                       WHERE c.relnamespace = $1::text::regnamespace AND c.relname IN ('executions', 'checkpoints')";

async fn connect(url: &str, schema: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("SET search_path = {schema}")).await.unwrap();
    client
}

/// The bytes of the write-ahead log of a server of its own.
fn log_bytes_on_postgres() {
    let server = PostgresServer::start();
    runtime().block_on(async {
        let mut costs = Vec::new();
        for steps in STEPS {
            let options = PostgresOptions::default().schema(server.fresh_schema_name());
            let store = Arc::new(PostgresStore::open_with(server.url(), options).await.unwrap());
            let workflow = workflow(steps);
            let engine = open_warm(store, &workflow, steps).await;
            let sql = connect(server.url(), "public").await;
            let position = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
            let before: i64 = sql.query_one(position, &[]).await.unwrap().get(0);
            for _ in 0..LOG_ROUNDS {
                run_round(&engine, &workflow, steps, CALLERS).await;
            }
            let after: i64 = sql.query_one(position, &[]).await.unwrap().get(0);
            costs.push((after - before) as f64 / (LOG_ROUNDS * CALLERS) as f64);
            shut_down(engine).await;
        }
        check("log bytes on postgres", &costs, [230.0, 250.0]);
    });
}

/// Number of rounds for which the log is measured. The images of pages are a small part then.
const LOG_ROUNDS: usize = 8;

/// The pages of the log that a lone caller writes.
fn log_pages_on_sqlite() {
    const RUNS: usize = 50;
    runtime().block_on(async {
        let mut costs = Vec::new();
        for steps in STEPS {
            let folder = tempfile::tempdir().unwrap();
            let workflow = workflow(steps);
            let engine =
                Engine::builder(fresh_sqlite(folder.path())).register(&workflow).open().await.unwrap();
            run_round(&engine, &workflow, steps, 1).await;
            let log = || std::fs::metadata(folder.path().join("budget.db-wal")).unwrap().len();
            let before = log();
            for _ in 0..RUNS {
                run_round(&engine, &workflow, steps, 1).await;
            }
            // each page has a header of 24 bytes
            costs.push((log() - before) as f64 / f64::from(4096 + 24) / RUNS as f64);
            shut_down(engine).await;
        }
        check("log pages on sqlite", &costs, [2.2, 2.5]);
    });
}

/// Checks the costs of workflows without steps, with few and with many.
fn check(name: &str, costs: &[f64], budgets: [f64; 2]) {
    if let Some(excess) = excess(name, costs, budgets) {
        panic!("{excess}");
    }
}

/// Returns a text for a cost that exceeds its budget; `None` if none does.
fn excess(name: &str, costs: &[f64], [per_run, per_step]: [f64; 2]) -> Option<String> {
    let [run, few, many] = costs[..] else { unreachable!() };
    let step = (many - few) / (STEPS[2] - STEPS[1]) as f64;
    println!("{name}: {run:.1} for a no-op run, {few:.1} with three steps, {step:.1} for a further step");
    if run > per_run {
        return Some(format!("{name}: a no-op run costs {run:.1}, and its budget is {per_run}"));
    }
    (step > per_step).then(|| format!("{name}: a further step costs {step:.1}, and its budget is {per_step}"))
}
