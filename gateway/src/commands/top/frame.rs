//! PURE. Draws the screen: the summary at the top, the help at the bottom, and the scrolled tables
//! in between.

use ratatui::Frame;
use ratatui::buffer::{Buffer, CellWidth};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Text};

use super::style::{BAD, FAINT, HEAD, PLAIN, WARNING, safe};
use super::tables::{is_ready, tables};
use super::view::View;
use crate::commands::nodes::span;
use crate::control::overview::{Overview, StoreView, WorkView};

const HELP: &str = "q quit   left/right order   r reverse   up/down scroll";

/// Draws the screen, and limits the scroll position to the end of the tables.
pub(crate) fn draw(
    frame: &mut Frame<'_>,
    overview: Option<&Overview>,
    problem: Option<&str>,
    view: &mut View,
) {
    let mut top = overview.map_or_else(Vec::new, summary);
    top.extend(problem.map(|why| line(why, BAD)));
    let length = Constraint::Length;
    let rows = [length(top.len() as u16), length(1), Constraint::Min(0), length(1)];
    let [top_area, _, body_area, help_area] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(Text::from(top), top_area);
    if let Some(overview) = overview {
        let body = tables(overview, view);
        let hidden = body.area.height.saturating_sub(body_area.height);
        view.scroll = view.scroll.min(hidden);
        copy(&body, view.scroll, frame.buffer_mut(), body_area);
    }
    frame.render_widget(line(HELP, FAINT), help_area);
}

/// Fills `area` with the cells of `from` below its first `scroll` rows.
fn copy(from: &Buffer, scroll: u16, to: &mut Buffer, area: Rect) {
    for position in area.positions() {
        let row = (position.y - area.y).saturating_add(scroll);
        if let (Some(cell), Some(target)) =
            (from.cell((position.x - area.x, row)), to.cell_mut(position))
        {
            target.clone_from(cell);
        }
    }
}

/// Renders everything once as text, for `--once`.
pub(crate) fn page(overview: &Overview) -> String {
    let summary = summary(overview).iter().map(ToString::to_string).collect::<Vec<_>>();
    format!("{}\n\n{}", summary.join("\n"), text(&tables(overview, &View::default())))
}

/// The rows of a buffer, without trailing spaces.
fn text(buffer: &Buffer) -> String {
    let rows = buffer.content.chunks(buffer.area.width.max(1).into()).map(|row| {
        let mut text = String::new();
        let mut cells = row.iter();
        while let Some(cell) = cells.next() {
            text += cell.symbol();
            // A wide character also covers the cells after it.
            let covered = usize::from(cell.symbol().cell_width()).saturating_sub(1);
            cells.by_ref().take(covered).for_each(drop);
        }
        text.trim_end().to_string()
    });
    rows.collect::<Vec<_>>().join("\n")
}

fn summary(overview: &Overview) -> Vec<Line<'static>> {
    let ready = overview.nodes.iter().filter(|node| is_ready(node)).count();
    let slots: u32 = overview.nodes.iter().filter(|n| is_ready(n)).map(|n| n.slots).sum();
    let busy: u32 = overview.nodes.iter().map(|node| node.busy).sum();
    let minute = &overview.minute;
    let first = |wait: Option<f64>| wait.map_or("-".into(), seconds);
    let head = format!(
        "flotilla-gateway {}   up {}   nodes {ready}/{} ready   slots {busy}/{slots} busy   in flight {}",
        overview.version,
        span(overview.uptime_seconds),
        overview.nodes.len(),
        overview.requests_in_flight,
    );
    let figures = format!(
        "last minute: requests {:.1}/s   refused {:.1}/s   failed {:.1}/s   tokens {:.1}/s   \
         first token p50 {} p95 {}",
        minute.requests,
        minute.refused,
        minute.failed,
        minute.completion_tokens,
        first(minute.first_token_p50),
        first(minute.first_token_p95),
    );
    let classes = overview.queue.iter().map(|class| {
        let wait = class.longest_wait_seconds.map(|wait| format!(" ({})", seconds(wait)));
        format!("{} {}{}", class.class, class.waiting, wait.unwrap_or_default())
    });
    let waiting = classes.collect::<Vec<_>>().join("   ");
    let waits = overview.queue.iter().any(|class| class.waiting > 0);
    let mut lines = vec![
        line(&head, HEAD),
        line(&figures, if minute.failed > 0.0 { BAD } else { PLAIN }),
        line(
            &format!("waiting: {waiting}   for another node {}", overview.retrying),
            if waits { WARNING } else { PLAIN },
        ),
    ];
    lines.extend(overview.store.as_ref().map(stored));
    lines
}

fn stored(store: &StoreView) -> Line<'static> {
    let oldest = |work: &WorkView| {
        work.oldest_seconds.map(|age| format!(" (oldest {})", span(age))).unwrap_or_default()
    };
    let StoreView { available, bytes, batches, tasks } = store;
    let state = if *available { "" } else { "FAILS, " };
    let text = format!(
        "store: {state}{:.1} MiB   batches {}{}   responses and jobs {}{}",
        *bytes as f64 / f64::from(1 << 20),
        batches.unfinished,
        oldest(batches),
        tasks.unfinished,
        oldest(tasks),
    );
    line(&text, if *available { PLAIN } else { BAD })
}

fn line(text: &str, style: Style) -> Line<'static> {
    Line::styled(safe(text), style)
}

fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.2}s"),
        s if s < 100.0 => format!("{s:.0}s"),
        s => span(s as u64),
    }
}

#[cfg(test)]
mod tests;
