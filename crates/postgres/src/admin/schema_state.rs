//! [`SchemaState`]: which schema a database has.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

use crate::admin::role::Standing;
use crate::conn::dial::chain;
use crate::conn::pooler::query_first_row;
use crate::quoting::{literal, quoted};
use crate::schema::{VERSIONS, is_ours};

/// The schema as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SchemaState {
    /// There is no such schema, or nothing of ours in it.
    Missing,
    /// Its version.
    Version(i64),
    /// Its version; the tables are not those that this program knows by that number.
    NotOurs(i64),
}

impl SchemaState {
    pub(crate) fn version(self) -> Option<i64> {
        match self {
            Self::Missing => None,
            Self::Version(version) | Self::NotOurs(version) => Some(version),
        }
    }
}

/// The schema's version.
///
/// The catalogue is asked by its rows: what names are resolved with (`to_regclass`) is a cache that may still be of
/// the time before the lock was awaited.
pub(crate) async fn version_of(client: &Client, schema: &str) -> Result<SchemaState, Error> {
    let ask = format!(
        "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname ={} AND c.relname = '{VERSIONS}'",
        literal(schema)
    );
    if query_first_row(client, &ask).await?.is_none() {
        return Ok(SchemaState::Missing);
    }
    let ask = format!(
        "SELECT version::bigint, checksum FROM {}.{VERSIONS} ORDER BY version DESC LIMIT 1",
        quoted(schema)
    );
    let mut row = query_first_row(client, &ask).await?.unwrap_or_default().into_iter();
    let Some(version) = row.next().flatten().and_then(|version| version.parse().ok()) else {
        return Ok(SchemaState::Missing);
    };
    let checksum = row.next().flatten().unwrap_or_default();
    Ok(if is_ours(version, &checksum) {
        SchemaState::Version(version)
    } else {
        SchemaState::NotOurs(version)
    })
}

pub(crate) async fn is_there(client: &Client, schema: &str) -> Result<bool, Error> {
    let ask = format!("SELECT 1 FROM pg_namespace WHERE nspname ={}", literal(schema));
    Ok(query_first_row(client, &ask).await?.is_some())
}

/// Why the schema cannot be read or changed; for a role without the right to, what to run, and who.
pub(crate) async fn refused(client: &Client, schema: &str, what: &str, error: &Error) -> String {
    let Some(code) = error.code() else { return format!("{what}: {}", chain(error)) };
    if *code == SqlState::UNDEFINED_OBJECT {
        return format!("{what}: {}; make the role first: CREATE ROLE … LOGIN", chain(error));
    }
    if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        return format!(
            "{what}: {}; this server is a standby: connect to the primary (target_session_attrs=read-write in the \
             URL)",
            chain(error)
        );
    }
    if *code == SqlState::LOCK_NOT_AVAILABLE {
        return format!(
            "{what}: {}; another session holds a lock on one of its tables (see pg_locks), and nothing was changed: end \
             that session, then run stepfast db migrate again",
            chain(error)
        );
    }
    if *code != SqlState::INSUFFICIENT_PRIVILEGE {
        return format!("{what}: {}", chain(error));
    }
    let advice = match Standing::of(client, schema).await {
        Ok(role) => role.advice(),
        Err(_) => "its owner has to run: stepfast db migrate --role NAME".to_owned(),
    };
    format!("{what}: {}; {advice}", chain(error))
}
