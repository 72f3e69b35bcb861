//! The schema of a database: brought up to date, or looked at, without an engine.

pub use stepfast_core::store::{Finding, Migrated};

use stepfast_core::Error;
#[cfg(feature = "postgres")]
use stepfast_postgres::{PostgresOptions, PostgresStore};
#[cfg(feature = "sqlite")]
use stepfast_sqlite::SqliteStore;

use crate::url::{Place, empty, invalid, place};

/// Brings the schema of the database at `url` up to date, and makes what is missing of it; on Postgres also lets
/// `role` use it, and change nothing but rows. If `is_dry`, only says what would be executed.
///
/// [`Error::Open`] says who has the right to, if the URL's role has not; [`Error::NewerSchema`];
/// [`Error::Invalid`] for `memory:`, and for a role of a store that has none.
pub async fn migrate(url: &str, role: Option<&str>, is_dry: bool) -> Result<Migrated, Error> {
    match place(url)? {
        Place::Memory => Err(empty()),
        #[cfg(feature = "sqlite")]
        Place::Sqlite(path, _) => {
            if role.is_some() {
                let reason = "a SQLite file has no roles: whoever may write the file may use it".to_owned();
                return Err(Error::Invalid { what: "role", reason });
            }
            Ok(SqliteStore::migrate(path, is_dry)?)
        }
        #[cfg(feature = "postgres")]
        Place::Postgres(url, durability) => {
            let options = PostgresOptions::default().durability(durability);
            Ok(PostgresStore::migrate(&url, options, role, is_dry).await?)
        }
        #[allow(unreachable_patterns)] // with all features
        _ => Err(invalid(url, "this program was built without the feature for it")),
    }
}

/// Looks at whether the database at `url` is fit for engines, and changes nothing. All is well if every finding is.
///
/// Errors are those of the URL, and of a connection that is lost on the way.
pub async fn check(url: &str) -> Result<Vec<Finding>, Error> {
    match place(url)? {
        Place::Memory => Err(empty()),
        #[cfg(feature = "sqlite")]
        Place::Sqlite(path, _) => Ok(SqliteStore::check(path)?),
        #[cfg(feature = "postgres")]
        Place::Postgres(url, durability) => {
            let options = PostgresOptions::default().durability(durability);
            Ok(PostgresStore::check(&url, options).await?)
        }
        #[allow(unreachable_patterns)] // with all features
        _ => Err(invalid(url, "this program was built without the feature for it")),
    }
}
