//! The connection URL: the store's own options, and the options of the client library.

use std::collections::HashSet;
use std::error::Error as _;
use std::ops::RangeInclusive;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use stepfast_core::text::{abbreviate, quote};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslNegotiation};
use uuid::Uuid;

use crate::conn::options::{Pooling, PostgresOptions};
use crate::conn::tls::SslMode;

/// An example URL for error messages.
const EXAMPLE_URL: &str = "postgres://user:password@host:5432/database";

/// Options that the store reads itself.
const STORE_OPTIONS: &[&str] = &[
    "application_name",
    "connect_timeout",
    "listen",
    "pooling",
    "readers",
    "schema",
    "store_id",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
];

/// Options that are passed on to the client library unchanged.
const DRIVER_OPTIONS: &[&str] = &[
    "channel_binding",
    "dbname",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "load_balance_hosts",
    "options",
    "password",
    "port",
    "sslnegotiation",
    "target_session_attrs",
    "tcp_user_timeout",
    "user",
];

/// The accepted values of the option `lease`.
const LEASE_RANGE: RangeInclusive<Duration> = Duration::from_millis(100)..=WEEK;
/// The accepted lock timeouts and connect timeouts.
const TIMEOUT_RANGE: RangeInclusive<Duration> = Duration::from_millis(1)..=WEEK;
const WEEK: Duration = Duration::from_hours(7 * 24);
/// The maximum value of the option `readers`.
const MAX_READERS: usize = 1_000;
/// The maximum length of a file path, in bytes.
const MAX_PATH_BYTES: usize = 4_096;

/// Default keepalives, which close a dead connection after about 11 s. The values are the idle time before the first
/// probe, the interval between probes, and the number of unanswered probes.
const DEFAULT_KEEPALIVES: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 3);

/// Splits `url` into the client library's configuration and the store's options. Options in the URL override
/// `options`. Errors are texts for users and never contain a password.
pub(crate) fn parse_url(
    url: &str,
    mut options: PostgresOptions,
) -> Result<(Config, PostgresOptions), String> {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let invalid = |reason: String| format!("{reason}; the expected form is {EXAMPLE_URL}");
    if !address.contains("://") {
        return Err(invalid("the URL needs two slashes after its first colon".into()));
    }
    check_encoding(address, query)?;
    let (mut passed_on, mut seen) = (Vec::new(), HashSet::new());
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        if DRIVER_OPTIONS.contains(&name) {
            if percent_decode_str(value).any(|byte| byte.is_ascii_control()) {
                return Err(control_character_error(name));
            }
            passed_on.push(option);
        } else if STORE_OPTIONS.contains(&name) {
            let value = percent_decode_str(value)
                .decode_utf8()
                .map_err(|_| format!("{name} in the URL is not valid UTF-8 after percent-decoding"))?;
            apply_option(name, &value, &mut options)?;
        } else {
            // the error must not show text that may be a part of a password
            let is_name =
                option.contains('=') && name.bytes().all(|it| it.is_ascii_lowercase() || it == b'_');
            let is_secret = query.contains("password=") || query.contains("listen=");
            return Err(if is_name && !is_secret {
                unknown_option_error(name)
            } else {
                malformed_option_error()
            });
        }
        if !seen.insert(name) {
            return Err(format!("the URL contains {name}= twice"));
        }
    }
    let url =
        if passed_on.is_empty() { address.to_owned() } else { format!("{address}?{}", passed_on.join("&")) };
    let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
        invalid(match error.source() {
            Some(cause) if cause.to_string().contains("`port`") => {
                "the port in the URL must be a number from 1 to 65535".into()
            }
            Some(cause) => format!("the URL cannot be parsed ({cause})"),
            None => "the URL cannot be parsed".into(),
        })
    })?;
    check_options(&config, &mut options)?;
    config.connect_timeout(options.connect_timeout);
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(options.lease);
    }
    let (idle, interval, retries) = DEFAULT_KEEPALIVES;
    if !passed_on.iter().any(|option| option.starts_with("keepalives_idle=")) {
        config.keepalives_idle(idle);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(interval);
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(retries);
    }
    // a certificate's name is compared with the host, or with the address if the URL has no host
    if config.get_hosts().is_empty() {
        for address in config.get_hostaddrs().to_vec() {
            config.host(address.to_string());
        }
    }
    Ok((config, options))
}

