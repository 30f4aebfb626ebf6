//! What every line of the log says that is logged while a request is handled.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hyper::header::HeaderMap;
use inference_protocol::fleet::ModelStatus;
use tokio::task::futures::TaskLocalFuture;

use super::request_id::RequestId;
use super::user::UserId;

tokio::task_local! {
    static CURRENT: Arc<RequestContext>;
}

/// Which request is handled, for whom, and by which endpoint.
#[derive(Debug)]
pub(crate) struct RequestContext {
    id: RequestId,
    client: IpAddr,
    tenant: OnceLock<Arc<str>>,
    user: OnceLock<UserId>,
    endpoint: Mutex<Option<Endpoint>>,
}

/// The endpoint that a request was sent to last.
#[derive(Debug)]
struct Endpoint {
    model: Arc<ModelStatus>,
    name: Arc<str>,
}

impl RequestContext {
    /// Opens the context of a request with these headers from `client`.
    pub(crate) fn open(client: IpAddr, headers: &HeaderMap) -> Arc<Self> {
        let id = RequestId::of(headers);
        Arc::new(Self {
            id,
            client,
            tenant: OnceLock::new(),
            user: OnceLock::new(),
            endpoint: Mutex::new(None),
        })
    }

    /// The client's address, possibly reported by a trusted proxy.
    pub(crate) fn client(&self) -> IpAddr {
        self.client
    }

    /// The client's request id if it is well-formed, otherwise ours.
    pub(crate) fn id(&self) -> &RequestId {
        &self.id
    }

    /// The tenant, once the key is known.
    pub(crate) fn tenant(&self) -> Option<&str> {
        self.tenant.get().map(AsRef::as_ref)
    }

    /// Sets the tenant, once.
    pub(crate) fn set_tenant(&self, tenant: Arc<str>) {
        let _ = self.tenant.set(tenant);
    }

    /// Sets the user of the key, once.
    pub(crate) fn set_user(&self, user: UserId) {
        let _ = self.user.set(user);
    }

    /// Sets the endpoint that works on the request, and its model.
    pub(crate) fn set_endpoint(&self, name: Arc<str>, model: Arc<ModelStatus>) {
        let endpoint = Some(Endpoint { model, name });
        *self.endpoint.lock().unwrap_or_else(PoisonError::into_inner) = endpoint;
    }

    /// Runs `handling`. Lines that it logs, in this task, have the fields of the request.
    pub(crate) fn run<F: Future>(self: Arc<Self>, handling: F) -> TaskLocalFuture<Arc<Self>, F> {
        CURRENT.scope(self, handling)
    }

    /// Calls `handle`. Lines that it logs have the fields of the request.
    pub(crate) fn enter<T>(self: &Arc<Self>, handle: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.clone(), handle)
    }

    fn visit(&self, add: &mut dyn FnMut(&'static str, &str)) {
        add("request_id", self.id.as_str());
        add("client", &self.client.to_string());
        if let Some(tenant) = self.tenant() {
            add("tenant", tenant);
        }
        if let Some(user) = self.user.get() {
            add("user", &user.to_string());
        }
        let endpoint = self.endpoint.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Endpoint { model, name }) = &*endpoint {
            add("model", &model.id);
            add("node", name);
        }
    }
}

/// Calls `add` with the name and the value of each field of the current task's request.
pub fn visit_current(add: &mut dyn FnMut(&'static str, &str)) {
    let _ = CURRENT.try_with(|request| request.visit(add));
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;
    use crate::types::request_id::REQUEST_ID;

    fn current() -> Vec<(&'static str, String)> {
        let mut fields = Vec::new();
        visit_current(&mut |name, value| fields.push((name, value.to_string())));
        fields
    }

    #[tokio::test]
    async fn lines_say_what_is_known_of_the_request_while_it_is_handled_and_nothing_else() {
        let id = HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_static("mine"))]);
        let context = RequestContext::open([10, 0, 0, 1].into(), &id);
        let (known, at_the_end) = context
            .clone()
            .run(async {
                let before = current();
                tokio::task::yield_now().await;
                context.set_tenant("a".into());
                let (id, digest) = ("m".into(), "1".into());
                let model = Arc::new(ModelStatus {
                    id,
                    digest,
                    context_tokens: 8,
                    ..ModelStatus::default()
                });
                context.set_endpoint("first".into(), model.clone());
                context.set_endpoint("second".into(), model);
                (before, current())
            })
            .await;
        let first = [("request_id", "mine"), ("client", "10.0.0.1")];
        let then = [("tenant", "a"), ("model", "m"), ("node", "second")];
        let owned = |(name, value): &(&'static str, &str)| (*name, value.to_string());
        assert_eq!(known, first.iter().map(owned).collect::<Vec<_>>());
        assert_eq!(at_the_end, first.iter().chain(&then).map(owned).collect::<Vec<_>>());
        assert_eq!(current(), []);
    }
}
