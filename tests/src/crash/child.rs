//! The child process of the crash tests: workflows that use most of the engine, in a process that runs them until all
//! have ended or it is killed. It prints one line for each acknowledgement.
//!
//! The lines: `started ID`, `ended ID OUTPUT`, `cancelled ID`, `pending ID` (a cancel was accepted, but has not ended
//! the execution yet), `body TIME EXECUTION STEP CAUSE` (a step's body begins; `CAUSE` is the step before it in the
//! code, or `-`), and at the end `done` or `shut-down`.

use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use futures_util::{TryStreamExt, stream};
use stepfast::clock::{Clock, SystemClock};
use stepfast::store::{Filter, RequestResult};
use stepfast::{Context, Engine, Error, Failure, Store, Workflow};
use tokio::sync::{Notify, watch};

use crate::crash::leftovers;

/// A receiver of the lines that a child process prints.
pub type LineSink = Arc<dyn Fn(&str) + Send + Sync>;

/// The environment variable that makes a process a child and names its database.
pub const URL_VARIABLE: &str = "STEPFAST_CRASH_VICTIM";
/// The environment variable with the number of executions to start.
pub const EXECUTIONS_VARIABLE: &str = "STEPFAST_CRASH_EXECUTIONS";
/// The environment variable with the number of ends after which the process shuts down, while the rest still runs.
pub const SHUTDOWN_AFTER_VARIABLE: &str = "STEPFAST_CRASH_LEAVE";

/// Number of children of a root: two in concurrent branches, and one that is started before it is awaited.
pub const CHILDREN: usize = 3;

/// Number of items of a batch, as a multiple of the number of executions.
const ITEMS_PER_EXECUTION: u32 = 2;
/// Length of the padding in an item's input. About 15 items fill a bundle.
const ITEM_PADDING: usize = 4_000;

/// The interval, in executions, at which one has a value of several chunks, and another one is cancelled.
const RARE_INTERVAL: u32 = 7;

/// Runs the executions and returns true if the environment makes this process a child.
pub fn run_if_requested() -> bool {
    let Ok(url) = std::env::var(URL_VARIABLE) else { return false };
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async move {
        // each line is one write: it is in the pipe even if the process dies at the next instruction
        let sink: LineSink = Arc::new(|line: &str| {
            std::io::stdout().lock().write_all(format!("{line}\n").as_bytes()).unwrap();
        });
        let store = stepfast::connect(&url).await.unwrap();
        run_executions(
            store,
            sink,
            number(EXECUTIONS_VARIABLE).unwrap_or(10),
            number(SHUTDOWN_AFTER_VARIABLE),
        )
        .await;
    });
    true
}