/// Returns an error if the user or the password seems to contain an unencoded character with a meaning in URLs. The
/// parser would misread such a character, and errors could then show a part of the password.
fn check_encoding(address: &str, query: &str) -> Result<(), String> {
    let address = address.split_once("://").map_or(address, |(_, rest)| rest);
    let (account, server) = address.rsplit_once('@').unwrap_or(("", address));
    // an unencoded question mark in a password ends the address before the @
    let is_cut = query.split('&').any(|option| {
        option.contains('@') && !is_known_option(option.split_once('=').map_or(option, |(name, _)| name))
    });
    if account.contains(['@', '/', '#']) || account.matches(':').count() > 1 || is_cut || server.contains('#')
    {
        return Err(
            "the user or the password in the URL contains a character with a special meaning there: write \
             %40 for @, %2F for /, %3A for :, %3F for ?, %23 for #, %26 for &, %25 for %"
                .into(),
        );
    }
    Ok(())
}

fn is_known_option(option: &str) -> bool {
    STORE_OPTIONS.contains(&option) || DRIVER_OPTIONS.contains(&option)
}

fn control_character_error(name: &str) -> String {
    format!(
        "{name} in the URL contains a control character after percent-decoding; use printable characters only"
    )
}

fn apply_option(name: &str, value: &str, options: &mut PostgresOptions) -> Result<(), String> {
    let invalid =
        |advice: &str| Err(format!("{name}={} in the URL is not valid: {advice}", abbreviate(value)));
    match name {
        "application_name" => value.clone_into(&mut options.application_name),
        "schema" => value.clone_into(&mut options.schema),
        "store_id" => options.store_id = Some(value.to_owned()),
        "listen" => options.listen = Some(value.to_owned()),
        "pooling" => match value {
            "transaction" => options.pooling = Pooling::Transaction,
            "session" => options.pooling = Pooling::Session,
            _ => {
                return invalid(
                    "use transaction for a proxy that assigns a server connection per transaction, session for no proxy \
                     or one that assigns it per client connection",
                );
            }
        },
        "readers" => match value.parse() {
            Ok(readers @ 1..=MAX_READERS) => options.readers = readers,
            _ => return invalid("use a number of connections from 1 to 1000"),
        },
        "connect_timeout" => match value.parse() {
            Ok(seconds @ 1..=86_400) => options.connect_timeout = Duration::from_secs(seconds),
            _ => return invalid("use whole seconds from 1 to 86400"),
        },
        "sslmode" => match value.parse::<SslMode>() {
            Ok(mode) => options.tls.mode = Some(mode),
            Err(()) => {
                let words: Vec<_> = SslMode::ALL.iter().map(|mode| mode.as_str()).collect();
                return invalid(&format!("use one of {}", words.join(", ")));
            }
        },
        _ if value.is_empty() => return invalid("use the path of a file in PEM format"),
        "sslrootcert" => options.tls.root_cert = Some(value.into()),
        "sslcert" => options.tls.cert = Some(value.into()),
        "sslkey" => options.tls.key = Some(value.into()),
        _ => return Err(unknown_option_error(name)),
    }
    Ok(())
}

fn unknown_option_error(name: &str) -> String {
    if name == "durability" {
        return "durability is not an option of this URL: set it in PostgresOptions, or open the URL by `stepfast::connect`"
            .into();
    }
    format!(
        "{} is not an option of a Postgres URL; the options are {}",
        quote(name),
        known_options().join(", ")
    )
}

fn malformed_option_error() -> String {
    format!(
        "the URL contains an unknown option; in passwords and in listen= write %26 for &; the options are {}",
        known_options().join(", ")
    )
}

fn known_options() -> Vec<&'static str> {
    let mut known: Vec<_> =
        STORE_OPTIONS.iter().chain(DRIVER_OPTIONS).copied().chain(["durability"]).collect();
    known.sort_unstable();
    known
}

/// Whether `text` has 1 to `max_bytes` bytes and no control characters.
fn is_printable_text(text: &str, max_bytes: usize) -> bool {
    (1..=max_bytes).contains(&text.len()) && !text.contains(char::is_control)
}

