//! Agents that are killed in the middle of their responses, at moments that do not depend on time.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};

use crate::demo_model;
use crate::process::{Agent, Fleet};

/// Chunks of a stream that pass before its node is killed.
const CHUNKS: usize = 3;

/// Kills some agents, each while it responds. The response after a killed one is left alone, so no
/// request loses two nodes.
#[derive(Debug)]
pub struct Losses {
    due: Mutex<Due>,
    killed: AtomicU64,
}

#[derive(Debug)]
struct Due {
    left: u64,
    is_next: bool,
}

impl Losses {
    /// Kills `count` of the agents that join with it.
    pub fn new(count: u64) -> Arc<Self> {
        let due = Mutex::new(Due { left: count, is_next: true });
        Arc::new(Self { due, killed: AtomicU64::new(0) })
    }

    /// How many agents were killed.
    pub fn killed(&self) -> u64 {
        self.killed.load(Ordering::SeqCst)
    }

    /// Starts an agent that joins through a relay, which knows when it responds.
    pub async fn join(self: &Arc<Self>, fleet: &Fleet, name: &str) -> Agent {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let processes = Arc::new(OnceLock::new());
        let gateway = fleet.client.address();
        tokio::spawn(relay(listener, gateway, self.clone(), processes.clone()));
        let agent = fleet.join_at(&url, name, &demo_model(), &[]).await;
        processes.set(agent.processes()).unwrap();
        agent
    }

    /// Whether the agent that sent these bytes shall die before they arrive. `chunks`: of the
    /// streams on this connection.
    fn is_due(&self, bytes: &[u8], chunks: &mut usize) -> bool {
        let count =
            |text: &str| bytes.windows(text.len()).filter(|w| *w == text.as_bytes()).count();
        let is_whole = count("\"object\":\"chat.completion\"") > 0;
        let ends = count("data: [DONE]") > 0 || is_whole;
        *chunks += count("data: {");
        let mut due = self.due.lock().unwrap();
        if due.is_next && due.left > 0 && (is_whole || *chunks >= CHUNKS && !ends) {
            *due = Due { left: due.left - 1, is_next: false };
            self.killed.fetch_add(1, Ordering::SeqCst);
            return true;
        }
        if ends {
            *chunks = 0;
            due.is_next = true;
        }
        false
    }
}

/// Connects each connection of an agent with the gateway.
async fn relay(
    listener: TcpListener,
    gateway: SocketAddr,
    losses: Arc<Losses>,
    processes: Arc<OnceLock<Vec<Pid>>>,
) {
    while let Ok((agent, _)) = listener.accept().await {
        let Ok(gateway) = TcpStream::connect(gateway).await else { return };
        let (from_agent, mut to_agent) = agent.into_split();
        let (mut from_gateway, to_gateway) = gateway.into_split();
        tokio::spawn(async move { copy(&mut from_gateway, &mut to_agent).await });
        tokio::spawn(watch(from_agent, to_gateway, losses.clone(), processes.clone()));
    }
}

/// Passes an agent's bytes on until it is to die.
async fn watch(
    mut agent: impl AsyncRead + Unpin,
    mut gateway: impl AsyncWrite + Unpin,
    losses: Arc<Losses>,
    processes: Arc<OnceLock<Vec<Pid>>>,
) {
    let (mut buffer, mut chunks) = (vec![0; 64 * 1024], 0);
    while let Ok(read @ 1..) = agent.read(&mut buffer).await {
        let bytes = &buffer[..read];
        if let Some(processes) = processes.get()
            && losses.is_due(bytes, &mut chunks)
        {
            processes.iter().for_each(|process| kill_process(*process, Signal::KILL).unwrap());
            return;
        }
        if gateway.write_all(bytes).await.is_err() {
            return;
        }
    }
}
