//! Store URLs: parsing them, and opening the store that they name.

#[cfg(feature = "sqlite")]
use std::path::Path;
use std::sync::Arc;

use stepfast_core::store::Durability;
#[cfg(feature = "sqlite")]
use stepfast_core::store::StoreError;
use stepfast_core::text::quote;
use stepfast_core::{Error, MemoryStore, Store};

/// Maximum length of a URL, in bytes.
const URL_LIMIT: usize = 8_192;

/// The store that a URL names.
pub(crate) enum StoreUrl<'a> {
    Memory,
    /// The path of a file.
    Sqlite(&'a str, Durability),
    /// A URL for the Postgres store.
    Postgres(String, Durability),
}

/// Parses `url`. Of its options, parses only the durability.
pub(crate) fn parse_url(url: &str) -> Result<StoreUrl<'_>, Error> {
    if url.len() > URL_LIMIT {
        let reason = format!("has {} bytes, at most {URL_LIMIT} are allowed", url.len());
        return Err(Error::Invalid { input: "store URL", reason });
    }
    if url.contains(char::is_control) {
        return Err(invalid_url(url, "it contains a control character"));
    }
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let (durability, rest) = split_durability(url, query)?;
    match address.split_once(':') {
        Some(("memory", _)) if rest.is_empty() => Ok(StoreUrl::Memory),
        Some(("memory", _)) => {
            Err(invalid_url(url, &format!("{} is not an option of a memory store", quote(&rest))))
        }
        Some(("sqlite", path)) => {
            if !rest.is_empty() {
                return Err(invalid_url(
                    url,
                    &format!("{} is not an option of a SQLite store", quote(&rest)),
                ));
            }
            Ok(StoreUrl::Sqlite(sqlite_path(path), durability))
        }
        Some(("postgres" | "postgresql", _)) => {
            let url = if rest.is_empty() { address.to_owned() } else { format!("{address}?{rest}") };
            Ok(StoreUrl::Postgres(url, durability))
        }
        _ => Err(invalid_url(url, "it begins with none of sqlite:, postgres:, memory:")),
    }
}

pub(crate) async fn open(url: &str, must_exist: bool) -> Result<Arc<dyn Store>, Error> {
    match parse_url(url)? {
        StoreUrl::Memory if must_exist => Err(memory_url_error()),
        StoreUrl::Memory => Ok(Arc::new(MemoryStore::new())),
        StoreUrl::Sqlite(path, durability) => open_sqlite(url, path, durability, must_exist),
        StoreUrl::Postgres(url, durability) => open_postgres(&url, durability, must_exist).await,
    }
}

/// Returns the error for `memory:` where a store must exist.
pub(crate) fn memory_url_error() -> Error {
    let reason = "memory: is empty in every process that opens it; name the database that your program uses";
    Error::Invalid { input: "store URL", reason: reason.to_owned() }
}

pub(crate) fn invalid_url(url: &str, reason: &str) -> Error {
    let url = quote(&without_password(url));
    let reason =
        format!("{url} is not the URL of a store: {reason}; write sqlite://FILE, postgres://… or memory:");
    Error::Invalid { input: "store URL", reason }
}

/// Returns `url` for messages, with `***` for every text that may be a password. These are the text between a user's
/// colon and the `@`, and the values of options. A password may contain characters with a meaning in URLs, so every
/// part that could belong to a password is hidden.
fn without_password(url: &str) -> String {
    let (scheme, rest) =
        url.split_once("://").map_or((String::new(), url), |(scheme, rest)| (format!("{scheme}://"), rest));
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    // a question mark in the password has ended the address before the @
    let is_cut = query.split('&').any(|option| option.contains('@') && !is_named_option(option));
    let (address, query) = if is_cut {
        let end = rest.rfind('@').unwrap_or_default();
        let (_, query) = rest[end..].split_once('?').unwrap_or_default();
        (&rest[..rest.len() - query.len()], query)
    } else {
        (address, query)
    };
    let mut shown = scheme;
    match address.rsplit_once('@') {
        None => shown.push_str(address),
        Some((account, place)) => {
            match account.split_once(':') {
                Some((user, _)) => shown.push_str(&format!("{user}:***@")),
                None if is_cut => shown.push_str("***@"),
                None => shown.push_str(&format!("{account}@")),
            }
            shown.push_str(place.trim_end_matches('?'));
        }
    }
    let hidden = |option: &str| match option.split_once('=') {
        Some((name @ ("password" | "listen"), _)) => format!("{name}=***"),
        _ if is_named_option(option) => option.to_owned(),
        _ => "***".to_owned(),
    };
    let query: Vec<String> = query.split('&').filter(|option| !option.is_empty()).map(hidden).collect();
    if !query.is_empty() {
        shown.push_str(&format!("?{}", query.join("&")));
    }
    shown
}

