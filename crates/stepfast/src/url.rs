//! Which store a URL names.

use std::sync::Arc;

use stepfast_core::store::Durability;
use stepfast_core::{Error, MemoryStore, Store};

pub(crate) async fn open(url: &str) -> Result<Arc<dyn Store>, Error> {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let (durability, rest) = take_durability(url, query)?;
    match address.split_once(':') {
        Some(("memory", _)) => Ok(Arc::new(MemoryStore::new())),
        Some(("sqlite", path)) => {
            if !rest.is_empty() {
                return Err(invalid(url, &format!("{rest:?} is not an option of a SQLite store")));
            }
            sqlite(url, sqlite_path(path), durability)
        }
        Some(("postgres" | "postgresql", _)) => {
            let url = if rest.is_empty() { address.to_owned() } else { format!("{address}?{rest}") };
            postgres(&url, durability).await
        }
        _ => Err(invalid(url, "it begins with none of sqlite:, postgres:, memory:")),
    }
}

fn invalid(url: &str, reason: &str) -> Error {
    let url = without_password(url);
    let reason =
        format!("{url:?} is not the URL of a store: {reason}; write sqlite://FILE, postgres://… or memory:");
    Error::Invalid { what: "store URL", reason }
}

/// `url` for people: what stands between a user's colon and the `@` is hidden.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let Some((account, place)) = rest.rsplit_once('@') else { return url.to_owned() };
    match account.split_once(':') {
        Some((user, _)) => format!("{scheme}://{user}:***@{place}"),
        None => url.to_owned(),
    }
}

/// The durability asked for, and the other options.
fn take_durability(url: &str, query: &str) -> Result<(Durability, String), Error> {
    let mut durability = Durability::Full;
    let mut rest = Vec::new();
    for option in query.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("durability", "full")) => durability = Durability::Full,
            Some(("durability", "relaxed")) => durability = Durability::Relaxed,
            Some(("durability", other)) => {
                return Err(invalid(url, &format!("durability is full or relaxed, not {other:?}")));
            }
            _ => rest.push(option),
        }
    }
    Ok((durability, rest.join("&")))
}

/// The path in what follows `sqlite:`. One slash more than the authority's two begins a relative path, two
/// more an absolute one, as SQLAlchemy reads it.
fn sqlite_path(after_scheme: &str) -> &str {
    match after_scheme.strip_prefix("//") {
        Some(path) => path.strip_prefix('/').unwrap_or(path),
        None => after_scheme,
    }
}

#[cfg(feature = "sqlite")]
fn sqlite(url: &str, path: &str, durability: Durability) -> Result<Arc<dyn Store>, Error> {
    if path.is_empty() {
        return Err(invalid(url, "it names no file"));
    }
    let options = stepfast_sqlite::SqliteOptions { durability, ..Default::default() };
    Ok(Arc::new(stepfast_sqlite::SqliteStore::open(path, options)?))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(url: &str, _path: &str, _durability: Durability) -> Result<Arc<dyn Store>, Error> {
    Err(invalid(url, "this program was built without the feature `sqlite`"))
}

#[cfg(feature = "postgres")]
async fn postgres(url: &str, durability: Durability) -> Result<Arc<dyn Store>, Error> {
    let options = stepfast_postgres::PostgresOptions::default().durability(durability);
    Ok(Arc::new(stepfast_postgres::PostgresStore::open_with(url, options).await?))
}

#[cfg(not(feature = "postgres"))]
async fn postgres(url: &str, _durability: Durability) -> Result<Arc<dyn Store>, Error> {
    Err(invalid(url, "this program was built without the feature `postgres`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_tell_relative_from_absolute() {
        for (after_scheme, path) in [
            ("//shop.db", "shop.db"),
            ("///shop.db", "shop.db"),
            ("////var/shop.db", "/var/shop.db"),
            ("shop.db", "shop.db"),
            ("/var/shop.db", "/var/shop.db"),
        ] {
            assert_eq!(sqlite_path(after_scheme), path, "sqlite:{after_scheme}");
        }
    }

    #[tokio::test]
    async fn no_error_tells_a_password() {
        for url in ["postgres://me:se:cr@et@host/shop?durability=some", "mysql://me:se:cr@et@host/shop"] {
            let error = open(url).await.map(drop).unwrap_err().to_string();
            assert!(error.contains("//me:***@host/shop"), "{error}");
            assert!(!error.contains("se:") && !error.contains("et@"), "{error}");
        }
    }

    #[test]
    fn durability_is_an_option_of_ours() {
        let (durability, rest) = take_durability("", "durability=relaxed&sslmode=disable").unwrap();
        assert_eq!((durability, rest.as_str()), (Durability::Relaxed, "sslmode=disable"));
        assert!(take_durability("x", "durability=some").unwrap_err().to_string().contains("some"));
    }
}
