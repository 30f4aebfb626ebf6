//! `flotilla-agent plan`: shows whether a model fits this machine, and with which settings.

pub(crate) mod calculator;
pub(crate) mod capacity;
pub(crate) mod measured;

use std::path::{Path, PathBuf};

use clap::Args;
use inference_core::hardware::files::Root;
use inference_core::hardware::report::Machine;
use inference_core::llama::{BATCH_ROWS, KvType};
use inference_core::model_file::gguf::{self, Header};
use inference_core::model_file::memory_plan::weights::Repacking;
use inference_core::model_file::memory_plan::{
    LoadMode, Plan, PlanFailure, RequestedSettings, SLOTS_MAX, plan,
};
use inference_core::model_file::mtp_head;

use crate::commands::hardware::measure;
use crate::commands::model::local_file;
use crate::engine::flags::SAVED_PREFIX_MIB_MAX;
use crate::engine::plan_facts::facts;
use crate::types::exit::{EXIT_UNAVAILABLE, Failed};
use crate::types::print::print_line;
use calculator::{Capacity, CapacityArgs};

/// `plan`
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Model file (GGUF), or a model in the cache: hf:owner/repo:quantization
    pub model: PathBuf,
    /// Parallel requests [default: as many as are useful and fit]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=SLOTS_MAX))]
    pub slots: Option<u64>,
    /// Context tokens per request [default: the model's trained context, or what fits while a
    /// quarter of the memory stays free]
    #[arg(long, value_name = "TOKENS")]
    pub context_tokens: Option<u64>,
    /// KV cells (tokens) of all requests together [default: slots x context tokens]
    #[arg(long, value_name = "TOKENS")]
    pub kv_cells: Option<u64>,
    /// Memory for saved prefixes in MiB [default: a quarter of what the plan leaves free, at most
    /// 1024; for models whose prompts cannot share KV cells half, at most 4096]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(..=SAVED_PREFIX_MIB_MAX))]
    pub saved_prefix_mib: Option<u64>,
    /// KV cache type: f16, q8_0, q4_0 and others, or one for keys and one for values such as
    /// q8_0/f16
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub kv_type: KvType,
    /// Maximum tokens per batch
    #[arg(long, value_name = "ROWS", default_value_t = u64::from(BATCH_ROWS),
        value_parser = clap::value_parser!(u64).range(128..=2048))]
    pub batch_rows: u64,
    /// How to load the weights: mmap, mlock, none
    #[arg(long, value_name = "MODE", default_value = "mmap")]
    pub load: LoadMode,
    /// Plan without flash attention
    #[arg(long)]
    pub no_flash_attention: bool,
    /// Plan without the MTP head of a model file that has one
    #[arg(long)]
    pub no_mtp: bool,
    /// Plan without repacking the weights for this CPU
    #[arg(long)]
    pub no_repacking: bool,
    /// Memory to plan for, in MiB [default: this machine's available memory]
    #[arg(long, value_name = "MIB")]
    pub memory_mib: Option<u64>,
    /// Skip measuring the memory bandwidth, and the estimate of tokens per second
    #[arg(long)]
    pub quick: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Capacity and cost of a fleet of these machines
    #[command(flatten)]
    pub capacity: CapacityArgs,
}

impl PlanArgs {
    /// Prints the plan, or what would fit.
    pub(crate) fn run(&self) -> Result<(), Failed> {
        let model = local_file(&self.model)?;
        let header = read(&model).map_err(Failed::data)?;
        let machine = Machine::read(&Root::machine(), std::env::consts::ARCH);
        let mut facts = facts(&machine);
        if self.no_repacking {
            facts.repacking = Repacking::Off;
        }
        if let Some(mebibytes) = self.memory_mib {
            facts.available_bytes = mebibytes.saturating_mul(1 << 20);
        }
        if !self.quick {
            facts.bandwidth = measure(&machine).map_err(Failed::data)?.map(|b| b.best);
        }
        let capacity = self.capacity.run(&model, &machine).map_err(Failed::data)?;
        self.print(plan(&header, &facts, &self.wanted(&header)), capacity)
    }

    fn wanted(&self, header: &Header) -> RequestedSettings {
        RequestedSettings {
            slots: self.slots,
            context_tokens: self.context_tokens,
            kv_cells: self.kv_cells,
            saved_prefix_bytes: self.saved_prefix_mib.map(|mib| mib << 20),
            key_kind: self.kv_type.key_name().into(),
            value_kind: self.kv_type.value_name().into(),
            flash_attention: !self.no_flash_attention,
            load: self.load,
            batch_rows: self.batch_rows,
            mtp_head: !self.no_mtp && mtp_head::is_usable(header),
            ..RequestedSettings::default()
        }
    }

    fn print(
        &self,
        outcome: Result<Plan, PlanFailure>,
        capacity: Option<Capacity>,
    ) -> Result<(), Failed> {
        let json = |value: serde_json::Result<String>| value.map_err(Failed::data);
        match outcome {
            Ok(plan) if self.json => {
                let all = Planned { plan: &plan, capacity: capacity.as_ref() };
                print_line(&json(serde_json::to_string_pretty(&all))?)?;
            }
            Ok(plan) => {
                let capacity = capacity.map(|capacity| format!("\n\n{capacity}"));
                print_line(&format!("{plan}{}", capacity.unwrap_or_default()))?;
            }
            Err(PlanFailure::Error(error)) => {
                let model = self.model.display();
                return Err(Failed::data(format_args!("model file {model}: {error}")));
            }
            Err(PlanFailure::Refused(refusal)) => {
                let text = match self.json {
                    true => json(serde_json::to_string_pretty(&refusal))?,
                    false => refusal.table(),
                };
                print_line(&text)?;
                return Err(Failed::new(EXIT_UNAVAILABLE, refusal));
            }
        }
        Ok(())
    }
}

/// The JSON output.
#[derive(serde::Serialize)]
struct Planned<'a> {
    #[serde(flatten)]
    plan: &'a Plan,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<&'a Capacity>,
}

fn read(path: &Path) -> Result<Header, String> {
    let fail = |e: &dyn std::fmt::Display| format!("model file {}: {e}", path.display());
    let file = std::fs::File::open(path).map_err(|e| fail(&e))?;
    let metadata = file.metadata().map_err(|e| fail(&e))?;
    if !metadata.is_file() {
        return Err(fail(&"is not a regular file"));
    }
    gguf::read_header(std::io::BufReader::new(file), metadata.len()).map_err(|e| fail(&e))
}
