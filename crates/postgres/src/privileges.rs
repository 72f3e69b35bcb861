//! What the role may do in the schema, and what to run where it may not.

use stepfast_core::schema::Finding;
use tokio_postgres::{Client, Error};

use crate::connect::{chain, literal};
use crate::migrate::{SchemaState, version_of};
use crate::proxy::{first_row, rows};
use crate::schema::{NOT_OURS, RIGHTS, TABLES, VERSIONS, newest};

/// So many tables are named where rights are missing.
const NAMED: usize = 2;

/// The schema and the role's rights in it: one finding, or two where there are tables to have rights on.
pub(crate) async fn check(client: &Client, schema: &str) -> Result<Vec<Finding>, Error> {
    let role = Role::of(client, schema).await?;
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
        Err(error) if error.code().is_some() => {
            return Ok(vec![Finding::wrong("schema", chain(&error), role.advice())]);
        }
        Err(error) => return Err(error),
    };
    Ok(vec![version, role.privileges(client, schema).await?])
}

/// The role that is connected, and who could do what it may not.
struct Role {
    name: String,
    database: String,
    /// Of the schema, if it is there.
    owner: Option<String>,
    /// True if it may make the schema, or change it.
    is_able: bool,
}

impl Role {
    async fn of(client: &Client, schema: &str) -> Result<Self, Error> {
        let schema = literal(schema);
        let ask = format!(
            "SELECT current_user, current_database(), pg_get_userbyid(n.nspowner), \
                    CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE') \
                         ELSE pg_has_role(n.nspowner, 'USAGE') END \
             FROM (SELECT) AS one LEFT JOIN pg_namespace n ON n.nspname ={schema}"
        );
        let mut row = first_row(client, &ask).await?.unwrap_or_default().into_iter();
        let mut next = || row.next().flatten();
        Ok(Self {
            name: next().unwrap_or_default(),
            database: next().unwrap_or_default(),
            owner: next(),
            is_able: next().as_deref() == Some("t"),
        })
    }

    /// What brings the schema up to date, and lets the role in.
    fn advice(&self) -> String {
        if self.is_able {
            return "run: stepfast db migrate".to_owned();
        }
        let who = match &self.owner {
            Some(owner) => format!("role {owner:?}, who owns the schema"),
            None => format!("a role that may create a schema in database {:?}", self.database),
        };
        format!("have {who} run: stepfast db migrate --role {}", self.name)
    }

    async fn privileges(&self, client: &Client, schema: &str) -> Result<Finding, Error> {
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
            return Ok(Finding::well("privileges", format!("role {:?} has all it needs", self.name)));
        }
        let more = missing.len().saturating_sub(NAMED);
        missing.truncate(NAMED);
        let mut state = format!("role {:?} lacks {}", self.name, missing.join("; "));
        if more > 0 {
            state.push_str(&format!("; and the like on {more} more"));
        }
        Ok(Finding::wrong("privileges", state, self.advice()))
    }
}
