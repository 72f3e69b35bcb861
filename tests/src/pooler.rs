//! [`Pooler`]: a real pgbouncer in `pool_mode=transaction` before a test server.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock};

use tempfile::TempDir;
use tokio_postgres::Config;

use crate::postgres_server::{PostgresServer, free_port, user_for_server};

/// Runs pgbouncer until its own standard input is closed, by intent or because the process died that holds it.
const WATCHER: &str = r#"
trap '' INT TERM HUP
"$1" "$2/pgbouncer.ini" </dev/null 2>&1 & pid=$!
read -r _
kill -KILL "$pid"
"#;

/// A running pgbouncer.
#[derive(Debug)]
pub struct Pooler {
    port: u16,
    child: Child,
    /// Its life.
    stdin: Mutex<Option<ChildStdin>>,
    _folder: TempDir,
}

impl Pooler {
    /// The one of this test process, before the shared server. It lends another connection of the server for each
    /// transaction, where it can.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Pooler> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(PostgresServer::shared(), "server_round_robin = 1"))
    }

    /// Starts one before `server`, with further lines of its settings.
    ///
    /// # Panics
    ///
    /// If there is no pgbouncer, with what to do about it: a test that needs it is never skipped.
    pub fn start(server: &PostgresServer, settings: &str) -> Self {
        let program = program().unwrap_or_else(|| {
            panic!(
                "no pgbouncer is installed, and this test needs one: install it (Debian and Ubuntu: apt-get \
                 install pgbouncer; macOS: brew install pgbouncer)"
            )
        });
        for _ in 0..5 {
            match Self::start_on(&program, free_port(), server, settings) {
                Ok(pooler) => return pooler,
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("{} does not start:\n{log}", program.display()),
            }
        }
        panic!("found no free port for pgbouncer in five tries");
    }

    fn start_on(
        program: &PathBuf,
        port: u16,
        server: &PostgresServer,
        settings: &str,
    ) -> Result<Self, String> {
        let config: Config = server.url().parse().unwrap();
        let (server_port, user) = (config.get_ports()[0], config.get_user().unwrap());
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let ini = format!(
            "[databases]\n* = host=127.0.0.1 port={server_port} user={user}\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = 20\nmax_client_conn = 2000\n{settings}\n"
        );
        std::fs::write(folder.path().join("pgbouncer.ini"), ini).unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", WATCHER, "pooler"])
            .arg(program)
            .arg(folder.path())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        if let Some((user, group)) = user_for_server()? {
            command.uid(user).gid(group);
        }
        let mut child = command.spawn().map_err(|error| format!("cannot run sh: {error}"))?;
        let stdin = child.stdin.take();
        let mut out = BufReader::new(child.stdout.take().ok_or("sh has no output")?);
        let mut log = String::new();
        loop {
            let mut line = String::new();
            if out.read_line(&mut line).unwrap_or(0) == 0 || line.contains("FATAL") {
                log.push_str(&line);
                drop(stdin);
                let _ = child.wait();
                return Err(log);
            }
            log.push_str(&line);
            if line.contains("process up") {
                break;
            }
        }
        // what it goes on to tell must not fill the pipe
        std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
        Ok(Self { port, child, stdin: Mutex::new(stdin), _folder: folder })
    }

    /// `url` of the server, by way of the pooler; no options in it.
    pub fn url(&self, url: &str) -> String {
        let config: Config = url.parse().unwrap();
        let (user, database) = (config.get_user().unwrap(), config.get_dbname().unwrap());
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }

    /// The same for a store: through the pooler, with hints from the server itself if `listens`.
    pub fn store_url(&self, url: &str, listens: bool) -> String {
        let direct = url.replace(':', "%3A").replace('/', "%2F").replace('@', "%40");
        let listen = if listens { format!("&listen={direct}") } else { String::new() };
        format!("{}?pooling=transaction{listen}", self.url(url))
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        if let Ok(mut stdin) = self.stdin.lock() {
            *stdin = None;
        }
        let _ = self.child.wait();
    }
}

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin", "/usr/local/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).map(|folder| folder.join("pgbouncer")).find(|it| it.is_file())
}