/// Starts all executions, waits for their ends or for the number after which the process shuts down, and shuts down the
/// engine. Then prints `done`, or `shut-down` if not all had ended.
pub async fn run_executions(
    store: Arc<dyn Store>,
    sink: LineSink,
    executions: u32,
    shutdown_after: Option<u32>,
) {
    let workflows = CrashWorkflows::new(sink.clone());
    let engine = workflows.open_engine(store).await.unwrap();
    let (ends, shutdown) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
    let mut tasks = Vec::new();
    for n in 0..executions {
        if n.is_multiple_of(RARE_INTERVAL) {
            let (engine, sink, parent) = (engine.clone(), sink.clone(), workflows.long_parent.clone());
            let working = is_busy(n).then(|| workflows.working.subscribe());
            tasks.push(tokio::spawn(
                async move { start_and_cancel(&engine, &sink, &parent, n, working).await },
            ));
        }
        let (engine, sink, root) = (engine.clone(), sink.clone(), workflows.root.clone());
        let (ends, shutdown) = (ends.clone(), shutdown.clone());
        tasks.push(tokio::spawn(async move {
            let id = format!("w-{n}");
            let handle = engine.start(&root, n).workflow_id(id.as_str()).await?;
            sink(&format!("started {id}"));
            let output = handle.result().await?;
            sink(&format!("ended {id} {output}"));
            if Some(ends.fetch_add(1, SeqCst) + 1) == shutdown_after {
                shutdown.notify_one();
            }
            Ok::<_, Error>(())
        }));
    }
    let (submitting, output_sink, submitter) = (engine.clone(), sink.clone(), workflows.submitter.clone());
    tasks.push(tokio::spawn(async move {
        let items = executions * ITEMS_PER_EXECUTION;
        let handle = submitting.start(&submitter, items).workflow_id(SUBMITTER).await?;
        output_sink(&format!("started {SUBMITTER}"));
        let output = handle.result().await?;
        output_sink(&format!("ended {SUBMITTER} {output}"));
        Ok(())
    }));
    for n in 0..executions.div_ceil(RARE_INTERVAL) {
        let (own, own_sink, talker) = (engine.clone(), sink.clone(), workflows.talker.clone());
        tasks.push(tokio::spawn(async move {
            let (engine, sink) = (own, own_sink);
            let id = format!("t-{n}");
            // the first try may have been durable before the process was killed
            let greeting = engine.send(id.as_str(), "greeting").topic("from outside").message_id("greeting");
            let kept = greeting.keep().into_future();
            let start = engine.start(&talker, n).workflow_id(id.as_str()).into_future();
            let handle = if n.is_multiple_of(2) {
                kept.await?;
                start.await?
            } else {
                let (kept, handle) = tokio::join!(kept, start);
                kept?;
                handle?
            };
            sink(&format!("started {id}"));
            let output = handle.result().await?;
            sink(&format!("ended {id} {output}"));
            check_streams(&engine, &id, n).await
        }));
        let (engine, sink, counter) = (engine.clone(), sink.clone(), workflows.counter.clone());
        tasks.push(tokio::spawn(async move {
            let id = format!("c-{n}");
            let handle = engine.start(&counter, 0).workflow_id(id.as_str()).await?;
            sink(&format!("started {id}"));
            sink(&format!("ended {id} {}", handle.result().await?));
            Ok(())
        }));
    }
    for is_streamed in [false, true] {
        let (engine, sink, item) = (engine.clone(), sink.clone(), workflows.item.clone());
        tasks.push(tokio::spawn(
            async move { run_batch(&engine, &sink, &item, executions, is_streamed).await },
        ));
    }
    let all = async {
        for task in tasks {
            match task.await.unwrap() {
                Ok(()) | Err(Error::Shutdown) => {}
                Err(error) => panic!("{error}"),
            }
        }
        wait_for_rest(&engine).await;
    };
    let is_done = tokio::select! {
        () = all => true,
        () = shutdown.notified() => false,
    };
    engine.shutdown(Duration::from_secs(10)).await.unwrap();
    sink(if is_done { "done" } else { "shut-down" });
}

/// Waits for executions that no task awaits: the child of a cancelled execution may end after its parent, and late if
/// it is in quarantine.
async fn wait_for_rest(engine: &Engine) {
    let filter = Filter { is_parked: Some(false), ..leftovers::unfinished_filter() };
    loop {
        let unfinished = engine.list(&filter).await.unwrap().executions;
        if unfinished.is_empty() {
            return;
        }
        for execution in unfinished {
            let handle = engine.get::<String>(&execution.workflow_id()).await.unwrap();
            let _ = handle.result().await;
        }
    }
}

/// Returns whether a long parent runs a step beside its child, and so is cancelled in memory.
fn is_busy(n: u32) -> bool {
    n.is_multiple_of(2 * RARE_INTERVAL)
}

/// Starts an execution that would take an hour, and cancels it: at once, or while its child runs a step.
async fn start_and_cancel(
    engine: &Engine,
    sink: &LineSink,
    parent: &Workflow<u32, String>,
    n: u32,
    working: Option<watch::Receiver<BTreeSet<u32>>>,
) -> Result<(), Error> {
    let id = format!("p-{n}");
    let handle = engine.start(parent, n).workflow_id(id.as_str()).await?;
    sink(&format!("started {id}"));
    if let Some(mut working) = working {
        // an earlier process may still hold the execution until its lease expires
        let timeout = Duration::from_secs(1);
        let _ = tokio::time::timeout(timeout, working.wait_for(|working| working.contains(&n))).await;
    }
    match engine.cancel(&id).await? {
        RequestResult::Done => sink(&format!("cancelled {id}")),
        RequestResult::Pending | RequestResult::NotApplicable(_) => sink(&format!("pending {id}")),
    }
    match handle.result().await {
        Err(error @ Error::Shutdown) => Err(error),
        Err(_) => {
            sink(&format!("cancelled {id}"));
            Ok(())
        }
        Ok(output) => panic!("{id} was cancelled, and ended with {output:?}"),
    }
}

