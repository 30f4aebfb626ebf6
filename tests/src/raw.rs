//! A connection whose client writes bytes of its own choice, HTTP or not.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::SOON;

/// So much of what a server says is kept.
const KEPT_BYTES: usize = 4 << 20;

/// A raw connection.
#[derive(Debug)]
pub struct Raw(TcpStream);

impl Raw {
    /// Connects.
    pub async fn connect(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    /// Connects from an address of this machine: all of 127.0.0.0/8 are.
    pub async fn connect_from(source: IpAddr, address: SocketAddr) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(source, 0))?;
        Ok(Self(socket.connect(address).await?))
    }

    /// Connects, and holds little of what it does not read.
    pub async fn connect_narrow(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Self(socket.connect(address).await.unwrap())
    }

    /// Writes; false: the server has closed the connection, or takes nothing any more.
    pub async fn send(&mut self, bytes: &[u8]) -> bool {
        matches!(timeout(SOON, self.0.write_all(bytes)).await, Ok(Ok(())))
    }

    /// What comes next; nothing at the end.
    pub async fn next(&mut self) -> Vec<u8> {
        let mut buffer = vec![0; 64 * 1024];
        let read = timeout(SOON, self.0.read(&mut buffer)).await.expect("it says nothing");
        // A reset is an end too.
        buffer.truncate(read.unwrap_or(0));
        buffer
    }

    /// Reads until `end` has come; panics if the connection ends before.
    pub async fn until(&mut self, end: &[u8]) -> Vec<u8> {
        let mut read = Vec::new();
        while !read.windows(end.len()).any(|part| part == end) {
            let next = self.next().await;
            assert!(!next.is_empty(), "it ended after {}", String::from_utf8_lossy(&read));
            read.extend(next);
        }
        read
    }

    /// Everything until the server closes the connection.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut read = Vec::new();
        loop {
            let next = self.next().await;
            if next.is_empty() {
                return read;
            }
            let room = KEPT_BYTES.saturating_sub(read.len());
            read.extend(&next[..next.len().min(room)]);
        }
    }

    /// Its two halves.
    pub fn split(self) -> (tokio::net::tcp::OwnedReadHalf, tokio::net::tcp::OwnedWriteHalf) {
        self.0.into_split()
    }
}

/// The statuses of all HTTP/1 responses in `bytes`.
pub fn statuses(bytes: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(bytes);
    let parts = text.split("HTTP/1.").skip(1);
    parts.filter_map(|part| part.get(2..5)?.parse().ok()).collect()
}
