//! `flotilla-agent plan --requests-per-day`: how many nodes a load takes, and their cost compared
//! with GPUs.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use inference_core::hardware::Kernel;
use inference_core::hardware::report::Machine;
use serde::Serialize;

use crate::commands::plan::capacity::{Cost, Fleet, Load, Speed};
use crate::commands::plan::measured;
use crate::engine::model_files::ModelFiles;

/// The load, and the prices of machines.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Capacity and cost")]
pub(crate) struct CapacityArgs {
    /// Calculate the number of nodes for this many requests per day [default: the memory plan only]
    #[arg(long, value_name = "REQUESTS", value_parser = positive,
        requires_all = ["prompt_tokens", "answer_tokens"])]
    pub requests_per_day: Option<f64>,
    /// Average prompt tokens; required with --requests-per-day [default: none]
    #[arg(long, value_name = "TOKENS", value_parser = positive, requires = "requests_per_day")]
    pub prompt_tokens: Option<f64>,
    /// Average completion tokens; required with --requests-per-day [default: none]
    #[arg(long, value_name = "TOKENS", value_parser = positive, requires = "requests_per_day")]
    pub answer_tokens: Option<f64>,
    /// Share of prompt tokens served from the prefix cache, 0 to 1
    #[arg(long, value_name = "SHARE", value_parser = share, default_value_t = 0.0)]
    pub cached_share: f64,
    /// Ratio of the busiest hour's load to the average
    #[arg(long, value_name = "FACTOR", value_parser = at_least_one, default_value_t = 3.0)]
    pub peak_factor: f64,
    /// Maximum utilization of a node in the busiest hour, up to 1
    #[arg(long, value_name = "SHARE", value_parser = busy_share, default_value_t = 0.7)]
    pub utilisation_max: f64,
    /// Output of `tune --json` on a node [default: the results stored on this machine]
    #[arg(long, value_name = "FILE")]
    pub speeds: Option<PathBuf>,
    /// Prefill speed of a node in tokens per second [default: as measured by `tune`]
    #[arg(long, value_name = "TOKENS", value_parser = positive,
        requires = "decode_tokens_per_second", conflicts_with = "speeds")]
    pub prefill_tokens_per_second: Option<f64>,
    /// Decode speed of a node in tokens per second, all requests together [default: as measured by
    /// `tune`]
    #[arg(long, value_name = "TOKENS", value_parser = positive,
        requires = "prefill_tokens_per_second", conflicts_with = "speeds")]
    pub decode_tokens_per_second: Option<f64>,
    /// Price of a node per hour, in any currency [default: none, no cost]
    #[arg(long, value_name = "PRICE", value_parser = positive)]
    pub price_per_hour: Option<f64>,
    /// Price of a GPU per hour [default: none, no comparison]
    #[arg(long, value_name = "PRICE", value_parser = positive, requires = "price_per_hour")]
    pub gpu_price_per_hour: Option<f64>,
    /// Prefill speed of the GPU in tokens per second [default: none, break-even only]
    #[arg(long, value_name = "TOKENS", value_parser = positive,
        requires_all = ["gpu_price_per_hour", "gpu_decode_tokens_per_second"])]
    pub gpu_prefill_tokens_per_second: Option<f64>,
    /// Decode speed of the GPU in tokens per second, all requests together [default: none,
    /// break-even only]
    #[arg(long, value_name = "TOKENS", value_parser = positive,
        requires_all = ["gpu_price_per_hour", "gpu_prefill_tokens_per_second"])]
    pub gpu_decode_tokens_per_second: Option<f64>,
}

/// Result of the calculation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Capacity {
    load: Load,
    speed: Speed,
    /// Source of the speeds.
    source: String,
    nodes: Fleet,
    cost: Option<Cost>,
    gpu: Option<Gpu>,
}

/// The same load on GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Gpu {
    price_per_hour: f64,
    /// Requests per second that one GPU must serve to cost the same as the nodes.
    break_even_requests_per_second: f64,
    fleet: Option<Fleet>,
    cost: Option<Cost>,
}

impl CapacityArgs {
    /// Calculates, if it was requested; the error is one line for the operator.
    pub(crate) fn run(&self, model: &Path, machine: &Machine) -> Result<Option<Capacity>, String> {
        let load = self.requests_per_day.zip(self.prompt_tokens).zip(self.answer_tokens);
        let Some(((requests_per_day, prompt_tokens), answer_tokens)) = load else {
            return Ok(None);
        };
        let load = Load {
            requests_per_day,
            prompt_tokens,
            cached_share: self.cached_share,
            answer_tokens,
            peak_factor: self.peak_factor,
            utilisation_max: self.utilisation_max,
        };
        let (speed, source) = self.speed(model, machine)?;
        let nodes = load.fleet(speed);
        let cost = self.price_per_hour.map(|price| load.rented(nodes.machines, price));
        let gpu =
            self.gpu_price_per_hour.zip(cost).map(|(price, cost)| self.gpu(&load, cost, price));
        Ok(Some(Capacity { load, speed, source, nodes, cost, gpu }))
    }

