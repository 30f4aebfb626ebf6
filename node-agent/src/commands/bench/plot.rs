//! PURE. Draws the figures as one SVG image: decode speed by number of parallel requests, prefill
//! speed by prompt length, resident memory by phase.

use std::fmt::Write;

use super::report::{Figures, Point};

/// Width of the image in pixels; each chart takes a third of it.
const WIDTH: f64 = 1260.0;
const HEIGHT: f64 = 420.0;
/// Margins of a chart, from its edges to its axes.
const LEFT: f64 = 70.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 60.0;
const RIGHT: f64 = 24.0;
/// Approximate number of grid lines in a chart.
const LINES: f64 = 5.0;
/// Blue and orange: distinguishable with color blindness, and in gray.
const RAW: &str = "#1f5fa8";
const SERVED: &str = "#e07b1a";
const MEMORY: &str = "#4d8f57";
const PLAN: &str = "#9a9a9a";
const INK: &str = "#222222";

/// A group of bars, such as a batch size.
struct Group {
    label: String,
    /// Heights and colors.
    bars: Vec<(f64, &'static str)>,
}

struct Chart {
    title: &'static str,
    x: &'static str,
    y: &'static str,
    groups: Vec<Group>,
    /// Colors and their meaning.
    legend: &'static [(&'static str, &'static str)],
}

/// Draws the image.
pub(crate) fn svg(title: &str, figures: &Figures) -> String {
    let speeds = &[(RAW, "raw llama.cpp"), (SERVED, "served by the scheduler")];
    let charts = [
        Chart {
            title: "Decode",
            x: "requests side by side",
            y: "tokens/s, all together",
            groups: pairs(&figures.points("decode_batch_")),
            legend: speeds,
        },
        Chart {
            title: "Prefill, one request",
            x: "tokens of the prompt",
            y: "tokens/s",
            groups: pairs(&figures.points("prefill_")),
            legend: speeds,
        },
        Chart {
            title: "Resident memory",
            x: "phase; after so many requests",
            y: "MiB",
            groups: phases(figures),
            legend: &[(MEMORY, "measured (needed: must stay)"), (PLAN, "planned")],
        },
    ];
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\" \
         fill=\"{INK}\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    text(&mut out, (WIDTH / 2.0, 24.0), "middle", 16, title);
    let width = WIDTH / charts.len() as f64;
    for (i, chart) in charts.iter().enumerate() {
        chart.draw(&mut out, i as f64 * width, width);
    }
    out.push_str("</svg>\n");
    out
}

fn pairs(points: &[Point]) -> Vec<Group> {
    let group = |p: &Point| Group {
        label: p.size.to_string(),
        bars: vec![(p.raw, RAW), (p.served, SERVED)],
    };
    points.iter().map(group).collect()
}

fn phases(figures: &Figures) -> Vec<Group> {
    let group = |(phase, value): (&str, f64)| {
        let colour = if phase == "planned" { PLAN } else { MEMORY };
        let label = match phase {
            "one" => "after 1",
            "many" => "after 16",
            "planned" => "plan",
            other => other,
        };
        Group { label: label.into(), bars: vec![(value, colour)] }
    };
    figures.phases().into_iter().map(group).collect()
}

/// A round distance between grid lines, for about [`LINES`] of them: 1, 2 or 5 times a power of
/// ten.
fn distance(most: f64) -> f64 {
    let rough = (most / LINES).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0].into_iter().find(|t| t * power >= rough * 0.999);
    times.unwrap_or(10.0) * power
}

