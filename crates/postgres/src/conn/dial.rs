//! Connects to a server: encrypted or not, in bounded time, and with errors that explain what to do.

use std::error::Error as _;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use stepfast_core::store::StoreError;
use stepfast_core::text::escape_controls;
use tokio_postgres::config::{Host, SslMode as DriverSslMode, SslNegotiation};
use tokio_postgres::error::{DbError as ServerNotice, SqlState};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::conn::options::PostgresOptions;
use crate::conn::tls::SslMode;
use crate::conn::url::{display_name, parse_url};

/// The client library's future that drives a connection.
pub(crate) type ConnectionDriver = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// A client whose connection is driven by a task, with the warnings of its server.
pub(crate) struct DialedClient {
    pub client: Client,
    pub warnings: Arc<ServerWarnings>,
}

/// Warnings of a server that change the meaning of its results.
#[derive(Debug, Default)]
pub(crate) struct ServerWarnings {
    is_unreplicated: AtomicBool,
}

impl ServerWarnings {
    /// Returns whether a commit since the last call has succeeded without waiting for its synchronous standbys. The
    /// warning arrives before the result of the commit.
    pub(crate) fn take_unreplicated(&self) -> bool {
        self.is_unreplicated.swap(false, SeqCst)
    }

    fn note(&self, notice: &ServerNotice) {
        // the notice's text depends on the server's language, but the name of the routine does not
        if notice.routine() == Some("SyncRepWaitForLSN") {
            self.is_unreplicated.store(true, SeqCst);
        }
    }
}

/// Drives a connection until it is closed. The users of the client receive the connection's errors.
pub(crate) async fn drive(mut driver: ConnectionDriver, warnings: Arc<ServerWarnings>) {
    while let Some(Ok(message)) = poll_fn(|cx| driver.poll_message(cx)).await {
        if let AsyncMessage::Notice(notice) = message {
            warnings.note(&notice);
        }
    }
}

/// A server, and the way to connect to it.
#[derive(Clone)]
pub(crate) struct DialTarget {
    config: Config,
    tls: MakeRustlsConnect,
    mode: SslMode,
    timeout: Duration,
    name: String,
}

/// The reason why a connection could not be opened.
#[derive(Debug)]
pub(crate) struct ConnectError {
    /// The problem, and advice on what to do about it.
    pub message: String,
    /// The server's error code, or `None` if the server did not reply.
    pub code: Option<SqlState>,
    /// Whether a later attempt may succeed.
    pub is_transient: bool,
}

impl DialTarget {
    /// Creates the target that `url` names. Returns it with the options, into which those of the URL are merged.
    pub(crate) fn new(url: &str, options: PostgresOptions) -> Result<(Self, PostgresOptions), StoreError> {
        let open = |reason| StoreError::Open { store: "the Postgres database".into(), reason };
        let (config, options) = parse_url(url, options).map_err(open)?;
        let name = display_name(&config);
        let open = |reason| StoreError::Open { store: name.clone(), reason };
        let is_direct = config.get_ssl_negotiation() == SslNegotiation::Direct;
        let tls = options.tls.build_connector(is_direct).map_err(open)?;
        let (mode, timeout) = (options.tls.mode(), options.connect_timeout);
        Ok((Self { config, tls, mode, timeout, name }, options))
    }

    /// Returns the database's URL for messages, without the password.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the server is on this machine.
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

    /// Opens a connection with this application name.
    pub(crate) async fn dial(
        &self,
        application_name: &str,
    ) -> Result<(Client, ConnectionDriver), ConnectError> {
        let mut config = self.config.clone();
        config.application_name(application_name);
        // the client library's own timeout only limits the time until the socket is connected
        match tokio::time::timeout(self.timeout, self.negotiate(config)).await {
            Ok(Ok(connected)) => Ok(connected),
            Ok(Err(error)) => Err(ConnectError::from_driver(&error)),
            Err(_) => Err(ConnectError {
                message: format!(
                    "the server did not reply within {:?}; is it overloaded or stopped?",
                    self.timeout
                ),
                code: None,
                is_transient: true,
            }),
        }
    }

    async fn negotiate(&self, mut config: Config) -> Result<(Client, ConnectionDriver), Error> {
        let is_local = config.get_hosts().iter().all(|host| !matches!(host, Host::Tcp(_)));
        let (first, second) = match self.mode {
            // the server does not encrypt Unix sockets
            _ if is_local => (DriverSslMode::Disable, None),
            SslMode::Disable => (DriverSslMode::Disable, None),
            SslMode::Allow => (DriverSslMode::Disable, Some(DriverSslMode::Require)),
            SslMode::Prefer => (DriverSslMode::Prefer, Some(DriverSslMode::Disable)),
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => (DriverSslMode::Require, None),
        };
        config.ssl_mode(first);
        match (config.connect(self.tls.clone()).await, second) {
            (Err(error), Some(second)) if may_depend_on_encryption(&error) => {
                config.ssl_mode(second);
                match config.connect(self.tls.clone()).await {
                    // the second mode is impossible, so the first error is more helpful
                    Err(second) if second.as_db_error().is_none() => Err(error),
                    result => result,
                }
            }
            (result, _) => result,
        }
    }
}

