//! Tests of the screen with made-up fleets.

use super::*;
use crate::access::limiter::Limiter;
use crate::dispatcher::views::QueueView;
use crate::observability::history::{Rates, TenantTotals};

fn node(name: &str, busy: u32, decode: Option<f32>) -> NodeView {
    NodeView {
        name: name.into(),
        state: "ready".into(),
        cordoned: false,
        ejected: false,
        slots: 4,
        busy,
        leased: busy,
        models: vec!["m".into()],
        engine_restarts: 0,
        prefill_tokens_per_second: None,
        decode_tokens_per_second: decode,
        linked_seconds: 9,
        address: "joined".into(),
        vitals: None,
    }
}

fn overview(nodes: Vec<NodeView>) -> Overview {
    let tenant = TenantView {
        name: "ada".into(),
        class_max: "interactive".into(),
        used: TenantTotals { requests: 12, ..TenantTotals::default() },
        standing: Limiter::default().usage(),
    };
    let waiting = QueueView { class: "batch".into(), waiting: 3, longest_wait_seconds: Some(1.25) };
    Overview {
        version: "1.2.3".into(),
        uptime_seconds: 7300,
        nodes,
        external: Vec::new(),
        queue: vec![waiting],
        retrying: 0,
        requests_in_flight: 5,
        minute: Rates { completion_tokens: 45.25, first_token_p50: Some(0.21), ..Rates::default() },
        tenants: vec![tenant],
        models: vec!["m".into()],
    }
}

fn names(nodes: &[NodeView], view: View) -> Vec<String> {
    let rows = super::nodes(nodes, &view);
    let first = |line: &Line| line.text.split(' ').next().unwrap().to_string();
    rows.iter().skip(1).map(first).collect()
}

#[test]
fn everything_is_told_once() {
    let text = page(&overview(vec![node("a", 1, Some(12.5)), node("bee", 4, None)]));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("1.2.3   up 2h   nodes 2/2 ready   slots 5/8 busy"), "{text}");
    assert!(lines[1].contains("tokens 45.2/s   first token p50 0.21s p95 -"), "{text}");
    assert_eq!(lines[2], "waiting: batch 3 (1.25s)   for another node 0");
    assert!(lines[4].starts_with("NODE*  STATE  BUSY"), "{text}");
    assert!(lines[5].starts_with("a      ready   1/4            -        12.5"), "{text}");
    assert!(lines[6].starts_with("bee    ready   4/4"), "{text}");
    assert!(lines[9].starts_with("ada"), "{text}");
}

#[test]
fn nodes_are_in_the_order_that_was_chosen() {
    let nodes = [node("b", 1, Some(5.0)), node("a", 3, None), node("c", 0, Some(9.0))];
    let mut view = View::default();
    assert_eq!(names(&nodes, view), ["a", "b", "c"]);
    assert!(view.press(Key::Left));
    assert_eq!(
        (view.sort, names(&nodes, view)),
        (Sort::Decode, ["c", "b", "a"].map(String::from).to_vec())
    );
    view.press(Key::Reverse);
    assert_eq!(names(&nodes, view), ["a", "b", "c"]);
    view = View { sort: Sort::State, ..View::default() };
    view.press(Key::Right);
    assert_eq!(names(&nodes, view), ["a", "b", "c"], "the busiest first");
    assert!(!view.press(Key::Quit));
}

#[test]
fn a_frame_fills_its_terminal_and_is_never_larger() {
    let nodes = (0..50).map(|i| node(&format!("node-{i:02}"), 0, None)).collect();
    let overview = overview(nodes);
    for size in [(80, 24), (20, 5), (1, 1), (200, 100)] {
        let mut view = View { scroll: 1000, ..View::default() };
        let frame = frame(Some(&overview), Some("gone"), &mut view, size);
        assert_eq!(frame.len(), size.1, "{size:?}");
        assert!(frame.iter().all(|line| line.text.chars().count() <= size.0), "{size:?}");
    }
    let mut view = View::default();
    let first = frame(Some(&overview), None, &mut view, (80, 10));
    view.press(Key::Down);
    let second = frame(Some(&overview), None, &mut view, (80, 10));
    assert_eq!(first[6], second[5], "scrolled by a line");
    assert_eq!(first[9], second[9], "the help stays");
}

#[test]
fn a_frame_without_a_gateway_says_why() {
    let frame = frame(None, Some("no gateway at x"), &mut View::default(), (80, 4));
    assert_eq!((frame[0].text.as_str(), frame[0].style), ("no gateway at x", Style::Bad));
}

#[test]
fn a_name_cannot_speak_to_the_terminal() {
    let text = page(&overview(vec![node("a\x1b]0;x\x07\u{202e}\u{9b}b", 0, None)]));
    assert!(text.contains("a?]0;x???b") && !text.contains('\x1b'), "{text}");
}

#[test]
fn what_is_wrong_stands_out() {
    let ejected = NodeView { ejected: true, ..node("a", 0, None) };
    let cordoned = NodeView { cordoned: true, ..node("b", 0, None) };
    let styles = [&ejected, &cordoned, &node("c", 0, None)].map(style);
    assert_eq!(styles, [Style::Bad, Style::Warning, Style::Good]);
    let external = ExternalView { node: ejected, spent_today: 0.5, spend_day_max: Some(2.0) };
    let table = externals(&[external]);
    assert!(table[1].text.contains("0.5000  2.00"), "{table:?}");
}
