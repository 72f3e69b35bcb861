//! The checks of `stepfast db check`.

use std::time::Duration;

use stepfast_core::clock::{Clock, SystemClock};
use stepfast_core::store::{Durability, Finding, StoreError};
use tokio_postgres::{AsyncMessage, Client};

use crate::admin::migrate::{Connected, connect};
use crate::admin::privileges;
use crate::conn::background::BackgroundRuntime;
use crate::conn::connector::Connector;
use crate::conn::dial::error_chain;
use crate::conn::pooler::query_first_row;
use crate::error::query_error;
use crate::quoting::quote_literal;

/// The number of an engine's connections, without those for loads and lists: two lanes, a slow lane for each of them,
/// claims, heartbeats, takeovers, and wake-up hints.
pub(crate) const ENGINE_CONNECTIONS: usize = 8;

/// The time after which a notification counts as lost.
const NOTIFICATION_TIMEOUT: Duration = Duration::from_secs(10);

/// The difference between clocks, in microseconds, above which the check reports a problem.
const MAX_CLOCK_DIFFERENCE_MICROS: i64 = 5_000_000;

/// Runs all checks, and changes nothing.
pub(crate) async fn check(
    connector: &Connector,
    background: &BackgroundRuntime,
) -> Result<Vec<Finding>, StoreError> {
    let Connected { client, control, version } = match connect(connector, background).await {
        Ok(connected) => connected,
        Err(StoreError::Open { reason, .. } | StoreError::Unreachable { reason, .. }) => {
            let (state, advice) = reason.split_once("; ").unwrap_or((&reason, "see the server's log"));
            return Ok(vec![Finding::problem("server", state, advice)]);
        }
        Err(error) => return Err(error),
    };
    drop(control);
    let mut findings = vec![Finding::ok("server", format!("PostgreSQL {version}"))];
    let fail = |error: tokio_postgres::Error| {
        StoreError::Unavailable(format!("checking {}: {}", connector.name(), error_chain(&error)))
    };
    findings.push(encryption(connector, &client).await.map_err(fail)?);
    let schema_findings = privileges::check(&client, &connector.options().schema).await.map_err(fail)?;
    let has_schema = schema_findings.iter().any(|finding| finding.subject == "schema" && finding.is_ok);
    findings.extend(schema_findings);
    if has_schema {
        findings.extend(identity(connector, &client).await?);
    }
    let remaining = async {
        findings.push(durability(connector, &client).await?);
        findings.push(standby(&client).await?);
        findings.push(clock(&client).await?);
        findings.push(wake_ups(connector, background, &client).await?);
        findings.push(autovacuum(&client).await?);
        findings.push(connections(connector, &client).await?);
        Ok(())
    };
    remaining.await.map_err(fail)?;
    Ok(findings)
}