impl fmt::Debug for DialTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DialTarget")
            .field("name", &self.name)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// Whether the connection may succeed with the other choice of encryption.
fn may_depend_on_encryption(error: &Error) -> bool {
    match error.code() {
        // pg_hba.conf rejects connections with this code, which other errors have, too
        Some(code) => *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        None => is_handshake_error(error),
    }
}

fn is_handshake_error(error: &Error) -> bool {
    // the client library has no error kind for failed handshakes
    error.to_string().starts_with("error performing TLS handshake")
}

impl ConnectError {
    /// Converts an error of the client library, and adds advice on what to do about it.
    pub(crate) fn from_driver(error: &Error) -> Self {
        let code = error.code().cloned();
        Self {
            message: format!("{}; {}", describe_error(error), advice(error)),
            code,
            is_transient: is_transient(error),
        }
    }

    /// Returns the error of opening `store`.
    pub(crate) fn into_open_error(self, store: &str) -> StoreError {
        open_error(store, self.is_transient || self.is_full(), self.message)
    }

    /// Whether the server, or a proxy in front of it, has no free connection.
    pub(crate) fn is_full(&self) -> bool {
        self.code.as_ref() == Some(&SqlState::TOO_MANY_CONNECTIONS)
            || self.message.contains("no more connections allowed")
    }
}

/// Returns the error of opening `store`.
pub(crate) fn open_error(store: &str, is_transient: bool, reason: String) -> StoreError {
    let store = store.to_owned();
    if is_transient { StoreError::Unreachable { store, reason } } else { StoreError::Open { store, reason } }
}

/// Whether a later attempt may succeed: after lost connections, exhausted resources, or while a server starts or stops.
pub(crate) fn is_transient(error: &Error) -> bool {
    match error.code() {
        // proxies report this for options that they do not accept
        Some(code) if *code == SqlState::PROTOCOL_VIOLATION => false,
        Some(code) => ["08", "53", "57"].contains(&code.code().get(..2).unwrap_or_default()),
        None => !is_tls_error(error) && !is_config_error(error) && !is_authentication_error(error),
    }
}

/// Whether the error is about encryption. With TLS 1.3 a server rejects a client certificate after the handshake. A
/// connection that is lost during the handshake is not such an error.
fn is_tls_error(error: &Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<std::io::Error>());
    let Some(cause) = cause else { return is_handshake_error(error) };
    cause.get_ref().and_then(|it| it.downcast_ref::<tokio_rustls::rustls::Error>()).is_some()
}

/// Whether the client library could not authenticate: the method is unsupported, or its exchange has failed.
fn is_authentication_error(error: &Error) -> bool {
    error.to_string().starts_with("authentication error")
}

/// Whether the client library itself rejects the configuration, before or during a connect.
fn is_config_error(error: &Error) -> bool {
    error.to_string().starts_with("invalid configuration")
}

fn is_password_missing(error: &Error) -> bool {
    is_config_error(error) && error_chain(error).ends_with("password missing")
}

fn describe_error(error: &Error) -> String {
    if is_password_missing(error) {
        return "the server asks for a password, and the URL has none".to_owned();
    }
    // the server's hints are separate lines
    let lines: Vec<String> = error_chain(error).lines().map(escape_controls).collect();
    lines.join("; ")
}

fn advice(error: &Error) -> &'static str {
    let Some(database) = error.as_db_error() else {
        return if is_tls_error(error) {
            "see sslmode, sslrootcert and sslcert in the URL, and whether the server has ssl=on"
        } else if is_authentication_error(error) {
            "see channel_binding and sslmode in the URL, and the methods in the server's pg_hba.conf"
        } else if is_password_missing(error) {
            "add it: postgres://user:password@host/database"
        } else if is_config_error(error) {
            "check the options in the URL"
        } else {
            "is the server running, and are host and port in the URL right?"
        };
    };
    let code = database.code();
    if database.message().contains("unsupported startup parameter") {
        return "a proxy rejects an option of the URL: remove `options` from it; if the proxy pools transactions, \
                add pooling=transaction";
    }
    if *code == SqlState::INVALID_PASSWORD {
        "check user and password in the URL, and the server's pg_hba.conf"
    } else if *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION {
        "check user, password and sslmode in the URL, and the server's pg_hba.conf"
    } else if *code == SqlState::INVALID_CATALOG_NAME {
        "create the database, or name another one in the URL"
    } else if *code == SqlState::TOO_MANY_CONNECTIONS {
        "raise max_connections of the server or the CONNECTION LIMIT of the role, use fewer processes, or use a pooler"
    } else {
        "see the server's message"
    }
}

/// Returns an error's text with its causes.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
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
