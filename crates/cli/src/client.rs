//! A client for the duration of a command.

use std::sync::Arc;
use std::time::Duration;

use stepfast::{BatchHandle, Client, Payload, Store};

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

/// Runs `body` with a batch on the existing store at `url`, and with a client, like [`with_client`].
pub(crate) async fn with_batch<T>(
    url: &str,
    batch_id: &str,
    body: impl AsyncFnOnce(BatchHandle<Payload>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let store = stepfast::connect_existing(url).await?;
    with_client(store, async |client| body(client.get_batch(batch_id).await?).await).await
}
