//! Reports on a database's schema and state, for `stepfast db migrate` and `stepfast db check`.

/// The result of migrating a schema, or of a dry run.
#[derive(Clone, Debug, Default)]
pub struct MigrationReport {
    /// The database, for people, without a password.
    pub database: String,
    /// The schema within the database; `None` if the product has none.
    pub schema: Option<String>,
    /// The version before the migration; `None` if the database had no schema of Stepfast.
    pub found_version: Option<i64>,
    /// The version that this program requires.
    pub required_version: i64,
    /// The names of the migrations that were applied, or that a dry run would apply.
    pub migrations: Vec<String>,
    /// The role that was granted access; `None` if no role was given.
    pub granted_role: Option<String>,
    /// The SQL that a dry run would execute; empty if the schema is up to date.
    pub sql: String,
}

/// The result of one check.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The checked item, in one or two words.
    pub subject: &'static str,
    /// Whether the item needs no action.
    pub is_ok: bool,
    /// The state of the item, for people.
    pub state: String,
    /// The action that solves the problem; empty if the item needs none.
    pub advice: String,
}

impl Finding {
    /// The subject of the finding with the store's identity.
    pub const STORE_SUBJECT: &str = "store_id";

    /// Returns the findings that identify a store: its id and the number of its shard.
    pub fn for_store(store_id: &str, shard: u16) -> Vec<Self> {
        vec![Self::ok(Self::STORE_SUBJECT, store_id), Self::ok("shard", shard.to_string())]
    }

    /// Creates a finding without a problem.
    pub fn ok(subject: &'static str, state: impl Into<String>) -> Self {
        Self { subject, is_ok: true, state: state.into(), advice: String::new() }
    }

    /// Creates a finding of a problem, with advice.
    pub fn problem(subject: &'static str, state: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { subject, is_ok: false, state: state.into(), advice: advice.into() }
    }
}
