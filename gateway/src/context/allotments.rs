//! Asks the store for larger parts of budgets that this gateway shares with others.

use std::time::Duration;

use tokio::time::timeout;

use super::Gateway;
use crate::types::budget::Ask;
use crate::types::error::Error;
use crate::types::usage::Date;

/// How long a request waits for the store to say what is left of its budget.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

impl Gateway {
    /// Asks for what `lacks` returns, once earlier requests have got what they have asked for: that
    /// may be enough for this one, too.
    ///
    /// # Errors
    /// The store cannot say how much is left.
    pub(crate) async fn allot(&self, lacks: impl Fn() -> Vec<Ask>) -> Result<(), Error> {
        let Some(store) = &self.store else { return Ok(()) };
        let asking = async {
            let _alone = self.allotting.lock().await;
            let asks = lacks();
            if asks.is_empty() {
                return Ok(());
            }
            let today = Date::today();
            let allotted = store.allot(asks, today).await.map_err(|error| error.of(""))?;
            self.dispatcher.set_allotted(allotted, || self.usage.by_budget(today));
            Ok(())
        };
        let asked = timeout(ASK_TIMEOUT, asking).await.unwrap_or(Err(Error::StoreUnavailable));
        asked.inspect_err(|_| self.dispatcher.stop_asking(&lacks()))
    }
}
