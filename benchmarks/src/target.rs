//! [`Target`]: the store that an experiment runs on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepfast::{Error, PostgresStore, Store};
use tempfile::TempDir;

use crate::measure::own_bytes_written;

/// The location of targets, as the user names it.
pub struct TargetLocation {
    /// A URL, or `sqlite` (a new file each time), or `memory`.
    pub store: String,
    /// The durability: `full` or `relaxed`.
    pub durability: String,
    /// The directory for new files. `None` means the temporary directory.
    pub directory: Option<PathBuf>,
}

impl TargetLocation {
    /// Opens a target.
    pub async fn open_target(&self) -> Result<Target, Error> {
        Target::open(&self.store, &self.durability, self.directory.as_ref()).await
    }

    /// Opens an empty target that other processes can open, too. On Postgres this is a new database on the server, which is
    /// dropped when the target is [closed](Target::close).
    pub async fn open_fresh(&self) -> Result<Target, Error> {
        let target = self.open_target().await?;
        if target.postgres().is_some() {
            return target.in_new_database(&self.durability).await;
        }
        if self.store == "memory" || self.store.starts_with("memory:") {
            let reason = "other processes cannot open it; use sqlite, or a URL";
            return Err(Error::Invalid { input: "store", reason: format!("memory: {reason}") });
        }
        if target.path().is_some_and(|path| path.exists()) {
            let reason = format!("{} exists already; use sqlite for a new file, or another path", self.store);
            return Err(Error::Invalid { input: "store", reason });
        }
        Ok(target)
    }

    /// Returns the location for new targets on the same server as `target`, or in the same folder.
    pub(crate) fn sibling(&self, target: &Target) -> Self {
        let durability = self.durability.clone();
        if target.is_postgres() {
            return Self { store: self.store.clone(), durability, directory: None };
        }
        Self { store: "sqlite".to_owned(), durability, directory: Some(target.folder()) }
    }

    /// Empties a target from [`open_fresh`](Self::open_fresh). On Postgres the database is kept, because creating and dropping
    /// databases causes checkpoints, which slow down the others.
    pub(crate) async fn empty(&self, target: &mut Target) -> Result<(), Error> {
        if let Some(client) = target.postgres() {
            return client.batch_execute(TRUNCATE_TABLES).await.map_err(postgres_error);
        }
        *target = self.open_fresh().await?;
        Ok(())
    }
}

/// Truncates all tables of a database except those that describe it: the version of its schema, and its shard.
const TRUNCATE_TABLES: &str = "DO $$ DECLARE names text; BEGIN \
    SELECT string_agg(format('%I.%I', schemaname, tablename), ', ') INTO names FROM pg_tables \
    WHERE schemaname NOT IN ('pg_catalog', 'information_schema') \
    AND tablename NOT LIKE '%schema%' AND tablename <> 'shard'; \
    IF names IS NOT NULL THEN EXECUTE 'TRUNCATE ' || names; END IF; END $$";

/// Opens a connection to the Postgres database at `url`.
pub(crate) async fn connect(url: &str, name: &str) -> Result<tokio_postgres::Client, Error> {
    Ok(PostgresStore::raw_client(&without_option(url, "durability"), name).await?)
}

/// Returns the URL without one of its options.
fn without_option(url: &str, name: &str) -> String {
    let Some((address, query)) = url.split_once('?') else { return url.to_owned() };
    let is_other = |option: &&str| option.split_once('=').is_none_or(|(other, _)| other != name);
    let rest: Vec<_> = query.split('&').filter(is_other).collect();
    if rest.is_empty() { address.to_owned() } else { format!("{address}?{}", rest.join("&")) }
}

/// Converts an error of Postgres.
#[allow(clippy::needless_pass_by_value)] // for map_err
pub(crate) fn postgres_error(error: tokio_postgres::Error) -> Error {
    Error::Unavailable(format!(
        "a query of the benchmark failed on the Postgres server: {}",
        error_chain(&error)
    ))
}

fn error_chain(error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error).map_or(String::new(), |cause| format!(": {cause}"));
    format!("{error}{cause}")
}

