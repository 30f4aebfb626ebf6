//! A wire between a node and its gateway that can be cut.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Passes connections on until it is cut or dropped.
#[derive(Debug)]
pub struct Wire {
    address: SocketAddr,
    connections: Arc<Mutex<JoinSet<()>>>,
    accepting: JoinHandle<()>,
}

impl Wire {
    /// A wire to a listener.
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(Mutex::new(JoinSet::new()));
        let open = connections.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                open.lock().unwrap().spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(target).await {
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                    }
                });
            }
        });
        Self { address, connections, accepting }
    }

    /// Where it begins: `http://...`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends the connections that are there; new ones are passed on.
    pub fn cut(&self) {
        *self.connections.lock().unwrap() = JoinSet::new();
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}
