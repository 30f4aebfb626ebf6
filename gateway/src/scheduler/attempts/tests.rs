//! Tests of the attempts from their driver's point of view. The storm simulation runs them with a
//! whole fleet.

use std::sync::Arc;

use inference_protocol::fleet::ModelStatus;

use super::*;
use crate::scheduler::fleet::EngineId;
use crate::scheduler::usage::Task;

const NOW: Duration = Duration::from_secs(100);
const LATE: Duration = Duration::from_secs(2);

fn attempts(hedge: Option<Duration>, external: ExternalPolicy) -> Attempts {
    let settings = AttemptSettings {
        retries_max: 3,
        hedge,
        first_token: Duration::from_secs(600),
        resume: Duration::from_secs(30),
    };
    let (tokens_max, choices, has_logprobs, echoes) = (Some(50), 1, false, false);
    let task = Task::Generate { tokens_max, choices, has_logprobs, echoes };
    let usage = UsageLimits::new(100, task);
    let facts = RequestProperties { usage, external, is_streamed: true, deadline: NOW };
    let mut attempts = Attempts::new(settings, facts, Resume::new(1, 0));
    attempts.start();
    attempts
}

fn slot(endpoint: u64, is_external: bool) -> GrantedSlot {
    let (id, digest) = ("m".to_string(), "d".to_string());
    let model = Arc::new(ModelStatus { id, digest, context_tokens: 512, ..ModelStatus::default() });
    GrantedSlot { engine: EngineId { endpoint, engine_restarts: 0 }, model, is_external }
}

/// Pending actions in short form.
fn asked(attempts: &mut Attempts) -> Vec<String> {
    let actions = std::iter::from_fn(|| attempts.next_action());
    let short = |action| match action {
        AttemptAction::Acquire { purpose, constraints, .. } => {
            let tried: Vec<u64> = constraints.tried.iter().map(|engine| engine.endpoint).collect();
            format!("acquire {purpose:?} beside {tried:?}")
        }
        AttemptAction::Withdraw(purpose) => format!("withdraw {purpose:?}"),
        AttemptAction::Send { attempt, purpose, .. } => format!("send {attempt} {purpose:?}"),
        AttemptAction::Release(attempt, AttemptEnd { outcome, billed_usage, .. }) => {
            let pays = billed_usage.map_or(String::new(), |p| format!(", pays {}", p.completion));
            format!("release {attempt} {outcome:?}{pays}")
        }
        AttemptAction::Deliver(events) => {
            format!("deliver {}", String::from_utf8_lossy(&events).trim())
        }
        AttemptAction::Progressed(attempt) => format!("progressed {attempt}"),
        AttemptAction::Hedged { by_rival } => format!("hedged {by_rival}"),
        AttemptAction::Retried(error) => format!("retried {}", error.code()),
        AttemptAction::Fail(error) => format!("fail {}", error.code()),
        AttemptAction::Quarantine => "quarantine".into(),
        AttemptAction::Preempted => "preempted".into(),
        AttemptAction::RetryRefused => "retry refused".into(),
        AttemptAction::Moved => "moved".into(),
        AttemptAction::Complete => "complete".into(),
        other => format!("{other:?}"),
    };
    actions.map(short).collect()
}

fn grant(attempts: &mut Attempts, purpose: Purpose, slot: GrantedSlot) -> AttemptId {
    attempts.on_granted(purpose, slot, NOW, &mut || true)
}

/// Starts an attempt and its event stream.
fn stream_hides_usage(attempts: &mut Attempts, slot: GrantedSlot) -> AttemptId {
    let id = grant(attempts, Purpose::Next, slot);
    attempts.on_stream_start(id, false);
    asked(attempts);
    id
}

fn say(attempts: &mut Attempts, id: AttemptId, text: &str, tokens: &str) {
    let block = format!(": t 0 {tokens}\ndata: {text}\n\n");
    attempts.on_block(id, &block.into_bytes().into(), NOW + LATE, &mut || true);
}

