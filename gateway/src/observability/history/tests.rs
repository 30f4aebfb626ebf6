//! Tests of the history with requests that ended at known times.

use super::*;

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn answer(duration: f64, first_token: f64, tokens: u64) -> HistoryEntry<'static> {
    HistoryEntry {
        tenant: Some("ada"),
        end: HistoryOutcome::Answered,
        duration: seconds(duration),
        queue_wait: None,
        first_token: Some(seconds(first_token)),
        prompt_tokens: 0,
        completion_tokens: tokens,
        spent: 0.0,
    }
}

fn refusal() -> HistoryEntry<'static> {
    HistoryEntry { end: HistoryOutcome::Refused, first_token: None, ..answer(0.0, 0.0, 0) }
}

fn tokens(recent: &RecentHistory, now: f64) -> Vec<f64> {
    recent.points(seconds(now)).iter().map(|p| p.rates.completion_tokens * 5.0).collect()
}

#[test]
fn tokens_are_counted_over_the_time_that_they_took() {
    let mut recent = RecentHistory::default();
    // Generated from second 6 to second 16.
    recent.record(&answer(12.0, 2.0, 100), seconds(16.0));
    let told: Vec<i64> = tokens(&recent, 20.0).iter().map(|t| t.round() as i64).collect();
    assert_eq!(told, [0, 40, 50, 10]);
    let first = recent.points(seconds(20.0));
    let has_wait: Vec<bool> = first.iter().map(|p| p.rates.first_token_p50.is_some()).collect();
    assert_eq!(has_wait, [false, true, false, false], "where the first token came");
    assert_eq!(first[3].rates.requests, 0.2, "where it ended");
}

#[test]
fn prompts_are_counted_while_they_are_read() {
    let mut recent = RecentHistory::default();
    let waited = Some(seconds(5.0));
    let ended = HistoryEntry { queue_wait: waited, prompt_tokens: 50, ..answer(14.0, 10.0, 4) };
    recent.record(&ended, seconds(14.0));
    let told = recent.points(seconds(15.0));
    let told: Vec<f64> = told.iter().map(|p| p.rates.prompt_tokens).collect();
    assert_eq!(told, [0.0, 10.0, 0.0]);
}

#[test]
fn only_whole_steps_of_ten_minutes_are_told() {
    let mut recent = RecentHistory::default();
    assert!(recent.points(seconds(4.9)).is_empty());
    for at in 0..2000 {
        recent.record(&answer(0.5, 0.1, 3), seconds(f64::from(at) + 0.6));
    }
    let told = recent.points(seconds(2001.0));
    assert_eq!(told.len(), 120);
    assert!(told.iter().all(|p| (p.rates.requests - 1.0).abs() < 1e-9), "{told:?}");
    assert_eq!((told[0].seconds_ago, told[119].seconds_ago), (596.0, 1.0));
    let later = recent.points(seconds(9000.0));
    assert!(later.iter().all(|p| p.rates.requests == 0.0), "what was long ago is gone");
}

#[test]
fn an_answer_of_hours_fills_the_ring_and_no_more() {
    let mut recent = RecentHistory::default();
    recent.record(&answer(7200.0, 0.0, 7200), seconds(7200.0));
    let told = tokens(&recent, 7200.0);
    assert_eq!(told.len(), 120);
    assert!(told.iter().all(|t| (t - 5.0).abs() < 1e-6), "{told:?}");
}

#[test]
fn the_last_minute_begins_with_the_gateway() {
    let mut recent = RecentHistory::default();
    recent.record(&answer(1.0, 0.5, 10), seconds(2.0));
    let minute = recent.minute(seconds(2.0));
    assert_eq!((minute.requests, minute.completion_tokens), (0.5, 5.0));
    assert!((minute.first_token_p50.unwrap() - 0.5).abs() < 0.07);
    assert_eq!(recent.minute(seconds(70.0)), Rates::default());
}

#[test]
fn tenants_are_billed_and_bounded() {
    let mut recent = RecentHistory::default();
    recent.record(
        &HistoryEntry { spent: 0.25, prompt_tokens: 7, ..answer(1.0, 0.5, 10) },
        seconds(1.0),
    );
    recent.record(&refusal(), seconds(1.0));
    recent.record(&HistoryEntry { tenant: None, ..refusal() }, seconds(1.0));
    let ada = TenantTotals {
        requests: 2,
        refused: 1,
        prompt_tokens: 7,
        completion_tokens: 10,
        spent: 0.25,
    };
    assert_eq!(recent.tenant_totals("ada"), ada);
    assert_eq!(recent.tenant_totals("bob"), TenantTotals::default());
    assert_eq!(recent.points(seconds(5.0))[0].rates.refused, 0.4);
    for name in 0..TENANTS_MAX + 9 {
        let name = name.to_string();
        recent.record(&HistoryEntry { tenant: Some(&name), ..refusal() }, seconds(1.0));
    }
    assert_eq!(recent.tenants.len(), TENANTS_MAX);
}
