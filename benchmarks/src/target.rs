//! [`Target`]: the store that an experiment runs on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepfast::{Error, Store};
use tempfile::TempDir;

use crate::measure::bytes_written_here;

/// Where targets are made, as people say it.
pub struct Place {
    /// A URL, or just `sqlite` (a fresh file each time), `memory`.
    pub store: String,
    /// `full` or `relaxed`.
    pub durability: String,
    /// Where fresh files go; the temporary directory by default.
    pub directory: Option<PathBuf>,
}

impl Place {
    /// A target.
    pub async fn target(&self) -> Result<Target, Error> {
        Target::open(&self.store, &self.durability, self.directory.as_ref()).await
    }
}

/// A store for one experiment. SQLite without a path gets a fresh file in a temporary directory.
pub struct Target {
    /// The URL, as given or made.
    pub url: String,
    postgres: Option<tokio_postgres::Client>,
    directory: Option<TempDir>,
}

impl Target {
    /// The target for `--store` (a URL, or just `sqlite`, `memory`), `--durability`, and the directory for
    /// a fresh file.
    pub async fn open(store: &str, durability: &str, directory: Option<&PathBuf>) -> Result<Self, Error> {
        let mut target = Self { url: store.to_owned(), postgres: None, directory: None };
        match store {
            "sqlite" => {
                let made = match directory {
                    Some(directory) => TempDir::with_prefix_in("stepfast-bench-", directory),
                    None => TempDir::with_prefix("stepfast-bench-"),
                };
                let made = made.map_err(|error| io("make a temporary directory", &error))?;
                target.url = format!("sqlite:{}", made.path().join("bench.db").display());
                target.directory = Some(made);
            }
            "memory" => target.url = "memory:".to_owned(),
            _ => {}
        }
        if target.url.starts_with("postgres") {
            let (client, connection) = tokio_postgres::connect(&target.url, tokio_postgres::NoTls)
                .await
                .map_err(|error| Error::Open { store: store.to_owned(), reason: error.to_string() })?;
            tokio::spawn(connection);
            target.postgres = Some(client);
        }
        if durability != "full" {
            let separator = if target.url.contains('?') { '&' } else { '?' };
            target.url = format!("{}{separator}durability={durability}", target.url);
        }
        Ok(target)
    }

    /// Opens the store.
    pub async fn store(&self) -> Result<Arc<dyn Store>, Error> {
        stepfast::connect(&self.url).await
    }

    /// A connection to the server, for Postgres.
    pub fn postgres(&self) -> Option<&tokio_postgres::Client> {
        self.postgres.as_ref()
    }

    /// Where the database file is, for SQLite.
    pub fn path(&self) -> Option<PathBuf> {
        let path = self.url.strip_prefix("sqlite:")?.split('?').next()?;
        // as `connect` counts slashes: two are the authority's, one more begins a relative path
        let path = path.strip_prefix("//").map_or(path, |path| path.strip_prefix('/').unwrap_or(path));
        Some(PathBuf::from(path))
    }

    /// The directory on whose device a raw file is written: that of the database file, else the temporary one.
    pub fn folder(&self) -> PathBuf {
        let path = self.path();
        match path.as_deref().and_then(Path::parent) {
            Some(folder) if folder == Path::new("") => PathBuf::from("."),
            Some(folder) => folder.to_owned(),
            None => std::env::temp_dir(),
        }
    }

    /// Bytes written so far; only differences mean something.
    pub async fn bytes_written(&self) -> u64 {
        match &self.postgres {
            None => bytes_written_here(),
            Some(client) => client
                .query_one("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint", &[])
                .await
                .map_or(0, |row| row.get::<_, i64>(0) as u64),
        }
    }
}

/// An error of the file system, said in our words.
pub(crate) fn io(what: &str, error: &std::io::Error) -> Error {
    Error::Open { store: "the benchmark's files".into(), reason: format!("could not {what}: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_beside_the_database_however_its_url_counts_slashes() {
        let target = |url: &str| Target { url: url.to_owned(), postgres: None, directory: None };
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
        assert_eq!(target("memory:").path(), None);
        assert_eq!(target("postgres://host/shop").folder(), std::env::temp_dir());
    }
}
