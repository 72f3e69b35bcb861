//! Stepfast is a durable workflow engine that batches for you: every step is safe on disk before the next
//! one acts, and a thousand of them share one flush.
//!
//! Write ordinary async functions that take a [`Context`]; [`connect`] to a store; open an [`Engine`].
//!
//! ```
//! use stepfast::prelude::*;
//!
//! async fn checkout(mut cx: Context, order: String) -> Result<String, Failure> {
//!     let payment = cx.step("charge", async || charge(&order)).retries(3).await?;
//!     cx.step("ship", async || ship(&order, &payment)).await
//! }
//! # fn charge(order: &str) -> Result<String, Failure> { Ok(format!("paid {order}")) }
//! # fn ship(order: &str, payment: &str) -> Result<String, Failure> { Ok(format!("{order}: {payment}, sent")) }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let checkout = Workflow::new("checkout", checkout);
//! let engine = Engine::builder(stepfast::connect("memory:").await?).register(&checkout).open().await?;
//! let handle = engine.start(&checkout, "order-7".to_owned()).workflow_id("order-7").await?;
//! assert_eq!(handle.result().await?, "order-7: paid order-7, sent");
//! # Ok(())
//! # }
//! ```
//!
//! `docs/guide/rust.md` in the repository explains all of this, beginning with Cargo.toml.
//!
//! # Features
//!
//! `sqlite` (on by default) and `postgres` add stores to [`connect`]; `memory:` is always available.
//! `docs/reference/stores.md` lists all forms of URLs, and explains backups.
//!
//! # Steps, retries, errors
//!
//! By default a step has one attempt, without a time limit. [`retries`](Step::retries) allows more, with pauses of 1 s,
//! 2 s, 4 s … up to 60 s, each shortened at random by up to half. [`RetryPolicy`] sets all of these numbers, and
//! [`timeout`](Step::timeout) limits the time of an attempt. Pauses and the count of attempts survive crashes.
//!
//! The error of a step or workflow may be a [`Failure`] or any `std::error::Error` ([`IntoFailure`]). [`Failure::new`]
//! makes a failure from a text, [`Failure::from_dyn`] from a `Box<dyn Error>` or an `anyhow::Error`. Values and inputs
//! need serde's `Serialize` and `Deserialize`.
//!
//! # Opening and shutting down
//!
//! [`open`](EngineBuilder::open) registers a worker that works at once: it claims ready executions of the workflows
//! that were registered in the builder, and recovers those of dead workers. An engine without registered workflows
//! claims nothing: use such an engine to read, cancel or resume executions ([`connect_existing`] creates no store).
//!
//! [`shutdown`](Engine::shutdown) requeues the running executions and flushes the staged Writes, without waiting for
//! executions to end. A process that ends without a shutdown loses nothing that was acknowledged: the next worker takes
//! over, as after a crash.

pub mod schema;
mod url;

/// Compiles the code in the guide, and runs it where possible.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/rust.md")]
struct Guide;

/// Compiles and runs the code in the guide to queues.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/queues.md")]
struct Queues;

/// Compiles and runs the Rust code in the guide to batches.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/batches.md")]
struct Batches;

/// Compiles and runs the Rust code in the guide to messages, events, streams and tokens.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/talking.md")]
struct Talking;

/// Compiles and runs the Rust code in the guide to messages.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/messages.md")]
struct Messages;

/// Compiles and runs the Rust code in the guide to tokens and questions.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/tokens.md")]
struct Tokens;

/// Compiles and runs the Rust code in the guide to streams.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/streams.md")]
struct Streams;

/// Compiles and runs the Rust code in the guide to executions that run for months.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/long-running.md")]
struct LongRunning;

/// Compiles and runs the Rust code in the guide to schedules.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/schedules.md")]
struct Schedules;

/// Compiles and runs the Rust code in the guide to graphs.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/graphs.md")]
struct Graphs;

/// Compiles the code in the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

use std::sync::Arc;

pub use stepfast_core::*;
#[cfg(feature = "postgres")]
pub use stepfast_postgres::{Pooling, PostgresOptions, PostgresStore, SslMode, hint_channel};
#[cfg(feature = "sqlite")]
pub use stepfast_sqlite::{SqliteOptions, SqliteStore};

/// The fork hooks of SQLite, for bindings to languages whose programs fork.
#[cfg(feature = "sqlite")]
#[doc(hidden)]
pub use stepfast_sqlite::fork;

/// The names that most programs need.
pub mod prelude {
    pub use stepfast_core::{Context, Either, Engine, Error, Failure, Handle, Status, Workflow};
}

/// Opens the store that `url` names, and brings its schema up to date.
///
/// - `sqlite://shop.db`, `sqlite:///shop.db`: the file `shop.db` in the current directory;
///   `sqlite:////var/lib/shop.db`, `sqlite:/var/lib/shop.db`: an absolute path. A missing file is created.
/// - `postgres://user:password@host:5432/database`
/// - `memory:`: nothing is kept; for tests.
///
/// The file's directory must exist. `docs/reference/stores.md` lists all forms and the files beside a SQLite database,
/// and explains backups.
///
/// With `?durability=relaxed` (SQLite and Postgres), a crash of the machine may undo the last acknowledged changes.
///
/// Fails with [`Error::Open`], [`Error::Unreachable`] or [`Error::NewerSchema`], or with [`Error::Invalid`] for any
/// other URL.
pub async fn connect(url: &str) -> Result<Arc<dyn Store>, Error> {
    url::open(url, false).await
}

/// Opens the store that `url` names like [`connect`], but creates nothing. This is for programs that work with the
/// executions of other programs.
///
/// Fails with [`Error::Open`] also if the file does not exist or the database has no schema of Stepfast. Fails with
/// [`Error::Invalid`] also for `memory:`, which is always empty.
pub async fn connect_existing(url: &str) -> Result<Arc<dyn Store>, Error> {
    url::open(url, true).await
}