    fn speed(&self, model: &Path, machine: &Machine) -> Result<(Speed, String), String> {
        let speeds = self.prefill_tokens_per_second.zip(self.decode_tokens_per_second);
        if let Some((prefill, decode)) = speeds {
            return Ok((Speed { prefill, decode }, "as given".into()));
        }
        if let Some(path) = &self.speeds {
            let speed = measured::of_file(path)?;
            return Ok((speed, format!("measured, in {}", path.display())));
        }
        let files = ModelFiles::open(model).map_err(|e| e.to_string())?;
        let digest = files.digest().to_string();
        let found = Kernel::ALL.iter().find_map(|k| measured::here(machine, *k, &digest));
        found.ok_or_else(|| {
            "the speed of a node is unknown: run 'flotilla-agent tune' on one, or give --speeds, or \
             --prefill-tokens-per-second and --decode-tokens-per-second"
                .into()
        })
    }

    fn gpu(&self, load: &Load, nodes: Cost, price_per_hour: f64) -> Gpu {
        let speeds = self.gpu_prefill_tokens_per_second.zip(self.gpu_decode_tokens_per_second);
        let fleet = speeds.map(|(prefill, decode)| load.fleet(Speed { prefill, decode }));
        Gpu {
            price_per_hour,
            break_even_requests_per_second: load.break_even(nodes, price_per_hour),
            cost: fleet.map(|fleet| load.rented(fleet.machines, price_per_hour)),
            fleet,
        }
    }
}

/// A table for people; its last lines list the assumptions.
impl std::fmt::Display for Capacity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { load, speed, source, nodes, .. } = self;
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let mut line = |name: &str, text: String| writeln!(f, "{name:<15} {text}");
        line("nodes", format!("{} for {} requests a day", nodes.machines, load.requests_per_day))?;
        line(
            "busy",
            format!(
                "{} of the day, {} of the busiest hour",
                percent(nodes.utilisation),
                percent(nodes.utilisation_at_peak)
            ),
        )?;
        line("first token", format!("{:.1} s on an idle node", nodes.seconds_to_first_token))?;
        line("a request", format!("{:.1} s of one node", nodes.seconds_per_request))?;
        if let Some(cost) = self.cost {
            line("cost", describe_cost(cost))?;
        }
        if let Some(gpu) = self.gpu {
            line("gpu", gpu.describe())?;
        }
        line(
            "speed",
            format!(
                "prefill {:.1} tokens/s, decode {:.1} tokens/s in total ({source})",
                speed.prefill, speed.decode
            ),
        )?;
        let mut assumed = String::new();
        write!(
            assumed,
            "the busiest hour has {} times the average load, nodes are at most {} busy in it, {} \
             of prompt tokens are cached",
            load.peak_factor,
            percent(load.utilisation_max),
            percent(load.cached_share)
        )?;
        write!(f, "{:<15} {assumed}", "assumed")
    }
}

impl Gpu {
    fn describe(&self) -> String {
        let even = format!(
            "one at {} per hour breaks even if it serves {:.2} of these requests per second",
            self.price_per_hour, self.break_even_requests_per_second
        );
        match self.fleet.zip(self.cost) {
            Some((fleet, cost)) => {
                format!("{} of them: {}; {even}", fleet.machines, describe_cost(cost))
            }
            None => even,
        }
    }
}

fn describe_cost(cost: Cost) -> String {
    format!("{:.2} a day, {:.3} per million tokens", cost.per_day, cost.per_million_tokens)
}

fn number(text: &str, is_right: fn(f64) -> bool, expected: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && is_right(*number));
    number.ok_or_else(|| format!("expected {expected}"))
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, |n| n > 0.0 && n <= 1e12, "a number above 0")
}

fn share(text: &str) -> Result<f64, String> {
    number(text, |n| (0.0..=1.0).contains(&n), "a number from 0 to 1")
}

fn busy_share(text: &str) -> Result<f64, String> {
    number(text, |n| n > 0.0 && n <= 1.0, "a number above 0, up to 1")
}

fn at_least_one(text: &str) -> Result<f64, String> {
    number(text, |n| (1.0..=1000.0).contains(&n), "a number of 1 or more")
}
