//! `bench messages`: the time of a message to the next line of its receiver, round trips between two executions, many
//! senders to one receiver, and the time of an event to its reader.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use stepfast::{Client, Context, Engine, Error, Failure, Workflow};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use crate::measure::{Samples, ms_since};
use crate::report::{Figure, Row};
use crate::target::{Target, TargetLocation};
use crate::worker::Worker;

/// The parameters of the experiment.
#[derive(Clone, Copy, Debug)]
pub struct MessageParameters {
    /// Messages, round trips and events that are sent one at a time.
    pub count: usize,
    /// Tasks that send to one execution at the same time.
    pub senders: usize,
    /// Messages of each of these tasks.
    pub per_sender: usize,
}

impl MessageParameters {
    /// Returns the number of operations.
    pub fn total(&self) -> u64 {
        (3 * self.count + self.senders * self.per_sender) as u64
    }
}

/// The workflows of the experiment.
struct Workflows {
    /// Receives this many messages, and reports each to the experiment.
    receiver: Workflow<usize, ()>,
    /// Answers this many messages, whose value is the id of the sender.
    echo: Workflow<usize, ()>,
    /// Sends this many messages to the execution with this id, one after each answer.
    caller: Workflow<(String, usize), ()>,
    /// Sets an event after each of this many messages.
    setter: Workflow<usize, ()>,
}

impl Workflows {
    /// Returns the workflows. Each received message and each answer is reported as a time.
    fn new(received: &UnboundedSender<Instant>) -> Self {
        let report = Arc::new(received.clone());
        let reported = report.clone();
        let receiver = Workflow::new("receiver", move |mut cx: Context, count: usize| {
            let report = reported.clone();
            async move {
                for _ in 0..count {
                    cx.receive::<usize>().await?;
                    let _ = report.send(Instant::now());
                }
                Ok::<_, Failure>(())
            }
        });
        let echo = echo_workflow();
        let caller = Workflow::new("caller", move |mut cx: Context, (echo, count): (String, usize)| {
            let report = report.clone();
            async move {
                let me = cx.execution_key();
                for _ in 0..count {
                    cx.send(&*echo, &me).await?;
                    cx.receive::<()>().await?;
                    let _ = report.send(Instant::now());
                }
                Ok::<_, Failure>(())
            }
        });
        let setter = Workflow::new("setter", |mut cx: Context, count: usize| async move {
            for n in 0..count {
                cx.receive::<usize>().await?;
                cx.set_event(format!("event {n}"), &n).await?;
            }
            Ok::<_, Failure>(())
        });
        Self { receiver, echo, caller, setter }
    }
}

/// Returns a workflow that answers this many messages, whose value is the id of the sender.
pub(crate) fn echo_workflow() -> Workflow<usize, ()> {
    Workflow::new("echo", |mut cx: Context, count: usize| async move {
        for _ in 0..count {
            let sender: String = cx.receive().await?;
            cx.send(sender, &()).await?;
        }
        Ok::<_, Failure>(())
    })
}

