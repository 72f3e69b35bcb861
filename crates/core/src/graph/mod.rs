//! Graphs: tasks with declared dependencies, as workflows.
//!
//! A graph is a workflow whose code runs its tasks: each one when its dependencies have ended, and independent tasks
//! concurrently. A task is a step, so its outcome is recorded once. A replay finds it by the task's name.
//!
//! ```
//! use std::sync::Arc;
//!
//! use stepfast_core::graph::Graph;
//! use stepfast_core::{Engine, Failure, MemoryStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), stepfast_core::Error> {
//! let mut graph = Graph::<String>::new("etl");
//! let source = graph.input();
//! let extract = graph.task("extract").retries(3).run(source, async |source: String| {
//!     Ok::<_, Failure>(source.split(' ').map(str::to_owned).collect::<Vec<_>>())
//! });
//! let lengths = graph.task("lengths").run(extract.clone(), async |words: Vec<String>| {
//!     Ok::<_, Failure>(words.iter().map(String::len).collect::<Vec<_>>())
//! });
//! let report = graph.task("report").run((extract, lengths), async |(words, lengths)| {
//!     Ok::<_, Failure>(format!("{} words, {} bytes", words.len(), lengths.iter().sum::<usize>()))
//! });
//! let etl = graph.build(report)?;
//!
//! let engine = Engine::builder(Arc::new(MemoryStore::new())).register(&etl).open().await?;
//! assert_eq!(engine.run(&etl, "to be or not".to_owned()).await?, "4 words, 9 bytes");
//! # engine.shutdown(std::time::Duration::from_secs(1)).await
//! # }
//! ```

mod arguments;
mod builder;
mod callback;
mod code;
mod context;
mod map;
mod picture;
mod place;
mod progress;
mod runner;
mod shape;
mod state;
mod task;

pub use arguments::{ArgumentSource, ArgumentValues, Arguments, GraphInput, OptionalTaskRef, TaskRef};
pub use builder::{Graph, MapBuilder, TaskBuilder};
pub use context::merge::{Merge, MergeFunction};
pub use context::shared::GraphContext;
pub use context::source::{ContextRef, ContextView};
pub use picture::execution_tree::{RecordedCall, RecordedOutcome};
pub use place::TaskPlace;
pub(crate) use place::{begin_task_call, is_repeated};
pub use progress::GraphProgress;
pub use shape::condition::{ComparedValue, Comparison, Literal, ValueCondition, ValueSource};
pub use shape::declaration::{GraphDeclaration, InputDeclaration, TaskDeclaration};
pub use shape::rule::Rule;
pub use shape::{GraphShape, TaskShape};
pub use state::TaskState;
