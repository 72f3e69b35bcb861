//! Parameters of URLs, and options of stores.

use std::time::Duration;

use stepfast_core::store::Durability;
use stepfast_core::{Engine, Error};
use stepfast_postgres::{PostgresOptions, PostgresStore};
use stepfast_sqlite::{SqliteOptions, SqliteStore};
use tempfile::TempDir;

use super::harness::HostileHarness;
use super::values::{SIZES, durations, some_texts, texts};
use crate::StoreFixture;
use crate::crash::harness::fresh_database;

/// Parameters of a URL of Postgres, without those that select another server.
const PARAMETERS: &[&str] = &[
    "application_name",
    "channel_binding",
    "connect_timeout",
    "dbname",
    "durability",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "listen",
    "load_balance_hosts",
    "nothing",
    "options",
    "password",
    "pooling",
    "port",
    "readers",
    "schema",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "store_id",
    "target_session_attrs",
    "tcp_user_timeout",
    "user",
];

/// Returns a text with every byte encoded as in a URL.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |all, byte| all + &format!("%{byte:02X}"))
}

/// Opens a store by its URL, and runs an execution on it.
async fn run_on_url(harness: &HostileHarness<'_>, url: &str) -> Result<(), Error> {
    let store = stepfast::connect(url).await?;
    let engine = Engine::builder(store).register(&harness.unrelated).open().await?;
    let output = engine.run(&harness.unrelated, 7).await;
    engine.shutdown(Duration::from_secs(20)).await?;
    assert_eq!(output?, 7);
    Ok(())
}

pub(super) async fn url_parameters_are_applied_or_rejected(fixture: &dyn StoreFixture) {
    let harness = HostileHarness::on(fixture).await;
    let directory = TempDir::new().unwrap();
    let (base, parameters) = match fixture.store().info().kind {
        "memory" => ("memory:".to_owned(), &["durability", "nothing", "readers"][..]),
        "sqlite" => (
            format!("sqlite:{}/test.db", directory.path().display()),
            &["durability", "nothing", "readers"][..],
        ),
        _ => (fresh_database().await, PARAMETERS),
    };
    let urls = ["&", "#", "?", "@", "?durability=full"].map(str::to_owned);
    for parameter in parameters {
        // the words of the server's errors, and of the error for a URL that is too long
        let names = [*parameter, "URL", "database", "role", "server process"];
        harness
            .check(parameter, &names, some_texts().into_iter().chain(urls.clone()), async |text| {
                run_on_url(&harness, &format!("{base}?{parameter}={}", encoded(text))).await
            })
            .await;
    }
    for parameter in ["nothing", "durability", "application_name"] {
        harness
            .check(
                &format!("plain {parameter}"),
                &[parameter, "URL"],
                texts().into_iter().chain(urls.clone()),
                async |text| run_on_url(&harness, &format!("{base}?{parameter}={text}")).await,
            )
            .await;
    }
    for query in ["durability=full&durability=relaxed", "durability"] {
        harness
            .check("durability", &["durability"], [query], async |query| {
                let opened = run_on_url(&harness, &format!("{base}?{query}")).await;
                assert!(opened.is_err(), "a URL with two durabilities, or none, was accepted");
                opened
            })
            .await;
    }
    harness.check("url", &["URL", "store"], texts(), async |url| run_on_url(&harness, url).await).await;
    harness
        .check("rest of a url", &["URL", "open", "option"], texts(), async |rest| {
            run_on_url(&harness, &format!("{base}{rest}")).await
        })
        .await;
    harness
        .check("existing", &["URL", "open"], texts(), async |url| {
            stepfast::connect_existing(url).await.map(drop)?;
            stepfast::schema::check(url).await.map(drop)
        })
        .await;
    harness.end().await;
}

pub(super) async fn store_options_are_applied_or_rejected(fixture: &dyn StoreFixture) {
    match fixture.store().info().kind {
        "memory" => {}
        "sqlite" => options_of_sqlite(fixture).await,
        _ => options_of_postgres(fixture).await,
    }
}

async fn options_of_sqlite(fixture: &dyn StoreFixture) {
    let harness = HostileHarness::on(fixture).await;
    let directory = TempDir::new().unwrap();
    let open = async |path: &std::path::Path, options: SqliteOptions| {
        let store = SqliteStore::open(path, options)?;
        let engine = Engine::builder(std::sync::Arc::new(store)).register(&harness.unrelated).open().await?;
        assert_eq!(engine.run(&harness.unrelated, 7).await?, 7);
        engine.shutdown(Duration::from_secs(20)).await
    };
    harness
        .check("path", &["path", "file", "directory", "open"], texts(), async |name| {
            open(&directory.path().join(name), SqliteOptions::default()).await
        })
        .await;
    harness
        .check(
            "durability",
            &["full or relaxed"],
            [Durability::Full, Durability::Relaxed, Durability::None],
            async |durability| {
                let path = directory.path().join(format!("{durability:?}.db"));
                open(&path, SqliteOptions { durability: *durability, ..SqliteOptions::default() }).await
            },
        )
        .await;
    harness.end().await;
}

async fn options_of_postgres(fixture: &dyn StoreFixture) {
    let harness = HostileHarness::on(fixture).await;
    let url = fresh_database().await;
    let open = async |options: PostgresOptions| -> Result<(), Error> {
        let store = PostgresStore::open_with(&url, options).await?;
        let engine = Engine::builder(std::sync::Arc::new(store)).register(&harness.unrelated).open().await?;
        let output = engine.run(&harness.unrelated, 7).await;
        engine.shutdown(Duration::from_secs(20)).await?;
        assert_eq!(output?, 7);
        Ok(())
    };
    let options = PostgresOptions::default;
    harness
        .check("lock_timeout", &["lock_timeout"], durations(), async |value| {
            open(options().lock_timeout(*value)).await
        })
        .await;
    harness.check("lease", &["lease"], durations(), async |value| open(options().lease(*value)).await).await;
    harness
        .check("connect_timeout", &["connect_timeout"], durations(), async |value| {
            match open(options().connect_timeout(*value)).await {
                // the message names the timeout
                Err(Error::Unreachable { .. }) if *value < Duration::from_secs(1) => Ok(()),
                opened => opened,
            }
        })
        .await;
    harness.check("readers", &["readers"], SIZES, async |value| open(options().readers(*value)).await).await;
    harness
        .check("application_name", &["application_name"], texts(), async |value| {
            open(options().application_name(value)).await
        })
        .await;
    harness.check("listen", &["listen"], texts(), async |value| open(options().listen(value)).await).await;
    harness
        .check("store_id", &["store_id"], texts(), async |value| {
            let mut options = options();
            options.store_id = Some(value.clone());
            open(options).await
        })
        .await;
    harness
        .check("sslrootcert", &["sslrootcert", "certificate"], texts(), async |value| {
            open(options().ssl_root_cert(value)).await
        })
        .await;
    harness
        .check("sslcert", &["sslcert", "certificate"], texts(), async |value| {
            open(options().ssl_cert(value, value)).await
        })
        .await;
    harness
        .check(
            "durability",
            &["durability"],
            [Durability::Full, Durability::Relaxed, Durability::None],
            async |value| open(options().durability(*value)).await,
        )
        .await;
    harness.end().await;
}
