//! TLS on a real server: every mode with right and wrong certificates and names, and the encryption of all connections
//! of a store.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::OnceLock;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use stepfast_core::store::StoreError;
use stepfast_core::{Key, Store};
use stepfast_postgres::{PostgresOptions, PostgresStore, SslMode};
use stepfast_tests::fixtures::postgres_server::PostgresServer;
use tempfile::TempDir;
use tokio_postgres::NoTls;

use super::support::*;

/// A server with a certificate for `localhost`, and the files of its clients.
struct TlsServer {
    server: PostgresServer,
    port: u16,
    folder: TempDir,
}

/// The server's access rules: the first matching line applies.
const HBA: &str = "
hostssl   all certified 127.0.0.1/32 cert
host      all certified 127.0.0.1/32 reject
hostssl   all tlsonly   127.0.0.1/32 trust
host      all tlsonly   127.0.0.1/32 reject
hostnossl all plainonly 127.0.0.1/32 trust
host      all plainonly 127.0.0.1/32 reject
host      all all       127.0.0.1/32 trust";

fn authority(name: &str) -> (String, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().pem(), Issuer::new(params, key))
}

/// Returns a certificate of `name`, and its key.
fn signed(name: &str, issuer: &Issuer<'static, KeyPair>) -> (String, String) {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem())
}

impl TlsServer {
    fn shared() -> &'static Self {
        static SHARED: OnceLock<TlsServer> = OnceLock::new();
        SHARED.get_or_init(|| {
            let (root, issuer) = authority("the authority of the test");
            let (stranger, strange_issuer) = authority("another authority");
            let (certificate, key) = signed("localhost", &issuer);
            let server = PostgresServer::start_with(
                "ssl=on\nssl_ca_file='root.crt'",
                &[
                    ("server.crt", &certificate),
                    ("server.key", &key),
                    ("root.crt", &root),
                    ("pg_hba.conf", HBA),
                ],
            );
            let folder = tempfile::tempdir().unwrap();
            let (mine, my_key) = signed("certified", &issuer);
            let (other, other_key) = signed("certified", &strange_issuer);
            for (name, content) in [
                ("root.crt", &root),
                ("stranger.crt", &stranger),
                ("server.crt", &certificate),
                ("client.crt", &mine),
                ("client.key", &my_key),
                ("other.crt", &other),
                ("other.key", &other_key),
                ("empty.crt", &String::new()),
            ] {
                let path = folder.path().join(name);
                fs::write(&path, content).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            }
            let port = server.url().parse::<tokio_postgres::Config>().unwrap().get_ports()[0];
            Self { server, port, folder }
        })
    }

    async fn create_roles(&self) {
        static CREATED: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
        CREATED
            .get_or_init(async || {
                let (client, connection) = tokio_postgres::connect(self.server.url(), NoTls).await.unwrap();
                let connection = tokio::spawn(connection);
                let sql = "CREATE ROLE certified LOGIN SUPERUSER; CREATE ROLE tlsonly LOGIN SUPERUSER; \
                         CREATE ROLE plainonly LOGIN SUPERUSER";
                client.batch_execute(sql).await.unwrap();
                drop(client);
                connection.await.unwrap().unwrap();
            })
            .await;
    }

    fn url(&self, user: &str, host: &str, query: &str) -> String {
        let (port, folder) = (self.port, self.folder.path().display().to_string());
        let query = query.replace("FOLDER", &folder.replace('/', "%2F"));
        format!("postgres://{user}@{host}:{port}/postgres?{query}")
    }

    /// Opens a store. Returns whether its connections are encrypted, and checks that all of them agree.
    async fn is_encrypted(&self, user: &str, host: &str, query: &str) -> Result<bool, StoreError> {
        self.create_roles().await;
        let name = self.server.fresh_schema_name();
        let query = format!("schema={name}&application_name={name}&{query}");
        let store = PostgresStore::open(&self.url(user, host, &query)).await?;
        Ok(encryption(&store, self.server.url(), &name).await)
    }
}

