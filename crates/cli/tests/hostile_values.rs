//! Hostile values as arguments of the commands: each is accepted, or rejected by a short message that names it. No
//! part of a value acts on a terminal, and other executions in the database still complete.

#![allow(clippy::unwrap_used)]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{Command, Output};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;
use stepfast::prelude::*;
use tempfile::TempDir;

/// The time after which a command counts as hanging.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of characters in a row of a long value that a command may show.
const MAX_REPEATED_CHARS: usize = 1_100;

/// Returns texts: empty, huge, not UTF-8, and with characters that mean something to shells and terminals.
fn texts() -> Vec<OsString> {
    let texts = [
        "", " ", "a", "default", "a\nb", "\x1b[2J", "\u{9b}2J", "\x7f", "🦄", "-1", "0", "'", "\"", "%",
        "a=b", "=",
    ];
    let repeated = ["x".repeat(1_025), "x".repeat(100_000)];
    let bytes =
        [&b"a\xffb"[..], b"--x=\xff", b"\xed\xa0\x80"].map(|bytes| OsString::from_vec(bytes.to_vec()));
    texts.iter().map(Into::into).chain(repeated.map(Into::into)).chain(bytes).collect()
}

/// Returns a few of the texts, and others.
fn with_common(others: &[&str]) -> Vec<OsString> {
    let huge = "x".repeat(100_000);
    let few = ["", "a", "\x1b[2J", "🦄", &huge].into_iter().chain(others.iter().copied());
    few.map(OsString::from).chain([OsString::from_vec(b"1\xff".to_vec())]).collect()
}

fn limits() -> Vec<OsString> {
    with_common(&[
        "0",
        "1",
        "-1",
        "1.5",
        "inf",
        "NaN",
        "none",
        "2147483647",
        "2147483648",
        "4294967295",
        "4294967296",
        "18446744073709551616",
    ])
}

fn rates() -> Vec<OsString> {
    with_common(&[
        "0/s",
        "1/s",
        "-1/s",
        "inf/s",
        "1/0s",
        "1/1s burst 0",
        "1/1s burst 2147483647",
        "1/1s burst 4294967295",
        "2147483648/1s",
        "1/366d",
        "1/367d",
        "1/18446744073709551615d",
        "none",
    ])
}

fn times() -> Vec<OsString> {
    with_common(&[
        "0s",
        "1s",
        "-1s",
        "s",
        "1",
        "inf",
        "99999999999999d",
        "99999999999999999999s",
        "0001-01-01T00:00:00Z",
        "-009999-01-02T01:59:59Z",
        "9999-12-30T22:00:00Z",
        "99999-01-01T00:00:00Z",
    ])
}

fn weights() -> Vec<OsString> {
    with_common(&["k=0", "k=1", "k=1000", "k=1001", "k=-1", "k=inf", "k=", "=5", "a=b=7"])
}

/// The result of a command.
struct CommandResult {
    code: Option<i32>,
    out: String,
    all: String,
}

/// A store with an engine, on which commands run.
struct Harness {
    store: String,
    directory: TempDir,
    engine: Engine,
    noop: Workflow<i64, i64>,
    faults: Vec<String>,
}

impl Harness {
    async fn on(store: String, directory: TempDir) -> Self {
        let noop = Workflow::new("noop", |_cx: Context, x: i64| async move { Ok::<_, Failure>(x) });
        let engine =
            Engine::builder(stepfast::connect(&store).await.unwrap()).register(&noop).open().await.unwrap();
        engine.run(&noop, 7).workflow_id("there").await.unwrap();
        engine.set_queue(&stepfast::queue::Queue::new("q")).await.unwrap();
        Self { store, directory, engine, noop, faults: Vec::new() }
    }

