//! PURE. Renders the screen: lines of text and their styles.

use super::keys::Key;
use crate::commands::nodes::{rate, span, state};
use crate::control::overview::{Overview, TenantView};
use crate::dispatcher::views::ExternalView;
use crate::dispatcher::views::NodeView;

/// Style of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Default text.
    Plain,
    /// A heading.
    Head,
    /// All is well.
    Good,
    /// Worth a look.
    Warning,
    /// Needs action.
    Bad,
    /// Less important.
    Faint,
}

/// A line on the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Text without control characters.
    pub text: String,
    /// Its style.
    pub style: Style,
}

/// Sort order of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Sort {
    /// By name.
    #[default]
    Name,
    /// By state.
    State,
    /// By busy slots.
    Busy,
    /// By prefill speed.
    Prefill,
    /// By decode speed.
    Decode,
}

impl Sort {
    const ALL: [Self; 5] = [Self::Name, Self::State, Self::Busy, Self::Prefill, Self::Decode];

    fn head(self) -> &'static str {
        match self {
            Self::Name => "NODE",
            Self::State => "STATE",
            Self::Busy => "BUSY",
            Self::Prefill => "PREFILL T/S",
            Self::Decode => "DECODE T/S",
        }
    }
}

/// The operator's view settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// Sort order of nodes.
    pub sort: Sort,
    /// True to reverse the order.
    pub is_reversed: bool,
    /// Lines scrolled off the top.
    pub scroll: usize,
}

impl View {
    /// Handles a key. Returns false to quit.
    pub(crate) fn press(&mut self, key: Key) -> bool {
        let count = Sort::ALL.len();
        let at = Sort::ALL.iter().position(|sort| *sort == self.sort).unwrap_or(0);
        let sort = |at: usize| Sort::ALL.get(at % count).copied().unwrap_or_default();
        match key {
            Key::Quit => return false,
            Key::Up => self.scroll = self.scroll.saturating_sub(1),
            Key::Down => self.scroll += 1,
            Key::Left => self.sort = sort(at + count - 1),
            Key::Right => self.sort = sort(at + 1),
            Key::Reverse => self.is_reversed = !self.is_reversed,
        }
        true
    }
}

const HELP: &str = "q quit   left/right order   r reverse   up/down scroll";

/// Renders exactly one screen: the summary at the top, the help at the bottom, and the scrolled
/// tables in between.
pub(crate) fn frame(
    overview: Option<&Overview>,
    problem: Option<&str>,
    view: &mut View,
    (columns, rows): (usize, usize),
) -> Vec<Line> {
    let mut fixed = overview.map_or_else(Vec::new, summary);
    fixed.extend(problem.map(|why| line(why, Style::Bad)));
    fixed.push(line("", Style::Plain));
    let body = overview.map_or_else(Vec::new, |overview| tables(overview, view));
    let room = rows.saturating_sub(fixed.len() + 1);
    view.scroll = view.scroll.min(body.len().saturating_sub(room));
    let mut shown: Vec<Line> = body.into_iter().skip(view.scroll).take(room).collect();
    shown.resize(room, line("", Style::Plain));
    let mut all: Vec<Line> = fixed.into_iter().chain(shown).collect();
    all.push(line(HELP, Style::Faint));
    all.truncate(rows);
    let cut = |line: Line| Line { text: line.text.chars().take(columns).collect(), ..line };
    all.into_iter().map(cut).collect()
}

/// Renders everything once, without a screen.
pub(crate) fn page(overview: &Overview) -> String {
    let mut all = summary(overview);
    all.push(line("", Style::Plain));
    all.extend(tables(overview, &View::default()));
    all.iter().map(|line| line.text.trim_end()).collect::<Vec<_>>().join("\n")
}

fn summary(overview: &Overview) -> Vec<Line> {
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
    vec![
        line(&head, Style::Head),
        line(&figures, if minute.failed > 0.0 { Style::Bad } else { Style::Plain }),
        line(
            &format!("waiting: {waiting}   for another node {}", overview.retrying),
            if waits { Style::Warning } else { Style::Plain },
        ),
    ]
}

fn tables(overview: &Overview, view: &View) -> Vec<Line> {
    let mut all = nodes(&overview.nodes, view);
    if !overview.external.is_empty() {
        all.push(line("", Style::Plain));
        all.extend(externals(&overview.external));
    }
    all.push(line("", Style::Plain));
    all.extend(tenants(&overview.tenants));
    all
}

fn is_ready(node: &NodeView) -> bool {
    node.state == "ready" && !node.cordoned && !node.ejected
}

fn style(node: &NodeView) -> Style {
    match node.state.as_str() {
        _ if node.ejected => Style::Bad,
        "ready" if !node.cordoned => Style::Good,
        _ => Style::Warning,
    }
}

