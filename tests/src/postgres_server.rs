//! A real Postgres server for tests, in a directory of its own, gone when the test process is gone.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Names a server to use instead of starting one; every test makes a schema of its own in it.
pub const URL_VARIABLE: &str = "STEPFAST_TEST_POSTGRES_URL";

/// Runs the server and watches its standard input, which the process that wants the server holds open: when
/// that is closed, by intent or because the process died, the server stops and its directory goes. Until then
/// a line in it stops the server, without giving it time for anything, or starts it again.
const WATCHER: &str = r#"
bin=$1 port=$2 files=$3
trap '' INT TERM HUP
dir=$(mktemp -d /tmp/stepfast-postgres-XXXXXX) || exit 1
finish() { "$bin/pg_ctl" -D "$dir/data" -m immediate -w stop >/dev/null 2>&1; rm -rf "$dir"; }
trap finish EXIT
serve() {
    "$bin/pg_ctl" -D "$dir/data" -l "$dir/log" -w -t 60 -o "-p $port -c listen_addresses=127.0.0.1 \
 -c unix_socket_directories=$dir" start >>"$dir/log" 2>&1
}
settings() {
    printf '%s\n' fsync=on max_connections=300 shared_buffers=1GB log_min_messages=error
    if [ -n "$files" ]; then cat "$files/settings"; fi
}
fail() { sed 's/^/log: /' "$dir/log"; echo failed; exit 1; }
"$bin/initdb" -D "$dir/data" -U stepfast -A trust -E UTF8 --locale=C --no-sync >"$dir/log" 2>&1 &&
settings >>"$dir/data/postgresql.conf" || fail
if [ -n "$files" ]; then
    # a key must belong to the server alone
    (cd "$files" && umask 077 && for file in *; do cat "$file" >"$dir/data/$file" || exit 1; done) || fail
fi
serve || fail
echo ready
while read -r command; do
    case $command in
        stop) "$bin/pg_ctl" -D "$dir/data" -m immediate -w stop >>"$dir/log" 2>&1 || fail ;;
        start) serve || fail ;;
    esac
    echo ready
done
"#;

/// A running server. Dropping it stops the server that it started, and no other.
#[derive(Debug)]
pub struct PostgresServer {
    url: String,
    watcher: Option<Mutex<Watcher>>,
}

#[derive(Debug)]
struct Watcher {
    child: Child,
    /// Its life: `None` once that is over.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Watcher {
    /// Waits for what it says of the server; an error with the server's log.
    fn answer(&mut self) -> Result<(), String> {
        let mut log = String::new();
        for line in self.stdout.by_ref().lines() {
            match line.map_err(|error| error.to_string())?.as_str() {
                "ready" => return Ok(()),
                "failed" => break,
                line => {
                    log.push_str(line);
                    log.push('\n');
                }
            }
        }
        Err(log)
    }

    fn end(&mut self) {
        self.stdin = None;
        let _ = self.child.wait();
    }
}

