//! [`Standing`]: whether a role may make the tables and change them, and who may otherwise.

use tokio_postgres::{Client, Error};

use crate::connect::literal;
use crate::proxy::first_row;
use crate::schema::VERSIONS;

/// The role that is connected, and who could do what it may not.
pub(crate) struct Standing {
    pub name: String,
    database: String,
    /// Of the tables, else of the schema, if they are there.
    owner: Option<String>,
    /// True if it may make the tables, or change them.
    is_able: bool,
}

impl Standing {
    pub(crate) async fn of(client: &Client, schema: &str) -> Result<Self, Error> {
        let schema = literal(schema);
        let ask = format!(
            "SELECT current_user, current_database(), pg_get_userbyid(coalesce(v.relowner, n.nspowner)), \
                    CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE') \
                         WHEN v.oid IS NULL THEN has_schema_privilege(n.oid, 'CREATE') \
                         ELSE pg_has_role(v.relowner, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE') END \
             FROM (SELECT) AS one LEFT JOIN pg_namespace n ON n.nspname ={schema} \
             LEFT JOIN pg_class v ON v.relnamespace = n.oid AND v.relname = '{VERSIONS}'"
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
    pub(crate) fn advice(&self) -> String {
        if self.is_able {
            return "run: stepfast db migrate".to_owned();
        }
        let who = match &self.owner {
            Some(owner) => format!("role {owner:?}, who owns it,"),
            None => format!("a role that may create a schema in database {:?}", self.database),
        };
        format!("have {who} run: stepfast db migrate --role {}", self.name)
    }
}
