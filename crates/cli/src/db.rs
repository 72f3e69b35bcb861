//! `stepfast db`: migrate, check.

use clap::{Args, Subcommand};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{ContentArrangement, Table};
use serde_json::{Value, json};
use stepfast::schema::{self, MigrationReport};

use crate::output::{self, Exit};

/// Create or migrate the database's schema, and check the database.
#[derive(Subcommand)]
pub(crate) enum DbCommand {
    /// Bring the schema up to date, or create it.
    Migrate(MigrateArgs),
    /// Check everything that an engine needs; exit code 1 if something is wrong.
    Check(CheckArgs),
}

#[derive(Args)]
struct DatabaseArgs {
    /// The store: sqlite://FILE, sqlite:////ABSOLUTE/FILE or postgres://…
    #[arg(long, env = "STEPFAST_STORE", hide_env_values = true)]
    store: String,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    target: DatabaseArgs,
    /// Only print the SQL that would be executed.
    #[arg(long)]
    print: bool,
    /// Also permit this role of Postgres, which must exist, to run engines: it may change rows, but no tables.
    #[arg(long)]
    role: Option<String>,
}

#[derive(Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    target: DatabaseArgs,
}

impl DbCommand {
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        match self {
            DbCommand::Migrate(migrate) => migrate.run().await,
            DbCommand::Check(check) => check.run().await,
        }
    }
}

impl MigrateArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let report = schema::migrate(&self.target.store, self.role.as_deref(), self.print).await?;
        if self.target.json {
            output::print_json(&migration_json(&report, self.print))?;
        } else if self.print {
            let comment = format!("-- version {}: nothing to do", report.required_version);
            output::print(if report.sql.is_empty() { &comment } else { &report.sql });
        } else {
            output::print(&migration_text(&report));
        }
        Ok(Exit::Done)
    }
}

fn migration_json(report: &MigrationReport, is_dry: bool) -> Value {
    json!({
        "database": report.database,
        "schema": report.schema,
        "found_version": report.found_version,
        "required_version": report.required_version,
        "is_applied": !is_dry,
        "migrations": report.migrations,
        "granted_role": report.granted_role,
        "sql": is_dry.then_some(&report.sql),
    })
}

fn migration_text(report: &MigrationReport) -> String {
    let mut database = report.database.clone();
    if let Some(schema) = &report.schema {
        database = format!("{database}, schema {schema}");
    }
    let version = report.required_version;
    let mut text = match (report.found_version, report.migrations.is_empty()) {
        (_, true) => format!("{database}: version {version}, nothing to migrate"),
        (None, false) => format!("{database}: created, version {version}"),
        (Some(found), false) => format!("{database}: from version {found} to {version}"),
    };
    for migration in &report.migrations {
        text.push_str("\n  applied ");
        text.push_str(migration);
    }
    if let Some(role) = &report.granted_role {
        text.push_str("\n  role ");
        text.push_str(role);
        text.push_str(" may run engines");
    }
    text
}

impl CheckArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let findings = schema::check(&self.target.store).await?;
        let is_ok = findings.iter().all(|finding| finding.is_ok);
        if self.target.json {
            let shown = |finding: &schema::Finding| {
                json!({
                    "subject": finding.subject,
                    "is_ok": finding.is_ok,
                    "state": finding.state,
                    "advice": (!finding.is_ok).then_some(&finding.advice),
                })
            };
            let findings: Vec<Value> = findings.iter().map(shown).collect();
            output::print_json(&json!({ "is_ok": is_ok, "findings": findings }))?;
        } else {
            let mut table = Table::new();
            table
                .load_style(UTF8_HORIZONTAL_ONLY)
                // the cells contain sentences, so the table is as wide as the terminal, if there is one
                .set_content_arrangement(ContentArrangement::Dynamic)
                .set_header(["", "checked", "found", "what to do"]);
            for finding in &findings {
                let mark = if finding.is_ok { "ok" } else { "WRONG" };
                table.add_row([mark, finding.subject, &finding.state, &finding.advice]);
            }
            output::print(&table.to_string());
        }
        Ok(if is_ok { Exit::Done } else { Exit::Failed })
    }
}
