//! PURE. Draws the figures as one SVG image: decode speed by number of parallel requests, prefill
//! speed by prompt length, resident memory by phase.

use std::io;

use plotters::coord::Shift;
use plotters::coord::combinators::BindKeyPoints;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::{Figures, Point};

/// Size of the image in pixels; each chart takes a third of its width.
const SIZE: (u32, u32) = (1260, 420);
const FONT: &str = "sans-serif";
/// Blue and orange: distinguishable with color blindness, and in gray.
const RAW: RGBColor = RGBColor(0x1f, 0x5f, 0xa8);
const SERVED: RGBColor = RGBColor(0xe0, 0x7b, 0x1a);
/// What the machine allows at most.
const LIMIT: RGBColor = RGBColor(0xc4, 0xc4, 0xc4);
const MEMORY: RGBColor = RGBColor(0x4d, 0x8f, 0x57);
const PLAN: RGBColor = RGBColor(0x9a, 0x9a, 0x9a);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
/// Width of a group and of its bars, in units of the x axis.
const GROUP: i32 = 100;
const BARS: i32 = 74;
/// Height of the y axis for a largest value of 1: leaves room for the legend.
const HEADROOM: f64 = 1.22;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawError = DrawingAreaErrorKind<io::Error>;

/// A group of bars, such as a batch size.
struct Group {
    label: String,
    /// Heights and colors.
    bars: Vec<(f64, RGBColor)>,
}

struct Chart {
    title: &'static str,
    x: &'static str,
    y: &'static str,
    groups: Vec<Group>,
    /// Colors and their meaning.
    legend: &'static [(RGBColor, &'static str)],
}

/// Draws the image.
///
/// # Errors
/// The library cannot lay out the charts.
pub(crate) fn svg(title: &str, figures: &Figures) -> Result<String, String> {
    let mut out = String::new();
    draw(&mut out, title, figures).map_err(|e| format!("cannot draw the charts: {e}"))?;
    Ok(out)
}

fn draw(out: &mut String, title: &str, figures: &Figures) -> Result<(), DrawError> {
    let speeds = &[
        (RAW, "raw llama.cpp"),
        (SERVED, "served by the scheduler"),
        (LIMIT, "limit of the machine"),
    ];
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
    let image = SVGBackend::with_string(out, SIZE).into_drawing_area();
    image.fill(&WHITE)?;
    // A file name may contain control characters, which XML does not allow.
    let title = title.replace(char::is_control, " ");
    let image = image.margin(6, 0, 0, 0).titled(&title, (FONT, 20))?;
    let areas = image.split_evenly((1, charts.len()));
    areas.iter().zip(charts).try_for_each(|(area, chart)| chart.draw(area))?;
    image.present()
}

fn pairs(points: &[Point]) -> Vec<Group> {
    let group = |p: &Point| Group {
        label: p.size.to_string(),
        bars: [(p.raw, RAW), (p.served, SERVED)]
            .into_iter()
            .chain(p.limit.map(|limit| (limit, LIMIT)))
            .collect(),
    };
    points.iter().map(group).collect()
}

fn phases(figures: &Figures) -> Vec<Group> {
    let group = |(phase, value): (&str, f64)| {
        let color = if phase == "planned" { PLAN } else { MEMORY };
        let label = match phase {
            "one" => "after 1",
            "many" => "after 16",
            "planned" => "plan",
            other => other,
        };
        Group { label: label.into(), bars: vec![(value, color)] }
    };
    figures.phases().into_iter().map(group).collect()
}

impl Chart {
    fn draw(&self, area: &Area<'_>) -> Result<(), DrawError> {
        let bars = self.bars();
        let most = bars.iter().map(|bar| bar.height).fold(1.0, f64::max);
        let count = self.groups.len() as i32;
        let centers = (0..count).map(|i| i * GROUP + GROUP / 2).collect();
        let x = (0..count.max(1) * GROUP).with_key_points(centers);
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, (FONT, 18))
            .margin(10)
            .x_label_area_size(46)
            .y_label_area_size(62)
            .build_cartesian_2d(x, 0.0..most * HEADROOM)?;
        let group = |x: &i32| self.groups.get((x / GROUP) as usize);
        let label = |x: &i32| group(x).map_or_else(String::new, |group| group.label.clone());
        let decimals = usize::from(most < 5.0);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .y_max_light_lines(0)
            .y_labels(7)
            .bold_line_style(GRID)
            .label_style((FONT, 15))
            .axis_desc_style((FONT, 16))
            .x_label_formatter(&label)
            .y_label_formatter(&|y| format!("{y:.decimals$}"))
            .x_desc(self.x)
            .y_desc(self.y)
            .draw()?;
        for &(color, meaning) in self.legend {
            let bars = bars.iter().filter(|bar| bar.color == color);
            let shape = |bar: &Bar| {
                Rectangle::new([(bar.left, 0.0), (bar.right, bar.height)], color.filled())
            };
            chart.draw_series(bars.map(shape))?.label(meaning).legend(move |(x, y)| {
                Rectangle::new([(x, y - 5), (x + 11, y + 6)], color.filled())
            });
        }
        let above = Pos::new(HPos::Center, VPos::Bottom);
        let font = (FONT, 13).into_text_style(area).pos(above);
        chart.draw_series(bars.iter().map(|bar| {
            let top = ((bar.left + bar.right) / 2, bar.height);
            Text::new(format!("{:.0}", bar.height), top, font.clone())
        }))?;
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .margin(4)
            .legend_area_size(16)
            .label_font((FONT, 15))
            .draw()
    }

    fn bars(&self) -> Vec<Bar> {
        let mut bars = Vec::new();
        for (i, group) in self.groups.iter().enumerate() {
            let width = BARS / group.bars.len() as i32;
            for (n, (height, color)) in group.bars.iter().enumerate() {
                let left = i as i32 * GROUP + (GROUP - BARS) / 2 + width * n as i32;
                let height = if height.is_finite() { height.max(0.0) } else { 0.0 };
                bars.push(Bar { left, right: left + width, height, color: *color });
            }
        }
        bars
    }
}

/// A bar in units of the axes.
struct Bar {
    left: i32,
    right: i32,
    height: f64,
    color: RGBColor,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::report::Figure;

    #[test]
    fn a_picture_has_a_bar_for_every_figure_and_no_markup_from_a_name() {
        let f = |name: &str, value| Figure::new(name, value, None, "");
        let figures = Figures(vec![
            f("decode_batch_1_raw", 40.0),
            f("decode_batch_1_served", 39.0),
            f("decode_batch_1_limit", 80.0),
            f("prefill_128_raw", 200.0),
            f("prefill_128_served", 190.0),
            f("memory_start", 12.0),
            f("memory_planned", 500.0),
        ]);
        let picture = svg("a<b>&\u{1}.gguf", &figures).unwrap();
        assert!(picture.contains("a&lt;b&gt;&amp; .gguf"), "{picture}");
        // Bars, and legend markers.
        for (color, count) in
            [("1F5FA8", 2 + 2), ("E07B1A", 2 + 2), ("C4C4C4", 1 + 2), ("4D8F57", 2), ("9A9A9A", 2)]
        {
            let bars = picture.lines().filter(|line| line.starts_with("<rect"));
            assert_eq!(bars.filter(|bar| bar.contains(color)).count(), count, "{color}: {picture}");
        }
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        assert!(svg("nothing", &Figures::default()).unwrap().ends_with("</svg>\n"));
    }
}
