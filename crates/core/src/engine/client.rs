//! [`Client`]: an engine that runs nothing.

use std::ops::Deref;
use std::sync::Arc;

use crate::engine::Engine;
use crate::error::Error;
use crate::queue::{OnConflict, Queue};
use crate::store::Store;

/// An engine that runs nothing: it starts executions for workers elsewhere, waits for them, cancels, resumes and lists
/// them. Web processes use a client to start work that workers do.
///
/// A client has all methods of an [`Engine`], but has no workflows and claims nothing. A client can
/// [start](Engine::start) any [`Workflow`](crate::Workflow), even one whose code is not in the program (see
/// [`Workflow::named`](crate::Workflow::named)). Starts that a client has accepted are durable, and nothing is lost
/// when the process dies. The client renews its registration from time to time, not every second.
///
/// Thousands of waiting callers share one listener and one query at a time. Cheap to clone.
#[derive(Clone)]
pub struct Client(Engine);

impl Client {
    /// Opens a client on `store`. The method must be called in a tokio runtime.
    pub async fn open(store: Arc<dyn Store>) -> Result<Self, Error> {
        Ok(Self(Engine::builder(store).run_nothing().open().await?))
    }

    /// Opens a client on `store`, and declares queues, as an engine does: see
    /// [`EngineBuilder::declare_queue`](crate::EngineBuilder::declare_queue).
    pub async fn open_with_queues(
        store: Arc<dyn Store>,
        queues: impl IntoIterator<Item = (Queue, OnConflict)>,
    ) -> Result<Self, Error> {
        let builder = queues
            .into_iter()
            .fold(Engine::builder(store), |builder, (queue, policy)| builder.declare_queue(queue, policy));
        Ok(Self(builder.run_nothing().open().await?))
    }

    /// Returns the engine behind the client.
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