fn check_options(config: &Config, options: &mut PostgresOptions) -> Result<(), String> {
    let name = &options.schema;
    if !is_printable_text(name, 63) {
        return Err(format!(
            "{} cannot be the name of a schema: use 1 to 63 bytes of printable characters",
            quote(name)
        ));
    }
    if name.starts_with("pg_") {
        return Err(format!(
            "{name:?} cannot be the name of a schema: the prefix pg_ is reserved for the server"
        ));
    }
    let name = &options.application_name;
    // the server truncates names to 63 bytes, and the store appends a word
    if !is_printable_text(name, 48) {
        return Err(format!(
            "application_name {} is not valid: use 1 to 48 bytes of printable characters",
            quote(name)
        ));
    }
    check_values(options)?;
    check_keepalives(config)?;
    for name in [config.get_user(), config.get_dbname()].into_iter().flatten() {
        if name.contains(char::is_control) {
            return Err(control_character_error("the user or the database"));
        }
    }
    if config.get_hosts().iter().any(|host| host_text(host).contains(char::is_control)) {
        return Err(control_character_error("the host"));
    }
    if config.get_password().is_some_and(|password| password.contains(&0)) {
        return Err(
            "the password in the URL contains a NUL after percent-decoding, which no server accepts".into()
        );
    }
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err(format!("the URL names no host; the expected form is {EXAMPLE_URL}"));
    }
    if options.listen.is_some() && options.pooling == Pooling::Session {
        return Err(
            "listen= in the URL is only for a proxy that pools transactions: add pooling=transaction, or \
             leave listen= out"
                .into(),
        );
    }
    let is_direct = config.get_ssl_negotiation() == SslNegotiation::Direct;
    let mode = options.tls.mode();
    if is_direct && matches!(mode, SslMode::Disable | SslMode::Allow | SslMode::Prefer) {
        return Err(format!("sslnegotiation=direct needs sslmode=require or stronger, not {mode}"));
    }
    Ok(())
}

/// Returns an error for keepalives that the operating system would reject with "invalid argument" during a connect.
fn check_keepalives(config: &Config) -> Result<(), String> {
    let times = [
        ("keepalives_idle", Some(config.get_keepalives_idle())),
        ("keepalives_interval", config.get_keepalives_interval()),
    ];
    for (name, time) in times {
        if let Some(time) = time.filter(|time| time.as_secs() > 32_767) {
            return Err(format!("{name}={} in the URL is too long: the maximum is 32767 s", time.as_secs()));
        }
    }
    match config.get_keepalives_retries() {
        Some(retries) if !(1..=127).contains(&retries) => {
            Err(format!("keepalives_retries={retries} in the URL is not valid: use a number from 1 to 127"))
        }
        _ => Ok(()),
    }
}

/// Returns an error for a duration, a number, a path or a store identity that is out of bounds.
fn check_values(options: &mut PostgresOptions) -> Result<(), String> {
    let times = [
        ("lease", options.lease, LEASE_RANGE),
        ("lock_timeout", options.lock_timeout, TIMEOUT_RANGE),
        ("connect_timeout", options.connect_timeout, TIMEOUT_RANGE),
    ];
    if let Some((name, time, bounds)) = times.into_iter().find(|(_, time, bounds)| !bounds.contains(time)) {
        return Err(format!("{name} is {time:?}; it must be between {:?} and 7 days", bounds.start()));
    }
    if !(1..=MAX_READERS).contains(&options.readers) {
        return Err(format!("readers is {}; it must be from 1 to {MAX_READERS}", options.readers));
    }
    let files = [
        ("sslrootcert", &options.tls.root_cert),
        ("sslcert", &options.tls.cert),
        ("sslkey", &options.tls.key),
    ];
    for (name, path) in files {
        let path = path.as_ref().map(|path| path.to_string_lossy());
        if let Some(path) = path.filter(|path| !is_printable_text(path, MAX_PATH_BYTES)) {
            return Err(format!("{name} {} cannot be the path of a file", quote(&path)));
        }
    }
    if let Some(id) = &mut options.store_id {
        let Ok(uuid) = Uuid::try_parse(id) else {
            return Err(format!(
                "store_id={} is not valid: use the UUID that stepfast db check shows",
                abbreviate(id)
            ));
        };
        *id = uuid.to_string();
    }
    Ok(())
}

fn host_text(host: &Host) -> String {
    match host {
        Host::Tcp(host) => host.clone(),
        #[cfg(unix)]
        Host::Unix(path) => path.display().to_string(),
    }
}

