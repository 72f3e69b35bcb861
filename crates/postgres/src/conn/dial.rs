//! Reaching a server: encrypted or not, in bounded time, with words for what goes wrong.

use std::error::Error as _;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use stepfast_core::store::StoreError;
use stepfast_core::text::escape_controls;
use tokio_postgres::config::{Host, SslMode as Asked, SslNegotiation};
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::conn::options::PostgresOptions;
use crate::conn::tls::SslMode;
use crate::conn::url::{display_name, parse_url};

/// What drives a connection.
pub(crate) type Driver = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// A client whose connection a task drives, and what its server has warned of.
pub(crate) struct Wire {
    pub client: Client,
    pub warnings: Arc<Warnings>,
}

/// Warnings of a server that change what its answers mean.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    is_unreplicated: AtomicBool,
}

impl Warnings {
    /// True if a commit since the last call did not wait for its synchronous standbys, although it counts as done. The
    /// warning comes before the answer to the commit.
    pub(crate) fn take_unreplicated(&self) -> bool {
        self.is_unreplicated.swap(false, SeqCst)
    }

    fn note(&self, notice: &DbError) {
        // its text is in the server's language
        if notice.routine() == Some("SyncRepWaitForLSN") {
            self.is_unreplicated.store(true, SeqCst);
        }
    }
}

/// Drives a connection to its end. Its errors reach whoever uses the client.
pub(crate) async fn drive(mut driver: Driver, warnings: Arc<Warnings>) {
    while let Some(Ok(message)) = poll_fn(|cx| driver.poll_message(cx)).await {
        if let AsyncMessage::Notice(notice) = message {
            warnings.note(&notice);
        }
    }
}

/// A server, and how it is reached.
#[derive(Clone)]
pub(crate) struct Target {
    config: Config,
    tls: MakeRustlsConnect,
    mode: SslMode,
    limit: Duration,
    name: String,
}

/// Why a connection could not be made.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// What happened, and what to do.
    pub text: String,
    /// The server's code, if it answered.
    pub code: Option<SqlState>,
    /// True if the same may go better later.
    pub is_passing: bool,
}

impl Target {
    /// The server that `url` names; what else it says is put into the options.
    pub(crate) fn new(url: &str, options: PostgresOptions) -> Result<(Self, PostgresOptions), StoreError> {
        let open = |reason| StoreError::Open { store: "the Postgres database".into(), reason };
        let (config, options) = parse_url(url, options).map_err(open)?;
        let name = display_name(&config);
        let open = |reason| StoreError::Open { store: name.clone(), reason };
        let is_direct = config.get_ssl_negotiation() == SslNegotiation::Direct;
        let tls = options.tls.connector(is_direct).map_err(open)?;
        let (mode, limit) = (options.tls.mode(), options.connect_timeout);
        Ok((Self { config, tls, mode, limit, name }, options))
    }

    /// The database, for people: no password in it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// True if it is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.config.get_hosts().iter().all(|host| match host {
            Host::Tcp(host) => {
                host == "localhost"
                    || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
            }
            #[cfg(unix)]
            Host::Unix(_) => true,
        })
    }

    /// A connection under this name.
    pub(crate) async fn dial(&self, application_name: &str) -> Result<(Client, Driver), Refusal> {
        let mut config = self.config.clone();
        config.application_name(application_name);
        // the client library limits only the time until the socket is there
        match tokio::time::timeout(self.limit, self.negotiate(config)).await {
            Ok(Ok(connected)) => Ok(connected),
            Ok(Err(error)) => Err(Refusal::of(&error)),
            Err(_) => Err(Refusal {
                text: format!(
                    "the server did not answer within {:?}; is it overloaded or stopped?",
                    self.limit
                ),
                code: None,
                is_passing: true,
            }),
        }
    }

    async fn negotiate(&self, mut config: Config) -> Result<(Client, Driver), Error> {
        let is_local = config.get_hosts().iter().all(|host| !matches!(host, Host::Tcp(_)));
        let (first, second) = match self.mode {
            // the server encrypts nothing on its own machine
            _ if is_local => (Asked::Disable, None),
            SslMode::Disable => (Asked::Disable, None),
            SslMode::Allow => (Asked::Disable, Some(Asked::Require)),
            SslMode::Prefer => (Asked::Prefer, Some(Asked::Disable)),
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => (Asked::Require, None),
        };
        config.ssl_mode(first);
        match (config.connect(self.tls.clone()).await, second) {
            (Err(error), Some(second)) if is_about_encryption(&error) => {
                config.ssl_mode(second);
                match config.connect(self.tls.clone()).await {
                    // the other way is not possible at all: the first answer says more
                    Err(worse) if worse.as_db_error().is_none() => Err(error),
                    result => result,
                }
            }
            (result, _) => result,
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("name", &self.name).field("mode", &self.mode).finish_non_exhaustive()
    }
}

