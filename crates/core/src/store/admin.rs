//! What is told of a database's schema and state: by `stepfast db migrate` and `stepfast db check`.

/// What bringing a schema up to date did, or would do.
#[derive(Clone, Debug, Default)]
pub struct MigrationReport {
    /// The database, for people: no password in it.
    pub database: String,
    /// The schema in it, where it has several.
    pub schema: Option<String>,
    /// The version that was found; `None` if there was nothing of ours.
    pub found_version: Option<i64>,
    /// The version that this program needs.
    pub required_version: i64,
    /// The migrations that were applied, or would be.
    pub migrations: Vec<String>,
    /// The role that was let in.
    pub granted_role: Option<String>,
    /// What would be executed, if it was only asked for; empty if there is nothing to do.
    pub sql: String,
}

/// One thing that was checked.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What was looked at, in one word or two.
    pub subject: &'static str,
    /// True if all is well with it.
    pub is_ok: bool,
    /// How it is.
    pub state: String,
    /// What to do about it; empty if all is well.
    pub advice: String,
}

impl Finding {
    /// The subject of which store it is.
    pub const STORE_SUBJECT: &str = "store_id";

    /// Which store it is: its identity, and the number of its shard.
    pub fn for_store(store_id: &str, shard: u16) -> Vec<Self> {
        vec![Self::ok(Self::STORE_SUBJECT, store_id), Self::ok("shard", shard.to_string())]
    }

    /// All is well.
    pub fn ok(subject: &'static str, state: impl Into<String>) -> Self {
        Self { subject, is_ok: true, state: state.into(), advice: String::new() }
    }

    /// Something is wrong.
    pub fn problem(subject: &'static str, state: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { subject, is_ok: false, state: state.into(), advice: advice.into() }
    }
}
