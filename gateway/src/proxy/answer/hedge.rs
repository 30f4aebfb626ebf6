//! A first token that is late, asked of a second node (`routing.hedge_ms`).
//!
//! Only where a slot idles and nobody waits for it, and within the budget for retries; the node
//! that says something first answers, and the other one's request is cancelled. If that one was
//! silent for much longer, it counts as one that hangs: otherwise a node that never answers would
//! never be found out.

use std::sync::Arc;
use std::time::Duration;

use inference_protocol::resume::Resume;
use tokio::time::{Instant, timeout};

use super::super::account::bill::Metered;
use super::super::admit::Admitted;
use super::super::forward::{Forwarded, forward};
use super::Answer;
use super::current::at;
use crate::context::settings::Settings;
use crate::scheduler::attempt::At;
use crate::scheduler::fleet::Outcome;
use crate::scheduler::fleet::health::is_hung;
use crate::types::error::Error;
use crate::types::external::External;

/// A node that was asked, and what it has begun to say.
pub type Begun = (Metered, Result<Forwarded, Error>);

impl Answer {
    /// Asks a node, and a second one when it has said nothing for so long.
    pub(super) async fn first_of_two(&mut self, mut lease: Metered, late: Duration) -> Begun {
        let question = Question {
            admitted: self.admitted.clone(),
            resume: self.progress.resume().clone(),
            settings: self.settings.clone(),
        };
        let (tried, asked) = (at(&lease, false), Instant::now());
        let mut first = Box::pin(question.ask(&mut lease));
        if let Ok(begun) = timeout(late, &mut first).await {
            drop(first);
            return (lease, begun);
        }
        let Some(mut rival) = self.rival(&tried) else {
            let begun = first.await;
            return (lease, begun);
        };
        let rival_asked = Instant::now();
        let mut second = Box::pin(question.ask(&mut rival));
        let (begun, is_second) = tokio::select! {
            biased;
            begun = &mut first => (begun, false),
            begun = &mut second => (begun, true),
        };
        let (lease, begun, is_second) = match (begun, is_second) {
            // One that failed has not won: the other may.
            (Err(error), false) => {
                drop(first);
                self.failed_beside(lease, &error);
                let begun = second.await;
                (rival, begun, true)
            }
            (Err(error), true) => {
                drop(second);
                self.failed_beside(rival, &error);
                let begun = first.await;
                (lease, begun, false)
            }
            (begun, false) => {
                drop((first, second));
                (lease, begun, false)
            }
            (begun, true) => {
                drop((first, second));
                if is_hung(asked.elapsed(), rival_asked.elapsed()) {
                    lease.ends(Outcome::Failed);
                }
                (rival, begun, true)
            }
        };
        self.gateway.metrics.hedged(is_second);
        (lease, begun)
    }

    /// One of two has failed: it is not asked again.
    fn failed_beside(&mut self, mut lease: Metered, error: &Error) {
        let outcome = self.outcome(&lease, false, error);
        lease.ends(outcome);
        self.pursuit.failed_beside(&at(&lease, false), error);
    }

    /// A slot of another node that idles, if one more attempt is affordable.
    fn rival(&self, tried: &At) -> Option<Metered> {
        let mut constraints = self.pursuit.seek_beyond(tried);
        constraints.external = External::Never;
        let dispatcher = &self.gateway.dispatcher;
        let rival = dispatcher.at_once(&self.admitted.want(&constraints))?;
        dispatcher.may_retry().then(|| self.metered(rival))
    }
}

/// What two nodes are asked.
struct Question {
    admitted: Arc<Admitted>,
    resume: Resume,
    settings: Arc<Settings>,
}

impl Question {
    /// Asks a node and waits until it says something.
    async fn ask(&self, lease: &mut Metered) -> Result<Forwarded, Error> {
        let Self { admitted, resume, settings } = self;
        let (limits, timeouts) = (&settings.config.limits, &settings.config.timeouts);
        match forward(lease, admitted, resume, limits, timeouts).await {
            Ok(Forwarded::Events(source, hides_usage)) => {
                source.heard().await.map(|source| Forwarded::Events(source, hides_usage))
            }
            begun => begun,
        }
    }
}
