//! `stepfast db`: migrate, check.

use clap::{Args, Subcommand};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{ContentArrangement, Table};
use serde_json::{Value, json};
use stepfast::schema::{self, MigrationReport};

use crate::output::{self, Exit};

/// Create or migrate the database's schema, and check the database.
#[derive(Subcommand)]
pub(crate) enum Db {
    /// Bring the schema up to date, or create it.
    Migrate(Migrate),
    /// Check everything that an engine needs; exit code 1 if something is wrong.
    Check(Check),
}

#[derive(Args)]
struct At {
    /// The store: sqlite://FILE, sqlite:////ABSOLUTE/FILE or postgres://…
    #[arg(long, env = "STEPFAST_STORE", hide_env_values = true)]
    store: String,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Migrate {
    #[command(flatten)]
    at: At,
    /// Only print the SQL that would be executed.
    #[arg(long)]
    print: bool,
    /// Also permit this role of Postgres, which must exist, to run engines: it may change rows, but no tables.
    #[arg(long)]
    role: Option<String>,
}

#[derive(Args)]
pub(crate) struct Check {
    #[command(flatten)]
    at: At,
}

impl Db {
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        match self {
            Db::Migrate(migrate) => migrate.run().await,
            Db::Check(check) => check.run().await,
        }
    }
}

impl Migrate {
    async fn run(self) -> anyhow::Result<Exit> {
        let migrated = schema::migrate(&self.at.store, self.role.as_deref(), self.print).await?;
        if self.at.json {
            output::print_json(&migrated_json(&migrated, self.print))?;
        } else if self.print {
            let nothing = format!("-- version {}: nothing to do", migrated.required_version);
            output::print(if migrated.sql.is_empty() { &nothing } else { &migrated.sql });
        } else {
            output::print(&migrated_text(&migrated));
        }
        Ok(Exit::Done)
    }
}

fn migrated_json(migrated: &MigrationReport, is_dry: bool) -> Value {
    json!({
        "database": migrated.database,
        "schema": migrated.schema,
        "found": migrated.found_version,
        "version": migrated.required_version,
        "is_applied": !is_dry,
        "migrations": migrated.migrations,
        "granted": migrated.granted_role,
        "sql": is_dry.then_some(&migrated.sql),
    })
}

fn migrated_text(migrated: &MigrationReport) -> String {
    let mut place = migrated.database.clone();
    if let Some(schema) = &migrated.schema {
        place = format!("{place}, schema {schema}");
    }
    let version = migrated.required_version;
    let mut text = match (migrated.found_version, migrated.migrations.is_empty()) {
        (_, true) => format!("{place}: version {version}, nothing to migrate"),
        (None, false) => format!("{place}: created, version {version}"),
        (Some(found), false) => format!("{place}: from version {found} to {version}"),
    };
    for migration in &migrated.migrations {
        text.push_str("\n  applied ");
        text.push_str(migration);
    }
    if let Some(role) = &migrated.granted_role {
        text.push_str("\n  role ");
        text.push_str(role);
        text.push_str(" may run engines");
    }
    text
}

impl Check {
    async fn run(self) -> anyhow::Result<Exit> {
        let findings = schema::check(&self.at.store).await?;
        let is_well = findings.iter().all(|finding| finding.is_ok);
        if self.at.json {
            let shown = |finding: &schema::Finding| {
                json!({
                    "subject": finding.subject,
                    "is_well": finding.is_ok,
                    "state": finding.state,
                    "advice": (!finding.is_ok).then_some(&finding.advice),
                })
            };
            let findings: Vec<Value> = findings.iter().map(shown).collect();
            output::print_json(&json!({ "is_well": is_well, "findings": findings }))?;
        } else {
            let mut table = Table::new();
            table
                .load_style(UTF8_HORIZONTAL_ONLY)
                // sentences: as wide as the terminal, if there is one
                .set_content_arrangement(ContentArrangement::Dynamic)
                .set_header(["", "checked", "found", "what to do"]);
            for finding in &findings {
                let mark = if finding.is_ok { "ok" } else { "WRONG" };
                table.add_row([mark, finding.subject, &finding.state, &finding.advice]);
            }
            output::print(&table.to_string());
        }
        Ok(if is_well { Exit::Done } else { Exit::Failed })
    }
}
