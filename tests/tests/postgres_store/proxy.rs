//! A proxy between a store and the server that counts statements, and drops or alters replies.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::support::url;

/// The faults that a proxy injects, each once per setting.
#[derive(Default)]
pub(crate) struct Faults {
    /// Number of requests: executions of prepared statements, and texts of one or more statements. Hints do not count:
    /// they follow the work after a delay of real time.
    pub(crate) statements: AtomicU64,
    /// Whether to close the connection instead of forwarding the server's reply to the next COMMIT.
    pub(crate) drop_commit_reply: AtomicBool,
    /// Whether to close the connection instead of forwarding the next COMMIT.
    pub(crate) drop_commit: AtomicBool,
    /// Statements executed after each BEGIN, as if another client had used the session in between.
    pub(crate) after_begin: Mutex<Option<&'static str>>,
    /// Whether to replace errors of prepared statements by success.
    pub(crate) hide_errors: AtomicBool,
    /// The version that the server reports, as text and as number; `None` for its real one.
    pub(crate) version: Mutex<Option<(&'static str, i32)>>,
}

pub(crate) struct Proxy {
    pub(crate) url: String,
    pub(crate) faults: Arc<Faults>,
}

#[derive(Clone, Copy, PartialEq)]
enum Request {
    Prepared,
    Simple { is_commit: bool },
}

type Queue = Arc<Mutex<VecDeque<Request>>>;

impl Proxy {
    pub(crate) async fn start() -> Self {
        let config: Config = url().parse().unwrap();
        let Some(Host::Tcp(host)) = config.get_hosts().first().cloned() else { panic!("{url}", url = url()) };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let faults = Arc::new(Faults::default());
        let shared = faults.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect((host.as_str(), port)).await.unwrap();
                // messages are forwarded one at a time
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let (client_in, client_out) = client.into_split();
                let (server_in, server_out) = server.into_split();
                let queue = Queue::default();
                tokio::spawn(forward(client_in, server_out, queue.clone(), shared.clone()));
                tokio::spawn(backward(server_in, client_out, queue, shared.clone()));
            }
        });
        let (user, database) = (config.get_user().unwrap(), config.get_dbname().unwrap());
        // the proxy must be able to read the messages
        Self { url: format!("postgres://{user}@{address}/{database}?sslmode=disable"), faults }
    }
}

/// Reads one message: its type, and all its bytes.
async fn message(from: &mut OwnedReadHalf, has_type: bool) -> Option<(u8, Vec<u8>)> {
    let mut bytes = vec![0; if has_type { 5 } else { 4 }];
    from.read_exact(&mut bytes).await.ok()?;
    let length = u32::from_be_bytes(bytes[bytes.len() - 4..].try_into().ok()?) as usize;
    let head = bytes.len();
    bytes.resize(head + length - 4, 0);
    from.read_exact(&mut bytes[head..]).await.ok()?;
    Some((bytes[0], bytes))
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, queue: Queue, faults: Arc<Faults>) {
    let (mut is_first, mut is_hint) = (true, false);
    while let Some((kind, mut bytes)) = message(&mut from, !is_first).await {
        if !is_first {
            match kind {
                b'P' => is_hint = bytes.windows(9).any(|word| word == b"pg_notify"),
                b'S' => is_hint = false,
                _ => {}
            }
            if matches!(kind, b'E' | b'Q') && !is_hint {
                faults.statements.fetch_add(1, SeqCst);
            }
            let request = match kind {
                b'Q' => Some(Request::Simple { is_commit: bytes.windows(6).any(|word| word == b"COMMIT") }),
                b'S' => Some(Request::Prepared),
                _ => None,
            };
            if request == Some(Request::Simple { is_commit: true }) && faults.drop_commit.swap(false, SeqCst)
            {
                return;
            }
            queue.lock().unwrap().extend(request);
            let more = *faults.after_begin.lock().unwrap();
            if let (b'Q', Some(more), Some(rest)) =
                (kind, more, bytes.get(5..).and_then(|it| it.strip_prefix(b"BEGIN")))
            {
                let text = [b"BEGIN; ", more.as_bytes(), rest].concat();
                bytes = [&b"Q"[..], &u32::try_from(text.len() + 4).unwrap().to_be_bytes(), &text].concat();
            }
        }
        is_first = false;
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn backward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, queue: Queue, faults: Arc<Faults>) {
    let mut is_bound = false;
    while let Some((kind, mut bytes)) = message(&mut from, true).await {
        let front = queue.lock().unwrap().front().copied();
        if kind == b'Z' {
            queue.lock().unwrap().pop_front();
        }
        if front == Some(Request::Simple { is_commit: true }) && faults.drop_commit_reply.load(SeqCst) {
            if kind == b'Z' {
                faults.drop_commit_reply.store(false, SeqCst);
                return;
            }
            continue;
        }
        let version = *faults.version.lock().unwrap();
        match kind {
            b'D' if version.is_some_and(|version| replace_version(&mut bytes, version)) => {}
            b'2' => is_bound = true,
            b'Z' => is_bound = false,
            b'E' if front == Some(Request::Prepared) && faults.hide_errors.load(SeqCst) => {
                bytes.clear();
                if !is_bound {
                    bytes.extend_from_slice(b"2\0\0\0\x04");
                }
                bytes.extend_from_slice(b"C\0\0\0\x0fINSERT 0 1\0");
            }
            _ => {}
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Replaces the server's version in a row of two columns. Returns false if the row contains something else.
fn replace_version(bytes: &mut Vec<u8>, (text, number): (&str, i32)) -> bool {
    // type, length of the message, number of columns; then each column after its length
    let (head, column) = (5, |length: usize| i32::try_from(length).unwrap().to_be_bytes());
    let columns = bytes.get(head..head + 2) == Some(&[0, 2]);
    let Some(first) = bytes.get(head + 2..head + 6) else { return false };
    let first = u32::from_be_bytes(first.try_into().unwrap()) as usize;
    let second = bytes.get((head + 6).saturating_add(first)..).unwrap_or_default();
    // six digits
    if !columns || second.len() != 10 || second[..4] != column(6) {
        return false;
    }
    let number = number.to_string();
    let mut row = vec![0, 2];
    for value in [text, &number] {
        row.extend(column(value.len()));
        row.extend(value.as_bytes());
    }
    *bytes = [&b"D"[..], &column(4 + row.len()), &row].concat();
    true
}
