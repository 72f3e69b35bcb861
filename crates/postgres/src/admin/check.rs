//! What `stepfast db check` asks a database.

use std::time::Duration;

use stepfast_core::clock::{Clock, SystemClock};
use stepfast_core::store::{Durability, Finding, StoreError};
use tokio_postgres::{AsyncMessage, Client};

use crate::admin::migrate::{Reached, reach};
use crate::admin::privileges;
use crate::conn::background::Background;
use crate::conn::connector::Connector;
use crate::conn::dial::chain;
use crate::conn::pooler::query_first_row;
use crate::error::query_error;
use crate::quoting::literal;

/// Connections that an engine has besides those for loads and lists: two lanes, a slow one beside each, claims,
/// looks, takeovers, and wake-up hints.
pub(crate) const CONNECTIONS: usize = 8;

/// A notification that takes longer has been lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// A difference between clocks that people notice.
const APART: i64 = 5_000_000;

/// Looks at everything, and changes nothing.
pub(crate) async fn check(
    connector: &Connector,
    background: &Background,
) -> Result<Vec<Finding>, StoreError> {
    let Reached { client, control, version } = match reach(connector, background).await {
        Ok(reached) => reached,
        Err(StoreError::Open { reason, .. } | StoreError::Unreachable { reason, .. }) => {
            let (state, advice) = reason.split_once("; ").unwrap_or((&reason, "see the server's log"));
            return Ok(vec![Finding::problem("server", state, advice)]);
        }
        Err(error) => return Err(error),
    };
    drop(control);
    let mut findings = vec![Finding::ok("server", format!("PostgreSQL {version}"))];
    let broken = |error: tokio_postgres::Error| {
        StoreError::Unavailable(format!("checking {}: {}", connector.name(), chain(&error)))
    };
    findings.push(encryption(connector, &client).await.map_err(broken)?);
    let rights = privileges::check(&client, &connector.options().schema).await.map_err(broken)?;
    let is_there = rights.iter().any(|finding| finding.subject == "schema" && finding.is_ok);
    findings.extend(rights);
    if is_there {
        findings.extend(identity(connector, &client).await?);
    }
    let rest = async {
        findings.push(durability(connector, &client).await?);
        findings.push(standby(&client).await?);
        findings.push(clock(&client).await?);
        findings.push(wake_ups(connector, background, &client).await?);
        findings.push(autovacuum(&client).await?);
        findings.push(connections(connector, &client).await?);
        Ok(())
    };
    rest.await.map_err(broken)?;
    Ok(findings)
}

/// Which store it is. Nothing where the role may not read that: its rights are a finding of their own.
async fn identity(connector: &Connector, client: &Client) -> Result<Vec<Finding>, StoreError> {
    let advice = "see where the URL leads to; the row of table shard says which store is there";
    match connector.check_identity(client).await.map_err(query_error) {
        Ok(found) => Ok(Finding::for_store(&found.store_id, found.shard)),
        Err(StoreError::Open { reason, .. } | StoreError::Corrupt(reason)) => {
            Ok(vec![Finding::problem(Finding::STORE_SUBJECT, reason, advice)])
        }
        Err(StoreError::NewerSchema { found, supported }) => {
            let state =
                format!("engines must know version {found} of the schema, this program knows {supported}");
            Ok(vec![Finding::problem(Finding::STORE_SUBJECT, state, "update this program")])
        }
        Err(StoreError::PermissionDenied(_)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

type Found = Result<Finding, tokio_postgres::Error>;

/// The columns of the first row, empty where null.
async fn ask(client: &Client, sql: &str) -> Result<Vec<String>, tokio_postgres::Error> {
    let row = query_first_row(client, sql).await?.unwrap_or_default();
    Ok(row.into_iter().map(Option::unwrap_or_default).collect())
}

fn column(row: &[String], n: usize) -> &str {
    row.get(n).map_or("", String::as_str)
}

async fn encryption(connector: &Connector, client: &Client) -> Found {
    let row =
        ask(client, "SELECT ssl, version, cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid()").await?;
    let subject = "encryption";
    let tls = &connector.options().tls;
    Ok(if tls.is_unchecked() {
        Finding::problem(
            subject,
            format!("sslrootcert is given, and sslmode={} checks nothing with it", tls.mode()),
            "say sslmode=verify-full in the URL",
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
            "set ssl=on there and sslmode=verify-full in the URL; or say sslmode=disable if nobody can listen",
        )
    })
}

async fn durability(connector: &Connector, client: &Client) -> Found {
    let sql = "SELECT current_setting('fsync'), current_setting('full_page_writes'), \
               current_setting('synchronous_standby_names')";
    let row = ask(client, sql).await?;
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
            "relaxed: synchronous_commit is set to off, a crash may take back the last moments",
        )
    } else {
        Finding::ok(
            "durability",
            format!("full: synchronous_commit is set to on, fsync and full_page_writes are on, {standbys}"),
        )
    })
}