/// Submits a batch, or continues its submission, and waits for its end.
async fn run_batch(
    engine: &Engine,
    sink: &LineSink,
    item: &Workflow<(u32, String), String>,
    executions: u32,
    is_streamed: bool,
) -> Result<(), Error> {
    let items = executions * ITEMS_PER_EXECUTION;
    let inputs = (0..items).map(|n| (n, "x".repeat(ITEM_PADDING)));
    let id = format!("{BATCH_PREFIX}{items}-{is_streamed}");
    let batch = if is_streamed {
        engine.submit_batch_stream(item, stream::iter(inputs.map(Ok))).batch_id(&id).await?
    } else {
        engine.submit_batch(item, inputs).batch_id(&id).await?
    };
    sink(&format!("started {id}"));
    batch.wait().await?;
    let results: Vec<_> = batch.results().try_collect().await?;
    for (n, item) in results.iter().enumerate() {
        let output = item.result.as_ref().ok();
        let is_expected = item.index as usize == n && output == Some(&item_output(item.index));
        assert!(is_expected, "item {n} of {id}: {item:?}");
    }
    assert_eq!(results.len(), items as usize, "{id}");
    Ok(())
}

/// Checks the streams of a talker: its code has written each number once, and the last attempt of its step all values. The
/// values of attempts that were interrupted are the first ones.
async fn check_streams(engine: &Engine, id: &str, n: u32) -> Result<(), Error> {
    let numbers: Vec<_> = engine.read_stream::<u32>(id, NUMBERS).await?.into_stream().try_collect().await?;
    let numbers: Vec<u32> = numbers.into_iter().map(|value| value.value).collect();
    assert!(numbers.iter().copied().eq(n..n + TALKER_MESSAGES), "numbers of {id}: {numbers:?}");
    let words: Vec<_> = engine.read_stream::<u32>(id, WORDS).await?.into_stream().try_collect().await?;
    for (offset, word) in (0..).zip(&words) {
        let place = offset - word.attempt_offset;
        assert!(word.offset == offset && i64::from(word.value) == place, "words of {id}: {words:?}");
    }
    let last = words.last().map(|word| word.value);
    assert_eq!(last, Some(WORD_COUNT - 1), "words of {id}: {words:?}");
    Ok(())
}

/// The stream to which a talker writes the numbers that it has received, and the one to which its step writes.
const NUMBERS: &str = "numbers";
const WORDS: &str = "words";

/// Number of values that the step of a talker writes.
const WORD_COUNT: u32 = 20;

/// The beginning of the ids of batches, which continues with the number of their items.
pub const BATCH_PREFIX: &str = "b-";

/// The workflow_id of the execution that submits a batch.
const SUBMITTER: &str = "s";

/// Returns the output of the workflow that submits a batch of `n` items.
pub fn submitter_output(n: u32) -> String {
    (0..n).map(item_output).collect::<Vec<_>>().join(",")
}

/// Number of messages that a talker sends to itself.
const TALKER_MESSAGES: u32 = 5;

/// Returns the output of the workflow that sends messages to itself, and whose child reads its event.
pub fn talker_output(n: u32) -> String {
    let numbers = (n..n + TALKER_MESSAGES).map(|number| number.to_string());
    let last = ["spoken".to_owned(), format!("heard {}", n + 1)];
    ["greeting".to_owned()].into_iter().chain(numbers).chain(last).collect::<Vec<_>>().join(",")
}

