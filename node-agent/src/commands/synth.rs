//! `flotilla-agent synth`: writes a model file with random weights and a real model's shape.

use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use clap::Args;
use inference_core::tools::synth::{Chain, DEFAULT_PRE, PRE_TOKENIZERS, QUANTS, SHAPES, Synth};

use crate::types::exit::Failed;

/// `synth`
#[derive(Debug, Args)]
pub(crate) struct SynthArgs {
    /// Dimensions of the model
    #[arg(long, value_name = "NAME", value_parser = SHAPES.iter().map(|s| s.name).collect::<Vec<_>>())]
    pub shape: String,
    /// Quantization of the weights
    #[arg(long, value_name = "NAME", default_value = "q4_0",
        value_parser = QUANTS.iter().map(|q| q.name).collect::<Vec<_>>())]
    pub quant: String,
    /// Write only as many layers, the first ones: a draft model of the whole [default: all]
    #[arg(long)]
    pub layers: Option<u32>,
    /// Name of the pre-tokenizer, as in llama.cpp
    #[arg(long, value_name = "NAME", default_value = DEFAULT_PRE,
        value_parser = PRE_TOKENIZERS.concat())]
    pub pre: String,
    /// Let each token follow from the one before alone, always the same, for this percentage of all
    /// tokens; any may follow the others. A model with 100 and a smaller one with less are a model
    /// and its draft model [default: none, random weights]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub chain: Option<u8>,
    /// With --chain, let the MTP head of a model that has one know as many percent of the tokens
    /// [default: 100]
    #[arg(long, value_name = "PERCENT", requires = "chain",
        value_parser = clap::value_parser!(u8).range(0..=100))]
    pub head: Option<u8>,
    /// Overwrite an existing file
    #[arg(long)]
    pub force: bool,
    /// File to write
    pub out: PathBuf,
}

impl SynthArgs {
    /// Writes the file. Deletes a file that could not be finished.
    pub(crate) fn run(&self) -> Result<(), Failed> {
        let shape = SHAPES.iter().find(|s| s.name == self.shape);
        let shape = *shape.ok_or_else(|| Failed::data("unknown shape"))?;
        let shape = self.layers.map_or(Some(shape), |layers| shape.with_layers(layers));
        let shape = shape.ok_or_else(|| Failed::data("--layers: the model has fewer, or 0"))?;
        let quant = QUANTS.iter().find(|q| q.name == self.quant);
        let quant = quant.ok_or_else(|| Failed::data("unknown quantization"))?;
        let synth = Synth::with_pre(&shape, quant, &self.pre).map_err(Failed::data)?;
        let synth = match self.chain {
            Some(known_percent) => {
                let head_percent = self.head.unwrap_or(100);
                synth.with_chain(&shape, quant, Chain { known_percent, head_percent })
            }
            None => Ok(synth),
        };
        let synth = synth.map_err(|why| Failed::data(format_args!("--chain: {why}")))?;
        let fail = |e: std::io::Error| Failed::data(format_args!("{}: {e}", self.out.display()));
        let mut options = OpenOptions::new();
        options.write(true).truncate(true).create(self.force).create_new(!self.force);
        let file = options.open(&self.out).map_err(fail)?;
        let written = self.write(&synth, BufWriter::with_capacity(1 << 20, file));
        // Do not remove a device.
        let is_file = std::fs::symlink_metadata(&self.out).is_ok_and(|m| m.is_file());
        if written.is_err() && is_file {
            let _ = std::fs::remove_file(&self.out);
        }
        written.map_err(fail)
    }

    fn write(&self, synth: &Synth, mut out: impl Write) -> std::io::Result<()> {
        let (all, mut done, mut shown) = (synth.file_bytes(), 0, 0);
        let mut progress = std::io::stderr();
        let megabytes = all.div_ceil(1_000_000);
        synth.write(&mut out, |bytes| {
            done += bytes;
            let percent = done * 100 / all;
            if percent >= shown + 10 {
                shown = percent;
                let _ = writeln!(progress, "{percent:3} % of {megabytes} MB");
            }
        })?;
        let _ = writeln!(progress, "wrote {} ({megabytes} MB)", self.out.display());
        Ok(())
    }
}
