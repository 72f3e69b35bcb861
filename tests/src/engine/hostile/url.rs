//! Parameters of URLs, and options of stores.

use std::time::Duration;

use stepfast_core::store::Durability;
use stepfast_core::{Engine, Error};
use stepfast_postgres::{PostgresOptions, PostgresStore};
use stepfast_sqlite::{SqliteOptions, SqliteStore};
use tempfile::TempDir;

use super::stage::HostileHarness;
use super::values::{SIZES, durations, few_texts, texts};
use crate::StoreFixture;
use crate::crash::harness::fresh_database;

/// Parameters of a URL of Postgres, without those that lead to another server.
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
async fn works(stage: &HostileHarness<'_>, url: &str) -> Result<(), Error> {
    let store = stepfast::connect(url).await?;
    let engine = Engine::builder(store).register(&stage.innocent).open().await?;
    let output = engine.run(&stage.innocent, 7).await;
    engine.shutdown(Duration::from_secs(20)).await?;
    assert_eq!(output?, 7);
    Ok(())
}

pub(super) async fn urls_take_a_parameter_or_refuse_it(fixture: &dyn StoreFixture) {
    let stage = HostileHarness::on(fixture).await;
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
        // the words of a server, and of a URL that is too long
        let names = [*parameter, "URL", "database", "role", "server process"];
        stage
            .check(parameter, &names, few_texts().into_iter().chain(urls.clone()), async |text| {
                works(&stage, &format!("{base}?{parameter}={}", encoded(text))).await
            })
            .await;
    }
    for parameter in ["nothing", "durability", "application_name"] {
        stage
            .check(
                &format!("plain {parameter}"),
                &[parameter, "URL"],
                texts().into_iter().chain(urls.clone()),
                async |text| works(&stage, &format!("{base}?{parameter}={text}")).await,
            )
            .await;
    }
    for query in ["durability=full&durability=relaxed", "durability"] {
        stage
            .check("durability", &["durability"], [query], async |query| {
                let opened = works(&stage, &format!("{base}?{query}")).await;
                assert!(opened.is_err(), "a URL has two durabilities, or none");
                opened
            })
            .await;
    }
    stage.check("url", &["URL", "store"], texts(), async |url| works(&stage, url).await).await;
    stage
        .check("rest of a url", &["URL", "open", "option"], texts(), async |rest| {
            works(&stage, &format!("{base}{rest}")).await
        })
        .await;
    stage
        .check("existing", &["URL", "open"], texts(), async |url| {
            stepfast::connect_existing(url).await.map(drop)?;
            stepfast::schema::check(url).await.map(drop)
        })
        .await;
    stage.end().await;
}

pub(super) async fn stores_take_an_option_or_refuse_it(fixture: &dyn StoreFixture) {
    match fixture.store().info().kind {
        "memory" => {}
        "sqlite" => options_of_sqlite(fixture).await,
        _ => options_of_postgres(fixture).await,
    }
}

async fn options_of_sqlite(fixture: &dyn StoreFixture) {
    let stage = HostileHarness::on(fixture).await;
    let directory = TempDir::new().unwrap();
    let open = async |path: &std::path::Path, options: SqliteOptions| {
        let store = SqliteStore::open(path, options)?;
        let engine = Engine::builder(std::sync::Arc::new(store)).register(&stage.innocent).open().await?;
        assert_eq!(engine.run(&stage.innocent, 7).await?, 7);
        engine.shutdown(Duration::from_secs(20)).await
    };
    stage
        .check("path", &["path", "file", "directory", "open"], texts(), async |name| {
            open(&directory.path().join(name), SqliteOptions::default()).await
        })
        .await;
    stage
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
    stage.end().await;
}

async fn options_of_postgres(fixture: &dyn StoreFixture) {
    let stage = HostileHarness::on(fixture).await;
    let url = fresh_database().await;
    let open = async |options: PostgresOptions| -> Result<(), Error> {
        let store = PostgresStore::open_with(&url, options).await?;
        let engine = Engine::builder(std::sync::Arc::new(store)).register(&stage.innocent).open().await?;
        let output = engine.run(&stage.innocent, 7).await;
        engine.shutdown(Duration::from_secs(20)).await?;
        assert_eq!(output?, 7);
        Ok(())
    };
    let options = PostgresOptions::default;
    stage
        .check("lock_timeout", &["lock_timeout"], durations(), async |it| {
            open(options().lock_timeout(*it)).await
        })
        .await;
    stage.check("lease", &["lease"], durations(), async |it| open(options().lease(*it)).await).await;
    stage
        .check("connect_timeout", &["connect_timeout"], durations(), async |it| {
            match open(options().connect_timeout(*it)).await {
                // the message names the time
                Err(Error::Unreachable { .. }) if *it < Duration::from_secs(1) => Ok(()),
                opened => opened,
            }
        })
        .await;
    stage.check("readers", &["readers"], SIZES, async |it| open(options().readers(*it)).await).await;
    stage
        .check("application_name", &["application_name"], texts(), async |it| {
            open(options().application_name(it)).await
        })
        .await;
    stage.check("listen", &["listen"], texts(), async |it| open(options().listen(it)).await).await;
    stage
        .check("store_id", &["store_id"], texts(), async |it| {
            let mut options = options();
            options.store_id = Some(it.clone());
            open(options).await
        })
        .await;
    stage
        .check("sslrootcert", &["sslrootcert", "certificate"], texts(), async |it| {
            open(options().ssl_root_cert(it)).await
        })
        .await;
    stage
        .check("sslcert", &["sslcert", "certificate"], texts(), async |it| {
            open(options().ssl_cert(it, it)).await
        })
        .await;
    stage
        .check(
            "durability",
            &["durability"],
            [Durability::Full, Durability::Relaxed, Durability::None],
            async |it| open(options().durability(*it)).await,
        )
        .await;
    stage.end().await;
}