/// Opens every kind of connection of a store. Returns whether the server reports them as encrypted.
async fn encryption(store: &PostgresStore, server: &str, name: &str) -> bool {
    let worker = store.register(2, &worker_info(&[])).await.unwrap();
    let key = Key::mint(0);
    let flush = stepfast_core::store::Flush {
        worker: worker.worker,
        lane: 0,
        epoch: worker.epoch,
        number: 1,
        is_resent: false,
        is_bisecting: false,
        writes: vec![start(key, QUEUED)],
    };
    store.commit(&flush).await.unwrap();
    assert!(
        store
            .load(&[stepfast_core::store::ExecutionId::Key(key)], stepfast_core::store::Detail::Outcome)
            .await
            .unwrap()[0]
            .is_some()
    );
    // the first hint says that the store listens now
    store.next_hint(worker.worker).await;
    let (client, connection) = tokio_postgres::connect(server, NoTls).await.unwrap();
    tokio::spawn(connection);
    let rows = client
        .query(
            "SELECT replace(a.application_name, $1 || ' ', ''), s.ssl FROM pg_stat_activity a \
             JOIN pg_stat_ssl s USING (pid) WHERE a.application_name LIKE $1 || ' %' ORDER BY 1",
            &[&name],
        )
        .await
        .unwrap();
    let roles: Vec<String> = rows.iter().map(|row| row.get(0)).filter(|role| role != "migration").collect();
    assert_eq!(roles, ["control", "hints", "lane", "reader"]);
    let encrypted: Vec<bool> = rows.iter().map(|row| row.get(1)).collect();
    assert!(encrypted.iter().all(|it| *it == encrypted[0]), "{encrypted:?}");
    store.close(worker.worker).await.unwrap();
    encrypted[0]
}

