//! [`SchemaState`]: the version of the schema in a database.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

use crate::admin::role::RolePrivileges;
use crate::conn::dial::error_chain;
use crate::conn::pooler::query_first_row;
use crate::quoting::{quote_identifier, quote_literal};
use crate::schema::{VERSION_TABLE, is_known_build};

/// The state of the schema in a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SchemaState {
    /// The schema does not exist, or has no tables of Stepfast.
    Missing,
    /// The schema's version.
    Version(i64),
    /// The schema's version. Another build of Stepfast has created the tables: one of its migrations has a number of this
    /// program's migrations, and another content.
    OtherBuild(i64),
}

impl SchemaState {
    pub(crate) fn version(self) -> Option<i64> {
        match self {
            Self::Missing => None,
            Self::Version(version) | Self::OtherBuild(version) => Some(version),
        }
    }
}

/// Reads the state of the schema.
///
/// The query reads rows of the catalog, because the alternative, name resolution (`to_regclass`), uses a cache. This
/// cache may be older than the lock that the caller has waited for.
pub(crate) async fn read_schema_state(client: &Client, schema: &str) -> Result<SchemaState, Error> {
    let sql = format!(
        "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname ={} AND c.relname = '{VERSION_TABLE}'",
        quote_literal(schema)
    );
    if query_first_row(client, &sql).await?.is_none() {
        return Ok(SchemaState::Missing);
    }
    let sql = format!(
        "SELECT version::bigint, checksum FROM {}.{VERSION_TABLE} ORDER BY version DESC LIMIT 1",
        quote_identifier(schema)
    );
    let mut row = query_first_row(client, &sql).await?.unwrap_or_default().into_iter();
    let Some(version) = row.next().flatten().and_then(|version| version.parse().ok()) else {
        return Ok(SchemaState::Missing);
    };
    let checksum = row.next().flatten().unwrap_or_default();
    Ok(if is_known_build(version, &checksum) {
        SchemaState::Version(version)
    } else {
        SchemaState::OtherBuild(version)
    })
}

pub(crate) async fn schema_exists(client: &Client, schema: &str) -> Result<bool, Error> {
    let sql = format!("SELECT 1 FROM pg_namespace WHERE nspname ={}", quote_literal(schema));
    Ok(query_first_row(client, &sql).await?.is_some())
}

/// Explains why the schema cannot be read or changed. For missing privileges, the text says which
/// role has to run which command.
pub(crate) async fn explain_schema_error(
    client: &Client,
    schema: &str,
    action: &str,
    error: &Error,
) -> String {
    let Some(code) = error.code() else { return format!("{action}: {}", error_chain(error)) };
    if *code == SqlState::UNDEFINED_OBJECT {
        return format!("{action}: {}; create the role first: CREATE ROLE … LOGIN", error_chain(error));
    }
    if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        return format!(
            "{action}: {}; this server is a standby: connect to the primary (target_session_attrs=read-write in the \
             URL)",
            error_chain(error)
        );
    }
    if *code == SqlState::LOCK_NOT_AVAILABLE {
        return format!(
            "{action}: {}; another session holds a lock on one of the schema's tables (see pg_locks), and nothing \
             was changed: end that session, then run stepfast db migrate again",
            error_chain(error)
        );
    }
    if *code != SqlState::INSUFFICIENT_PRIVILEGE {
        return format!("{action}: {}", error_chain(error));
    }
    let advice = match RolePrivileges::read(client, schema).await {
        Ok(role) => role.advice(),
        Err(_) => "the schema's owner has to run: stepfast db migrate --role NAME".to_owned(),
    };
    format!("{action}: {}; {advice}", error_chain(error))
}
