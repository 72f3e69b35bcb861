//! The schema of a database: migrating and checking it without an engine.

pub use stepfast_core::store::{Finding, MigrationReport};

use stepfast_core::Error;
#[cfg(feature = "postgres")]
use stepfast_postgres::{PostgresOptions, PostgresStore};
#[cfg(feature = "sqlite")]
use stepfast_sqlite::SqliteStore;

use crate::url::{StoreUrl, invalid_url, memory_url_error, parse_url};

/// Brings the schema of the database at `url` up to date, and creates it if it is missing. On Postgres, also permits
/// `role` to use the schema, and to change its rows, but no tables. If `is_dry`, changes nothing: the report contains
/// the SQL.
///
/// Fails with [`Error::Open`], which names the permitted roles, if the URL's role lacks the privilege. Fails with
/// [`Error::NewerSchema`] if the schema is too new for this program. Fails with [`Error::Invalid`] for `memory:`, and
/// for a role if the store has no roles.
pub async fn migrate(url: &str, role: Option<&str>, is_dry: bool) -> Result<MigrationReport, Error> {
    match parse_url(url)? {
        StoreUrl::Memory => Err(memory_url_error()),
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(path, _) => {
            if role.is_some() {
                let reason = "a SQLite file has no roles: permission to write the file is enough".to_owned();
                return Err(Error::Invalid { input: "role", reason });
            }
            Ok(SqliteStore::migrate(path, is_dry)?)
        }
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url, durability) => {
            let options = PostgresOptions::default().durability(durability);
            Ok(PostgresStore::migrate(&url, options, role, is_dry).await?)
        }
        #[allow(unreachable_patterns)] // with all features
        _ => Err(invalid_url(url, "this program was built without the feature for it")),
    }
}

/// Checks whether the database at `url` is fit for engines, and changes nothing. The database is fit if every finding
/// is good.
///
/// Fails if the URL is wrong, or if the connection breaks during the check.
pub async fn check(url: &str) -> Result<Vec<Finding>, Error> {
    match parse_url(url)? {
        StoreUrl::Memory => Err(memory_url_error()),
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(path, _) => Ok(SqliteStore::check(path)?),
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url, durability) => {
            let options = PostgresOptions::default().durability(durability);
            Ok(PostgresStore::check(&url, options).await?)
        }
        #[allow(unreachable_patterns)] // with all features
        _ => Err(invalid_url(url, "this program was built without the feature for it")),
    }
}
