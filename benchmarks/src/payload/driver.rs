//! [`Driver`]: an engine that carries out the runs of `bench payload`, in this process or in one of Python.

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

/// Which language's API is driven.
#[derive(Clone, Debug)]
pub enum Sdk {
    /// Rust's, in this process.
    Rust,
    /// Python's, in a process of this program.
    Python(PathBuf),
}

/// One run, in milliseconds.
#[derive(Debug, Deserialize)]
pub(super) struct Times {
    /// To make the random data, before the run.
    pub(super) made: f64,
    /// From the call to the first line of the workflow's code.
    pub(super) begin: f64,
    /// Each step as the code sees it.
    pub(super) steps: Vec<f64>,
    /// From the call to the durable output.
    pub(super) total: f64,
}

pub(super) enum Driver {
    Rust(InRust),
    Python(Python),
}

impl Driver {
    pub(super) async fn open(sdk: &Sdk, target: &Target) -> Result<Self> {
        Ok(match sdk {
            Sdk::Rust => Driver::Rust(InRust::open(target).await?),
            Sdk::Python(program) => {
                Driver::Python(Python::start(program, "payload", json!({ "url": target.url }))?)
            }
        })
    }

    pub(super) async fn run(&mut self, arm: Arm) -> Result<Times> {
        let times = match self {
            Driver::Rust(engine) => engine.run(arm).await?,
            Driver::Python(python) => {
                python.tell(&json!({ "arm": arm.as_str() }))?;
                python.hear("times", &|_| {})?
            }
        };
        let steps = if arm == Arm::Batched { 1 } else { SIZES.len() };
        ensure!(times.steps.len() == steps, "{} steps were timed, not {steps}", times.steps.len());
        Ok(times)
    }

    /// What it had to say to people.
    pub(super) async fn close(self) -> Result<String> {
        match self {
            Driver::Rust(InRust { engine, .. }) => {
                engine.shutdown(Duration::from_secs(10)).await?;
                Ok(String::new())
            }
            Driver::Python(python) => python.end(),
        }
    }
}

/// What a run is given: its data, and when it was asked for.
#[derive(Clone)]
struct Asked {
    made: Arc<[Bytes]>,
    at: Instant,
}

pub(super) struct InRust {
    engine: Engine,
    workflows: [(Arm, Workflow<(), Vec<f64>>); 4],
    asked: Arc<std::sync::Mutex<Asked>>,
}

impl InRust {
    async fn open(target: &Target) -> Result<Self> {
        let asked = Asked { made: Arc::new([]), at: Instant::now() };
        let asked = Arc::new(std::sync::Mutex::new(asked));
        let workflows = Arm::ALL.map(|arm| (arm, workflow(arm, asked.clone())));
        let builder = Engine::builder(target.store().await?);
        let builder = workflows.iter().fold(builder, |builder, (_, workflow)| builder.register(workflow));
        Ok(Self { engine: builder.open().await?, workflows, asked })
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
        let asked = Asked { made: made.into(), at: Instant::now() };
        let (made, at) = ((asked.at - begun).as_secs_f64() * 1000.0, asked.at);
        *self.asked.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = asked;
        let mut steps = self.engine.run(&workflow.1, ()).await?;
        let total = ms_since(at);
        let begin = steps.remove(0);
        Ok(Times { made, begin, steps, total })
    }
}

fn workflow(arm: Arm, asked: Arc<std::sync::Mutex<Asked>>) -> Workflow<(), Vec<f64>> {
    let workflow = Workflow::new(arm.as_str(), move |cx: Context, (): ()| {
        let asked = asked.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        async move {
            let begin = ms_since(asked.at);
            let mut times = if arm == Arm::Batched {
                batched(cx, &asked.made).await?
            } else {
                seven(cx, arm, &asked.made).await?
            };
            times.insert(0, begin);
            Ok::<_, Failure>(times)
        }
    });
    workflow.eager(arm != Arm::Durable)
}

/// Milliseconds of each of seven steps.
async fn seven(mut cx: Context, arm: Arm, made: &[Bytes]) -> Result<Vec<f64>, Failure> {
    let mut times = Vec::with_capacity(8);
    for data in made {
        let begun = Instant::now();
        let step = cx.step("size_step", async || Ok::<_, Failure>(data.clone())).retries(3);
        let value = if arm == Arm::Speculative { step.speculative().await? } else { step.await? };
        times.push(ms_since(begun));
        check(value.len(), data.len())?;
    }
    Ok(times)
}

/// Milliseconds of the single step.
async fn batched(mut cx: Context, made: &[Bytes]) -> Result<Vec<f64>, Failure> {
    let begun = Instant::now();
    let step = cx.step("batch_size_step", async || Ok::<_, Failure>(Bytes::from(made.concat())));
    let value = step.retries(3).await?;
    let times = vec![ms_since(begun)];
    check(value.len(), SIZES.iter().sum())?;
    Ok(times)
}

fn check(len: usize, wanted: usize) -> Result<(), Failure> {
    if len == wanted {
        Ok(())
    } else {
        Err(Failure::new(format!("the step returned {len} bytes, not {wanted}")))
    }
}
