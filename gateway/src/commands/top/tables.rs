//! PURE. The tables of nodes, external endpoints, and tenants.

use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Rect, Size};
use ratatui::style::Style;
use ratatui::text::Text;
use ratatui::widgets::{Row, Table, Widget};

use super::style::{BAD, GOOD, HEAD, PLAIN, WARNING, safe};
use super::view::{Sort, View};
use crate::commands::nodes::{rate, span, state};
use crate::control::overview::{Overview, TenantView};
use crate::dispatcher::views::{ExternalView, NodeView};

/// Columns between two columns of a table.
const SPACING: u16 = 2;

/// Draws the tables below each other, as large as they are.
pub(super) fn tables(overview: &Overview, view: &View) -> Buffer {
    let mut tables = vec![nodes(&overview.nodes, view)];
    if !overview.external.is_empty() {
        tables.push(externals(&overview.external));
    }
    tables.push(tenants(&overview.tenants));
    let mut areas = Vec::new();
    let mut y = 0u16;
    for (_, size) in &tables {
        areas.push(Rect::new(0, y, size.width, size.height));
        // An empty line between two tables.
        y = y.saturating_add(size.height).saturating_add(1);
    }
    let mut buffer = Buffer::empty(areas.iter().fold(Rect::ZERO, |all, area| all.union(*area)));
    for ((table, _), area) in tables.into_iter().zip(areas) {
        table.render(area, &mut buffer);
    }
    buffer
}

pub(super) fn is_ready(node: &NodeView) -> bool {
    node.state == "ready" && !node.cordoned && !node.ejected
}

pub(super) fn style(node: &NodeView) -> Style {
    match node.state.as_str() {
        _ if node.ejected => BAD,
        "ready" if !node.cordoned => GOOD,
        _ => WARNING,
    }
}

fn nodes(nodes: &[NodeView], view: &View) -> (Table<'static>, Size) {
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
    let title = |sort: Sort| match (sort == view.sort, view.is_reversed) {
        (false, _) => sort.head().to_string(),
        (true, false) => format!("{}*", sort.head()),
        (true, true) => format!("{}*r", sort.head()),
    };
    let mut head = Sort::ALL.map(title).to_vec();
    head.extend(["RESTARTS", "LINKED", "MODELS"].map(String::from));
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
    table(head, "LLRRRRRL", nodes.iter().map(row).collect())
}

fn externals(all: &[ExternalView]) -> (Table<'static>, Size) {
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
    table(head.map(String::from).to_vec(), "LLRRRL", all.iter().map(row).collect())
}

fn tenants(all: &[TenantView]) -> (Table<'static>, Size) {
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
        (PLAIN, cells)
    };
    let head = ["TENANT", "RUNNING", "REQUESTS", "REFUSED", "PROMPT T", "COMPLETION T", "SPENT"];
    table(head.map(String::from).to_vec(), "LRRRRRR", all.iter().map(row).collect())
}

/// A table as wide as its widest cells, and its size. `sides` has one letter per column: L aligns
/// left, R right.
fn table(
    head: Vec<String>,
    sides: &str,
    rows: Vec<(Style, Vec<String>)>,
) -> (Table<'static>, Size) {
    let mut widths = vec![0; sides.len()];
    let rows: Vec<Row<'static>> = std::iter::once((HEAD, head))
        .chain(rows)
        .map(|(style, cells)| {
            let cells = cells.iter().zip(sides.chars()).zip(&mut widths);
            let cells = cells.map(|((cell, side), width)| {
                let text = Text::from(safe(cell));
                *width = text.width().max(*width);
                text.alignment(if side == 'R' { Alignment::Right } else { Alignment::Left })
            });
            Row::new(cells.collect::<Vec<_>>()).style(style)
        })
        .collect();
    let limited = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
    let height = limited(rows.len());
    let widths: Vec<u16> = widths.into_iter().map(limited).collect();
    let width = widths.iter().fold(0u16, |all, width| all.saturating_add(width + SPACING));
    let size = Size::new(width.saturating_sub(SPACING), height);
    (Table::new(rows, widths).column_spacing(SPACING), size)
}