/// The number of the last part of a counter, from its input on.
const COUNTER_PARTS: u32 = 6;

/// Returns the output of the workflow that continues as new.
pub fn counter_output(_: u32) -> String {
    format!("counted to {COUNTER_PARTS}")
}

/// Returns the output of item `n` of a batch.
pub fn item_output(n: u32) -> String {
    format!("item {n}")
}

/// Returns the output of the root workflow with input `n`.
pub fn root_output(n: u32) -> String {
    let steps = ["row0", "row1", "row2", "flaky", "side0", "side1", "side2", "side3", "one", "one", "one"];
    let mut all: Vec<String> = steps.iter().map(|step| format!("{step} done")).collect();
    all.push(medium_length(n).to_string());
    all.push(large_length(n).to_string());
    all.join(",")
}

/// Returns the length of a value that is stored in its row or in chunks.
fn medium_length(n: u32) -> usize {
    (n as usize % 40) * 150
}

fn large_length(n: u32) -> usize {
    if n % RARE_INTERVAL == 3 { 2_400_000 } else { 100_000 }
}

/// Runs a step's body: prints its line, and ends after its task was polled twice.
async fn run_body(sink: &LineSink, execution: &str, step: &str, cause: &str) -> Result<String, Failure> {
    sink(&format!("body {} {execution} {step} {cause}", SystemClock.now().as_micros()));
    tokio::task::yield_now().await;
    Ok(format!("{step} done"))
}

/// The workflows, with a sink for the lines of their bodies.
pub struct CrashWorkflows {
    root: Workflow<u32, String>,
    child: Workflow<u32, String>,
    long_parent: Workflow<u32, String>,
    long_child: Workflow<u32, String>,
    item: Workflow<(u32, String), String>,
    submitter: Workflow<u32, String>,
    talker: Workflow<u32, String>,
    listener: Workflow<String, u32>,
    counter: Workflow<u32, String>,
    /// The inputs of long parents whose child runs a step.
    working: watch::Sender<BTreeSet<u32>>,
}

impl CrashWorkflows {
    /// Creates workflows whose bodies print their lines to `sink`.
    pub fn new(sink: LineSink) -> Self {
        let child = child_workflow(sink.clone());
        let working: watch::Sender<BTreeSet<u32>> = watch::Sender::default();
        let sender = working.clone();
        let long_child = Workflow::new("long_child", move |mut cx: Context, n: u32| {
            let sender = sender.clone();
            async move {
                if is_busy(n) {
                    cx.step("work", async || {
                        sender.send_modify(|working| {
                            working.insert(n);
                        });
                        std::future::pending::<Result<(), Failure>>().await
                    })
                    .await?;
                }
                cx.sleep(Duration::from_hours(1)).await;
                Ok::<_, Failure>("an hour".to_owned())
            }
        });
        let awaited = long_child.clone();
        let parent_sink = sink.clone();
        let long_parent = Workflow::new("long_parent", move |mut cx: Context, n: u32| {
            let (long_child, sink) = (awaited.clone(), parent_sink.clone());
            async move {
                let me = cx.execution_key();
                cx.step("one", || run_body(&sink, &me, "one", "-")).await?;
                if !is_busy(n) {
                    return cx.child(&long_child, n).await;
                }
                // a pending step keeps the execution in memory, so its own code ends with its child
                let work = std::future::pending::<Result<(), Failure>>;
                let both = cx.join(
                    |mut cx: Context| async move { cx.child(&long_child, n).await },
                    |mut cx: Context| async move { cx.step("work", work).await },
                );
                both.await.0
            }
        });
        let item = item_workflow(sink.clone(), child.clone());
        let submitter = submitter_workflow(sink.clone(), item.clone());
        let counter = counter_workflow(sink.clone());
        let root = root_workflow(sink, child.clone());
        let listener = Workflow::new("listener", |mut cx: Context, talker: String| async move {
            cx.get_event::<u32>(talker, "said").await
        });
        let talker = talker_workflow(listener.clone());
        Self { root, child, long_parent, long_child, item, submitter, talker, listener, counter, working }
    }

