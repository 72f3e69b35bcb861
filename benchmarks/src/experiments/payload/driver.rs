//! [`Driver`]: an engine that executes the runs of `bench payload`, in this process or in a Python process.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use stepfast::{Context, Engine, Failure, Workflow};
use tokio::time::Instant;

use super::{Arm, SIZES};
use crate::measure::ms_since;
use crate::python::Python;
use crate::target::Target;

/// The language whose API is measured.
#[derive(Clone, Debug)]
pub enum Sdk {
    /// Rust, in this process.
    Rust,
    /// Python, in a process of this interpreter.
    Python(PathBuf),
}

/// The times of one run, in milliseconds.
#[derive(Debug, Deserialize)]
pub(super) struct Times {
    /// The time for creating the random data, before the run.
    pub(super) made: f64,
    /// The time from the call to the first line of the workflow's code.
    pub(super) begin: f64,
    /// The time of each step, measured in the workflow's code.
    pub(super) steps: Vec<f64>,
    /// The time from the call to the durable output.
    pub(super) total: f64,
}

pub(super) enum Driver {
    Rust(RustEngine),
    Python(Python),
}

impl Driver {
    pub(super) async fn open(sdk: &Sdk, target: &Target) -> Result<Self> {
        Ok(match sdk {
            Sdk::Rust => Driver::Rust(RustEngine::open(target).await?),
            Sdk::Python(program) => {
                Driver::Python(Python::start(program, "payload", json!({ "url": target.url }))?)
            }
        })
    }

    pub(super) async fn run(&mut self, arm: Arm) -> Result<Times> {
        let times = match self {
            Driver::Rust(engine) => engine.run(arm).await?,
            Driver::Python(python) => {
                python.send(&json!({ "arm": arm.as_str() }))?;
                python.receive("times", &|_| {})?
            }
        };
        let steps = if arm == Arm::Batched { 1 } else { SIZES.len() };
        ensure!(times.steps.len() == steps, "{} steps were timed, not {steps}", times.steps.len());
        Ok(times)
    }

    /// Ends the engine. Returns its messages for the user.
    pub(super) async fn close(self) -> Result<String> {
        match self {
            Driver::Rust(RustEngine { engine, .. }) => {
                engine.shutdown(Duration::from_secs(10)).await?;
                Ok(String::new())
            }
            Driver::Python(python) => python.finish(),
        }
    }
}

/// The input of a run: its data, and the time of the call.
#[derive(Clone)]
struct RunInput {
    data: Arc<[Bytes]>,
    called_at: Instant,
}

pub(super) struct RustEngine {
    engine: Engine,
    workflows: [(Arm, Workflow<(), Vec<f64>>); 4],
    input: Arc<std::sync::Mutex<RunInput>>,
}

impl RustEngine {
    async fn open(target: &Target) -> Result<Self> {
        let input = RunInput { data: Arc::new([]), called_at: Instant::now() };
        let input = Arc::new(std::sync::Mutex::new(input));
        let workflows = Arm::ALL.map(|arm| (arm, workflow(arm, input.clone())));
        let builder = Engine::builder(target.store().await?);
        let builder = workflows.iter().fold(builder, |builder, (_, workflow)| builder.register(workflow));
        Ok(Self { engine: builder.open().await?, workflows, input })
    }

    async fn run(&mut self, arm: Arm) -> Result<Times> {
        let begun = Instant::now();
        let mut urandom = std::fs::File::open("/dev/urandom").context("random data")?;
        let mut made = Vec::new();
        for size in SIZES {
            let mut data = vec![0; size];
            urandom.read_exact(&mut data)?;
            made.push(Bytes::from(data));
        }
        let workflow = self.workflows.iter().find(|(of, _)| *of == arm).context("no such arm")?;
        let input = RunInput { data: made.into(), called_at: Instant::now() };
        let (made, at) = ((input.called_at - begun).as_secs_f64() * 1000.0, input.called_at);
        *self.input.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = input;
        let mut steps = self.engine.run(&workflow.1, ()).await?;
        let total = ms_since(at);
        let begin = steps.remove(0);
        Ok(Times { made, begin, steps, total })
    }
}

fn workflow(arm: Arm, input: Arc<std::sync::Mutex<RunInput>>) -> Workflow<(), Vec<f64>> {
    let workflow = Workflow::new(arm.as_str(), move |cx: Context, (): ()| {
        let input = input.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        async move {
            let begin = ms_since(input.called_at);
            let mut times = if arm == Arm::Batched {
                run_batched_step(cx, &input.data).await?
            } else {
                run_seven_steps(cx, arm, &input.data).await?
            };
            times.insert(0, begin);
            Ok::<_, Failure>(times)
        }
    });
    workflow.durable_reads(arm == Arm::Durable)
}

/// Runs seven steps. Returns their times in milliseconds.
async fn run_seven_steps(mut cx: Context, arm: Arm, made: &[Bytes]) -> Result<Vec<f64>, Failure> {
    let mut times = Vec::with_capacity(8);
    for data in made {
        let begun = Instant::now();
        let step = cx.step("size_step", async || Ok::<_, Failure>(data.clone())).retries(3);
        let value = if arm == Arm::Speculative { step.speculative().await? } else { step.await? };
        times.push(ms_since(begun));
        check_len(value.len(), data.len())?;
    }
    Ok(times)
}

/// Runs the single step. Returns its time in milliseconds.
async fn run_batched_step(mut cx: Context, made: &[Bytes]) -> Result<Vec<f64>, Failure> {
    let begun = Instant::now();
    let step = cx.step("batch_size_step", async || Ok::<_, Failure>(Bytes::from(made.concat())));
    let value = step.retries(3).await?;
    let times = vec![ms_since(begun)];
    check_len(value.len(), SIZES.iter().sum())?;
    Ok(times)
}

fn check_len(len: usize, wanted: usize) -> Result<(), Failure> {
    if len == wanted {
        Ok(())
    } else {
        Err(Failure::new(format!("the step returned {len} bytes, not {wanted}")))
    }
}
