//! [`Client`]: an engine that runs nothing.

use std::ops::Deref;
use std::sync::Arc;

use crate::engine::Engine;
use crate::error::Error;
use crate::store::Store;

/// Starts executions that workers elsewhere run, waits for them, cancels, resumes and lists them: what a web
/// process needs that hands work on.
///
/// It is an [`Engine`] in all but running: it has no workflows, claims nothing, and
/// [`start`](Engine::start)s any [`Workflow`](crate::Workflow), also one whose code is not in the program (see
/// [`Workflow::named`](crate::Workflow::named)). What it has accepted is durable. Its
/// registration is renewed now and then, not every second, and nothing is lost when the process dies.
///
/// Thousands who wait for results share one listener and one question to the database at a time. Cheap to clone.
#[derive(Clone)]
pub struct Client(Engine);

impl Client {
    /// A client on `store`. Must be called in a tokio runtime.
    pub async fn open(store: Arc<dyn Store>) -> Result<Self, Error> {
        Ok(Self(Engine::builder(store).run_nothing().open().await?))
    }

    /// The engine behind it.
    #[doc(hidden)]
    pub fn into_engine(self) -> Engine {
        self.0
    }
}

impl Deref for Client {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.0
    }
}