/// Returns the database's URL for messages, without the password.
pub(crate) fn display_name(config: &Config) -> String {
    let host = config.get_hosts().first().map_or_else(|| "localhost".into(), host_text);
    let port = config.get_ports().first().copied().unwrap_or(5432);
    // the client library fills in missing parts
    let user = config.get_user().map_or(String::new(), |user| format!("{}@", abbreviate(user)));
    let database = abbreviate(config.get_dbname().or(config.get_user()).unwrap_or_default());
    let host = abbreviate(&host);
    format!("postgres://{user}{host}:{port}/{database}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_query(query: &str) -> Result<(Config, PostgresOptions), String> {
        parse_url(&format!("postgres://me:secret@db:5433/shop?{query}"), PostgresOptions::default())
    }

    #[test]
    fn store_options_are_applied_and_driver_options_passed_on() {
        let (config, options) = parse_query(
            "schema=s%20t&application_name=shop&listen=postgres%3A%2F%2Fa%40b%2Fc&pooling=transaction&readers=7&\
             sslmode=verify-full&sslrootcert=%2Fca.pem&sslcert=c.pem&sslkey=k.pem&connect_timeout=3&\
             options=-c%20work_mem%3D1MB&tcp_user_timeout=9&keepalives_idle=11",
        )
        .unwrap();
        assert_eq!((options.schema.as_str(), options.application_name.as_str()), ("s t", "shop"));
        assert_eq!(options.listen.as_deref(), Some("postgres://a@b/c"));
        assert_eq!((options.pooling, options.readers), (Pooling::Transaction, 7));
        assert_eq!(options.tls.mode(), SslMode::VerifyFull);
        assert_eq!(options.tls.root_cert.as_deref(), Some("/ca.pem".as_ref()));
        assert_eq!(options.connect_timeout, Duration::from_secs(3));
        assert_eq!(config.get_options(), Some("-c work_mem=1MB"));
        assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(3)));
        assert_eq!(config.get_tcp_user_timeout(), Some(&Duration::from_secs(9)));
        assert_eq!(config.get_keepalives_idle(), Duration::from_secs(11));
        assert_eq!(display_name(&config), "postgres://me@db:5433/shop");
    }

    #[test]
    fn options_missing_in_the_url_keep_their_values() {
        let options = PostgresOptions::default().schema("mine").readers(9).ssl_mode(SslMode::Require);
        let (config, options) = parse_url("postgres://me@db/shop?schema=theirs", options).unwrap();
        assert_eq!((options.schema.as_str(), options.readers), ("theirs", 9));
        assert_eq!(options.tls.mode(), SslMode::Require);
        assert_eq!(config.get_keepalives_interval(), Some(Duration::from_secs(2)));
        assert_eq!(config.get_tcp_user_timeout(), Some(&options.lease));
    }

    #[test]
    fn errors_name_the_option_and_its_values_but_no_password() {
        for (query, words) in [
            ("shema=x", ["\"shema\"", "schema"]),
            ("sslmode=on", ["sslmode=on", "verify-ca"]),
            ("pooling=yes", ["pooling=yes", "transaction"]),
            ("readers=0", ["readers=0", "1 to 1000"]),
            ("readers=many", ["readers=many", "1 to 1000"]),
            ("connect_timeout=0", ["connect_timeout=0", "seconds"]),
            ("schema=", ["schema", "1 to 63"]),
            ("schema=pg_shop", ["pg_shop", "schema"]),
            ("application_name=", ["application_name", "1 to 48"]),
            ("sslcert=", ["sslcert", "PEM"]),
            ("schema=%ff", ["schema", "UTF-8"]),
            ("durability=full", ["durability", "PostgresOptions"]),
            ("sslnegotiation=direct", ["sslnegotiation", "require"]),
            ("schema=a&readers=3&schema=b", ["schema=", "twice"]),
            ("store_id=7", ["store_id=7", "db check"]),
            ("schema=a%0Ab", ["a\\nb", "schema"]),
            ("application_name=%1B", ["application_name", "printable"]),
            ("dbname=a%00b", ["dbname", "control character"]),
            ("sslcert=a%0A&sslkey=k", ["sslcert", "path of a file"]),
            ("port=x", ["1 to 65535", "postgres://"]),
            ("keepalives_retries=0", ["keepalives_retries=0", "1 to 127"]),
            ("keepalives_interval=40000", ["keepalives_interval=40000", "32767"]),
            ("keepalives_idle=40000", ["keepalives_idle=40000", "32767"]),
            ("listen=postgres%3A%2F%2Fa%40b%2Fc", ["pooling=transaction", "leave listen= out"]),
        ] {
            let error = parse_query(query).map(drop).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{query}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn options_out_of_bounds_are_rejected() {
        let error_of = |options: PostgresOptions| {
            parse_url("postgres://me:secret@db/shop", options).map(drop).unwrap_err()
        };
        let options = PostgresOptions::default;
        for (options, words) in [
            (options().lease(Duration::ZERO), "lease is 0ns; it must be between 100ms and 7 days"),
            (options().lease(Duration::MAX), "lease is "),
            (options().lock_timeout(Duration::ZERO), "lock_timeout is 0ns"),
            (options().connect_timeout(Duration::MAX), "connect_timeout is "),
            (options().readers(0), "readers is 0; it must be from 1 to 1000"),
            (options().readers(usize::MAX), "readers is "),
            (PostgresOptions { store_id: Some("x".repeat(100_000)), ..options() }, "store_id=xxx"),
            (options().ssl_root_cert(""), "sslrootcert"),
            (options().application_name("x".repeat(100_000)), "application_name"),
        ] {
            let error = error_of(options);
            assert!(error.contains(words) && error.len() < 1_000, "{error}");
        }
        for url in
            ["postgres://a%0A:secret@db/shop", "postgres://me@d%1Bb/shop", "postgres://me:se%00cret@db/x"]
        {
            let error = parse_url(url, options()).map(drop).unwrap_err();
            assert!(error.contains("after percent-decoding") && !error.contains("cret"), "{error}");
        }
    }

    #[test]
    fn malformed_addresses_are_explained() {
        for (url, word) in [
            ("postgres:/db/shop", "two slashes"),
            ("postgres:db/shop", "two slashes"),
            ("postgres:/me:secret@db/shop", "two slashes"),
            ("postgres://", "names no host"),
            ("postgres:///shop", "names no host"),
            ("postgres://me:secret@db:99999/shop", "1 to 65535"),
            ("postgres://me:secret@db:many/shop", "1 to 65535"),
            ("postgres://me:secret@[::1/shop", "`host`"),
        ] {
            let error = parse_url(url, PostgresOptions::default()).map(drop).unwrap_err();
            assert!(error.contains(word) && error.contains(EXAMPLE_URL), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let (config, _) = parse_url("postgres://db", PostgresOptions::default()).unwrap();
        assert_eq!(display_name(&config), "postgres://db:5432/");
    }

    #[test]
    fn unencoded_passwords_are_not_shown() {
        for account in ["me:se@cret", "me:se/cret", "me:se:cret", "me:se?cret", "me:se#cret", "m/e:secret"] {
            for rest in ["db:5433/shop", "db/shop?schema=s"] {
                let error = parse_url(&format!("postgres://{account}@{rest}"), PostgresOptions::default());
                let error = error.map(drop).unwrap_err();
                assert!(error.contains("%40 for @"), "{account}: {error}");
                assert!(!error.contains("cret"), "{account}: {error}");
            }
        }
        for url in [
            "postgres://me:p@ss?secret@db/shop",
            "postgres://me@db/shop?password=se&cret",
            "postgres://me@db/shop?password=se&secret=t",
            "postgres://db/shop?listen=postgres://a:se&cret@h/db",
            "postgres://me@db/shop?cret",
        ] {
            let error = parse_url(url, PostgresOptions::default()).map(drop).unwrap_err();
            assert!(error.contains("%26 for &") || error.contains("%40 for @"), "{url}: {error}");
            assert!(!error.contains("cret"), "{url}: {error}");
        }
        let encoded = "postgres://me:se%40%2F%3A%3F%23%25cret@db/shop?user=a@b";
        let (config, _) = parse_url(encoded, PostgresOptions::default()).unwrap();
        assert_eq!(config.get_password(), Some(b"se@/:?#%cret".as_slice()));
        assert_eq!(config.get_hosts(), [Host::Tcp("db".into())]);
    }

    #[test]
    fn system_root_certificates_imply_full_verification() {
        let mode = |query| parse_query(query).unwrap().1.tls.mode();
        assert_eq!(mode(""), SslMode::Prefer);
        assert_eq!(mode("sslrootcert=system"), SslMode::VerifyFull);
        assert_eq!(mode("sslrootcert=ca.pem"), SslMode::Prefer);
        let weak = parse_query("sslrootcert=system&sslmode=require").unwrap().1.tls;
        assert!(weak.build_connector(false).map(drop).unwrap_err().contains("verify-full"));
    }
}