#[test]
fn a_response_is_delivered_and_gives_its_slot_back_when_it_is_complete() {
    let mut attempts = attempts(None, ExternalPolicy::Never);
    assert_eq!(asked(&mut attempts), ["acquire Next beside []"]);
    let id = grant(&mut attempts, Purpose::Next, slot(7, false));
    assert_eq!(asked(&mut attempts), ["send 0 Next"]);
    attempts.on_stream_start(id, false);
    let block = Bytes::from_static(b"data: {\"choices\":[]}\n\ndata: [DONE]\n\n");
    attempts.on_block(id, &block, NOW, &mut || true);
    let delivered = "deliver data: {\"choices\":[]}\n\ndata: [DONE]";
    assert_eq!(asked(&mut attempts), ["progressed 0", delivered, "release 0 Answered", "complete"]);
    assert!(attempts.is_over() && attempts.is_complete());
    attempts.on_client_disconnect();
    assert_eq!(asked(&mut attempts), [""; 0], "nothing is left");
}

#[test]
fn a_failed_attempt_goes_elsewhere_and_what_comes_of_it_later_is_ignored() {
    let mut attempts = attempts(None, ExternalPolicy::Never);
    let first = stream_hides_usage(&mut attempts, slot(7, false));
    attempts.on_failure(first, Error::NodeLost.into(), NOW, &mut || true);
    let elsewhere = ["release 0 Failed", "retried node_lost", "acquire Next beside [7]"];
    assert_eq!(asked(&mut attempts), elsewhere);
    say(&mut attempts, first, "{}", "1");
    attempts.on_failure(first, Error::NodeLost.into(), NOW, &mut || true);
    assert_eq!(asked(&mut attempts), [""; 0]);
    attempts.on_not_granted(Purpose::Next, Error::NoNode);
    assert_eq!(asked(&mut attempts), ["fail node_lost"], "that says more than that none is left");
}

#[test]
fn a_request_that_two_engines_died_of_is_quarantined() {
    let mut attempts = attempts(None, ExternalPolicy::Never);
    for endpoint in [7, 8] {
        let id = stream_hides_usage(&mut attempts, slot(endpoint, false));
        attempts.on_failure(id, Error::EngineLost.into(), NOW, &mut || true);
    }
    let end = ["release 1 Failed", "quarantine", "fail request_quarantined"];
    let asked = asked(&mut attempts);
    assert_eq!(asked[asked.len() - 3..], end.map(String::from));
}

#[test]
fn the_second_engine_that_dies_ends_the_attempt_beside_it_too() {
    let mut attempts = attempts(Some(LATE), ExternalPolicy::Never);
    let first = stream_hides_usage(&mut attempts, slot(7, false));
    attempts.on_failure(first, Error::EngineLost.into(), NOW, &mut || true);
    let second = stream_hides_usage(&mut attempts, slot(8, false));
    attempts.on_hedge_timer(second, NOW + LATE);
    grant(&mut attempts, Purpose::Hedge, slot(9, false));
    asked(&mut attempts);
    attempts.on_failure(second, Error::EngineLost.into(), NOW + LATE, &mut || true);
    let end = ["release 1 Failed", "release 2 Unknown", "quarantine", "fail request_quarantined"];
    assert_eq!(asked(&mut attempts), end);
}

#[test]
fn a_retry_that_the_budget_refuses_ends_the_request() {
    let mut attempts = attempts(None, ExternalPolicy::Never);
    let id = stream_hides_usage(&mut attempts, slot(7, false));
    attempts.on_failure(id, Error::NodeRefused(503).into(), NOW, &mut || false);
    let end = ["release 0 Unknown", "retry refused", "fail node_refused"];
    assert_eq!(asked(&mut attempts), end);
}

#[test]
fn a_late_first_token_is_asked_of_a_second_node_and_the_slower_one_is_canceled() {
    let mut attempts = attempts(Some(LATE), ExternalPolicy::Prefer);
    let first = grant(&mut attempts, Purpose::Next, slot(7, false));
    attempts.on_hedge_timer(first, NOW + LATE);
    asked(&mut attempts);
    attempts.on_granted(Purpose::Hedge, slot(8, false), NOW + LATE, &mut || true);
    attempts.on_stream_start(1, false);
    assert_eq!(asked(&mut attempts), ["send 1 Hedge"]);
    say(&mut attempts, 1, "{}", "1");
    let answered = asked(&mut attempts);
    assert_eq!(answered[..2], ["release 0 Failed", "hedged true"], "it hung for much longer");
    say(&mut attempts, first, "{}", "2");
    assert_eq!(asked(&mut attempts), [""; 0], "the loser is not heard");
    attempts.on_failure(1, Error::NodeLost.into(), NOW + LATE, &mut || true);
    let elsewhere = asked(&mut attempts);
    assert_eq!(elsewhere.last().unwrap(), "acquire Next beside [7, 8]", "not the one that hung");
}

