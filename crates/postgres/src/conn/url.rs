//! The URL: options of ours behind it, and those that the client library understands.

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

/// What a URL looks like.
const EXAMPLE_URL: &str = "postgres://user:password@host:5432/database";

/// Options of ours.
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

/// Options of the client library, which go to it as they are.
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

/// The shortest and the longest lease, and bounds of the other times.
const LEASE_RANGE: RangeInclusive<Duration> = Duration::from_millis(100)..=WEEK;
const TIMEOUT_RANGE: RangeInclusive<Duration> = Duration::from_millis(1)..=WEEK;
const WEEK: Duration = Duration::from_hours(7 * 24);
/// Most connections for loads and lists.
const MAX_READERS: usize = 1_000;
/// Longest path of a file, in bytes.
const MAX_PATH_BYTES: usize = 4_096;

/// A connection that nobody answers any more is given up after about this long, if the URL says nothing else:
/// so long without a sign of life, then probes so far apart, so many of them.
const DEFAULT_KEEPALIVES: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 3);

/// Takes our options out of `url`. What stands there wins over what `options` had. Errors are for people, and hold
/// no password.
pub(crate) fn parse_url(url: &str, mut options: PostgresOptions) -> Result<(Config, PostgresOptions), String> {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let wrong = |reason: String| format!("{reason}; the URL looks like {EXAMPLE_URL}");
    if !address.contains("://") {
        return Err(wrong("two slashes come after the URL's first colon".into()));
    }
    check_encoding(address, query)?;
    let (mut passed_on, mut found) = (Vec::new(), HashSet::new());
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
                .map_err(|_| format!("{name} in the URL is not UTF-8 when it is decoded"))?;
            apply_option(name, &value, &mut options)?;
        } else {
            // what may be a part of a password is not shown
            let is_name =
                option.contains('=') && name.bytes().all(|it| it.is_ascii_lowercase() || it == b'_');
            let is_secret = query.contains("password=") || query.contains("listen=");
            return Err(if is_name && !is_secret { unknown_option_error(name) } else { malformed_option_error() });
        }
        if !found.insert(name) {
            return Err(format!("{name}= is in the URL twice"));
        }
    }
    let url =
        if passed_on.is_empty() { address.to_owned() } else { format!("{address}?{}", passed_on.join("&")) };
    let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
        wrong(match error.source() {
            Some(cause) if cause.to_string().contains("`port`") => {
                "the port in the URL is no number from 1 to 65535".into()
            }
            Some(cause) => format!("the URL is not understood ({cause})"),
            None => "the URL is not understood".into(),
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
    // the name in a certificate is compared with the host; where only an address is given, with that
    if config.get_hosts().is_empty() {
        for address in config.get_hostaddrs().to_vec() {
            config.host(address.to_string());
        }
    }
    Ok((config, options))
}

/// An error if the user or the password seem to hold what has a meaning in URLs: read as something else, a part of
/// the password would be shown.
fn check_encoding(address: &str, query: &str) -> Result<(), String> {
    let address = address.split_once("://").map_or(address, |(_, rest)| rest);
    let (account, place) = address.rsplit_once('@').unwrap_or(("", address));
    // a password with a question mark ends the address before the @
    let is_cut = query.split('&').any(|option| {
        option.contains('@') && !is_known_option(option.split_once('=').map_or(option, |(name, _)| name))
    });
    if account.contains(['@', '/', '#']) || account.matches(':').count() > 1 || is_cut || place.contains('#')
    {
        return Err(
            "the user or the password in the URL has a character that means something else there: write \
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
    format!("{name} in the URL has a control character when it is decoded; use printable characters only")
}

fn apply_option(name: &str, value: &str, options: &mut PostgresOptions) -> Result<(), String> {
    let wrong =
        |choices: &str| Err(format!("{name}={} in the URL is not understood: {choices}", abbreviate(value)));
    match name {
        "application_name" => value.clone_into(&mut options.application_name),
        "schema" => value.clone_into(&mut options.schema),
        "store_id" => options.store_id = Some(value.to_owned()),
        "listen" => options.listen = Some(value.to_owned()),
        "pooling" => match value {
            "transaction" => options.pooling = Pooling::Transaction,
            "session" => options.pooling = Pooling::Session,
            _ => {
                return wrong(
                    "transaction for a proxy that lends a connection for a transaction, session for none or one \
                     that lends it for good",
                );
            }
        },
        "readers" => match value.parse() {
            Ok(readers @ 1..=MAX_READERS) => options.readers = readers,
            _ => return wrong("a number of connections from 1 to 1000"),
        },
        "connect_timeout" => match value.parse() {
            Ok(seconds @ 1..=86_400) => options.connect_timeout = Duration::from_secs(seconds),
            _ => return wrong("whole seconds from 1 to 86400"),
        },
        "sslmode" => match value.parse::<SslMode>() {
            Ok(mode) => options.tls.mode = Some(mode),
            Err(()) => {
                let words: Vec<_> = SslMode::ALL.iter().map(|mode| mode.as_str()).collect();
                return wrong(&format!("it is one of {}", words.join(", ")));
            }
        },
        _ if value.is_empty() => return wrong("the path of a file in PEM format"),
        "sslrootcert" => options.tls.root_cert = Some(value.into()),
        "sslcert" => options.tls.cert = Some(value.into()),
        "sslkey" => options.tls.key = Some(value.into()),
        _ => return Err(unknown_option_error(name)),
    }
    Ok(())
}

fn unknown_option_error(name: &str) -> String {
    if name == "durability" {
        return "durability is not an option of this URL: PostgresOptions has it, or `stepfast::connect`"
            .into();
    }
    format!("{} is not an option of a Postgres URL; there are {}", quote(name), known_options().join(", "))
}

fn malformed_option_error() -> String {
    format!(
        "the URL has an option that is none; in passwords and in listen= write %26 for &; there are {}",
        known_options().join(", ")
    )
}

fn known_options() -> Vec<&'static str> {
    let mut known: Vec<_> = STORE_OPTIONS.iter().chain(DRIVER_OPTIONS).copied().chain(["durability"]).collect();
    known.sort_unstable();
    known
}

/// Returns true for a text of 1 to `most` bytes without control characters.
fn is_printable_text(text: &str, most: usize) -> bool {
    (1..=most).contains(&text.len()) && !text.contains(char::is_control)
}

fn check_options(config: &Config, options: &mut PostgresOptions) -> Result<(), String> {
    let name = &options.schema;
    if !is_printable_text(name, 63) {
        return Err(format!(
            "{} cannot be the name of a schema: it has 1 to 63 bytes of printable characters",
            quote(name)
        ));
    }
    if name.starts_with("pg_") {
        return Err(format!("{name:?} cannot be the name of a schema: pg_ is for the server's own"));
    }
    let name = &options.application_name;
    // the server cuts names at 63 bytes, and ours have a word more
    if !is_printable_text(name, 48) {
        return Err(format!(
            "application_name {} is not possible: it has 1 to 48 bytes of printable characters",
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
        return Err("the password in the URL has a NUL when it is decoded: no server takes that".into());
    }
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err(format!("the URL names no host; it looks like {EXAMPLE_URL}"));
    }
    if options.listen.is_some() && options.pooling == Pooling::Session {
        return Err("listen= in the URL is for a proxy, with pooling=transaction: add that, or leave listen= out, as the \
                    store listens on a connection of its own"
            .into());
    }
    let is_direct = config.get_ssl_negotiation() == SslNegotiation::Direct;
    let mode = options.tls.mode();
    if is_direct && matches!(mode, SslMode::Disable | SslMode::Allow | SslMode::Prefer) {
        return Err(format!("sslnegotiation=direct needs sslmode=require or stronger, not {mode}"));
    }
    Ok(())
}

/// Returns an error for keepalives that the system would refuse with "invalid argument" at a connect.
fn check_keepalives(config: &Config) -> Result<(), String> {
    let times = [
        ("keepalives_idle", Some(config.get_keepalives_idle())),
        ("keepalives_interval", config.get_keepalives_interval()),
    ];
    for (name, time) in times {
        if let Some(time) = time.filter(|time| time.as_secs() > 32_767) {
            return Err(format!("{name}={} in the URL is too long: it has 32767 s at most", time.as_secs()));
        }
    }
    match config.get_keepalives_retries() {
        Some(retries) if !(1..=127).contains(&retries) => {
            Err(format!("keepalives_retries={retries} in the URL is not possible: it is from 1 to 127"))
        }
        _ => Ok(()),
    }
}

/// Returns an error for a time, a number, a path or an identity of the store that is out of bounds.
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
                "store_id={} is not understood: the UUID that stepfast db check shows",
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

/// The database for people: no password in it.
pub(crate) fn display_name(config: &Config) -> String {
    let host = config.get_hosts().first().map_or_else(|| "localhost".into(), host_text);
    let port = config.get_ports().first().copied().unwrap_or(5432);
    // the driver fills in what is missing
    let user = config.get_user().map_or(String::new(), |user| format!("{}@", abbreviate(user)));
    let database = abbreviate(config.get_dbname().or(config.get_user()).unwrap_or_default());
    let host = abbreviate(&host);
    format!("postgres://{user}{host}:{port}/{database}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(query: &str) -> Result<(Config, PostgresOptions), String> {
        parse_url(&format!("postgres://me:secret@db:5433/shop?{query}"), PostgresOptions::default())
    }

    #[test]
    fn our_options_are_taken_and_the_others_passed_on() {
        let (config, options) = parsed(
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
    fn what_the_url_does_not_say_stays_as_it_was() {
        let options = PostgresOptions::default().schema("mine").readers(9).ssl_mode(SslMode::Require);
        let (config, options) = parse_url("postgres://me@db/shop?schema=theirs", options).unwrap();
        assert_eq!((options.schema.as_str(), options.readers), ("theirs", 9));
        assert_eq!(options.tls.mode(), SslMode::Require);
        assert_eq!(config.get_keepalives_interval(), Some(Duration::from_secs(2)));
        assert_eq!(config.get_tcp_user_timeout(), Some(&options.lease));
    }

    #[test]
    fn errors_name_the_option_and_the_choices_and_no_password() {
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
            let error = parsed(query).map(drop).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{query}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn options_that_cannot_be_meant_are_refused() {
        let refused =
            |options: PostgresOptions| parse_url("postgres://me:secret@db/shop", options).map(drop).unwrap_err();
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
            let error = refused(options);
            assert!(error.contains(words) && error.len() < 1_000, "{error}");
        }
        for url in
            ["postgres://a%0A:secret@db/shop", "postgres://me@d%1Bb/shop", "postgres://me:se%00cret@db/x"]
        {
            let error = parse_url(url, options()).map(drop).unwrap_err();
            assert!(error.contains("when it is decoded") && !error.contains("cret"), "{error}");
        }
    }

    #[test]
    fn addresses_that_are_none_are_told_apart() {
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
    fn a_password_that_is_not_encoded_is_not_shown() {
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
    fn the_system_s_root_certificates_mean_full_verification() {
        let mode = |query| parsed(query).unwrap().1.tls.mode();
        assert_eq!(mode(""), SslMode::Prefer);
        assert_eq!(mode("sslrootcert=system"), SslMode::VerifyFull);
        assert_eq!(mode("sslrootcert=ca.pem"), SslMode::Prefer);
        let weak = parsed("sslrootcert=system&sslmode=require").unwrap().1.tls;
        assert!(weak.connector(false).map(drop).unwrap_err().contains("verify-full"));
    }
}