    /// Opens an engine with the workflows.
    pub async fn open_engine(&self, store: Arc<dyn Store>) -> Result<Engine, Error> {
        Engine::builder(store)
            .register(&self.root)
            .register(&self.child)
            .register(&self.long_parent)
            .register(&self.long_child)
            .register(&self.item)
            .register(&self.submitter)
            .register(&self.talker)
            .register(&self.listener)
            .register(&self.counter)
            .suspend_after(Duration::from_millis(20))
            .open()
            .await
    }
}

/// Returns the workflow of a batch's items: some end at once, and some have steps, sleeps that suspend, or a child.
fn item_workflow(sink: LineSink, child: Workflow<u32, String>) -> Workflow<(u32, String), String> {
    Workflow::new("batch_item", move |mut cx: Context, (n, _): (u32, String)| {
        let (sink, child) = (sink.clone(), child.clone());
        async move {
            let me = cx.execution_key();
            if n.is_multiple_of(4) {
                return Ok(item_output(n));
            }
            cx.step("one", || run_body(&sink, &me, "one", "-")).await?;
            if n % 5 == 1 {
                cx.sleep(Duration::from_millis(30)).await;
            }
            cx.step("two", || run_body(&sink, &me, "two", "one")).await?;
            if n % 7 == 2 {
                cx.child(&child, n).await?;
            }
            Ok::<_, Failure>(item_output(n))
        }
    })
}

/// Returns a workflow that submits a batch of `n` items, and waits for them between two steps.
fn submitter_workflow(sink: LineSink, item: Workflow<(u32, String), String>) -> Workflow<u32, String> {
    Workflow::new("submitter", move |mut cx: Context, n: u32| {
        let (sink, item) = (sink.clone(), item.clone());
        async move {
            let me = cx.execution_key();
            cx.step("one", || run_body(&sink, &me, "one", "-")).await?;
            let inputs = (0..n).map(|i| (i, "x".repeat(ITEM_PADDING)));
            let batch = cx.submit_batch(&item, inputs).await?;
            cx.step("two", || run_body(&sink, &me, "two", "one")).await?;
            let counts = batch.wait(&mut cx).await?;
            assert_eq!(counts.ended.completed, u64::from(n), "{counts:?}");
            let outputs = batch.results(&mut cx).await?.into_iter().collect::<Result<Vec<_>, _>>()?;
            cx.step("three", || run_body(&sink, &me, "three", "two")).await?;
            Ok::<_, Failure>(outputs.join(","))
        }
    })
}

/// Returns a workflow that receives a greeting, which may come before it begins, and sends messages to itself, also by a step.
/// It receives each once and in order. Meanwhile its child waits for its event.
fn talker_workflow(listener: Workflow<String, u32>) -> Workflow<u32, String> {
    Workflow::new("talker", move |mut cx: Context, n: u32| {
        let listener = listener.clone();
        async move { talk(&mut cx, n, &listener).await }
    })
}

async fn talk(cx: &mut Context, n: u32, listener: &Workflow<String, u32>) -> Result<String, Failure> {
    let me = cx.execution_key();
    let listening = cx.start_child(listener, me.clone()).await?;
    let mut received: Vec<String> = vec![cx.receive().topic("from outside").await?];
    for number in n..n + TALKER_MESSAGES {
        cx.send(&*me, &number).await?;
    }
    let (words, messages) = (cx.stream_writer(WORDS), cx.message_sender());
    for _ in 0..TALKER_MESSAGES {
        let number = cx.receive::<u32>().await?;
        cx.write_stream(NUMBERS, &number).await?;
        received.push(number.to_string());
    }
    cx.step("speak", async || {
        for word in 0..WORD_COUNT {
            words.write(&word).await?;
            tokio::task::yield_now().await;
        }
        messages.send(&*me, "spoken").topic("from step").await
    })
    .await?;
    received.push(cx.receive().topic("from step").await?);
    let none = Duration::from_millis(if n.is_multiple_of(2) { 0 } else { 30 });
    let more: Option<u32> = cx.receive().timeout(none).await?;
    received.extend(more.map(|number| format!("again {number}")));
    for topic in ["from outside", "from step"] {
        let more: Option<String> = cx.receive().topic(topic).timeout(Duration::ZERO).await?;
        received.extend(more.map(|word| format!("again {word}")));
    }
    cx.set_event("said", &(n + 1)).await?;
    received.push(format!("heard {}", listening.result(cx).await?));
    Ok(received.join(","))
}