impl Chart {
    fn draw(&self, out: &mut String, x: f64, width: f64) {
        let (left, right) = (x + LEFT, x + width - RIGHT);
        let bottom = HEIGHT - BOTTOM;
        text(out, ((left + right) / 2.0, 54.0), "middle", 15, self.title);
        self.draw_legend(out, left);
        let values = self.groups.iter().flat_map(|g| &g.bars).map(|(v, _)| *v);
        let most = values.filter(|v| v.is_finite()).fold(1.0, f64::max);
        let step = distance(most);
        let top_value = (most / step).ceil() * step;
        let y = |value: f64| bottom - value / top_value * (bottom - TOP);
        let mut line = 0.0;
        while line <= top_value + step / 2.0 {
            let at = y(line);
            let _ = writeln!(
                out,
                "<line x1=\"{left:.1}\" y1=\"{at:.1}\" x2=\"{right:.1}\" y2=\"{at:.1}\" \
                 stroke=\"#dddddd\"/>"
            );
            text(out, (left - 8.0, at + 4.0), "end", 12, &number(line, step));
            line += step;
        }
        self.draw_bars(out, (left, right), &y);
        let _ = writeln!(
            out,
            "<line x1=\"{left:.1}\" y1=\"{bottom:.1}\" x2=\"{right:.1}\" y2=\"{bottom:.1}\" \
             stroke=\"{INK}\"/>"
        );
        text(out, ((left + right) / 2.0, HEIGHT - 16.0), "middle", 13, self.x);
        let (at, middle) = (x + 18.0, (TOP + bottom) / 2.0);
        let _ = writeln!(
            out,
            "<text transform=\"translate({at:.1} {middle:.1}) rotate(-90)\" \
             text-anchor=\"middle\">{}</text>",
            escaped(self.y)
        );
    }

    fn draw_legend(&self, out: &mut String, left: f64) {
        let mut at = left;
        for (colour, meaning) in self.legend {
            let _ = writeln!(
                out,
                "<rect x=\"{at:.1}\" y=\"62\" width=\"11\" height=\"11\" fill=\"{colour}\"/>"
            );
            text(out, (at + 16.0, 72.0), "start", 12, meaning);
            at += 34.0 + 6.6 * meaning.len() as f64;
        }
    }

    fn draw_bars(&self, out: &mut String, (left, right): (f64, f64), y: &dyn Fn(f64) -> f64) {
        let room = (right - left) / self.groups.len().max(1) as f64;
        for (i, group) in self.groups.iter().enumerate() {
            let from = left + room * i as f64;
            let bar = room * 0.74 / group.bars.len().max(1) as f64;
            for (n, (value, colour)) in group.bars.iter().enumerate() {
                let x = from + room * 0.13 + bar * n as f64;
                let (top, bottom) = (y(value.max(0.0)), y(0.0));
                let (wide, high) = ((bar - 1.0).max(1.0), (bottom - top).max(0.0));
                let _ = writeln!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{high:.1}\" \
                     fill=\"{colour}\"/>"
                );
                text(out, (x + wide / 2.0, top - 4.0), "middle", 10, &format!("{value:.0}"));
            }
            let below = HEIGHT - BOTTOM + 17.0;
            text(out, (from + room / 2.0, below), "middle", 12, &group.label);
        }
    }
}

/// Prints as many decimals as grid lines need to differ.
fn number(value: f64, step: f64) -> String {
    if step < 1.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, size: u32, words: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{}</text>",
        escaped(words)
    );
}

/// Escapes text for XML, because a file name may contain anything.
fn escaped(words: &str) -> String {
    let mut out = String::with_capacity(words.len());
    for c in words.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            // XML allows no other control characters, not even as references.
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::report::Figure;

    #[test]
    fn lines_are_at_round_numbers() {
        let about = |most, expected: f64| (distance(most) - expected).abs() < 1e-9;
        assert!(about(103.0, 50.0) && about(100.0, 20.0) && about(45.0, 10.0));
        assert!(about(1.0, 0.2) && about(7.0, 2.0) && about(2400.0, 500.0));
    }

    #[test]
    fn a_picture_has_a_bar_for_every_figure_and_no_markup_from_a_name() {
        let f = |name: &str, value| Figure::new(name, value, None, "");
        let figures = Figures(vec![
            f("decode_batch_1_raw", 40.0),
            f("decode_batch_1_served", 39.0),
            f("prefill_128_raw", 200.0),
            f("prefill_128_served", 190.0),
            f("memory_start", 12.0),
            f("memory_planned", 500.0),
        ]);
        let picture = svg("a<b>&\u{1}.gguf", &figures);
        assert!(picture.contains("a&lt;b&gt;&amp; .gguf"), "{picture}");
        // The background, six legend markers and six bars.
        assert_eq!(picture.matches("<rect").count(), 1 + 6 + 6);
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        assert!(svg("nothing", &Figures::default()).ends_with("</svg>\n"));
    }
}