    async fn sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::on(format!("sqlite:{}", directory.path().join("shop.db").display()), directory).await
    }

    /// Creates a schema of its own on the server that `tests/with-postgres` has started.
    async fn postgres() -> Self {
        let url = std::env::var("STEPFAST_TEST_POSTGRES_URL");
        let url = url
            .expect("these tests need a Postgres server: run them by `make test`, or by tests/with-postgres");
        let schema = format!("cli_hostile_{}", uuid::Uuid::now_v7().simple());
        Self::on(format!("{url}?schema={schema}"), tempfile::tempdir().unwrap()).await
    }

    /// Runs a command that writes in colours, as to a terminal.
    fn run_command(&self, arguments: &[&OsStr], variables: &[(&str, &OsStr)]) -> CommandResult {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stepfast"));
        command.args(arguments).env_remove("STEPFAST_STORE").envs(variables.iter().copied());
        command.env("CLICOLOR_FORCE", "1").current_dir(self.directory.path());
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || send.send(command.output()));
        let Output { status, stdout, stderr } =
            receive.recv_timeout(COMMAND_TIMEOUT).expect("the command hangs").unwrap();
        let out = String::from_utf8(stdout).unwrap();
        let all = format!("{out}{}", String::from_utf8(stderr).unwrap());
        CommandResult { code: status.code(), out, all }
    }

    /// Runs a command with each value in the place of `VALUE`. An error must contain one of `names`, or the value.
    async fn try_values(&mut self, command: &str, names: &[&str], values: Vec<OsString>) {
        self.try_values_checked(command, names, values, |_, _| true).await;
    }

    /// Does the same as [`try_values`](Self::try_values). Also checks the effect: `is_right` gets value and output.
    async fn try_values_checked(
        &mut self,
        command: &str,
        names: &[&str],
        values: Vec<OsString>,
        is_right: impl Fn(&str, &str) -> bool,
    ) {
        for value in values {
            let words: Vec<OsString> = command.split(' ').map(|word| with_value(word, &value)).collect();
            let mut arguments: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
            if !command.contains("--store") {
                arguments.extend(["--store", &self.store].map(OsStr::new));
            }
            let result = self.run_command(&arguments, &[]);
            let fault = find_fault(&result, names).or_else(|| {
                let is_right = result.code != Some(0) || is_right(&value.to_string_lossy(), &result.out);
                (!is_right).then(|| format!("has another effect: {}", result.out))
            });
            self.record_fault(command, &value, fault);
        }
        self.check_engine().await;
    }

    fn record_fault(&mut self, command: &str, value: &OsStr, fault: Option<String>) {
        let value: String = value.to_string_lossy().escape_debug().take(60).collect();
        self.faults.extend(fault.map(|fault| format!("{command}: {value} {fault:.400}")));
    }

    async fn check_engine(&self) {
        assert_eq!(self.engine.run(&self.noop, 7).await.unwrap(), 7);
        assert_eq!(self.engine.start(&self.noop, 8).await.unwrap().result().await.unwrap(), 8);
    }

    async fn finish(self) {
        self.engine.shutdown(Duration::from_secs(20)).await.unwrap();
        assert!(self.faults.is_empty(), "{} wrong:\n{}", self.faults.len(), self.faults.join("\n"));
    }
}

/// Returns a word of a command with the value in its place.
fn with_value(word: &str, value: &OsStr) -> OsString {
    let bytes = match word.split_once("VALUE") {
        Some((before, after)) => [before.as_bytes(), value.as_bytes(), after.as_bytes()].concat(),
        None => word.as_bytes().to_vec(),
    };
    OsString::from_vec(bytes)
}

/// Returns the fault of a command's result; `None` if there is none.
fn find_fault(CommandResult { code, all, .. }: &CommandResult, names: &[&str]) -> Option<String> {
    let text = without_colours(all);
    if text.contains("panicked") || !matches!(code, Some(0..=5)) {
        return Some(format!("ends with {code:?}: {text}"));
    }
    if let Some(control) = text.chars().find(|char| char.is_control() && *char != '\n') {
        return Some(format!("writes {control:?}: {text:?}"));
    }
    if text.contains(&"x".repeat(MAX_REPEATED_CHARS)) {
        return Some(format!("shows too much of the value: {} bytes", text.len()));
    }
    let is_named = names.iter().any(|name| text.contains(name)) || text.contains("unexpected argument '-");
    (*code != Some(0) && !is_named).then(|| format!("is rejected without its name: {text}"))
}

