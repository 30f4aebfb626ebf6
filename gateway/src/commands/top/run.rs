//! The main loop: ask the gateway, draw, handle keys.

use std::time::Duration;

use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{self, Receiver};
use tokio::time::{MissedTickBehavior, interval};

use super::frame::{draw, page};
use super::screen::Screen;
use super::view::View;
use crate::commands::nodes::AdminClient;
use crate::control::overview::Overview;

const INTERVAL: Duration = Duration::from_secs(1);

/// Returns the table once.
///
/// # Errors
/// The gateway does not respond, or refuses.
pub async fn once(remote: &AdminClient) -> Result<String, String> {
    remote.overview().await.map(|overview| page(&overview))
}

/// Shows the table until the user quits.
///
/// # Errors
/// There is no terminal, or the first request to the gateway fails.
pub async fn run(remote: &AdminClient) -> Result<(), String> {
    let mut known = Known { overview: Some(remote.overview().await?), problem: None };
    let mut screen = Screen::take()?;
    let mut events = listen();
    let stops = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let [mut terminate, mut interrupt, mut hangup] = stops.map(signal).map(Result::ok);
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut view = View::default();
    loop {
        let (overview, problem) = (known.overview.as_ref(), known.problem.as_deref());
        if screen.draw(|frame| draw(frame, overview, problem, &mut view)).is_err() {
            // The terminal is gone, so nobody is there to see an error.
            return Ok(());
        }
        tokio::select! {
            // Keys work even while the gateway does not respond.
            () = async { ticks.tick().await; known.ask(remote).await } => {}
            event = events.recv() => match event {
                Some(event) if view.handle(&event) => {}
                _ => return Ok(()),
            },
            () = next(&mut terminate) => return Ok(()),
            () = next(&mut interrupt) => return Ok(()),
            () = next(&mut hangup) => return Ok(()),
        }
    }
}

/// The last response of the gateway.
struct Known {
    overview: Option<Overview>,
    problem: Option<String>,
}

impl Known {
    async fn ask(&mut self, remote: &AdminClient) {
        match remote.overview().await {
            Ok(overview) => *self = Self { overview: Some(overview), problem: None },
            Err(why) => self.problem = Some(format!("{why} (trying again; the rest is old)")),
        }
    }
}

async fn next(signals: &mut Option<tokio::signal::unix::Signal>) {
    match signals {
        Some(signals) => drop(signals.recv().await),
        None => std::future::pending().await,
    }
}

/// Reads keys and resizes in a thread that ends with the process. crossterm's asynchronous stream
/// would block the runtime on an incomplete escape sequence, and on a terminal that hung up.
fn listen() -> Receiver<Event> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    receiver
}