/// True if trying the same with or without encryption may go better.
fn is_about_encryption(error: &Error) -> bool {
    match error.code() {
        // also what pg_hba.conf refuses
        Some(code) => *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        None => is_handshake(error),
    }
}

fn is_handshake(error: &Error) -> bool {
    // the client library has no other word for it
    error.to_string().starts_with("error performing TLS handshake")
}

impl Refusal {
    /// What the client library says, and what to do about it.
    pub(crate) fn of(error: &Error) -> Self {
        let code = error.code().cloned();
        Self { text: format!("{}; {}", said(error), advice(error)), code, is_passing: is_passing(error) }
    }

    /// The error of whoever wants to open `store`.
    pub(crate) fn opening(self, store: &str) -> StoreError {
        not_open(store, self.is_passing || self.is_full(), self.text)
    }

    /// True if the server, or the proxy before it, has no connection left.
    pub(crate) fn is_full(&self) -> bool {
        self.code.as_ref() == Some(&SqlState::TOO_MANY_CONNECTIONS)
            || self.text.contains("no more connections allowed")
    }
}

/// The error of whoever could not open `store`.
pub(crate) fn not_open(store: &str, is_passing: bool, reason: String) -> StoreError {
    let store = store.to_owned();
    if is_passing { StoreError::Unreachable { store, reason } } else { StoreError::Open { store, reason } }
}

/// True for what may go better later: lost connections, too few resources, a server that starts or stops.
pub(crate) fn is_passing(error: &Error) -> bool {
    match error.code() {
        // proxies say so of options that they do not take
        Some(code) if *code == SqlState::PROTOCOL_VIOLATION => false,
        Some(code) => ["08", "53", "57"].contains(&code.code().get(..2).unwrap_or_default()),
        None => !is_tls(error) && !is_config(error) && !is_authentication(error),
    }
}

/// True for what is wrong with the encryption: with TLS 1.3 a server refuses a certificate after the handshake. A
/// connection that is lost meanwhile is nothing of that.
fn is_tls(error: &Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<std::io::Error>());
    let Some(cause) = cause else { return is_handshake(error) };
    cause.get_ref().and_then(|it| it.downcast_ref::<tokio_rustls::rustls::Error>()).is_some()
}

/// True for a way of proving who one is that the client library does not know, or that was not kept to.
fn is_authentication(error: &Error) -> bool {
    error.to_string().starts_with("authentication error")
}

/// True for what the client library refuses before it asks any server, or instead of answering one.
fn is_config(error: &Error) -> bool {
    error.to_string().starts_with("invalid configuration")
}

fn is_password_missing(error: &Error) -> bool {
    is_config(error) && chain(error).ends_with("password missing")
}

fn said(error: &Error) -> String {
    if is_password_missing(error) {
        return "the server asks for a password, and the URL has none".to_owned();
    }
    // the server's hints are lines of their own
    let lines: Vec<String> = chain(error).lines().map(escape_controls).collect();
    lines.join("; ")
}

fn advice(error: &Error) -> &'static str {
    let Some(database) = error.as_db_error() else {
        return if is_tls(error) {
            "see sslmode, sslrootcert and sslcert in the URL, and whether the server has ssl=on"
        } else if is_authentication(error) {
            "see channel_binding and sslmode in the URL, and the methods in the server's pg_hba.conf"
        } else if is_password_missing(error) {
            "put it there: postgres://user:password@host/database"
        } else if is_config(error) {
            "check the options in the URL"
        } else {
            "is the server running, and are host and port in the URL right?"
        };
    };
    let code = database.code();
    if database.message().contains("unsupported startup parameter") {
        return "a proxy refuses an option of the URL: remove `options` there; if the proxy pools transactions, \
                add pooling=transaction";
    }
    if *code == SqlState::INVALID_PASSWORD {
        "check user and password in the URL, and the server's pg_hba.conf"
    } else if *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION {
        "check user, password and sslmode in the URL, and the server's pg_hba.conf"
    } else if *code == SqlState::INVALID_CATALOG_NAME {
        "create the database, or name another one in the URL"
    } else if *code == SqlState::TOO_MANY_CONNECTIONS {
        "raise max_connections of the server or the CONNECTION LIMIT of the role, use fewer processes, or pool"
    } else {
        "the server says what is wrong"
    }
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // some errors repeat their cause
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