/// The store of an experiment. SQLite without a path gets a new file in a temporary directory.
pub struct Target {
    /// The store's URL.
    pub url: String,
    postgres: Option<tokio_postgres::Client>,
    directory: Option<TempDir>,
    /// The name of the database that was created for this target, with the connection that created it.
    created_database: Option<(String, tokio_postgres::Client)>,
}

impl Target {
    /// Opens the target for `--store` (a URL, or `sqlite`, or `memory`), `--durability`, and the directory for a new file.
    pub async fn open(store: &str, durability: &str, directory: Option<&PathBuf>) -> Result<Self, Error> {
        let mut target =
            Self { url: store.to_owned(), postgres: None, directory: None, created_database: None };
        match store {
            "sqlite" => {
                let directory = match directory {
                    Some(directory) => TempDir::with_prefix_in("stepfast-bench-", directory),
                    None => TempDir::with_prefix("stepfast-bench-"),
                };
                let directory =
                    directory.map_err(|error| io_error("create a temporary directory", &error))?;
                target.url = format!("sqlite:{}", directory.path().join("bench.db").display());
                target.directory = Some(directory);
            }
            "memory" => target.url = "memory:".to_owned(),
            _ => {}
        }
        if target.is_postgres() {
            // the samples of what bounds a run recognise its sessions by their default names
            target.url = without_option(store, "application_name");
            target.postgres = Some(connect(&target.url, "stepfast-bench").await?);
        }
        if durability != "full" {
            let separator = if target.url.contains('?') { '&' } else { '?' };
            target.url = format!("{}{separator}durability={durability}", target.url);
        }
        Ok(target)
    }

    fn is_postgres(&self) -> bool {
        self.url.starts_with("postgres:") || self.url.starts_with("postgresql:")
    }

    /// Opens a target in a new database on the same server.
    async fn in_new_database(mut self, durability: &str) -> Result<Self, Error> {
        let Some(creator) = self.postgres.take() else { return Ok(self) };
        let name = format!("stepfast_bench_{}_{:08x}", std::process::id(), fastrand::u32(..));
        creator.batch_execute(&format!("CREATE DATABASE {name}")).await.map_err(|error| Error::Open {
            store: "a new database for this experiment".to_owned(),
            reason: format!("{}; does the role have CREATEDB?", error_chain(&error)),
        })?;
        let url = with_database(&self.url, &name);
        let opened = Box::pin(Self::open(&url, "full", None)).await;
        if opened.is_err() {
            let _ = creator.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await;
        }
        let mut target = opened?;
        if durability != "full" && !target.url.contains("durability=") {
            let separator = if target.url.contains('?') { '&' } else { '?' };
            target.url = format!("{}{separator}durability={durability}", target.url);
        }
        target.created_database = Some((name, creator));
        Ok(target)
    }

    /// Drops the database that was created for the target.
    pub async fn close(mut self) -> Result<(), Error> {
        self.postgres = None;
        let Some((name, creator)) = self.created_database.take() else { return Ok(()) };
        creator.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.map_err(postgres_error)
    }

    /// Opens the store.
    pub async fn store(&self) -> Result<Arc<dyn Store>, Error> {
        stepfast::connect(&self.url).await
    }

    /// Lets the database vacuum its tables, as autovacuum would do.
    pub(crate) async fn vacuum(&self) -> Result<(), Error> {
        let Some(client) = &self.postgres else { return Ok(()) };
        client.batch_execute("VACUUM (ANALYZE)").await.map_err(postgres_error)
    }

    /// Lets the database vacuum its tables and write a checkpoint.
    pub(crate) async fn settle(&self) -> Result<(), Error> {
        self.vacuum().await?;
        if let Some(client) = &self.postgres {
            // permission may be denied; the next checkpoint comes by itself
            let _ = client.batch_execute("CHECKPOINT").await;
        }
        Ok(())
    }

    /// The connection to the server, for Postgres.
    pub fn postgres(&self) -> Option<&tokio_postgres::Client> {
        self.postgres.as_ref()
    }

    /// The path of the database file, for SQLite.
    pub fn path(&self) -> Option<PathBuf> {
        let path = self.url.strip_prefix("sqlite:")?.split('?').next()?;
        // slashes are parsed as in `connect`: two begin the authority, a third one precedes a relative path
        let path = path.strip_prefix("//").map_or(path, |path| path.strip_prefix('/').unwrap_or(path));
        Some(PathBuf::from(path))
    }

