//! A tenant that streams until its monthly budget is used up, whatever happens to gateways, nodes
//! and the database.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fleet_tests::client::Client;
use fleet_tests::postgres::psql;
use fleet_tests::{chat, eventually_within, streamed};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::interval;
use tokio_util::sync::CancellationToken;

/// Streams of the tenant side by side, at each gateway.
const STREAMS: usize = 2;
/// Longest time until usage is stored, also that of a gateway that was killed.
const STORED: Duration = Duration::from_secs(60);

pub struct Spending {
    budget: usize,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    /// Tokens of whole responses, and those that have arrived of others.
    seen: Arc<AtomicUsize>,
}

impl Spending {
    /// Streams at these gateways, with a key that has this budget.
    pub fn start(gateways: [SocketAddr; 2], key: &str, budget: usize) -> Self {
        let (stop, seen) = (CancellationToken::new(), Arc::<AtomicUsize>::default());
        let clients = gateways.map(|address| Client::new(address, Some(key)));
        let tasks = clients.iter().cycle().take(STREAMS * clients.len()).map(|client| {
            let spends = spends(client.clone(), seen.clone());
            let stop = stop.clone();
            tokio::spawn(async move { stop.run_until_cancelled(spends).await.unwrap_or_default() })
        });
        Self { budget, tasks: tasks.collect(), stop, seen }
    }

    /// Stops, and checks that all that was seen is counted and the budget is not exceeded. Returns
    /// the tokens that were seen.
    pub async fn end(self, database: &str) -> usize {
        self.stop.cancel();
        for task in self.tasks {
            task.await.unwrap();
        }
        let seen = self.seen.load(Ordering::Relaxed);
        let sql = "SELECT coalesce(sum(tokens), 0) FROM usage_sums \
                   WHERE name = 'poor' AND kind = 'month'";
        let used = || psql(database, sql).unwrap().trim().parse::<usize>().unwrap();
        eventually_within(STORED, "all use to be stored", async || (used() >= seen).then_some(()))
            .await;
        let used = used();
        assert!(used <= self.budget, "{seen} seen, {used} counted, of {}", self.budget);
        assert!(seen > 0, "the tenant was never served");
        seen
    }
}

async fn spends(client: Client, seen: Arc<AtomicUsize>) {
    let (mut number, mut pace) = (1_000_000u64, interval(Duration::from_millis(50)));
    loop {
        pace.tick().await;
        number += 1;
        let mut request = streamed(chat(&number.to_string()));
        request["max_tokens"] = 250.into();
        request["stream_options"] = json!({"include_usage": true});
        let Ok(mut stream) = client.try_stream(&request).await else { continue };
        while stream.next_chunk().await {
            seen.fetch_add(1, Ordering::Relaxed);
        }
        let transcript = stream.into_transcript();
        if let Some(usage) = transcript.usage {
            let all = usage["total_tokens"].as_u64().unwrap_or(0) as usize;
            seen.fetch_add(all.saturating_sub(transcript.chunks), Ordering::Relaxed);
        }
    }
}
