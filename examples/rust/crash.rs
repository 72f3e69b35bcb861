//! The cost of kill -9: this program starts itself as a worker, kills it in the middle of a workflow, starts it again,
//! and shows which process ran which step. `cargo run --example crash [URL]`; a fresh SQLite file by default.
#![allow(clippy::print_stdout)]
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use stepfast::prelude::{Context, Engine, Failure, Workflow};

/// Starts the execution, or continues it after a kill, and waits for its end. Every body prints its number; the body of
/// step `stuck` never returns.
async fn work(url: &str, workflow_id: &str, stuck: u32) -> Result<(), Box<dyn std::error::Error>> {
    let count = Workflow::new("count", move |mut cx: Context, steps: u32| async move {
        for n in 1..=steps {
            let body = async || {
                println!("{n}");
                if n == stuck { std::future::pending().await } else { Ok::<_, Failure>(n) }
            };
            cx.step(n.to_string(), body).await?;
        }
        Ok::<_, Failure>(())
    });
    let engine = Engine::builder(stepfast::connect(url).await?).register(&count).open().await?;
    Ok(engine.start(&count, 40).workflow_id(workflow_id).await?.result().await?)
}

/// Runs a worker in a process of its own, which is killed by SIGKILL in step `kill`. Returns the bodies that it ran.
fn life(url: &str, workflow_id: &str, kill: u32) -> Result<Vec<u32>, Box<dyn std::error::Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.args([url, workflow_id, &kill.to_string()]).stdout(Stdio::piped()).spawn()?;
    let mut bodies = Vec::new();
    for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
        bodies.push(line?.parse()?);
        if bodies.last() == Some(&kill) {
            child.kill()?;
        }
    }
    Ok(child.wait().map(|_| bodies)?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, url, workflow_id, stuck] = args.as_slice() {
        return work(url, workflow_id, stuck.parse()?).await;
    }
    let (directory, name) = (tempfile::tempdir()?, format!("crash-{}", std::process::id()));
    let url = args.into_iter().nth(1).unwrap_or(format!("sqlite:{}/crash.db", directory.path().display()));
    let lives = [life(&url, &name, 17)?, life(&url, &name, 0)?];
    let record = Engine::builder(stepfast::connect(&url).await?).open().await?.show(&name).await?;
    let recorded: Vec<u32> = record.checkpoints.iter().flat_map(|it| it.name.parse()).collect();
    let replayed: Vec<u32> = recorded.iter().copied().filter(|n| !lives[1].contains(n)).collect();
    println!("40 steps, killed in step 17 by SIGKILL, and started again: {}\n", record.execution.status);
    let (begun, [first, second]) = (lives.concat(), lives);
    for (what, steps) in [("ran before the kill", first), ("replayed, not run again", replayed)]
        .into_iter()
        .chain([("ran after the restart", second), ("times begun", begun), ("recorded", recorded)])
    {
        let times = |n| ["·", "█", "2"][steps.iter().filter(|it| **it == n).count().min(2)];
        println!("{what:>25}  {}", (1..=40).map(times).collect::<String>());
    }
    Ok(())
}
