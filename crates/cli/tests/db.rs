//! `stepfast db` as its users see it, on SQLite and on a real Postgres server.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::postgres;

fn command(store: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stepfast"));
    command.arg("db").args(arguments).args(["--store", store]).env_remove("STEPFAST_STORE");
    command
}

fn stepfast(store: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command(store, arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// Runs a command that must succeed. Returns what it prints.
fn output_of(store: &str, arguments: &[&str]) -> String {
    let (code, out, err) = stepfast(store, arguments);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    out
}

fn as_role(url: &str, role: &str) -> String {
    let (_, rest) = url.split_once('@').unwrap();
    format!("postgres://{role}@{rest}")
}

/// Runs a command outside `stepfast db`. Returns its exit code and its message.
fn failing(store: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stepfast"));
    let output =
        command.args(arguments).args(["--store", store]).env_remove("STEPFAST_STORE").output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn findings(store: &str) -> (Option<i32>, Vec<(String, bool, String)>) {
    let (code, out, _) = stepfast(store, &["check", "--json"]);
    let found: Value = serde_json::from_str(&out).unwrap();
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let findings = found["findings"].as_array().unwrap().iter().map(|it| {
        (text(it, "subject"), it["is_ok"].as_bool().unwrap(), text(it, "state") + "; " + &text(it, "advice"))
    });
    (code, findings.collect())
}

#[test]
fn file_is_planned_created_and_checked() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("shop.db").display());
    let (code, found) = findings(&store);
    assert_eq!((code, found[0].1), (Some(1), false), "{found:?}");
    assert!(found[0].2.contains("stepfast db migrate"), "{found:?}");
    let sql = output_of(&store, &["migrate", "--print"]);
    assert!(sql.starts_with("BEGIN IMMEDIATE;") && sql.contains("CREATE TABLE executions"), "{sql}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    assert!(output_of(&store, &["migrate"]).contains("created, version 10"));
    assert!(output_of(&store, &["migrate"]).contains("nothing to migrate"));
    assert!(output_of(&store, &["migrate", "--print"]).contains("nothing to do"));
    let (code, found) = findings(&store);
    assert!(code == Some(0) && found.iter().all(|(_, is_ok, _)| *is_ok), "{found:?}");
    let (code, _, err) = stepfast(&store, &["migrate", "--role", "app"]);
    assert!(code == Some(1) && err.contains("no roles"), "{err}");
    std::fs::write(directory.path().join("shop.db"), "this is a letter, and no database of SQLite at all")
        .unwrap();
    let (code, found) = findings(&store);
    assert!(code == Some(1) && found[0].2.contains("not a SQLite database"), "{found:?}");
}

#[test]
fn memory_store_is_rejected() {
    for arguments in [&["check"] as &[&str], &["migrate"]] {
        let (code, _, err) = stepfast("memory:", arguments);
        assert!(code == Some(1) && err.contains("empty in every process"), "{err}");
    }
}

#[test]
fn schema_is_printed_created_and_checked() {
    let (store, schema) = postgres();
    let (code, found) = findings(&store);
    let wrong: Vec<_> = found.iter().filter(|(_, is_ok, _)| !is_ok).collect();
    assert_eq!((code, wrong.len()), (Some(1), 1), "{found:?}");
    assert!(
        wrong[0].0 == "schema" && wrong[0].2.contains("run: stepfast db migrate, with ?schema="),
        "{found:?}"
    );
    assert!(found.iter().all(|(subject, ..)| subject != "privileges"), "{found:?}");
    let sql = output_of(&store, &["migrate", "--print"]);
    assert!(sql.contains(&format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\"")), "{sql}");
    // nothing was created
    assert_eq!(findings(&store).0, Some(1));
    // and executing the printed SQL is all that a migration needs
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(support::execute(&store, &sql)).unwrap();
    assert!(output_of(&store, &["migrate"]).contains("nothing to migrate"));
    let (code, found) = findings(&store);
    assert!(code == Some(0) && found.iter().all(|(_, is_ok, _)| *is_ok), "{found:?}");
    for subject in [
        "server",
        "encryption",
        "privileges",
        "durability",
        "clocks",
        "wake-ups",
        "autovacuum",
        "connections",
    ] {
        assert!(found.iter().any(|(it, ..)| it == subject), "{subject}: {found:?}");
    }
}

#[test]
fn concurrent_migrations_are_applied_once() {
    let (store, _) = postgres();
    let mut processes = Vec::new();
    for _ in 0..12 {
        let mut command = command(&store, &["migrate", "--json"]);
        processes.push(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    }
    let mut applied = 0;
    for process in processes {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let migrated: Value = serde_json::from_slice(&output.stdout).unwrap();
        applied += migrated["migrations"].as_array().unwrap().len();
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../postgres/migrations");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let migrations = files.filter(|name| !name.to_string_lossy().ends_with(".before.sql")).count();
    assert_eq!(applied, migrations);
}

#[test]
fn granted_role_may_change_rows_only() {
    let (store, schema) = postgres();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = store.split('?').next().unwrap().to_owned();
    let role = format!("app_{schema}");
    let execute = |url: String, sql: String| runtime.block_on(support::execute(&url, &sql));
    let (code, _, err) = stepfast(&store, &["migrate", "--role", &role]);
    assert!(code == Some(1) && err.contains("CREATE ROLE"), "{err}");
    execute(url.clone(), format!("CREATE ROLE {role} LOGIN")).unwrap();
    let theirs = as_role(&store, &role);
    // without any privilege: the message names the command to run
    let (code, _, err) = stepfast(&theirs, &["migrate"]);
    assert!(code == Some(1) && err.contains(&format!("stepfast db migrate --role {role}")), "{err}");
    // and the check reports one problem, without missing privileges on tables that do not exist
    let only_fault = || {
        let (code, found) = findings(&theirs);
        assert_eq!(code, Some(1), "{found:?}");
        let wrong: Vec<_> = found.into_iter().filter(|(_, is_ok, _)| !is_ok).collect();
        assert!(
            wrong.len() == 1
                && wrong[0]
                    .2
                    .contains(&format!("stepfast db migrate --role {role}, with ?schema={schema} in"))
        );
        wrong[0].clone()
    };
    let (subject, _, text) = only_fault();
    assert!(subject == "schema" && text.contains("may create a schema in database"), "{text}");
    assert!(output_of(&store, &["migrate"]).contains("created"));
    let (subject, _, text) = only_fault();
    assert!(subject == "schema" && text.contains("permission denied"), "{text}");
    assert!(text.contains("role \"stepfast\", which owns it, run"), "{text}");
    // the role may read only the version of the schema: other reads fail, and are not retried; the message names the
    // command to run
    execute(url.clone(), format!("GRANT USAGE ON SCHEMA {schema} TO {role}")).unwrap();
    execute(url.clone(), format!("GRANT SELECT ON {schema}.schema_version TO {role}")).unwrap();
    for command in [&["workflow", "list"][..], &["workflow", "show", "one"], &["worker", "list"]] {
        let (code, text) = failing(&theirs, command);
        assert!(code == Some(1) && text.contains("SF-0036") && text.contains("permission denied"), "{text}");
        assert!(text.contains("stepfast db migrate --role NAME") && !text.contains("is unknown"), "{text}");
    }
    // some privileges: the missing ones are summed up briefly
    execute(url.clone(), format!("GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")).unwrap();
    let (code, text) = failing(&theirs, &["workflow", "cancel", "one"]);
    assert!(code == Some(1) && text.contains("SF-0036") && text.contains("registering a worker"), "{text}");
    let (subject, _, text) = only_fault();
    assert!(subject == "privileges" && text.contains("more") && text.len() < 300, "{text}");
    assert!(
        output_of(&store, &["migrate", "--role", &role]).contains(&format!("role {role} may run engines"))
    );
    let (code, found) = findings(&theirs);
    assert_eq!(code, Some(0), "{found:?}");
    assert!(output_of(&theirs, &["migrate"]).contains("nothing to migrate"));
    let there = as_role(&url, &role);
    execute(there.clone(), format!("SELECT * FROM {schema}.executions")).unwrap();
    for forbidden in [
        format!("CREATE TABLE {schema}.mine ()"),
        format!("ALTER TABLE {schema}.executions ADD mine int"),
        format!("TRUNCATE {schema}.executions"),
        format!("DELETE FROM {schema}.schema_version"),
        format!("DROP SCHEMA {schema}"),
    ] {
        let error = execute(there.clone(), forbidden.clone()).unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42501", "{forbidden}");
    }
}

#[test]
fn help_hides_store_url() {
    for arguments in [["db", "migrate"], ["workflow", "list"], ["worker", "list"], ["bench", "flush"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_stepfast"))
            .args(arguments)
            .arg("--help")
            .env("STEPFAST_STORE", "postgres://me:secret@db/shop")
            .output()
            .unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        assert!(out.contains("--store") && !out.contains("secret"), "{out}");
    }
}

#[test]
fn unreachable_server_is_a_finding() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (code, found) = findings(&format!("postgres://me:secret@127.0.0.1:{port}/shop"));
    assert_eq!((code, found.len()), (Some(1), 1), "{found:?}");
    assert!(found[0].2.contains("refused") && !found[0].2.contains("secret"), "{found:?}");
}

#[test]
fn unreachable_listen_url_is_reported() {
    let (store, _) = postgres();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nowhere =
        format!("{store}&pooling=transaction&listen=postgres%3A%2F%2Fme%40127.0.0.1%3A{port}%2Fshop");
    output_of(&store, &["migrate"]);
    let (code, found) = findings(&nowhere);
    let (_, _, text) = found.iter().find(|(_, is_ok, _)| !is_ok).unwrap();
    assert!(code == Some(1) && text.contains(&format!("me@127.0.0.1:{port}/shop")), "{found:?}");
    // commands that measure accept all options of a URL, and an engine logs that it receives no hints
    let mut command = Command::new(env!("CARGO_BIN_EXE_stepfast"));
    command.args(["bench", "workflows", "--concurrency", "1", "--iterations", "1", "--store", &nowhere]);
    let output = command.env("STEPFAST_LOG", "warn").output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && log.contains("no wake-up hints") && log.contains("listen="), "{log}");
    assert!(log.contains(&format!("me@127.0.0.1:{port}/shop")), "{log}");
}

/// Returns the store's identity and its shard, as a check shows them.
fn identity(found: &[(String, bool, String)]) -> Vec<&str> {
    let states = |subject| found.iter().filter(move |it| it.0 == subject);
    ["store_id", "shard"].into_iter().flat_map(states).map(|it| it.2.trim_end_matches("; ")).collect()
}

#[test]
fn check_shows_store_id_and_shard() {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", directory.path().join("shop.db").display());
    let (postgres, schema) = postgres();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for store in [&file, &postgres] {
        output_of(store, &["migrate"]);
        let about = runtime.block_on(async { stepfast::connect(store).await.unwrap().info().clone() });
        let (code, found) = findings(store);
        assert_eq!((code, identity(&found)), (Some(0), vec![&*about.store_id, "0"]), "{found:?}");
    }
    runtime.block_on(support::execute(&postgres, &format!("UPDATE {schema}.shard SET number = 7"))).unwrap();
    let (_, found) = findings(&postgres);
    let store_id = identity(&found)[0].to_owned();
    assert_eq!(identity(&found)[1], "7");
    assert_eq!(findings(&format!("{postgres}&store_id={store_id}")).0, Some(0));
    // the store that the URL expects is another one
    let (code, found) = findings(&format!("{postgres}&store_id=00000000-0000-4000-8000-000000000000"));
    let (_, is_ok, text) = found.iter().find(|it| it.0 == "store_id").unwrap();
    assert!(code == Some(1) && !is_ok && text.contains(&store_id), "{found:?}");
    assert!(text.contains("store_id in the URL names 00000000-"), "{text}");
}
