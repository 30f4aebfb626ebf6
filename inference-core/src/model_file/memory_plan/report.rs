//! PURE. Prints a plan as a table for people. Programs read the serialized form.

use std::fmt::{Display, Formatter, Result};

use super::{LoadMode, Plan, PlanRefusal};
use crate::types::units::bytes;

impl Display for Plan {
    /// Writes a multi-line table without a trailing newline.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let name = self.name.as_deref().unwrap_or("(no name)");
        let billions = self.parameters as f64 / 1e9;
        writeln!(f, "model           {name}, {}, {billions:.2} B parameters", self.architecture)?;
        let kinds = if self.key_kind == self.value_kind {
            self.key_kind.clone()
        } else {
            format!("{} / {}", self.key_kind, self.value_kind)
        };
        let slots = if self.slots == 1 { "slot" } else { "slots" };
        match self.embeds {
            true => writeln!(f, "serves          vectors of up to {} tokens", self.context_tokens)?,
            false => writeln!(
                f,
                "serves          {} {slots} of {} tokens, a pool of {} cells ({kinds})",
                self.slots, self.context_tokens, self.kv_cells
            )?,
        }
        for (name, size, what) in self.lines() {
            if size > 0 {
                writeln!(f, "  {name:<13} {:>10}  {what}", bytes(size))?;
            }
        }
        writeln!(f, "needed          {:>10}", bytes(self.needed_bytes))?;
        writeln!(f, "available       {:>10}", bytes(self.available_bytes))?;
        writeln!(f, "kept free       {:>10}", bytes(self.reserve_bytes))?;
        if self.fits {
            write!(f, "fits            {:>10}  left", bytes(self.headroom_bytes))?;
        } else {
            write!(f, "does not fit    {:>10}  missing", bytes(self.missing_bytes))?;
        }
        if self.saved_prefix_bytes > 0 && self.parts.saved_prefixes == 0 {
            let what = "of that, at most, for saved prefixes";
            write!(f, "\nprefixes        {:>10}  {what}", bytes(self.saved_prefix_bytes))?;
        }
        if self.reclaimable_bytes > 0 {
            let what = "more of the file stays in memory while nothing else wants it";
            write!(f, "\npage cache      {:>10}  {what}", bytes(self.reclaimable_bytes))?;
        }
        self.speed(f)?;
        self.notes.iter().try_for_each(|note| write!(f, "\nnote: {note}"))
    }
}

impl Plan {
    fn lines(&self) -> [(&'static str, u64, String); 10] {
        let parts = &self.parts;
        let mapped = match self.load {
            LoadMode::Mlock => "mapped from the file and locked",
            LoadMode::Mmap | LoadMode::None => "mapped from the file",
        };
        let output = if self.embeds { "vectors of a batch" } else { "logits of all sequences" };
        let token = format!("keys and values, {} a token", bytes(self.kv_bytes_per_token));
        [
            ("weights", parts.weights_mapped, mapped.into()),
            ("weights", parts.weights_resident, "read into memory".into()),
            ("repacked", parts.weights_repacked, "weights copied into a faster layout".into()),
            ("kv", parts.context.kv, token),
            ("state", parts.context.state, "recurrent state of all sequences".into()),
            ("compute", parts.context.compute, "activations of the largest batch".into()),
            ("output", parts.context.output, output.into()),
            ("scratch", parts.context.scratch, "of the threads that compute".into()),
            ("prefixes", parts.saved_prefixes, "saved prefixes".into()),
            ("process", parts.process, "programs, vocabulary, book of the pool".into()),
        ]
    }

    fn speed(&self, f: &mut Formatter<'_>) -> Result {
        if let (Some(start), Some(full)) = (self.decode_estimate, self.decode_estimate_full) {
            let read = bytes(self.read_bytes_per_token);
            write!(
                f,
                "\ndecode          about {start:.1} tokens/s, {full:.1} with a full context \
                 (estimate for one request: memory speed / {read} a token)"
            )?;
        }
        if let Some(seconds) = self.prefill_seconds_full {
            write!(f, "\nprefill         {seconds:.1} s for a full context, at the measured rate")?;
        }
        Ok(())
    }
}

impl PlanRefusal {
    /// The plan that does not fit, followed by what would; several lines.
    pub fn table(&self) -> String {
        let mut text = self.plan.to_string();
        for advice in &self.advice {
            text.push_str(&format!("\nwould fit: {advice}"));
        }
        if self.advice.is_empty() {
            text.push_str("\nnothing smaller would fit: the machine needs more memory");
        }
        text
    }
}
