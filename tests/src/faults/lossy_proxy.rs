//! A proxy for Postgres that drops or delays replies to COMMIT and truncates messages.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Average number of replies to COMMIT for each one that is dropped, and whose connection is closed.
const DROP_ONE_IN: u32 = 40;
/// Average number of replies to COMMIT for each one that is delayed.
const DELAY_ONE_IN: u32 = 120;
/// Average number of messages for each one that is truncated, and whose connection is closed.
const CUT_ONE_IN: u32 = 2000;
/// Maximum delay of a reply in milliseconds, shorter than a lease.
const MAX_DELAY_MILLIS: u64 = 1500;

/// A proxy that lives as long as its runtime.
pub(crate) struct LossyProxy {
    address: SocketAddr,
    shared: Arc<ProxyFaults>,
}

struct ProxyFaults {
    port: u16,
    is_lossy: AtomicBool,
    rng: Mutex<Rng>,
    dropped: AtomicU64,
    delayed: AtomicU64,
    cut: AtomicU64,
}

impl LossyProxy {
    /// Starts a proxy without faults for the server on 127.0.0.1 that `url` names.
    pub(crate) async fn start(url: &str, rng: Rng) -> Self {
        let config: tokio_postgres::Config = url.parse().unwrap();
        let shared = Arc::new(ProxyFaults {
            port: config.get_ports()[0],
            is_lossy: AtomicBool::new(false),
            rng: rng.into(),
            dropped: AtomicU64::new(0),
            delayed: AtomicU64::new(0),
            cut: AtomicU64::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let faults = shared.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(connect(client, faults.clone()));
            }
        });
        Self { address, shared }
    }

    /// Returns `url` with the proxy's address.
    pub(crate) fn url(&self, url: &str) -> String {
        let config: tokio_postgres::Config = url.parse().unwrap();
        format!(
            "postgres://{}@{}/{}?sslmode=disable",
            config.get_user().unwrap(),
            self.address,
            config.get_dbname().unwrap()
        )
    }

    /// Turns the faults on or off.
    pub(crate) fn set_lossy(&self, is_lossy: bool) {
        self.shared.is_lossy.store(is_lossy, SeqCst);
    }

    /// Returns the number of dropped replies to COMMIT, delayed replies, and truncated messages.
    pub(crate) fn fault_counts(&self) -> [u64; 3] {
        let ProxyFaults { dropped, delayed: stalled, cut, .. } = &*self.shared;
        [dropped, stalled, cut].map(|it| it.load(SeqCst))
    }
}

impl ProxyFaults {
    /// Returns true at random, once in `one_in` calls on average; always false without faults.
    fn occurs(&self, one_in: u32) -> bool {
        self.is_lossy.load(SeqCst) && self.rng.lock().unwrap().u32(0..one_in) == 0
    }

    /// Returns a random number below `of`.
    fn random_below(&self, of: u64) -> u64 {
        self.rng.lock().unwrap().u64(0..of.max(1))
    }
}

async fn connect(client: TcpStream, shared: Arc<ProxyFaults>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", shared.port)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), server.into_split());
    // when either direction ends, both connections are closed
    tokio::select! {
        () = forward_requests(client_in, server_out, &shared) => {}
        () = forward_replies(server_in, client_out, &shared) => {}
    }
}

/// Forwards bytes to the server, and truncates some of them.
async fn forward_requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &ProxyFaults) {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let Ok(count @ 1..) = from.read(&mut bytes).await else { return };
        if shared.occurs(CUT_ONE_IN) {
            shared.cut.fetch_add(1, SeqCst);
            let kept = shared.random_below(count as u64) as usize;
            let _ = to.write_all(&bytes[..kept]).await;
            return;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

/// Forwards messages from the server: each has a type, a length that counts itself, and a body.
async fn forward_replies(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &ProxyFaults) {
    let mut waiting = Vec::new();
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let Ok(count @ 1..) = from.read(&mut bytes).await else { return };
        waiting.extend_from_slice(&bytes[..count]);
        // all messages before this position are complete and may be forwarded
        let mut end = 0;
        while let Some(header) = waiting.get(end..end + 5) {
            let length = 1 + u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
            let Some(message) = waiting.get(end..end + length) else { break };
            if shared.occurs(CUT_ONE_IN) {
                shared.cut.fetch_add(1, SeqCst);
                let kept = end + shared.random_below(length as u64) as usize;
                let _ = to.write_all(&waiting[..kept]).await;
                return;
            }
            if message == b"C\0\0\0\x0bCOMMIT\0" {
                if shared.occurs(DROP_ONE_IN) {
                    shared.dropped.fetch_add(1, SeqCst);
                    let _ = to.write_all(&waiting[..end]).await;
                    return;
                }
                if shared.occurs(DELAY_ONE_IN) {
                    shared.delayed.fetch_add(1, SeqCst);
                    let delay = Duration::from_millis(shared.random_below(MAX_DELAY_MILLIS));
                    let _ = tokio::time::timeout(delay, std::future::pending::<()>()).await;
                }
            }
            end += length;
        }
        if to.write_all(&waiting[..end]).await.is_err() {
            return;
        }
        waiting.drain(..end);
    }
}