    /// The directory for raw files: that of the database file, or else the temporary directory.
    pub fn folder(&self) -> PathBuf {
        let path = self.path();
        match path.as_deref().and_then(Path::parent) {
            Some(folder) if folder == Path::new("") => PathBuf::from("."),
            Some(folder) => folder.to_owned(),
            None => std::env::temp_dir(),
        }
    }

    /// Returns the size of the store in bytes: on Postgres that of its database, on SQLite that of the file with its log. `None`
    /// in memory.
    pub async fn bytes_stored(&self) -> Result<Option<u64>, Error> {
        if let Some(client) = &self.postgres {
            let size = client.query_one("SELECT pg_database_size(current_database())", &[]).await;
            return Ok(Some(size.map_err(postgres_error)?.get::<_, i64>(0) as u64));
        }
        let Some(path) = self.path() else { return Ok(None) };
        let len = |path: PathBuf| std::fs::metadata(path).map_or(0, |found| found.len());
        let log = PathBuf::from(format!("{}-wal", path.display()));
        Ok(Some(len(path) + len(log)))
    }

    /// Returns the size of the store in bytes before a run. Opens and closes the store once, so that the schema is in the file and
    /// not in the log.
    pub async fn bytes_before_run(&self) -> Result<Option<u64>, Error> {
        drop(self.store().await?);
        self.bytes_stored().await
    }

    /// Returns the bytes written so far. Only differences are meaningful.
    pub async fn bytes_written(&self) -> u64 {
        match &self.postgres {
            None => own_bytes_written(),
            Some(client) => client
                .query_one("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint", &[])
                .await
                .map_or(0, |row| row.get::<_, i64>(0) as u64),
        }
    }
}

/// Returns the URL of another database on the same server.
fn with_database(url: &str, name: &str) -> String {
    let (address, query) =
        url.split_once('?').map_or((url, String::new()), |(it, rest)| (it, format!("?{rest}")));
    let (scheme, place) = address.split_once("://").unwrap_or(("postgres", address));
    let server = place.split_once('/').map_or(place, |(server, _)| server);
    format!("{scheme}://{server}/{name}{query}")
}

/// Converts an error of the file system.
pub(crate) fn io_error(what: &str, error: &std::io::Error) -> Error {
    Error::Open { store: "the benchmark's files".into(), reason: format!("could not {what}: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_urls_are_parsed_as_in_connect() {
        let target = |url: &str| Target {
            url: url.to_owned(),
            postgres: None,
            directory: None,
            created_database: None,
        };
        for (url, path, folder) in [
            ("sqlite:shop.db", "shop.db", "."),
            ("sqlite://shop.db", "shop.db", "."),
            ("sqlite:///a/shop.db", "a/shop.db", "a"),
            ("sqlite:////a/shop.db?durability=relaxed", "/a/shop.db", "/a"),
            ("sqlite:/a/shop.db", "/a/shop.db", "/a"),
        ] {
            assert_eq!(target(url).path(), Some(path.into()), "{url}");
            assert_eq!(target(url).folder(), Path::new(folder), "{url}");
        }
        for (url, target) in [
            ("postgres://me:secret@host:5433/shop", "postgres://me:secret@host:5433/other"),
            ("postgres://host", "postgres://host/other"),
            (
                "postgresql://host/shop?sslmode=disable&durability=relaxed",
                "postgresql://host/other?sslmode=disable&durability=relaxed",
            ),
        ] {
            assert_eq!(with_database(url, "other"), target);
        }
        for (url, known) in [
            ("postgres://host/shop", "postgres://host/shop"),
            ("postgres://host/shop?durability=relaxed", "postgres://host/shop"),
            ("postgres://host/shop?a=b&durability=full&c=d", "postgres://host/shop?a=b&c=d"),
        ] {
            assert_eq!(without_option(url, "durability"), known);
        }
        assert_eq!(target("memory:").path(), None);
        assert_eq!(target("postgres://host/shop").folder(), std::env::temp_dir());
    }
}
