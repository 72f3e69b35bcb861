//! [`Standing`]: whether a role may make the tables and change them, and who may otherwise.

use tokio_postgres::{Client, Error};

use crate::conn::options::DEFAULT_SCHEMA;
use crate::conn::pooler::{query_first_row, query_rows};
use crate::quoting::literal;
use crate::schema::{RIGHTS, TABLES, VERSIONS};

/// So many tables are named where rights are missing.
const NAMED: usize = 2;

/// The role that is connected, and who could do what it may not.
pub(crate) struct Standing {
    pub name: String,
    schema: String,
    database: String,
    /// Of the tables, else of the schema, if they are there.
    owner: Option<String>,
    /// True if it may make the tables, or change them.
    is_able: bool,
}

impl Standing {
    pub(crate) async fn of(client: &Client, schema: &str) -> Result<Self, Error> {
        let ask = format!(
            "SELECT current_user, current_database(), pg_get_userbyid(coalesce(v.relowner, n.nspowner)), \
                    CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE') \
                         WHEN v.oid IS NULL THEN has_schema_privilege(n.oid, 'CREATE') \
                         ELSE pg_has_role(v.relowner, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE') END \
             FROM (SELECT) AS one LEFT JOIN pg_namespace n ON n.nspname ={} \
             LEFT JOIN pg_class v ON v.relnamespace = n.oid AND v.relname = '{VERSIONS}'",
            literal(schema)
        );
        let mut row = query_first_row(client, &ask).await?.unwrap_or_default().into_iter();
        let mut next = || row.next().flatten();
        Ok(Self {
            name: next().unwrap_or_default(),
            schema: schema.to_owned(),
            database: next().unwrap_or_default(),
            owner: next(),
            is_able: next().as_deref() == Some("t"),
        })
    }

    /// What brings the schema up to date, and lets the role in.
    pub(crate) fn advice(&self) -> String {
        // whose own URL may name none
        let place = if self.schema == DEFAULT_SCHEMA {
            String::new()
        } else {
            format!(", with ?schema={} in the URL", self.schema)
        };
        if self.is_able {
            return format!("run: stepfast db migrate{place}");
        }
        let who = match &self.owner {
            Some(owner) => format!("role {owner:?}, who owns it,"),
            None => format!("a role that may create a schema in database {:?}", self.database),
        };
        format!("have {who} run: stepfast db migrate --role {}{place}", self.name)
    }
}

/// The rights that the role has not, and needs to run engines; `None` if there is nothing like that.
pub(crate) async fn lacking(client: &Client, schema: &str) -> Result<Option<String>, Error> {
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
    let mut missing: Vec<String> = query_rows(client, &sql).await?.into_iter().flatten().flatten().collect();
    if missing.is_empty() {
        return Ok(None);
    }
    let more = missing.len().saturating_sub(NAMED);
    missing.truncate(NAMED);
    let mut lacking = missing.join(", ");
    if more > 0 {
        lacking.push_str(&format!(", and the like on {more} more"));
    }
    Ok(Some(lacking))
}