#[test]
fn a_hedge_needs_the_retry_budget_and_a_first_token_that_is_still_missing() {
    let mut attempts = attempts(Some(LATE), ExternalPolicy::Prefer);
    let first = stream_hides_usage(&mut attempts, slot(7, false));
    attempts.on_hedge_timer(first, NOW + LATE);
    assert_eq!(asked(&mut attempts), ["acquire Hedge beside [7]"]);
    attempts.on_granted(Purpose::Hedge, slot(8, false), NOW, &mut || false);
    assert_eq!(asked(&mut attempts), ["release 1 Unknown"]);
    say(&mut attempts, first, "{}", "1");
    asked(&mut attempts);
    attempts.on_hedge_timer(first, NOW + LATE);
    assert_eq!(asked(&mut attempts), [""; 0]);
}

#[test]
fn an_external_attempt_is_paid_however_it_ends_and_not_if_it_was_refused() {
    for (is_sent, paid) in [(true, ", pays 0"), (false, "")] {
        let mut attempts = attempts(None, ExternalPolicy::Overflow);
        let id = grant(&mut attempts, Purpose::Next, slot(7, true));
        asked(&mut attempts);
        attempts.record_measurements(id, MeasuredUsage { is_sent, ..MeasuredUsage::default() });
        attempts.on_client_disconnect();
        assert_eq!(asked(&mut attempts), [format!("release 0 Unknown{paid}")]);
    }
}

#[test]
fn a_response_leaves_a_node_that_drains_once_there_is_another_slot() {
    let mut attempts = attempts(None, ExternalPolicy::Never);
    let first = stream_hides_usage(&mut attempts, slot(7, false));
    say(&mut attempts, first, "{}", "1");
    asked(&mut attempts);
    attempts.on_node_leaving(first, NOW);
    assert_eq!(asked(&mut attempts), ["acquire Move beside [7]"]);
    attempts.on_not_granted(Purpose::Move, Error::NoNode);
    assert_eq!(asked(&mut attempts), [""; 0], "it may still end where it is");
    attempts.on_node_leaving(first, NOW);
    grant(&mut attempts, Purpose::Move, slot(8, false));
    let moved = ["acquire Move beside [7]", "moved", "release 0 Unknown", "send 1 Move"];
    assert_eq!(asked(&mut attempts), moved);
}

#[test]
fn a_response_stays_on_a_draining_node_once_it_has_text_that_no_other_can_continue() {
    let mut attempts = attempts(None, ExternalPolicy::Never);
    let first = stream_hides_usage(&mut attempts, slot(7, false));
    asked(&mut attempts);
    attempts.on_node_leaving(first, NOW);
    // Text without a resume mark comes while the slot is waited for.
    attempts.on_block(first, &Bytes::from_static(b"data: {}\n\n"), NOW, &mut || true);
    grant(&mut attempts, Purpose::Move, slot(8, false));
    let stayed =
        ["acquire Move beside [7]", "progressed 0", "deliver data: {}", "release 1 Unknown"];
    assert_eq!(asked(&mut attempts), stayed);
}

#[test]
fn a_response_gives_its_slot_to_a_more_urgent_one_and_continues_later_also_where_it_was() {
    let mut attempts = attempts(None, ExternalPolicy::Never);
    let first = stream_hides_usage(&mut attempts, slot(7, false));
    say(&mut attempts, first, "{}", "1");
    asked(&mut attempts);
    attempts.on_preempted(first + 1, NOW);
    assert_eq!(asked(&mut attempts), [""; 0], "another attempt was meant");
    attempts.on_preempted(first, NOW);
    assert_eq!(asked(&mut attempts), ["preempted", "release 0 Unknown", "acquire Next beside []"]);
    attempts.on_preempted(first, NOW);
    grant(&mut attempts, Purpose::Next, slot(7, false));
    assert_eq!(asked(&mut attempts), ["send 1 Next"]);
    assert_eq!(attempts.resume().choices[0].tokens, [1]);
}