fn nodes(nodes: &[NodeView], view: &View) -> Vec<Line> {
    let mut nodes: Vec<&NodeView> = nodes.iter().collect();
    let rate_of = |rate: Option<f32>| rate.unwrap_or(-1.0);
    nodes.sort_by(|a, b| {
        // Largest numbers first.
        let order = match view.sort {
            Sort::Name => a.name.cmp(&b.name),
            Sort::State => state(a).cmp(&state(b)),
            Sort::Busy => b.busy.cmp(&a.busy),
            Sort::Prefill => rate_of(b.prefill_tokens_per_second)
                .total_cmp(&rate_of(a.prefill_tokens_per_second)),
            Sort::Decode => {
                rate_of(b.decode_tokens_per_second).total_cmp(&rate_of(a.decode_tokens_per_second))
            }
        };
        let order = order.then_with(|| a.name.cmp(&b.name));
        if view.is_reversed { order.reverse() } else { order }
    });
    let head = |sort: Sort| match (sort == view.sort, view.is_reversed) {
        (false, _) => sort.head().to_string(),
        (true, false) => format!("{}*", sort.head()),
        (true, true) => format!("{}*r", sort.head()),
    };
    let [name, state_head, busy, prefill, decode] = Sort::ALL.map(head);
    let heads = [name, state_head, busy, prefill, decode];
    let [name, state_head, busy, prefill, decode] = heads.each_ref().map(String::as_str);
    let head = [name, state_head, busy, prefill, decode, "RESTARTS", "LINKED", "MODELS"];
    let row = |node: &&NodeView| {
        let cells = vec![
            node.name.clone(),
            state(node),
            format!("{}/{}", node.busy, node.slots),
            rate(node.prefill_tokens_per_second),
            rate(node.decode_tokens_per_second),
            node.engine_restarts.to_string(),
            span(node.linked_seconds),
            node.models.join(","),
        ];
        (style(node), cells)
    };
    table(&head, "LLRRRRRL", nodes.iter().map(row).collect())
}

fn externals(all: &[ExternalView]) -> Vec<Line> {
    let row = |external: &ExternalView| {
        let node = &external.node;
        let most = external.spend_day_max.map_or("-".into(), |max| format!("{max:.2}"));
        let cells = vec![
            node.name.clone(),
            state(node),
            format!("{}/{}", node.busy, node.slots),
            format!("{:.4}", external.spent_today),
            most,
            node.models.join(","),
        ];
        (style(node), cells)
    };
    let head = ["EXTERNAL", "STATE", "BUSY", "SPENT TODAY", "OF", "MODELS"];
    table(&head, "LLRRRL", all.iter().map(row).collect())
}

fn tenants(all: &[TenantView]) -> Vec<Line> {
    let row = |tenant: &TenantView| {
        let used = &tenant.used;
        let cells = vec![
            tenant.name.clone(),
            tenant.standing.running.to_string(),
            used.requests.to_string(),
            used.refused.to_string(),
            used.prompt_tokens.to_string(),
            used.completion_tokens.to_string(),
            format!("{:.4}", used.spent),
        ];
        (Style::Plain, cells)
    };
    let head = ["TENANT", "RUNNING", "REQUESTS", "REFUSED", "PROMPT T", "ANSWER T", "SPENT"];
    table(&head, "LRRRRRR", all.iter().map(row).collect())
}

/// Formats rows below a head. `sides` has one letter per column: L aligns left, R right.
fn table(head: &[&str], sides: &str, rows: Vec<(Style, Vec<String>)>) -> Vec<Line> {
    let head = head.iter().map(ToString::to_string).collect();
    let all: Vec<(Style, Vec<String>)> = std::iter::once((Style::Head, head)).chain(rows).collect();
    let width =
        |i: usize| all.iter().filter_map(|(_, row)| row.get(i)).map(|c| c.chars().count()).max();
    let widths: Vec<usize> = (0..sides.len()).map(|i| width(i).unwrap_or(0)).collect();
    let row = |(style, cells): &(Style, Vec<String>)| {
        let cells = cells.iter().zip(&widths).zip(sides.chars());
        let cells = cells.map(|((cell, width), side)| match side {
            'R' => format!("{cell:>width$}"),
            _ => format!("{cell:width$}"),
        });
        line(&cells.collect::<Vec<_>>().join("  "), *style)
    };
    all.iter().map(row).collect()
}

/// Node, model, and tenant names are foreign input: control characters must not reach the terminal.
fn line(text: &str, style: Style) -> Line {
    let safe = |c: char| if c.is_control() || is_invisible(c) { '?' } else { c };
    Line { text: text.chars().map(safe).collect(), style }
}

/// Characters that change the text direction or are invisible.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
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
