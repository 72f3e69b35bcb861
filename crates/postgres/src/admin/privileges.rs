//! Checks the schema and the role's privileges in it, for `stepfast db check`.

use stepfast_core::store::Finding;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

use crate::admin::role::{RolePrivileges, missing_privileges};
use crate::admin::schema_state::{SchemaState, read_schema_state};
use crate::conn::dial::error_chain;
use crate::schema::{OTHER_BUILD_ADVICE, newest_version};

/// Checks the schema and the role's privileges. Returns one finding if the schema has no tables, or if the role may not
/// read its version; otherwise two findings.
pub(crate) async fn check(client: &Client, schema: &str) -> Result<Vec<Finding>, Error> {
    let role = RolePrivileges::read(client, schema).await?;
    let newest = newest_version();
    let version = match read_schema_state(client, schema).await {
        Ok(SchemaState::OtherBuild(found)) => Finding::problem(
            "schema",
            format!("the tables of {schema:?} were created by another build of version {found}"),
            OTHER_BUILD_ADVICE,
        ),
        Ok(SchemaState::Version(found)) if found == newest => {
            Finding::ok("schema", format!("{schema:?} has version {found}"))
        }
        Ok(SchemaState::Version(found)) if found > newest => Finding::problem(
            "schema",
            format!("{schema:?} has version {found}, and this program supports versions up to {newest}"),
            "update this program",
        ),
        Ok(SchemaState::Version(found)) => Finding::problem(
            "schema",
            format!("{schema:?} has version {found}, and this program needs {newest}"),
            role.advice(),
        ),
        Ok(SchemaState::Missing) => {
            let state = format!("no schema {schema:?} with tables of Stepfast exists");
            return Ok(vec![Finding::problem("schema", state, role.advice())]);
        }
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            return Ok(vec![Finding::problem("schema", error_chain(&error), role.advice())]);
        }
        Err(error) => return Err(error),
    };
    Ok(vec![version, privileges(client, schema, &role).await?])
}

async fn privileges(client: &Client, schema: &str, role: &RolePrivileges) -> Result<Finding, Error> {
    let name = &role.name;
    Ok(match missing_privileges(client, schema).await? {
        None => Finding::ok("privileges", format!("role {name:?} has all that engines need")),
        Some(missing) => {
            Finding::problem("privileges", format!("role {name:?} lacks {missing}"), role.advice())
        }
    })
}
