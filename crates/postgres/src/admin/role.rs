//! [`RolePrivileges`]: whether the connected role may migrate the schema, and which other role may do so if not.

use tokio_postgres::{Client, Error};

use crate::conn::options::DEFAULT_SCHEMA;
use crate::conn::pooler::{query_first_row, query_rows};
use crate::quoting::quote_literal;
use crate::schema::{TABLE_PRIVILEGES, TABLES, VERSION_TABLE};

/// The maximum number of tables that a message about missing privileges lists.
const MAX_LISTED_TABLES: usize = 2;

/// The connected role, and its rights in a schema.
pub(crate) struct RolePrivileges {
    pub name: String,
    schema: String,
    database: String,
    /// The owner of the tables, or of the schema if it has no tables. `None` without a schema.
    owner: Option<String>,
    /// Whether the role may create and change the tables.
    can_migrate: bool,
}

impl RolePrivileges {
    pub(crate) async fn read(client: &Client, schema: &str) -> Result<Self, Error> {
        let sql = format!(
            "SELECT current_user, current_database(), pg_get_userbyid(coalesce(v.relowner, n.nspowner)), \
                    CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE') \
                         WHEN v.oid IS NULL THEN has_schema_privilege(n.oid, 'CREATE') \
                         ELSE pg_has_role(v.relowner, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE') END \
             FROM (SELECT) AS one LEFT JOIN pg_namespace n ON n.nspname ={} \
             LEFT JOIN pg_class v ON v.relnamespace = n.oid AND v.relname = '{VERSION_TABLE}'",
            quote_literal(schema)
        );
        let mut row = query_first_row(client, &sql).await?.unwrap_or_default().into_iter();
        let mut next = || row.next().flatten();
        Ok(Self {
            name: next().unwrap_or_default(),
            schema: schema.to_owned(),
            database: next().unwrap_or_default(),
            owner: next(),
            can_migrate: next().as_deref() == Some("t"),
        })
    }

    /// Returns advice for messages: the command that migrates the schema and grants the role its privileges, and the
    /// role that has to run this command.
    pub(crate) fn advice(&self) -> String {
        // the other role may use a URL without the name of the schema
        let schema = if self.schema == DEFAULT_SCHEMA {
            String::new()
        } else {
            format!(", with ?schema={} in the URL", self.schema)
        };
        if self.can_migrate {
            return format!("run: stepfast db migrate{schema}");
        }
        let migrator = match &self.owner {
            Some(owner) => format!("role {owner:?}, which owns it,"),
            None => format!("a role that may create a schema in database {:?}", self.database),
        };
        format!("have {migrator} run: stepfast db migrate --role {}{schema}", self.name)
    }
}

/// Returns the privileges that the role lacks to run engines, as text. `None` means that the role has all of them.
pub(crate) async fn missing_privileges(client: &Client, schema: &str) -> Result<Option<String>, Error> {
    let schema = quote_literal(schema);
    let tables: Vec<_> = TABLES.iter().map(|table| quote_literal(table)).collect();
    let privileges: Vec<_> = TABLE_PRIVILEGES.iter().map(|privilege| quote_literal(privilege)).collect();
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
         SELECT 'SELECT on {VERSION_TABLE}' FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname ={schema} AND c.relname = '{VERSION_TABLE}' AND NOT has_table_privilege(c.oid, 'SELECT') \
         ORDER BY what",
        privileges.join(","),
        tables.join(",")
    );
    let mut missing: Vec<String> = query_rows(client, &sql).await?.into_iter().flatten().flatten().collect();
    if missing.is_empty() {
        return Ok(None);
    }
    let more = missing.len().saturating_sub(MAX_LISTED_TABLES);
    missing.truncate(MAX_LISTED_TABLES);
    let mut text = missing.join(", ");
    if more > 0 {
        text.push_str(&format!(", and similar on {more} more"));
    }
    Ok(Some(text))
}