impl PostgresServer {
    /// The server of this test process: the one that [`URL_VARIABLE`] names, or one started for it.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<PostgresServer> = OnceLock::new();
        SHARED.get_or_init(|| match std::env::var(URL_VARIABLE) {
            Ok(url) if !url.is_empty() => Self { url, watcher: None },
            _ => Self::start(),
        })
    }

    /// Starts a server.
    ///
    /// # Panics
    ///
    /// If none can be started, with what to do about it: a test that needs Postgres is never skipped.
    pub fn start() -> Self {
        Self::start_with("", &[])
    }

    /// Starts a server with further lines of postgresql.conf, and files beside it (such as `pg_hba.conf`, or
    /// certificates and keys) that belong to the server.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_with(settings: &str, files: &[(&str, &str)]) -> Self {
        let folder = (!settings.is_empty() || !files.is_empty()).then(|| {
            let folder = tempfile::tempdir().unwrap();
            // the server may be somebody else
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
            for (name, content) in files.iter().chain(&[("settings", settings)]) {
                fs::write(folder.path().join(name), format!("{content}\n")).unwrap();
            }
            folder
        });
        let files = folder.as_ref().map_or(Path::new(""), |folder| folder.path());
        let binaries = binaries().unwrap_or_else(|| {
            panic!(
                "no Postgres server is installed, and this test needs one: install it (Debian and Ubuntu: apt-get \
                 install postgresql; macOS: brew install postgresql), or set {URL_VARIABLE} to the URL of one"
            )
        });
        // between asking for a free port and taking it, somebody else may: then another one
        for _ in 0..5 {
            let port = free_port();
            match Self::start_on(&binaries, port, files) {
                Ok(server) => return server,
                Err(log) if log.contains("could not bind") => {}
                Err(log) => panic!("Postgres in {} does not start:\n{log}", binaries.display()),
            }
        }
        panic!("found no free port for Postgres in five tries");
    }

    fn start_on(binaries: &Path, port: u16, files: &Path) -> Result<Self, String> {
        let mut command = Command::new("sh");
        command
            .args(["-c", WATCHER, "postgres-server"])
            .arg(binaries)
            .arg(port.to_string())
            .arg(files)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // an interrupt at the terminal must not reach the server before its clients are gone
            .process_group(0);
        if let Some((user, group)) = user_for_server()? {
            command.uid(user).gid(group);
        }
        let mut child = command.spawn().map_err(|error| format!("cannot run sh: {error}"))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().ok_or("sh has no output")?);
        let mut watcher = Watcher { child, stdin, stdout: BufReader::new(stdout) };
        match watcher.answer() {
            Ok(()) => {
                let url = format!("postgres://stepfast@127.0.0.1:{port}/postgres");
                Ok(Self { url, watcher: Some(watcher.into()) })
            }
            Err(log) => {
                watcher.end();
                Err(log)
            }
        }
    }

    /// Stops a server of the test's own at once, as if it had crashed. Blocks until it is gone.
    pub fn stop(&self) {
        self.tell("stop");
    }

    /// Starts it again on the same data and port. Blocks until it answers.
    pub fn start_again(&self) {
        self.tell("start");
    }

    fn tell(&self, command: &str) {
        let watcher = self.watcher.as_ref().expect("a server of the test's own");
        let mut watcher = watcher.lock().unwrap();
        let stdin = watcher.stdin.as_mut().expect("a watcher that lives");
        writeln!(stdin, "{command}").unwrap();
        watcher.answer().unwrap_or_else(|log| panic!("cannot {command} Postgres:\n{log}"));
    }

    /// Its URL, with a role that may do everything in its database.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The name of a schema that no other test uses. Numbers of processes come again on a server that outlives many.
    pub fn schema(&self) -> String {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Relaxed));
        format!("test_{process}_{number}_{:08x}", fastrand::u32(..))
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher.take() {
            watcher.into_inner().unwrap_or_else(PoisonError::into_inner).end();
        }
    }
}

/// Where initdb and pg_ctl are: what `pg_config` says, else the newest below the usual places.
fn binaries() -> Option<PathBuf> {
    let has_server = |path: &PathBuf| path.join("initdb").is_file() && path.join("pg_ctl").is_file();
    let told = Command::new("pg_config").arg("--bindir").stderr(Stdio::null()).output().ok();
    let told = told.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    if let Some(path) = told.filter(has_server) {
        return Some(path);
    }
    let version = |path: &PathBuf| -> u32 {
        path.parent().and_then(Path::file_name).and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0)
    };
    let mut found: Vec<PathBuf> = ["/usr/lib/postgresql", "/opt/homebrew/opt", "/usr/local/opt", "/usr"]
        .iter()
        .filter_map(|root| fs::read_dir(root).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path().join("bin")))
        .chain(["/usr/bin", "/usr/local/bin", "/usr/local/pgsql/bin"].map(PathBuf::from))
        .filter(has_server)
        .collect();
    found.sort_by_key(version);
    found.pop()
}

/// The server refuses to run as root; root runs it as somebody else.
pub(crate) fn user_for_server() -> Result<Option<(u32, u32)>, String> {
    let id = |args: &[&str]| -> Option<u32> {
        let output = Command::new("id").args(args).stderr(Stdio::null()).output().ok()?;
        String::from_utf8_lossy(&output.stdout).trim().parse().ok()
    };
    if id(&["-u"]) != Some(0) {
        return Ok(None);
    }
    ["postgres", "nobody"]
        .iter()
        .find_map(|user| Some((id(&["-u", user])?, id(&["-g", user])?)))
        .map(Some)
        .ok_or_else(|| "Postgres does not run as root, and there is no user postgres or nobody".into())
}

pub(crate) fn free_port() -> u16 {
    // below the ports that the system gives to clients: those who connect while the server is stopped must not
    // get its port, or even meet themselves on it
    (0..1000)
        .map(|_| fastrand::u16(10_240..32_768))
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port on 127.0.0.1")
}
