//! [`LogUsage`]: the bytes of a Postgres server's write-ahead log, and the share of full-page images in them.

use serde::{Deserialize, Serialize};
use stepfast::Error;
use tokio_postgres::Client;
use tokio_postgres::types::PgLsn;

use crate::target::postgres_error;

/// The write-ahead log of a run. The log is the whole server's, so it includes other activity at the same time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LogUsage {
    /// The number of bytes, with images: the difference of positions in the log.
    pub bytes: u64,
    /// The number of images of pages, which are written at the first change after a checkpoint. `None` before Postgres 14.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<u64>,
    /// The number of bytes of the images. `None` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_bytes: Option<u64>,
    /// The source of `image_bytes`: `log` (read from the log), or `at most` (the size of as many whole pages; the log leaves out
    /// holes in pages, so the true number may be much smaller).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_source: Option<String>,
    /// The percentage of page requests by the database's sessions that the server's buffers served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_hits: Option<f64>,
}

/// The server's counters at one moment.
pub(super) struct LogReading {
    position: PgLsn,
    images: Option<i64>,
    hits: i64,
    reads: i64,
}

impl LogReading {
    pub(super) async fn read(client: &Client) -> Result<Self, Error> {
        let row = client
            .query_one(
                "SELECT pg_current_wal_insert_lsn(), blks_hit, blks_read FROM pg_stat_database
                 WHERE datname = current_database()",
                &[],
            )
            .await
            .map_err(postgres_error)?;
        // available since Postgres 14
        let images = client.query_one("SELECT wal_fpi FROM pg_stat_wal", &[]).await;
        let images = images.ok().and_then(|row| row.try_get(0).ok());
        Ok(Self { position: row.get(0), images, hits: row.get(1), reads: row.get(2) })
    }

    /// Returns what was written since this reading.
    pub(super) async fn since(self, client: &Client) -> Result<LogUsage, Error> {
        let now = Self::read(client).await?;
        let difference = |now: i64, then: i64| now.saturating_sub(then).max(0) as u64;
        let images = now.images.zip(self.images).map(|(now, then)| difference(now, then));
        let (hits, reads) = (difference(now.hits, self.hits), difference(now.reads, self.reads));
        let mut log = LogUsage {
            bytes: u64::from(now.position).saturating_sub(self.position.into()),
            images,
            buffer_hits: (hits + reads > 0).then(|| hits as f64 / (hits + reads) as f64 * 100.0),
            ..LogUsage::default()
        };
        if let Some(bytes) = read_image_bytes(client, self.position, now.position).await {
            log.image_bytes = Some(bytes.min(log.bytes));
            log.image_source = Some("log".to_owned());
        } else if let Some(images) = images {
            let page = client.query_one("SELECT current_setting('block_size')::bigint", &[]).await;
            let page = page.map_err(postgres_error)?.get::<_, i64>(0) as u64;
            // the statistics of images are updated at other moments than positions
            log.image_bytes = Some((images * page).min(log.bytes));
            log.image_source = Some("at most".to_owned());
        }
        Ok(log)
    }
}

/// Returns the bytes of images in a part of the log, read by the extension `pg_walinspect` (Postgres 15 and later), which is
/// created in a transaction that is rolled back. Returns `None` without the extension, without the privilege to create it, or
/// if that part of the log was removed.
async fn read_image_bytes(client: &Client, from: PgLsn, to: PgLsn) -> Option<u64> {
    client.batch_execute("BEGIN; SET LOCAL statement_timeout = '60s'").await.ok()?;
    let counted = async {
        client.batch_execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect").await.ok()?;
        // Postgres 15 rejects a part whose end is not flushed yet
        let bytes = "SELECT coalesce(sum(fpi_size), 0)::bigint
             FROM pg_get_wal_stats($1, least($2, pg_current_wal_flush_lsn()))";
        let row = client.query_one(bytes, &[&from, &to]).await.ok()?;
        Some(row.get::<_, i64>(0) as u64)
    }
    .await;
    client.batch_execute("ROLLBACK").await.ok()?;
    counted
}
