//! What the role may do in the schema, and what to run where it may not.

use stepfast_core::store::Finding;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

use crate::admin::role::{Standing, lacking};
use crate::admin::schema_state::{SchemaState, version_of};
use crate::conn::dial::chain;
use crate::schema::{NOT_OURS, newest};

/// The schema and the role's rights in it: one finding, or two where there are tables to have rights on.
pub(crate) async fn check(client: &Client, schema: &str) -> Result<Vec<Finding>, Error> {
    let role = Standing::of(client, schema).await?;
    let newest = newest();
    let version = match version_of(client, schema).await {
        Ok(SchemaState::NotOurs(found)) => Finding::problem(
            "schema",
            format!("the tables of {schema:?} were made by another build of version {found}"),
            NOT_OURS,
        ),
        Ok(SchemaState::Version(found)) if found == newest => {
            Finding::ok("schema", format!("{schema:?} has version {found}"))
        }
        Ok(SchemaState::Version(found)) if found > newest => Finding::problem(
            "schema",
            format!("{schema:?} has version {found}, this program knows up to {newest}"),
            "update this program",
        ),
        Ok(SchemaState::Version(found)) => Finding::problem(
            "schema",
            format!("{schema:?} has version {found}, this program needs {newest}"),
            role.advice(),
        ),
        Ok(SchemaState::Missing) => {
            let state = format!("there is no schema {schema:?} with our tables");
            return Ok(vec![Finding::problem("schema", state, role.advice())]);
        }
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            return Ok(vec![Finding::problem("schema", chain(&error), role.advice())]);
        }
        Err(error) => return Err(error),
    };
    Ok(vec![version, privileges(client, schema, &role).await?])
}

async fn privileges(client: &Client, schema: &str, role: &Standing) -> Result<Finding, Error> {
    let name = &role.name;
    Ok(match lacking(client, schema).await? {
        None => Finding::ok("privileges", format!("role {name:?} has all it needs")),
        Some(lacking) => {
            Finding::problem("privileges", format!("role {name:?} lacks {lacking}"), role.advice())
        }
    })
}
