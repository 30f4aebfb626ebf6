//! Tests of the screen with made-up fleets.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{Event, KeyCode};

use super::super::style::{BAD, GOOD, WARNING};
use super::super::tables::style;
use super::super::view::Sort;
use super::*;
use crate::access::limiter::Limiter;
use crate::control::overview::TenantView;
use crate::dispatcher::views::{ExternalView, NodeView, QueueView};
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
        users: Vec::new(),
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
        store: None,
    }
}

#[test]
fn the_store_has_a_line_that_says_whether_it_works() {
    let work = |unfinished, oldest_seconds| WorkView { unfinished, oldest_seconds };
    let (batches, tasks) = (work(2, Some(7300)), work(0, None));
    let mut store = StoreView { available: true, bytes: 3 << 19, batches, tasks };
    let fleet = Overview { store: Some(store.clone()), ..overview(Vec::new()) };
    let line = summary(&fleet)[3].to_string();
    assert_eq!(line, "store: 1.5 MiB   batches 2 (oldest 2h)   responses and jobs 0");
    store.available = false;
    let failing = Overview { store: Some(store), ..overview(Vec::new()) };
    assert_eq!(summary(&failing)[3].style, BAD);
    assert!(summary(&failing)[3].to_string().starts_with("store: FAILS, 1.5 MiB"));
    assert_eq!(summary(&overview(Vec::new())).len(), 3, "without a store");
}

fn names(overview: &Overview, view: View) -> Vec<String> {
    let text = text(&tables(overview, &view));
    let rows = text.lines().skip(1).take(overview.nodes.len());
    rows.map(|row| row.split(' ').next().unwrap().to_string()).collect()
}

fn press(view: &mut View, code: KeyCode) -> bool {
    view.handle(&Event::Key(code.into()))
}

/// A screen of `columns` and `rows`.
fn screen(
    overview: Option<&Overview>,
    problem: Option<&str>,
    view: &mut View,
    (columns, rows): (u16, u16),
) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(frame, overview, problem, view)).unwrap();
    terminal.backend().buffer().clone()
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
    let fleet =
        overview(vec![node("b", 1, Some(5.0)), node("a", 3, None), node("c", 0, Some(9.0))]);
    let mut view = View::default();
    assert_eq!(names(&fleet, view), ["a", "b", "c"]);
    assert!(press(&mut view, KeyCode::Left));
    assert_eq!(view.sort, Sort::Decode);
    assert_eq!(names(&fleet, view), ["c", "b", "a"]);
    press(&mut view, KeyCode::Char('r'));
    assert_eq!(names(&fleet, view), ["a", "b", "c"]);
    view = View { sort: Sort::State, ..View::default() };
    press(&mut view, KeyCode::Right);
    assert_eq!(names(&fleet, view), ["a", "b", "c"], "the busiest first");
    assert!(!press(&mut view, KeyCode::Char('q')));
}

#[test]
fn a_frame_fills_its_terminal_and_scrolls_to_its_end() {
    let nodes = (0..50).map(|i| node(&format!("node-{i:02}"), 0, None)).collect();
    let overview = overview(nodes);
    for size in [(80, 24), (20, 6), (1, 1), (200, 100)] {
        let mut view = View { scroll: 1000, ..View::default() };
        let shown = text(&screen(Some(&overview), Some("gone"), &mut view, size));
        let tenants = ["ada", "a"].iter().any(|name| shown.contains(name));
        assert!(tenants || size.1 == 1, "the end: {shown}");
    }
    let mut view = View::default();
    let first = text(&screen(Some(&overview), None, &mut view, (80, 10)));
    press(&mut view, KeyCode::Down);
    let second = text(&screen(Some(&overview), None, &mut view, (80, 10)));
    let [first, second] = [first, second].map(|s| s.lines().map(String::from).collect::<Vec<_>>());
    assert_eq!(first[6], second[5], "scrolled by a line");
    assert_eq!((first[9].as_str(), second[9].as_str()), (HELP, HELP), "the help stays");
}

#[test]
fn a_frame_without_a_gateway_says_why() {
    let shown = screen(None, Some("no gateway at x"), &mut View::default(), (80, 4));
    assert!(text(&shown).starts_with("no gateway at x\n"), "{shown:?}");
    assert_eq!(shown[(0, 0)].fg, BAD.fg.unwrap());
}

#[test]
fn wide_characters_keep_columns_aligned() {
    let overview = overview(vec![node("節点", 0, None), node("abcd", 0, None)]);
    let page = page(&overview);
    assert!(page.contains("\n節点   ready"), "{page}");
    assert!(page.contains("\nabcd   ready"), "{page}");
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
    assert_eq!(styles, [BAD, WARNING, GOOD]);
    let external = ExternalView { node: ejected, spent_today: 0.5, spend_day_max: Some(2.0) };
    let fleet = Overview { external: vec![external], ..overview(vec![node("c", 0, None)]) };
    let shown = tables(&fleet, &View::default());
    assert_eq!([shown[(0, 1)].fg, shown[(0, 4)].fg], [GOOD, BAD].map(|style| style.fg.unwrap()));
    assert!(text(&shown).contains("0.5000  2.00"), "{shown:?}");
}
