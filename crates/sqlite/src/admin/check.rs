//! Checks of a database file without an open store.

use std::path::Path;

use rusqlite::Connection;
use stepfast_core::store::{Finding, StoreError};

use crate::conn::{explain_open_error, read_once};
use crate::fork::SqliteUse;
use crate::{SqliteStore, resolve_path, schema};

impl SqliteStore {
    /// Checks whether the file at `path` is fit for engines, and changes nothing.
    pub fn check(path: impl AsRef<Path>) -> Result<Vec<Finding>, StoreError> {
        let path = resolve_path(path.as_ref())?;
        let advice = "run: stepfast db migrate --store URL, or let an engine create it";
        if !path.exists() {
            let state = format!("there is no {}", path.display());
            return Ok(vec![Finding::problem("file", state, advice)]);
        }
        let _in_sqlite = SqliteUse::enter();
        let newest = schema::migration_texts().last().map_or(0, |(version, ..)| *version);
        let read = |conn: &Connection| {
            let found = schema::schema_version(conn)?;
            let identity = if found == newest { Some(schema::store_identity(conn)?) } else { None };
            Ok((
                found,
                identity,
                conn.pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0))?,
            ))
        };
        let (found, identity, mode) = match read_once(&path, None, read) {
            Ok(read) => read,
            Err(error) => return Ok(vec![open_finding(explain_open_error(&path, error))?]),
        };
        let mut findings = vec![Finding::ok("file", path.display().to_string())];
        findings.push(if found == newest {
            Finding::ok("schema", format!("version {found}"))
        } else if found > newest {
            let state = format!("version {found}, this program supports up to {newest}");
            Finding::problem("schema", state, "update this program")
        } else if found == 0 {
            Finding::problem("schema", "it has no schema of Stepfast", advice)
        } else {
            Finding::problem("schema", format!("version {found}, this program needs {newest}"), advice)
        });
        if let Some((store_id, shard)) = identity {
            findings.extend(Finding::for_store(&store_id, shard));
        }
        findings.push(match &*mode {
            "wal" => Finding::ok("journal", "wal"),
            mode => Finding::problem("journal", mode, "open an engine on it once: it sets wal"),
        });
        let folder = path.parent().unwrap_or(&path);
        findings.push(match check_writable(folder) {
            Ok(()) => Finding::ok("directory", "writable"),
            Err(error) => Finding::problem(
                "directory",
                format!("{} cannot be written ({error})", folder.display()),
                "make it writable: SQLite and the engine keep files beside the database",
            ),
        });
        findings.push(Finding::ok("SQLite", rusqlite::version()));
        Ok(findings)
    }
}

/// Creates a file in `folder`, and removes it.
fn check_writable(folder: &Path) -> std::io::Result<()> {
    let path = folder.join(format!(".stepfast-check-{}", std::process::id()));
    std::fs::File::create_new(&path)?;
    std::fs::remove_file(path)
}

/// Converts an error of opening the file to a finding.
fn open_finding(error: StoreError) -> Result<Finding, StoreError> {
    match error {
        StoreError::Open { reason, .. } => {
            let (state, advice) = reason.split_once("; ").unwrap_or((&reason, "restore it from a backup"));
            Ok(Finding::problem("file", state, advice))
        }
        error => Err(error),
    }
}