/// Returns a workflow that runs a step in each of its parts. The input is the number of the part.
fn counter_workflow(sink: LineSink) -> Workflow<u32, String> {
    Workflow::new("counter", move |mut cx: Context, part: u32| {
        let sink = sink.clone();
        async move {
            let me = cx.execution_key();
            let step = |part: u32| format!("part{part}");
            let cause = part.checked_sub(1).map_or_else(|| "-".to_owned(), step);
            let name = step(part);
            cx.step(name.clone(), || run_body(&sink, &me, &name, &cause)).await?;
            if part.is_multiple_of(3) {
                cx.sleep(Duration::from_millis(30)).await;
            }
            if part == COUNTER_PARTS {
                return Ok(counter_output(part));
            }
            cx.continue_as_new(&(part + 1)).await
        }
    })
}

fn child_workflow(sink: LineSink) -> Workflow<u32, String> {
    Workflow::new("child", move |mut cx: Context, n: u32| {
        let sink = sink.clone();
        async move {
            let me = cx.execution_key();
            let one = cx.step("one", || run_body(&sink, &me, "one", "-")).await?;
            if n.is_multiple_of(3) {
                cx.sleep(Duration::from_millis(30)).await;
            }
            Ok::<_, Failure>(one)
        }
    })
}

/// Returns a workflow with steps in sequence and in branches, failed attempts, children, short and long waits, and
/// large values.
fn root_workflow(sink: LineSink, child: Workflow<u32, String>) -> Workflow<u32, String> {
    Workflow::new("root", move |mut cx: Context, n: u32| {
        let (child, sink) = (child.clone(), sink.clone());
        async move {
            let me = cx.execution_key();
            let mut all = Vec::new();
            let mut last = "-".to_owned();
            for i in 0..3 {
                let step = format!("row{i}");
                all.push(cx.step("row", || run_body(&sink, &me, &step, &last)).args(&i).await?);
                last = step;
            }
            let tries = AtomicU32::new(0);
            let flaky = cx
                .step("flaky", async || {
                    if tries.fetch_add(1, SeqCst) == 0 {
                        return Err(Failure::new("not yet ".repeat(medium_length(n) / 8)));
                    }
                    run_body(&sink, &me, "flaky", "row2").await
                })
                .retries(9)
                .backoff(Duration::from_millis(1), Duration::from_millis(2));
            all.push(flaky.await?);
            let side = cx
                .map(0..4u32, 2, |mut cx, i| {
                    let (sink, me, step) = (sink.clone(), me.clone(), format!("side{i}"));
                    async move { cx.step("side", || run_body(&sink, &me, &step, "flaky")).await }
                })
                .await;
            all.extend(side.into_iter().collect::<Result<Vec<_>, _>>()?);
            let early = cx.start_child(&child, n + 2).await?;
            let (one, two) = (child.clone(), child.clone());
            let (first, second) = cx
                .join(
                    |mut cx: Context| async move { cx.child(&one, n).await },
                    |mut cx: Context| async move { cx.child(&two, n + 1).await },
                )
                .await;
            all.extend([first?, second?]);
            all.push(early.result(&mut cx).await?);
            // longer than the engine keeps an execution in memory: it suspends
            cx.sleep(Duration::from_millis(if n.is_multiple_of(2) { 60 } else { 5 })).await;
            let medium = cx.step("medium", async || Ok::<_, Failure>("x".repeat(medium_length(n)))).await?;
            all.push(medium.len().to_string());
            let large = cx.step("large", async || Ok::<_, Failure>("x".repeat(large_length(n)))).await?;
            all.push(large.len().to_string());
            Ok::<_, Failure>(all.join(","))
        }
    })
}
