//! Notices when a client hangs up, whatever it has sent before.
//!
//! Over HTTP/1, hyper keeps reading while it responds and so notices the end of a connection, but
//! not while it holds bytes that arrived after the request. A single extra byte would let a node
//! generate for a client that is gone. So we watch the socket itself: the kernel reports the end of
//! the connection before its bytes are read.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// A TCP connection that one task reads and writes while another watches it. Clones share it.
#[derive(Debug, Clone)]
pub struct ClientSocket(Arc<TcpStream>);

impl ClientSocket {
    /// Wraps an open connection.
    fn new(stream: TcpStream) -> Self {
        Self(Arc::new(stream))
    }

    /// Waits until the peer has closed its half of the connection, or both halves. A client that
    /// closes its half after a request counts as gone, as in hyper. Cancel-safe.
    async fn wait_for_hangup(&self) {
        // Nobody waits for priority data, so only the end of the connection wakes this.
        match self.0.ready(Interest::PRIORITY).await {
            Ok(ready) if ready.is_read_closed() => {}
            _ => std::future::pending().await,
        }
    }
}

/// Serves a connection until `serve` ends or the client hangs up.
pub async fn serve_until_hangup<F: Future<Output = ()>>(
    stream: TcpStream,
    serve: impl FnOnce(ClientSocket) -> F,
) {
    let stream = ClientSocket::new(stream);
    let watched = stream.clone();
    tokio::select! {
        biased;
        () = serve(stream) => {}
        () = watched.wait_for_hangup() => {}
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(context))?;
            match self.0.try_read_buf(buffer) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(drop)),
            }
        }
    }
}

impl ClientSocket {
    fn poll_send(
        &self,
        context: &mut Context<'_>,
        send: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match send(&self.0) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(context, |stream| stream.try_write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (ClientSocket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (ClientSocket::new(listener.accept().await.unwrap().0), client)
    }

    #[tokio::test]
    async fn a_hangup_is_seen_behind_bytes_that_nobody_reads() {
        let (mut socket, mut client) = pair().await;
        let watched = socket.clone();
        client.write_all(b"read").await.unwrap();
        let mut read = [0; 4];
        socket.read_exact(&mut read).await.unwrap();
        client.write_all(&[b'x'; 5000]).await.unwrap();
        socket.read_exact(&mut read).await.unwrap();
        assert_eq!(watched.wait_for_hangup().now_or_never(), None, "bytes are no end");
        drop(client);
        watched.wait_for_hangup().await;
        // The bytes are still there.
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest).await;
        assert_eq!(rest, vec![b'x'; 4996]);
    }

    #[tokio::test]
    async fn it_is_read_and_written_like_any_other() {
        let (mut socket, mut client) = pair().await;
        let sent: Vec<u8> = (0..4_000_000u32).map(|i| i as u8).collect();
        let expected = sent.clone();
        let writing = tokio::spawn(async move {
            socket.write_all(&sent).await.unwrap();
            socket.shutdown().await.unwrap();
            let mut said = String::new();
            socket.read_to_string(&mut said).await.unwrap();
            said
        });
        let mut read = Vec::new();
        client.read_to_end(&mut read).await.unwrap();
        assert!(read == expected);
        client.write_all(b"thanks").await.unwrap();
        drop(client);
        assert_eq!(writing.await.unwrap(), "thanks");
    }
}
