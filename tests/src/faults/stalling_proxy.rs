//! [`StallingProxy`]: a proxy that can stall, like a network that drops all packets, or cut all connections.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyState {
    /// Everything is forwarded.
    Open,
    /// Nothing is forwarded; data in transit arrives later.
    Stalled,
    /// Existing connections are closed, and new ones too.
    Cut,
}

/// A proxy between clients and a server on this machine. It lives as long as its runtime.
#[derive(Clone)]
pub struct StallingProxy {
    address: SocketAddr,
    state: Arc<watch::Sender<ProxyState>>,
}

impl StallingProxy {
    /// Starts an open proxy for the server on 127.0.0.1 that `url` names.
    pub async fn start(url: &str) -> Self {
        let config: tokio_postgres::Config = url.parse().unwrap();
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let way = Arc::new(watch::Sender::new(ProxyState::Open));
        let states = way.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(connect(client, port, states.subscribe()));
            }
        });
        Self { address, state: way }
    }

    /// Returns `url` with the proxy's address.
    pub fn url(&self, url: &str) -> String {
        let config: tokio_postgres::Config = url.parse().unwrap();
        format!("postgres://{}@{}/{}", config.get_user().unwrap(), self.address, config.get_dbname().unwrap())
    }

    /// Stops forwarding.
    pub fn stall(&self) {
        self.state.send_replace(ProxyState::Stalled);
    }

    /// Closes all connections, and each new one.
    pub fn cut(&self) {
        self.state.send_replace(ProxyState::Cut);
    }

    /// Forwards everything, including the data in transit.
    pub fn open(&self) {
        self.state.send_replace(ProxyState::Open);
    }
}

async fn connect(client: TcpStream, port: u16, mut way: watch::Receiver<ProxyState>) {
    let mut cut = way.clone();
    let passed = async {
        if way.wait_for(|way| *way != ProxyState::Stalled).await.is_err() {
            return;
        }
        let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
        let ((mut client_in, mut client_out), (mut server_in, mut server_out)) =
            (client.into_split(), server.into_split());
        tokio::select! {
            () = forward(&mut client_in, &mut server_out, way.clone()) => {}
            () = forward(&mut server_in, &mut client_out, way) => {}
        }
    };
    tokio::select! {
        () = passed => {}
        _ = cut.wait_for(|way| *way == ProxyState::Cut) => {}
    }
}

async fn forward(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    mut way: watch::Receiver<ProxyState>,
) {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let Ok(count @ 1..) = from.read(&mut bytes).await else { return };
        if way.wait_for(|way| *way == ProxyState::Open).await.is_err()
            || to.write_all(&bytes[..count]).await.is_err()
        {
            return;
        }
    }
}
