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
//! `docs/guide/rust.md` in the repository goes through all of this, from Cargo.toml on.
//!
//! # Features
//!
//! `sqlite` (on by default) and `postgres` are the stores that [`connect`] knows; `memory:` is always there.
//! `docs/reference/stores.md` has all forms of URLs, and how to back a store up.
//!
//! # Steps, retries, errors
//!
//! A step has one attempt unless it is told otherwise, and no limit in time. With [`retries`](Step::retries)
//! the pauses are 1 s, 2 s, 4 s … up to 60 s, each shortened by up to half at random; [`RetryPolicy`] has all of
//! it, [`timeout`](Step::timeout) limits an attempt. Pauses and the count of attempts survive crashes.
//!
//! The error of a step or workflow may be a [`Failure`] or any `std::error::Error` ([`IntoFailure`]);
//! [`Failure::new`] makes one of text, [`Failure::from_dyn`] of a `Box<dyn Error>` or an `anyhow::Error`.
//! Values and inputs need serde's `Serialize` and `Deserialize`.
//!
//! # Opening and shutting down
//!
//! [`open`](EngineBuilder::open) registers a worker that works at once: it claims what is ready of the workflows
//! that were registered in the builder, and recovers what lost workers left. An engine without registered
//! workflows claims nothing: open one such to look, to cancel or to resume ([`connect_existing`] makes no store).
//!
//! [`shutdown`](Engine::shutdown) hands back what runs and flushes what is staged; it does not wait for
//! executions to end. A process that ends without it loses nothing that was acknowledged: the next worker takes
//! over, as after a crash.

pub mod schema;
mod url;

/// The code in the guide is compiled, and run where it can be.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/rust.md")]
struct Guide;

/// The code in the guide to queues is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/queues.md")]
struct Queues;

/// The code in the README is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

use std::sync::Arc;

pub use stepfast_core::*;
#[cfg(feature = "postgres")]
pub use stepfast_postgres::{Pooling, PostgresOptions, PostgresStore, SslMode, hint_channel};
#[cfg(feature = "sqlite")]
pub use stepfast_sqlite::{SqliteOptions, SqliteStore};

/// For bindings to languages whose programs fork.
#[cfg(feature = "sqlite")]
#[doc(hidden)]
pub use stepfast_sqlite::fork;

/// What most programs need.
pub mod prelude {
    pub use stepfast_core::{Context, Either, Engine, Error, Failure, Handle, Status, Workflow};
}

/// Opens the store that `url` names, and brings its schema up to date.
///
/// - `sqlite://shop.db`, `sqlite:///shop.db`: the file `shop.db` in the current directory;
///   `sqlite:////var/lib/shop.db`, `sqlite:/var/lib/shop.db`: an absolute path. It is created if missing.
/// - `postgres://user:password@host:5432/database`
/// - `memory:`: nothing is kept; for tests.
///
/// The file's directory must be there. All forms, the files beside a SQLite database, and how to back it up
/// are in `docs/reference/stores.md`.
///
/// `?durability=relaxed` (SQLite and Postgres) lets a crash of the machine take back the last moments.
/// [`Error::Open`], [`Error::Unreachable`], [`Error::NewerSchema`], or [`Error::Invalid`] for a URL that is none of
/// these.
pub async fn connect(url: &str) -> Result<Arc<dyn Store>, Error> {
    url::open(url, false).await
}

/// Opens the store that `url` names like [`connect`], but creates nothing: for programs that look at what
/// others have made.
///
/// [`Error::Open`] also if there is no such file, or nothing of Stepfast's in the database;
/// [`Error::Invalid`] also for `memory:`, which is always empty.
pub async fn connect_existing(url: &str) -> Result<Arc<dyn Store>, Error> {
    url::open(url, true).await
}
