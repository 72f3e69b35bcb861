//! What the role may do in the schema, and what to run where it may not.

use stepfast_core::schema::Finding;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

use crate::connect::{chain, literal};
use crate::migrate::{SchemaState, version_of};
use crate::proxy::rows;
use crate::schema::{NOT_OURS, RIGHTS, TABLES, VERSIONS, newest};
use crate::standing::Standing;

/// So many tables are named where rights are missing.
const NAMED: usize = 2;

/// The schema and the role's rights in it: one finding, or two where there are tables to have rights on.
pub(crate) async fn check(client: &Client, schema: &str) -> Result<Vec<Finding>, Error> {
    let role = Standing::of(client, schema).await?;
    let newest = newest();
    let version = match version_of(client, schema).await {
        Ok(SchemaState::NotOurs(found)) => Finding::wrong(
            "schema",
            format!("the tables of {schema:?} were made by another build of version {found}"),
            NOT_OURS,
        ),
        Ok(SchemaState::Version(found)) if found == newest => {
            Finding::well("schema", format!("{schema:?} has version {found}"))
        }
        Ok(SchemaState::Version(found)) if found > newest => Finding::wrong(
            "schema",
            format!("{schema:?} has version {found}, this program knows up to {newest}"),
            "update this program",
        ),
        Ok(SchemaState::Version(found)) => Finding::wrong(
            "schema",
            format!("{schema:?} has version {found}, this program needs {newest}"),
            role.advice(),
        ),
        Ok(SchemaState::Missing) => {
            let state = format!("there is no schema {schema:?} with our tables");
            return Ok(vec![Finding::wrong("schema", state, role.advice())]);
        }
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            return Ok(vec![Finding::wrong("schema", chain(&error), role.advice())]);
        }
        Err(error) => return Err(error),
    };
    Ok(vec![version, privileges(client, schema, &role).await?])
}

async fn privileges(client: &Client, schema: &str, role: &Standing) -> Result<Finding, Error> {
    let schema = literal(schema);
    let tables: Vec<_> = TABLES.iter().map(|table| literal(table)).collect();
    let rights: Vec<_> = RIGHTS.iter().map(|right| literal(right)).collect();
    let sql = format!(
        "SELECT 'USAGE on the schema' AS what FROM pg_namespace \
         WHERE nspname ={schema} AND NOT has_schema_privilege(oid, 'USAGE') \
         UNION ALL \
         SELECT string_agg(u.privilege, ', ') || ' on ' || c.relname FROM pg_class c \
         JOIN pg_namespace n ON n.oid = c.relnamespace \
         CROSS JOIN unnest(ARRAY[{}]) AS u (privilege) \
         WHERE n.nspname ={schema} AND c.relname IN ({}) AND NOT has_table_privilege(c.oid, u.privilege) \
         GROUP BY c.relname \
         UNION ALL \
         SELECT 'SELECT on {VERSIONS}' FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname ={schema} AND c.relname = '{VERSIONS}' AND NOT has_table_privilege(c.oid, 'SELECT') \
         ORDER BY what",
        rights.join(","),
        tables.join(",")
    );
    let mut missing: Vec<String> = rows(client, &sql).await?.into_iter().flatten().flatten().collect();
    if missing.is_empty() {
        return Ok(Finding::well("privileges", format!("role {:?} has all it needs", role.name)));
    }
    let more = missing.len().saturating_sub(NAMED);
    missing.truncate(NAMED);
    let mut state = format!("role {:?} lacks {}", role.name, missing.join("; "));
    if more > 0 {
        state.push_str(&format!("; and the like on {more} more"));
    }
    Ok(Finding::wrong("privileges", state, role.advice()))
}