/// Reports the store's identity. Returns no finding if the role may not read the identity, because missing privileges
/// are a finding of their own.
async fn identity(connector: &Connector, client: &Client) -> Result<Vec<Finding>, StoreError> {
    let advice = "check where the URL leads to; the row of table shard identifies the store there";
    match connector.check_identity(client).await.map_err(query_error) {
        Ok(found) => Ok(Finding::for_store(&found.store_id, found.shard)),
        Err(StoreError::Open { reason, .. } | StoreError::Corrupt(reason)) => {
            Ok(vec![Finding::problem(Finding::STORE_SUBJECT, reason, advice)])
        }
        Err(StoreError::NewerSchema { found, supported }) => {
            let state = format!(
                "engines must support version {found} of the schema, and this program supports versions up to {supported}"
            );
            Ok(vec![Finding::problem(Finding::STORE_SUBJECT, state, "update this program")])
        }
        Err(StoreError::PermissionDenied(_)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

type CheckResult = Result<Finding, tokio_postgres::Error>;

/// Returns the columns of the first row as texts, empty for null.
async fn query_texts(client: &Client, sql: &str) -> Result<Vec<String>, tokio_postgres::Error> {
    let row = query_first_row(client, sql).await?.unwrap_or_default();
    Ok(row.into_iter().map(Option::unwrap_or_default).collect())
}

fn column(row: &[String], n: usize) -> &str {
    row.get(n).map_or("", String::as_str)
}

async fn encryption(connector: &Connector, client: &Client) -> CheckResult {
    let row =
        query_texts(client, "SELECT ssl, version, cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
            .await?;
    let subject = "encryption";
    let tls = &connector.options().tls;
    Ok(if tls.has_unused_root_cert() {
        Finding::problem(
            subject,
            format!("sslrootcert is given, but sslmode={} does not use it", tls.mode()),
            "set sslmode=verify-full in the URL",
        )
    } else if connector.is_pooled() {
        Finding::ok(subject, format!("sslmode={} to the proxy", tls.mode()))
    } else if column(&row, 0) == "t" {
        Finding::ok(subject, format!("{} with {}", column(&row, 1), column(&row, 2)))
    } else if connector.is_local() || connector.options().tls.mode.is_some() {
        Finding::ok(subject, "none")
    } else {
        Finding::problem(
            subject,
            "none, and the server is on another machine",
            "set ssl=on there and sslmode=verify-full in the URL; or set sslmode=disable if the network is trusted",
        )
    })
}

async fn durability(connector: &Connector, client: &Client) -> CheckResult {
    let sql = "SELECT current_setting('fsync'), current_setting('full_page_writes'), \
               current_setting('synchronous_standby_names')";
    let row = query_texts(client, sql).await?;
    let off: Vec<_> =
        [(0, "fsync"), (1, "full_page_writes")].iter().filter(|(n, _)| column(&row, *n) != "on").collect();
    let standbys = match column(&row, 2) {
        "" => "no synchronous standby".to_owned(),
        names => format!("synchronous standbys {names}"),
    };
    Ok(if let Some((_, setting)) = off.first() {
        Finding::problem(
            "durability",
            format!("{setting} is off: a crash of the server's machine may damage the database"),
            format!("set {setting}=on in postgresql.conf"),
        )
    } else if connector.options().durability == Durability::Relaxed {
        Finding::ok(
            "durability",
            "relaxed: synchronous_commit is set to off, a crash may lose the last moments",
        )
    } else {
        Finding::ok(
            "durability",
            format!("full: synchronous_commit is set to on, fsync and full_page_writes are on, {standbys}"),
        )
    })
}

async fn standby(client: &Client) -> CheckResult {
    let row = query_texts(client, "SELECT pg_is_in_recovery()").await?;
    Ok(if column(&row, 0) == "t" {
        Finding::problem(
            "role of the server",
            "a standby, which is read-only",
            "connect to the primary, or add target_session_attrs=read-write to the URL",
        )
    } else {
        Finding::ok("role of the server", "primary")
    })
}

async fn clock(client: &Client) -> CheckResult {
    let before = SystemClock.now().as_micros();
    let row = query_texts(client, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").await?;
    let after = SystemClock.now().as_micros();
    let server: i64 = column(&row, 0).parse().unwrap_or_default();
    let ahead = server - i64::midpoint(before, after);
    let state = format!(
        "the server's clock is {:.3} s {} this machine's",
        ahead.abs() as f64 / 1e6,
        if ahead < 0 { "behind" } else { "ahead of" }
    );
    Ok(if ahead.abs() > MAX_CLOCK_DIFFERENCE_MICROS + (after - before) {
        Finding::problem(
            "clocks",
            state,
            "synchronise both machines with a time server; timers and leases use only the database's clock, but logs do not",
        )
    } else {
        Finding::ok("clocks", state)
    })
}

async fn wake_ups(connector: &Connector, background: &BackgroundRuntime, client: &Client) -> CheckResult {
    let subject = "wake-ups";
    if !connector.can_listen() {
        return Ok(Finding::problem(
            subject,
            "the proxy pools transactions: changes by other processes are noticed only by the heartbeat once a second",
            "add listen= to the URL: the percent-encoded URL of the server itself",
        ));
    }
    let (listener, mut driver) = match connector.dial_hints(background.runtime()).await {
        Ok(connected) => connected,
        Err(error) => {
            let advice =
                "listen= in the URL must be the URL of the server itself, reachable from this machine";
            return Ok(Finding::problem(subject, connector.hint_connect_failed(&error).to_string(), advice));
        }
    };
    let (notified, notification) = tokio::sync::oneshot::channel();
    let task = background.runtime().spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| driver.poll_message(cx)).await {
            if matches!(message, AsyncMessage::Notification(_)) {
                let _ = notified.send(());
                return;
            }
        }
    });
    let channel = format!("stepfast_check_{:016x}", fastrand::u64(..));
    listener.batch_execute(&format!("LISTEN {channel}")).await?;
    client.batch_execute(&format!("NOTIFY {channel}")).await?;
    let result = tokio::select! {
        received = notification => received.is_ok(),
        () = background.sleep(NOTIFICATION_TIMEOUT) => false,
    };
    task.abort();
    Ok(if result {
        Finding::ok(subject, if connector.is_pooled() { "received through listen=" } else { "received" })
    } else {
        Finding::problem(
            subject,
            "a notification was sent but not received",
            "does listen= lead to the same database? is a proxy in between?",
        )
    })
}

async fn autovacuum(client: &Client) -> CheckResult {
    let row =
        query_texts(client, "SELECT current_setting('autovacuum'), current_setting('track_counts')").await?;
    Ok(if column(&row, 0) == "on" && column(&row, 1) == "on" {
        Finding::ok("autovacuum", "on")
    } else {
        Finding::problem(
            "autovacuum",
            "off: tables grow without bound, and all queries become slow",
            "set autovacuum=on and track_counts=on in postgresql.conf",
        )
    })
}

async fn connections(connector: &Connector, client: &Client) -> CheckResult {
    let needed = ENGINE_CONNECTIONS + connector.options().readers.max(1);
    let sql = format!(
        "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int, \
                (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), \
                (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user), \
                (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user AND application_name LIKE{})",
        quote_literal(&format!("{} %", connector.options().application_name))
    );
    let row = query_texts(client, &sql).await?;
    let number = |n| column(&row, n).parse::<i64>().unwrap_or_default();
    let (max, used, limit, own) = (number(0), number(1), number(2), number(3));
    let state = format!(
        "{used} of {max} are in use, {own} of them by this application; an engine opens up to {needed}"
    );
    let subject = "connections";
    if connector.is_pooled() {
        return Ok(Finding::ok(subject, format!("an engine opens up to {needed} to the proxy")));
    }
    Ok(if (0..needed as i64).contains(&limit) {
        Finding::problem(
            subject,
            format!("the role may have {limit}; an engine opens up to {needed}"),
            format!(
                "run ALTER ROLE … CONNECTION LIMIT with {needed} per engine, or set a smaller readers= in the URL"
            ),
        )
    } else if max - used < needed as i64 {
        Finding::problem(subject, state, "raise max_connections, use fewer processes, or use a pooler")
    } else {
        Finding::ok(subject, state)
    })
}
