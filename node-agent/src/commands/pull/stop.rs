//! Handles Ctrl-C and SIGTERM: a pull stops where it can report what is kept.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Exit codes of a program that a signal ended: 128 plus the signal's number, as in shells.
const EXIT_INTERRUPT: u8 = 130;
const EXIT_TERMINATE: u8 = 143;

/// The exit code if the pull should stop.
#[derive(Debug, Clone)]
pub(crate) struct Stop(watch::Receiver<Option<u8>>);

impl Stop {
    /// Watches for signals from now on.
    pub(crate) fn on_signals() -> std::io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let (sender, receiver) = watch::channel(None);
        tokio::spawn(async move {
            let code = tokio::select! {
                _ = interrupt.recv() => EXIT_INTERRUPT,
                _ = terminate.recv() => EXIT_TERMINATE,
                () = sender.closed() => return,
            };
            let _ = sender.send(Some(code));
            // Dropping the sender now would look like no signal.
            sender.closed().await;
        });
        Ok(Self(receiver))
    }

    /// Runs `work` unless the pull should stop; the error is the exit code.
    pub(crate) async fn unless<T>(&self, work: impl Future<Output = T>) -> Result<T, u8> {
        let mut signalled = self.0.clone();
        let stopped = async {
            match signalled.wait_for(Option::is_some).await {
                Ok(code) => code.unwrap_or(EXIT_TERMINATE),
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            code = stopped => Err(code),
            done = work => Ok(done),
        }
    }
}
