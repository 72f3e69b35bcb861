//! A client for the duration of a command.

use std::sync::Arc;
use std::time::Duration;

use stepfast::{Client, Store};

/// Runs `body` with a client on `store`. Shuts the client down even if `body` fails: otherwise the client would count as
/// registered for a day.
pub(crate) async fn with_client<T>(
    store: Arc<dyn Store>,
    body: impl AsyncFnOnce(&Client) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let client = Client::open(store).await?;
    let result = body(&client).await;
    client.shutdown(Duration::from_secs(10)).await?;
    result
}