/// Returns a text without the colours that the program gives it.
fn without_colours(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once('m') {
            Some((colour, rest)) if colour.bytes().all(|it| it.is_ascii_digit() || it == b';') => {
                plain.push_str(rest);
            }
            _ => plain.push_str(&format!("\x1b[{part}")),
        }
    }
    plain
}

/// Tries all options of `stepfast workflow`.
async fn workflows(mut harness: Harness) {
    for option in
        ["--workflow", "--parent", "--id-prefix", "--app-version", "--queue", "--attribute", "--status"]
    {
        let names = [option, "workflow_id", "attribute"];
        harness.try_values(&format!("workflow list {option} VALUE"), &names, texts()).await;
    }
    for option in ["--since", "--until"] {
        harness.try_values(&format!("workflow list --json {option}=VALUE"), &[option], times()).await;
    }
    harness
        .try_values_checked("workflow list --json --limit=VALUE", &["--limit"], limits(), |limit, out| {
            let shown: Value = serde_json::from_str(out).unwrap();
            shown["executions"].as_array().unwrap().len() <= limit.parse().unwrap()
        })
        .await;
    for command in ["show", "cancel", "resume"] {
        let names = ["workflow_id", "argument"];
        harness.try_values(&format!("workflow {command} VALUE"), &names, texts()).await;
        harness
            .try_values(
                &format!("workflow {command} VALUE --json"),
                &names,
                vec!["\u{9b}2J".into(), "a\nb".into()],
            )
            .await;
    }
    harness.try_values("workflow cancel there VALUE", &["workflow_id", "argument"], texts()).await;
    harness.try_values("workflow cancel --all --workflow VALUE", &["--workflow"], texts()).await;
    harness.try_values("workflow resume --all --parked --id-prefix VALUE", &["--id-prefix"], texts()).await;
    harness.finish().await;
}

/// Whether a limit is stored as it was given.
fn is_stored(key: &str, given: &str, out: &str) -> bool {
    let stored: Value = serde_json::from_str(out).unwrap();
    given.parse::<u64>().map_or(given == "none" && stored[key].is_null(), |given| stored[key] == given)
}