async fn standby(client: &Client) -> Found {
    let row = ask(client, "SELECT pg_is_in_recovery()").await?;
    Ok(if column(&row, 0) == "t" {
        Finding::problem(
            "role of the server",
            "a standby: nothing can be written",
            "connect to the primary, or add target_session_attrs=read-write to the URL",
        )
    } else {
        Finding::ok("role of the server", "primary")
    })
}

async fn clock(client: &Client) -> Found {
    let before = SystemClock.now().as_micros();
    let row = ask(client, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").await?;
    let after = SystemClock.now().as_micros();
    let server: i64 = column(&row, 0).parse().unwrap_or_default();
    let ahead = server - i64::midpoint(before, after);
    let state = format!(
        "the server's is {:.3} s {} ours",
        ahead.abs() as f64 / 1e6,
        if ahead < 0 { "behind" } else { "ahead of" }
    );
    Ok(if ahead.abs() > APART + (after - before) {
        Finding::problem(
            "clocks",
            state,
            "let both machines follow a time server; timers and leases go by the database's clock alone, logs do not",
        )
    } else {
        Finding::ok("clocks", state)
    })
}

async fn wake_ups(connector: &Connector, background: &Background, client: &Client) -> Found {
    let subject = "wake-ups";
    if !connector.can_listen() {
        return Ok(Finding::problem(
            subject,
            "the proxy pools transactions: nobody hears of other processes' news but by a look once a second",
            "add listen= to the URL: the percent-encoded URL of the server itself",
        ));
    }
    let (listener, mut driver) = match connector.dial_hints(background.runtime()).await {
        Ok(connected) => connected,
        Err(refusal) => {
            let advice = "listen= in the URL has to name the server itself, as it is reached from here";
            return Ok(Finding::problem(subject, connector.hint_connect_failed(&refusal).to_string(), advice));
        }
    };
    let (heard, has_heard) = tokio::sync::oneshot::channel();
    let task = background.runtime().spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| driver.poll_message(cx)).await {
            if matches!(message, AsyncMessage::Notification(_)) {
                let _ = heard.send(());
                return;
            }
        }
    });
    let channel = format!("stepfast_check_{:016x}", fastrand::u64(..));
    listener.batch_execute(&format!("LISTEN {channel}")).await?;
    client.batch_execute(&format!("NOTIFY {channel}")).await?;
    let result = tokio::select! {
        heard = has_heard => heard.is_ok(),
        () = background.sleep(PATIENCE) => false,
    };
    task.abort();
    Ok(if result {
        Finding::ok(subject, if connector.is_pooled() { "heard by way of listen=" } else { "heard" })
    } else {
        Finding::problem(
            subject,
            "a notification was sent and never heard",
            "is listen= the same database? does a proxy stand in between?",
        )
    })
}

async fn autovacuum(client: &Client) -> Found {
    let row = ask(client, "SELECT current_setting('autovacuum'), current_setting('track_counts')").await?;
    Ok(if column(&row, 0) == "on" && column(&row, 1) == "on" {
        Finding::ok("autovacuum", "on")
    } else {
        Finding::problem(
            "autovacuum",
            "off: tables grow without end, and everything becomes slow",
            "set autovacuum=on and track_counts=on in postgresql.conf",
        )
    })
}

async fn connections(connector: &Connector, client: &Client) -> Found {
    let needed = CONNECTIONS + connector.options().readers.max(1);
    let sql = format!(
        "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int, \
                (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), \
                (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user), \
                (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user AND application_name LIKE{})",
        literal(&format!("{} %", connector.options().application_name))
    );
    let row = ask(client, &sql).await?;
    let number = |n| column(&row, n).parse::<i64>().unwrap_or_default();
    let (most, used, limit, ours) = (number(0), number(1), number(2), number(3));
    let state = format!("{used} of {most} are in use, {ours} of them ours; an engine has up to {needed}");
    let subject = "connections";
    if connector.is_pooled() {
        return Ok(Finding::ok(subject, format!("an engine has up to {needed} to the proxy")));
    }
    Ok(if (0..needed as i64).contains(&limit) {
        Finding::problem(
            subject,
            format!("the role may have {limit}; an engine has up to {needed}"),
            format!(
                "ALTER ROLE … CONNECTION LIMIT {needed} for each engine, or a smaller readers= in the URL"
            ),
        )
    } else if most - used < needed as i64 {
        Finding::problem(subject, state, "raise max_connections, use fewer processes, or a pooler")
    } else {
        Finding::ok(subject, state)
    })
}