/// Whether a text looks like an option, and not like a part of a password.
fn is_named_option(option: &str) -> bool {
    option
        .split_once('=')
        .is_some_and(|(name, _)| name.bytes().all(|it| it.is_ascii_lowercase() || it == b'_'))
}

/// Splits the query into the durability and the other options.
fn split_durability(url: &str, query: &str) -> Result<(Durability, String), Error> {
    let invalid = |reason: String| {
        let reason = format!("{}: {reason}", quote(&without_password(url)));
        Err(Error::Invalid { input: "store URL", reason })
    };
    let mut durability = None;
    let mut rest = Vec::new();
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let found = match option.split_once('=').unwrap_or((option, "")) {
            ("durability", "full") => Durability::Full,
            ("durability", "relaxed") => Durability::Relaxed,
            ("durability", other) => {
                return invalid(format!("durability must be full or relaxed, not {}", quote(other)));
            }
            _ => {
                rest.push(option);
                continue;
            }
        };
        if durability.replace(found).is_some() {
            return invalid("durability= is given twice".to_owned());
        }
    }
    Ok((durability.unwrap_or(Durability::Full), rest.join("&")))
}

/// Returns the path in the text after `sqlite:`. After the two slashes of the authority, one slash begins a relative
/// path, and two slashes begin an absolute path, as in SQLAlchemy.
fn sqlite_path(after_scheme: &str) -> &str {
    match after_scheme.strip_prefix("//") {
        Some(path) => path.strip_prefix('/').unwrap_or(path),
        None => after_scheme,
    }
}