#[test]
fn a_response_that_no_node_can_continue_keeps_its_slot() {
    let mut attempts = attempts(None, ExternalPolicy::Never);
    let first = stream_hides_usage(&mut attempts, slot(7, false));
    attempts.on_block(first, &Bytes::from_static(b"data: {}\n\n"), NOW, &mut || true);
    asked(&mut attempts);
    attempts.on_preempted(first, NOW);
    assert_eq!(asked(&mut attempts), [""; 0]);
}

#[test]
fn a_slot_that_comes_too_late_is_given_back() {
    let mut attempts = attempts(None, ExternalPolicy::Never);
    attempts.on_client_disconnect();
    assert_eq!(asked(&mut attempts), ["acquire Next beside []", "withdraw Next"]);
    grant(&mut attempts, Purpose::Next, slot(7, false));
    assert_eq!(asked(&mut attempts), ["release 0 Unknown"]);
    assert_eq!(attempts.work(), Some(ActualWork::Nothing), "it was never sent");
}

#[test]
fn the_progress_of_a_prefill_is_passed_on_and_decides_no_race() {
    let mut attempts = attempts(Some(LATE), ExternalPolicy::Never);
    let first = stream_hides_usage(&mut attempts, slot(7, false));
    let progress = Bytes::from_static(b": p data: {}\n\n");
    attempts.on_block(first, &progress, NOW, &mut || true);
    assert_eq!(asked(&mut attempts), ["deliver data: {}"]);
    attempts.on_hedge_timer(first, NOW + LATE);
    assert_eq!(asked(&mut attempts), ["acquire Hedge beside [7]"], "the first token is late");
    let second = grant(&mut attempts, Purpose::Hedge, slot(8, false));
    attempts.on_stream_start(second, false);
    assert_eq!(asked(&mut attempts), ["send 1 Hedge"]);
    for (id, delivered) in [(second, &[][..]), (first, &["deliver data: {}"][..])] {
        attempts.on_block(id, &progress, NOW + LATE, &mut || true);
        assert_eq!(asked(&mut attempts), delivered);
    }
    say(&mut attempts, second, "{}", "1");
    let won = ["release 0 Unknown", "hedged true", "progressed 1", "deliver data: {}"];
    assert_eq!(asked(&mut attempts), won);
    attempts.on_failure(second, Error::NodeLost.into(), NOW + LATE, &mut || true);
    let elsewhere = asked(&mut attempts);
    assert!(elsewhere.iter().any(|action| action.starts_with("acquire Next")), "{elsewhere:?}");
    assert_eq!(attempts.resume().choices[0].events, 1, "progress is no event of the response");
}

#[test]
fn a_usage_that_cannot_be_is_no_sample_of_what_requests_cost() {
    for (completion, is_possible) in [(1, true), (4000, false)] {
        let mut attempts = attempts(None, ExternalPolicy::Never);
        let id = stream_hides_usage(&mut attempts, slot(7, false));
        say(&mut attempts, id, "{}", "1");
        let usage = format!(": u 5 {completion} 0\ndata: usage\n\ndata: [DONE]\n\n");
        attempts.on_block(id, &usage.into_bytes().into(), NOW + LATE, &mut || true);
        let mut actions = std::iter::from_fn(|| attempts.next_action());
        let end = actions.find_map(|action| match action {
            AttemptAction::Release(_, end) => Some(end),
            _ => None,
        });
        let end = end.unwrap();
        assert_eq!((end.cost_sample.is_some(), !end.has_misreported), (is_possible, is_possible));
    }
}

#[test]
fn a_response_that_has_failed_can_still_be_continued_only_with_its_model_file() {
    let mut attempts = attempts(None, ExternalPolicy::Never);
    let id = stream_hides_usage(&mut attempts, slot(7, false));
    assert_eq!(attempts.origin(), None);
    say(&mut attempts, id, "{}", "1");
    attempts.on_failure(id, Error::ResponseTooLarge(9).into(), NOW, &mut || true);
    assert!(attempts.is_over());
    assert_eq!(attempts.resume().choices[0].tokens, [1]);
    assert_eq!(attempts.origin().map(|model| &*model.digest), Some("d"));
}