/// Tries all options of `stepfast queue`.
async fn queues(mut harness: Harness) {
    for command in ["show", "pause", "resume", "set"] {
        harness.try_values(&format!("queue {command} VALUE"), &["queue", "argument"], texts()).await;
    }
    for (option, key) in [
        ("--concurrency", "concurrency"),
        ("--worker-concurrency", "worker_concurrency"),
        ("--key-concurrency", "key_concurrency"),
        ("--max-depth", "max_depth"),
    ] {
        let command = format!("queue set q --json {option}=VALUE");
        harness
            .try_values_checked(&command, &[option, key], limits(), |given, out| is_stored(key, given, out))
            .await;
    }
    for (option, key) in [("--rate", "rate"), ("--key-rate", "key_rate")] {
        harness.try_values(&format!("queue set q --json {option}=VALUE"), &[option, key], rates()).await;
    }
    harness
        .try_values(
            "queue set q --json --key-weight=VALUE",
            &["--key-weight", "key_weights", "queue key"],
            weights(),
        )
        .await;
    harness.try_values("queue list VALUE", &["argument"], texts()).await;
    harness.try_values("queue dead-letters --limit=VALUE", &["--limit"], limits()).await;
    harness.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workflow_commands_accept_or_reject_values_on_sqlite() {
    workflows(Harness::sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workflow_commands_accept_or_reject_values_on_postgres() {
    workflows(Harness::postgres().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_commands_accept_or_reject_values_on_sqlite() {
    queues(Harness::sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_commands_accept_or_reject_values_on_postgres() {
    queues(Harness::postgres().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn role_is_granted_or_rejected_by_name() {
    let mut harness = Harness::postgres().await;
    let roles = ["public", "none", "PUBLIC", "pg_monitor"].map(OsString::from);
    let roles = texts().into_iter().chain(roles).chain(["x".repeat(64).into()]);
    harness.try_values("db migrate --role VALUE", &["role"], roles.collect()).await;
    let rejected = harness
        .run_command(&["db", "migrate", "--role", "public", "--store", &harness.store].map(OsStr::new), &[]);
    assert!(
        rejected.code == Some(1) && rejected.all.contains("every role of the server"),
        "{}",
        rejected.all
    );
    harness.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_commands_and_variables_are_checked_by_name() {
    let mut harness = Harness::sqlite().await;
    let names = ["URL", "--store", "cannot open", "file", "directory", "path"];
    for command in ["workflow list", "queue list", "worker list", "db check", "db migrate"] {
        harness.try_values(&format!("{command} --store VALUE"), &names, texts()).await;
    }
    for scheme in ["sqlite:", "postgres://me:secret@", "memory:", "mysql://me:secret@db/"] {
        let urls = |text: OsString| OsString::from_vec([scheme.as_bytes(), text.as_bytes()].concat());
        // looking up an address takes long
        let texts = texts()
            .into_iter()
            .filter(|text| !scheme.starts_with("postgres") || text.is_empty() || text.len() > 1_000);
        harness.try_values("db migrate --store VALUE", &names, texts.map(urls).collect()).await;
    }
    for command in
        ["VALUE", "workflow VALUE", "queue VALUE", "worker VALUE", "db VALUE", "workflow list VALUE"]
    {
        harness
            .try_values(
                &format!("{command} --store {}", harness.store.clone()),
                &["command", "argument", "Usage"],
                texts(),
            )
            .await;
    }
    for variable in ["STEPFAST_STORE", "STEPFAST_LOG"] {
        for value in texts() {
            let mut arguments = vec![OsStr::new("workflow"), OsStr::new("list")];
            if variable == "STEPFAST_LOG" {
                arguments.extend(["--store", &harness.store].map(OsStr::new));
            }
            let result = harness.run_command(&arguments, &[(variable, &value)]);
            let fault = find_fault(&result, &[variable, "URL", "--store", "variable"]);
            harness.record_fault(variable, &value, fault);
        }
    }
    harness.check_engine().await;
    harness.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_executions_are_shown_harmlessly() {
    let harness = Harness::sqlite().await;
    let noise = "\x1b[2J\u{9b}31m\0\x7f\r\n\"é🦄";
    let complain = Workflow::new("complain", |mut cx: Context, text: String| async move {
        cx.step("step", async || Err::<(), _>(Failure::with_kind(text.clone(), text.clone()))).await
    });
    let store = stepfast::connect(&harness.store).await.unwrap();
    let engine = Engine::builder(store).register(&complain).open().await.unwrap();
    for (id, text) in [("noise", noise.to_owned()), ("long", "x".repeat(300_000))] {
        let handle =
            engine.start(&complain, text.clone()).workflow_id(id).attribute("🦄", "\u{202e}").await.unwrap();
        handle.result().await.unwrap_err();
        let show = ["workflow", "show", id, "--store", &harness.store].map(OsStr::new);
        let result = harness.run_command(&show, &[]);
        let run = "x".repeat(5_000);
        let text_shown = without_colours(&result.all);
        assert!(result.code == Some(0) && !text_shown.contains(&run), "{} bytes", text_shown.len());
        assert!(!text_shown.contains(|char: char| char.is_control() && char != '\n'), "{text_shown:?}");
        // JSON contains the whole text
        let result = harness.run_command(&[&show[..], &[OsStr::new("--json")]].concat(), &[]);
        assert!(!result.all.contains(|char: char| char.is_control() && char != '\n'), "{:?}", result.all);
        let shown: Value = serde_json::from_str(&result.out).unwrap();
        assert_eq!(
            (&shown["input"], &shown["outcome"]["message"]),
            (&Value::from(&*text), &Value::from(&*text))
        );
    }
    let listed = harness.run_command(&["workflow", "list", "--store", &harness.store].map(OsStr::new), &[]);
    assert!(find_fault(&listed, &[]).is_none() && listed.code == Some(0), "{}", listed.all);
    engine.shutdown(Duration::from_secs(20)).await.unwrap();
    harness.finish().await;
}