/// Runs the experiment. `progress` is called with the activity and the number of operations that are done.
pub async fn run(
    location: &TargetLocation,
    parameters: MessageParameters,
    progress: &dyn Fn(&'static str, u64),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let target = location.open_fresh().await?;
    let measured = measure(&target, parameters, progress).await;
    target.close().await?;
    measured
}

async fn measure(
    target: &Target,
    parameters: MessageParameters,
    progress: &dyn Fn(&'static str, u64),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let MessageParameters { count, senders, per_sender } = parameters;
    let (report, mut received) = mpsc::unbounded_channel();
    let workflows = Workflows::new(&report);
    let engine = Engine::builder(target.store().await?)
        .register(&workflows.receiver)
        .register(&workflows.echo)
        .register(&workflows.caller)
        .register(&workflows.setter)
        .suspend_after(Duration::from_hours(1))
        .open()
        .await?;
    let lost = || Error::Invalid { input: "count", reason: "the receiver has ended early".to_owned() };

    let handle = engine.start(&workflows.receiver, count).workflow_id("receiver").await?;
    let mut to_receiver = Samples::default();
    for n in 0..count {
        let begun = Instant::now();
        handle.send(&n).await?;
        let at = received.recv().await.ok_or_else(lost)?;
        to_receiver.push(at.saturating_duration_since(begun).as_secs_f64() * 1_000.0);
        progress("messages, one at a time", n as u64);
    }
    handle.result().await?;

    let echo = engine.start(&workflows.echo, count).workflow_id("echo").await?;
    let mut round_trips = Samples::default();
    let mut begun = Instant::now();
    let caller = engine.start(&workflows.caller, ("echo".to_owned(), count)).await?;
    for n in 0..count {
        let at = received.recv().await.ok_or_else(lost)?;
        round_trips.push(at.saturating_duration_since(begun).as_secs_f64() * 1_000.0);
        begun = at;
        progress("round trips between two executions", (count + n) as u64);
    }
    caller.result().await?;
    echo.result().await?;

    let handle = engine.start(&workflows.setter, count).workflow_id("setter").await?;
    let mut events = Samples::default();
    for n in 0..count {
        let begun = Instant::now();
        handle.send(&n).await?;
        handle.get_event::<usize>(format!("event {n}")).await?;
        events.push(ms_since(begun));
        progress("events, one at a time", (2 * count + n) as u64);
    }
    handle.result().await?;

    progress("many senders to one receiver", 3 * count as u64);
    let handle = engine.start(&workflows.receiver, senders * per_sender).workflow_id("crowd").await?;
    let begun = Instant::now();
    let sends = (0..senders).map(|_| async {
        for n in 0..per_sender {
            handle.send(&n).await?;
        }
        Ok::<_, Error>(())
    });
    try_join_all(sends).await?;
    let sent = begun.elapsed().as_secs_f64();
    handle.result().await?;
    let completed = (senders * per_sender) as u64;
    let row = |mode: &str, seconds: f64| Row {
        mode: Some(mode.to_owned()),
        completed,
        seconds,
        per_second: completed as f64 / seconds.max(1e-9),
        ..Row::default()
    };
    let mut rows = vec![
        to_receiver.row("message to its receiver"),
        round_trips.row("round trip of two executions"),
        events.row("message and event to its reader"),
        row(&format!("sent by {senders} tasks"), sent),
        row(&format!("received of {senders} tasks"), begun.elapsed().as_secs_f64()),
    ];
    engine.shutdown(Duration::from_secs(10)).await?;
    progress("round trips between two processes", parameters.total());
    rows.push(measure_two_processes(target, &workflows, count, &mut received).await?);
    let figures = vec![Figure::new("message to its receiver, median", to_receiver.median(), "ms")];
    Ok((rows, figures))
}

/// Measures round trips between an execution of this process and one of a worker.
async fn measure_two_processes(
    target: &Target,
    workflows: &Workflows,
    count: usize,
    received: &mut UnboundedReceiver<Instant>,
) -> Result<Row, Error> {
    // the times of the messages before
    while received.try_recv().is_ok() {}
    let worker = Worker::start_one(&target.url).await?;
    let builder = Engine::builder(target.store().await?).register(&workflows.caller);
    let engine = builder.suspend_after(Duration::from_hours(1)).open().await?;
    let client = Client::open(target.store().await?).await?;
    let echo = client.start(&workflows.echo, count).await?;
    let caller = engine.start(&workflows.caller, (echo.workflow_id(), count)).await?;
    let mut begun = Instant::now();
    let mut times = Vec::with_capacity(count);
    while times.len() < count {
        let Some(at) = received.recv().await else { break };
        times.push(at.saturating_duration_since(begun).as_secs_f64() * 1_000.0);
        begun = at;
    }
    caller.result().await?;
    echo.result().await?;
    client.into_engine().shutdown(Duration::from_secs(10)).await?;
    engine.shutdown(Duration::from_secs(10)).await?;
    worker.wait().await?;
    Ok(Samples::from_iter(times).row("round trip of two processes"))
}