fn reason(result: Result<bool, StoreError>) -> String {
    match result {
        Err(StoreError::Open { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn ssl_modes_encrypt_and_verify_as_documented() {
    let tls_server = TlsServer::shared();
    for (host, query, expected) in [
        ("localhost", "", Ok(true)),
        ("localhost", "sslmode=disable", Ok(false)),
        ("localhost", "sslmode=allow", Ok(false)),
        ("localhost", "sslmode=prefer", Ok(true)),
        ("127.0.0.1", "sslmode=prefer", Ok(true)),
        ("localhost", "sslmode=require", Ok(true)),
        ("127.0.0.1", "sslmode=require", Ok(true)),
        // require verifies the authority once one is given, but no name
        ("127.0.0.1", "sslmode=require&sslrootcert=FOLDER/root.crt", Ok(true)),
        ("127.0.0.1", "sslmode=require&sslrootcert=FOLDER/stranger.crt", Err("sslrootcert")),
        // prefer does not
        ("127.0.0.1", "sslmode=prefer&sslrootcert=FOLDER/stranger.crt", Ok(true)),
        ("127.0.0.1", "sslmode=prefer&sslrootcert=FOLDER/missing.crt", Err("missing.crt")),
        ("localhost", "sslmode=verify-ca&sslrootcert=FOLDER/root.crt", Ok(true)),
        ("127.0.0.1", "sslmode=verify-ca&sslrootcert=FOLDER/root.crt", Ok(true)),
        ("localhost", "sslmode=verify-ca&sslrootcert=FOLDER/stranger.crt", Err("sslrootcert")),
        ("localhost", "sslmode=verify-ca", Err("needs sslrootcert")),
        ("localhost", "sslmode=verify-full&sslrootcert=FOLDER/root.crt", Ok(true)),
        ("127.0.0.1", "sslmode=verify-full&sslrootcert=FOLDER/root.crt", Err("another name")),
        ("localhost", "sslmode=verify-full&sslrootcert=FOLDER/stranger.crt", Err("sslrootcert")),
        // a server's own certificate may be given instead of an authority's
        ("localhost", "sslmode=verify-full&sslrootcert=FOLDER/server.crt", Ok(true)),
        ("127.0.0.1", "sslmode=verify-full&sslrootcert=FOLDER/server.crt", Err("another name")),
        ("localhost", "sslmode=verify-full&sslrootcert=FOLDER/missing.crt", Err("missing.crt")),
        ("localhost", "sslmode=verify-full&sslrootcert=FOLDER/empty.crt", Err("empty.crt")),
        ("localhost", "sslmode=verify-full&sslrootcert=system", Err("sslrootcert")),
    ] {
        let found = tls_server.is_encrypted("stepfast", host, query).await;
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{host} {query}"),
            (Err(StoreError::Open { reason, .. }), Err(words)) => {
                assert!(reason.contains(words), "{host} {query}: {reason}");
            }
            (found, expected) => panic!("{host} {query}: {found:?} instead of {expected:?}"),
        }
    }
}

#[tokio::test]
async fn ssl_mode_falls_back_to_what_server_requires() {
    let tls_server = TlsServer::shared();
    for (user, query, expected) in [
        ("tlsonly", "sslmode=allow", Some(true)),
        ("tlsonly", "sslmode=prefer", Some(true)),
        ("tlsonly", "sslmode=disable", None),
        ("plainonly", "sslmode=prefer", Some(false)),
        ("plainonly", "sslmode=allow", Some(false)),
        ("plainonly", "sslmode=require", None),
    ] {
        let found = tls_server.is_encrypted(user, "localhost", query).await;
        match expected {
            Some(expected) => assert_eq!(found.unwrap(), expected, "{user} {query}"),
            None => assert!(reason(found).contains("pg_hba.conf"), "{user} {query}"),
        }
    }
}

#[tokio::test]
async fn client_certificate_is_sent_and_verified() {
    let tls_server = TlsServer::shared();
    let with = |query: &'static str| tls_server.is_encrypted("certified", "localhost", query);
    let full =
        "sslmode=verify-full&sslrootcert=FOLDER/root.crt&sslcert=FOLDER/client.crt&sslkey=FOLDER/client.key";
    assert!(with(full).await.unwrap());
    assert!(with("sslcert=FOLDER/client.crt&sslkey=FOLDER/client.key").await.unwrap());
    assert!(reason(with("sslmode=require").await).contains("certificate"));
    // signed by an authority that the server does not trust
    let found = with("sslmode=require&sslcert=FOLDER/other.crt&sslkey=FOLDER/other.key").await;
    let found = reason(found);
    assert!(found.contains("see sslmode, sslrootcert and sslcert"), "{found}");
    for (query, words) in [
        ("sslcert=FOLDER/client.crt", "without sslkey"),
        ("sslkey=FOLDER/client.key", "without sslcert"),
        ("sslcert=FOLDER/client.crt&sslkey=FOLDER/other.key", "do not match"),
        ("sslcert=FOLDER/client.crt&sslkey=FOLDER/root.crt", "no key"),
        ("sslcert=FOLDER/client.crt&sslkey=FOLDER/missing.key", "missing.key"),
    ] {
        let found = reason(with(query).await);
        assert!(found.contains(words), "{query}: {found}");
    }
    let open = tls_server.folder.path().join("open.key");
    fs::copy(tls_server.folder.path().join("client.key"), &open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let found = reason(with("sslcert=FOLDER/client.crt&sslkey=FOLDER/open.key").await);
    assert!(found.contains("chmod 0600"), "{found}");
}

#[tokio::test]
async fn server_without_tls_is_rejected_if_tls_is_required() {
    let server = PostgresServer::shared().url();
    let ca = TlsServer::shared().folder.path().join("root.crt");
    for (mode, is_possible) in [
        (SslMode::Disable, true),
        (SslMode::Allow, true),
        (SslMode::Prefer, true),
        (SslMode::Require, false),
        (SslMode::VerifyCa, false),
        (SslMode::VerifyFull, false),
    ] {
        let name = PostgresServer::shared().fresh_schema_name();
        let options = PostgresOptions::default().schema(&name).application_name(&name).ssl_mode(mode);
        let options = if mode >= SslMode::VerifyCa { options.ssl_root_cert(Path::new(&ca)) } else { options };
        match PostgresStore::open_with(server, options).await {
            Ok(store) => {
                assert!(is_possible, "{mode}");
                assert!(!encryption(&store, server, &name).await, "{mode}");
            }
            Err(error) => {
                assert!(!is_possible, "{mode}: {error}");
                assert!(error.to_string().contains("ssl=on"), "{error}");
            }
        }
    }
}
