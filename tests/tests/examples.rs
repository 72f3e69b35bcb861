//! Every example runs on every store, and prints its expected output.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use stepfast_tests::fixtures::postgres_server::PostgresServer;

/// Builds the examples once, and returns their folder. The build covers the workspace, so that no other package is
/// rebuilt.
fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let this = std::env::current_exe().expect("the path of this program");
        let profile = this.parent().and_then(Path::parent).expect("the folder of the profile");
        let name = profile.file_name().and_then(|name| name.to_str()).expect("its name");
        let status = Command::new(env!("CARGO"))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["build", "--quiet", "--workspace", "--examples"])
            .args(["--profile", if name == "debug" { "dev" } else { name }])
            .arg("--target-dir")
            .arg(profile.parent().expect("the target folder"))
            .status()
            .expect("cargo runs");
        assert!(status.success(), "the examples do not build");
        profile.join("examples")
    })
}

fn run(example: &str, url: &str) {
    let expected = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples/rust/expected")
        .join(example)
        .with_extension("txt");
    let expected = std::fs::read_to_string(&expected)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", expected.display()));
    let output = Command::new(programs().join(example)).arg(url).output().expect("the example starts");
    assert!(output.status.success(), "{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).expect("text");
    assert_eq!(printed, expected, "the output of {example} on {url} differs from that in expected/");
}

fn run_on_sqlite(example: &str) {
    let directory = tempfile::tempdir().unwrap();
    run(example, &format!("sqlite:{}", directory.path().join("example.db").display()));
}

/// Runs an example on a database of its own, because other tests use the server at the same time.
fn run_on_postgres(example: &str) {
    let server = PostgresServer::shared();
    let name = format!("{}_{example}", server.fresh_schema_name());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (url, create) = (server.url(), format!("CREATE DATABASE {name}"));
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        client.batch_execute(&create).await.unwrap();
        drop(client);
        connection.await.unwrap().unwrap();
    });
    let (address, query) = url.split_once('?').map_or((url, String::new()), |(a, q)| (a, format!("?{q}")));
    let (address, _) = address.rsplit_once('/').expect("a URL that names a database");
    run(example, &format!("{address}/{name}{query}"));
}

/// The examples, each as a module with a test per store.
macro_rules! examples {
    ($($example:ident on $($store:ident)*;)*) => {
        $(mod $example {
            $(examples!(@test $example $store);)*
        })*

        #[test]
        fn examples_are_all_tested() {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/rust");
            let mut found: Vec<String> = std::fs::read_dir(folder)
                .unwrap()
                .filter_map(|entry| Some(entry.unwrap().path().file_name()?.to_str()?.strip_suffix(".rs")?.to_owned()))
                .collect();
            found.sort();
            let mut known = vec![$(stringify!($example)),*];
            known.sort_unstable();
            assert_eq!(found, known);
        }
    };
    (@test $example:ident memory) => {
        #[test]
        fn memory() {
            super::run(stringify!($example), "memory:");
        }
    };
    (@test $example:ident sqlite) => {
        #[test]
        fn sqlite() {
            super::run_on_sqlite(stringify!($example));
        }
    };
    (@test $example:ident postgres) => {
        #[test]
        fn postgres() {
            super::run_on_postgres(stringify!($example));
        }
    };
}

examples! {
    hello on memory sqlite postgres;
    steps_and_retries on memory sqlite postgres;
    graph on memory sqlite postgres;
    etl on memory sqlite postgres;
    parallel on memory sqlite postgres;
    sleep on memory sqlite postgres;
    children on memory sqlite postgres;
    queue on memory sqlite postgres;
    // the memory store does not survive a process
    crash on sqlite postgres;
}