#[cfg(feature = "sqlite")]
fn open_sqlite(
    url: &str,
    path: &str,
    durability: Durability,
    must_exist: bool,
) -> Result<Arc<dyn Store>, Error> {
    if path.is_empty() {
        return Err(invalid_url(url, "it names no file"));
    }
    let options = stepfast_sqlite::SqliteOptions { durability, must_exist, ..Default::default() };
    match stepfast_sqlite::SqliteStore::open(path, options) {
        Ok(store) => Ok(Arc::new(store)),
        Err(StoreError::Open { store, reason }) => {
            let reason = format!("{reason}{}", absolute_path_hint(path));
            Err(Error::Open { store, reason })
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns a hint for a path whose directory exists below the root, but not below the current directory: the URL lacks
/// a slash.
#[cfg(feature = "sqlite")]
fn absolute_path_hint(path: &str) -> String {
    let has_directory =
        |path: &str| Path::new(path).parent().is_some_and(|it| it == Path::new("") || it.is_dir());
    if has_directory(path) || !has_directory(&format!("/{path}")) {
        return String::new();
    }
    format!("; for /{path}, write an absolute path with four slashes: sqlite:////{path}")
}

#[cfg(not(feature = "sqlite"))]
fn open_sqlite(
    url: &str,
    _path: &str,
    _durability: Durability,
    _must_exist: bool,
) -> Result<Arc<dyn Store>, Error> {
    Err(invalid_url(url, "this program was built without the feature `sqlite`"))
}

#[cfg(feature = "postgres")]
async fn open_postgres(url: &str, durability: Durability, must_exist: bool) -> Result<Arc<dyn Store>, Error> {
    let options = stepfast_postgres::PostgresOptions::default().durability(durability).must_exist(must_exist);
    Ok(Arc::new(stepfast_postgres::PostgresStore::open_with(url, options).await?))
}

#[cfg(not(feature = "postgres"))]
async fn open_postgres(
    url: &str,
    _durability: Durability,
    _must_exist: bool,
) -> Result<Arc<dyn Store>, Error> {
    Err(invalid_url(url, "this program was built without the feature `postgres`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_distinguish_relative_and_absolute_paths() {
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
    async fn errors_hide_passwords() {
        for url in [
            "postgres://me:se:cr@et@host/shop?durability=some",
            "mysql://me:se:cr@et@host/shop",
            "mysql://me:se:cr?et@host/shop",
            "mysql://me:se:@host/shop?password=se:cret@&listen=postgres%3A%2F%2Fse:et@b",
            "mysql://me:p@se:?cret@host/shop?schema=s",
        ] {
            let error = open(url, false).await.map(drop).unwrap_err().to_string();
            assert!(error.contains("//me:***@host/shop"), "{error}");
            assert!(!error.contains("se:") && !error.contains("et@"), "{error}");
        }
        for (url, shown) in [
            ("mysql://db/shop?user=me@srv&password=secret", "\"mysql://db/shop?user=me@srv&password=***\""),
            (
                "mysql://db:1/shop?user=me@srv&password=se&cret",
                "\"mysql://db:1/shop?user=me@srv&password=***&***\"",
            ),
            ("mysql://db/shop?password=se&cret@x", "\"mysql://***@x\""),
            ("mysql://me@db/shop", "\"mysql://me@db/shop\""),
            ("me:secret@db/shop", "\"me:***@db/shop\""),
            ("shop.db", "\"shop.db\""),
        ] {
            let error = open(url, false).await.map(drop).unwrap_err().to_string();
            assert!(error.contains(shown), "{error}");
        }
    }

    #[tokio::test]
    async fn missing_directory_is_named_in_full() {
        let here = std::env::current_dir().unwrap();
        for url in ["sqlite:///tmp/no-such-directory-of-ours/x.db", "sqlite://no-such-directory-of-ours/x.db"]
        {
            let error = open(url, false).await.map(drop).unwrap_err().to_string();
            assert!(error.contains(&*here.to_string_lossy()), "{error}");
            assert!(!error.contains("four slashes"), "{error}");
        }
        // the directory exists below the root
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.db").display().to_string();
        let error = open(&format!("sqlite://{path}"), false).await.map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("sqlite:///{path}")), "{error}");
        open(&format!("sqlite:///{path}"), false).await.map(drop).unwrap();
    }

    #[tokio::test]
    async fn missing_store_is_not_created() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", directory.path().join("x.db").display());
        let error = open(&url, true).await.map(drop).unwrap_err();
        assert_eq!((error.code(), error.to_string().contains("no such file")), ("SF-0013", true), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let error = open("memory:", true).await.map(drop).unwrap_err();
        assert_eq!((error.code(), error.to_string().contains("empty")), ("SF-0001", true), "{error}");
        drop(open(&url, false).await.unwrap());
        open(&url, true).await.map(drop).unwrap();
    }

    #[tokio::test]
    async fn invalid_urls_are_rejected_briefly() {
        let long = format!("mysql://me:secret@db/{}", "x".repeat(4_000));
        for (url, words) in [
            ("", "begins with none of"),
            ("sqlite:a\0b", "control character"),
            ("sqlite:\u{1b}[2J", "control character"),
            ("memory:?readers=3", "\"readers=3\" is not an option of a memory store"),
            (&long, "begins with none of"),
            (&format!("sqlite:x?{}", "x".repeat(4_000)), "not an option"),
            (&"x".repeat(URL_LIMIT + 1), "at most 8192 are allowed"),
        ] {
            let error = open(url, false).await.map(drop).unwrap_err();
            let text = error.to_string();
            assert!(error.code() == "SF-0001" && text.contains(words) && text.len() < 1_500, "{text}");
            assert!(!text.contains("secret") && !text.contains(char::is_control), "{text}");
        }
    }

    #[test]
    fn durability_is_taken_from_options() {
        let (durability, rest) = split_durability("", "durability=relaxed&sslmode=disable").unwrap();
        assert_eq!((durability, rest.as_str()), (Durability::Relaxed, "sslmode=disable"));
        for (query, words) in [
            ("durability=some", "not \"some\""),
            ("durability", "full or relaxed"),
            ("durability=full&durability=relaxed", "twice"),
        ] {
            assert!(split_durability("x", query).unwrap_err().to_string().contains(words), "{query}");
        }
    }
}
