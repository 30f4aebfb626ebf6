//! Tests of every error's status, code, origin, and retryability.

use super::*;
use FaultOrigin::{Client, Gateway, Node};

fn queue_full(full: QueueLimit) -> Error {
    Error::QueueFull { full, retry_after_seconds: 7 }
}

#[test]
fn every_error_has_its_four_answers() {
    let parse = ParseError { message: "m".into(), param: None };
    let [message, kind] = ["m", INVALID_REQUEST].map(String::from);
    let told = Box::new(ErrorDetail { message, kind, param: None, code: None });
    let refused = |status| Error::ExternalRefused { status, param: None };
    let table = [
        (Error::UnknownPath, 404, "unknown_url", Client, false),
        (Error::Method("GET"), 405, "method_not_allowed", Client, false),
        (Error::KeyMissing, 401, "invalid_api_key", Client, false),
        (Error::KeyWrong, 401, "invalid_api_key", Client, false),
        (Error::JoinKeyWrong, 401, "invalid_join_key", Client, false),
        (Error::JoinCertificate, 401, "join_certificate_missing", Client, false),
        (Error::AdminKeyWrong, 401, "invalid_admin_key", Client, false),
        (Error::AdminOff, 403, "admin_disabled", Client, false),
        (Error::UnknownNode("x".into()), 404, "node_not_found", Client, false),
        (Error::StoredKeysOff, 403, "stored_keys_disabled", Client, false),
        (Error::UnknownKey("x".into()), 404, "key_not_found", Client, false),
        (Error::KeyExists("x".into()), 409, "key_exists", Client, false),
        (Error::JoinInvalid("x".into()), 400, "invalid_join", Client, false),
        (Error::JoinVersion, 426, "join_version", Client, false),
        (Error::JoinedAlready, 409, "joined_already", Client, false),
        (Error::NodeNameTaken("x".into()), 423, "node_name_taken", Client, false),
        (Error::TooLarge(1), 413, "request_too_large", Client, false),
        (Error::SlowBody, 408, "request_timeout", Client, false),
        (Error::InvalidChunks, 400, "invalid_chunks", Client, false),
        (Error::EncodedBody, 415, "unsupported_encoding", Client, false),
        (Error::Malformed(parse.clone()), 400, "invalid_json", Client, false),
        (Error::Invalid(parse), 400, "invalid_value", Client, false),
        (Error::UnknownModel("x".into()), 404, "model_not_found", Client, false),
        (Error::ModelForbidden("x".into()), 403, "model_not_allowed", Client, false),
        (
            Error::RateLimited {
                limit: RateLimit::Tokens,
                scope: LimitScope::Key,
                wait: Duration::from_secs(3),
            },
            429,
            "rate_limit_exceeded",
            Client,
            false,
        ),
        (Error::NoNode, 503, "no_node", Gateway, false),
        (queue_full(QueueLimit::Queue), 503, "queue_full", Gateway, false),
        (queue_full(QueueLimit::Model), 503, "queue_full", Gateway, false),
        (queue_full(QueueLimit::Tenant), 429, "queue_full", Gateway, false),
        (queue_full(QueueLimit::User), 429, "queue_full", Gateway, false),
        (
            Error::Header(HeaderName::from_static("x"), "y".into()),
            400,
            "invalid_header",
            Client,
            false,
        ),
        (Error::DeadlineUnmet { retry_after_seconds: 7 }, 503, "deadline_unmet", Gateway, false),
        (Error::QueueTimeout { retry_after_seconds: 7 }, 503, "queue_timeout", Gateway, false),
        (Error::NodeLost, 502, "node_lost", Node, true),
        (Error::NodeRefused(503), 503, "node_refused", Node, true),
        (Error::EngineLost, 502, "engine_lost", Node, true),
        (Error::Quarantined, 422, "request_quarantined", Node, false),
        (Error::NodeFailed("x".into()), 502, "node_failed", Node, false),
        (Error::Unanswerable(told), 400, "refused_by_node", Client, false),
        (Error::NodeTimeout, 504, "node_timeout", Node, false),
        (Error::NodeAnswer("x"), 502, "node_answer", Node, false),
        (Error::Internal, 500, "internal_error", Gateway, false),
        (Error::ResponseTooLarge(9), 422, "response_too_large", Client, false),
        (refused(400), 400, "external_refused", Client, false),
        (refused(413), 413, "external_refused", Client, false),
        (Error::ExternalTooLong, 400, "context_length_exceeded", Client, false),
        (Error::ExternalFailed, 502, "external_failed", Node, true),
    ];
    for (error, status, code, origin, retry) in table {
        assert_eq!((error.status(), error.code()), (status, code), "{error}");
        assert_eq!((error.origin(), error.is_retryable()), (origin, retry), "{error}");
        assert!(!matches!(error.status(), 429 | 503) || error.retry_after().is_some(), "{error}");
    }
}

#[test]
fn a_full_queue_says_by_which_limit() {
    let reasons = QueueLimit::ALL.map(|full| queue_full(full).reason());
    assert_eq!(reasons, ["queue_full", "queue_full_model", "queue_full_tenant", "queue_full_user"]);
    let messages: std::collections::BTreeSet<_> =
        QueueLimit::ALL.map(|full| queue_full(full).to_string()).into();
    assert_eq!(messages.len(), 4);
    assert!(QueueLimit::ALL.iter().all(|full| queue_full(*full).is_overload()));
}

#[test]
fn limits_of_a_user_are_told_from_those_of_the_key() {
    let limited = |limit, scope| Error::RateLimited { limit, scope, wait: Duration::from_secs(3) };
    let (key, user) = (LimitScope::Key, LimitScope::User);
    let limits = [RateLimit::Requests, RateLimit::Tokens, RateLimit::Concurrent];
    for limit in limits {
        let [key, user] = [key, user].map(|scope| limited(limit, scope));
        assert_eq!(key.reason().replace("limit_", "limit_user_"), user.reason());
        assert!(key.to_string().starts_with("this API key has"), "{key}");
        assert!(user.to_string().starts_with("this user of the API key has"), "{user}");
    }
    assert_eq!(limited(RateLimit::Users, key).reason(), "limit_users");
    let [key, user] = [key, user].map(|scope| Error::Quota(BudgetLimit::Tokens, scope));
    assert_eq!([key.reason(), user.reason()], ["insufficient_quota", "insufficient_user_quota"]);
    assert_eq!([key.code(), user.code()], ["insufficient_quota"; 2]);
    assert!(user.to_string().starts_with("this user of the API key has used"), "{user}");
}
