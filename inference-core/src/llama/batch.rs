//! The rows that llama.cpp computes together.

use llama_cpp_sys_2 as sys;

use crate::types::model::Row;

/// A `llama_batch` with a fixed capacity of rows.
#[derive(Debug)]
pub(super) struct Batch {
    raw: sys::llama_batch,
    capacity: usize,
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: allocated by llama_batch_init, freed once.
        unsafe { sys::llama_batch_free(self.raw) };
    }
}

impl Batch {
    pub(super) fn new(rows: u32) -> Self {
        // SAFETY: allocates arrays for `rows` rows with one sequence each.
        let raw = unsafe { sys::llama_batch_init(rows as i32, 0, 1) };
        Self { raw, capacity: rows as usize }
    }

    /// The raw batch; valid as long as this `Batch`.
    pub(super) fn raw(&self) -> sys::llama_batch {
        self.raw
    }

    pub(super) fn fill(&mut self, rows: &[Row]) {
        debug_assert!(rows.len() <= self.capacity);
        let rows = &rows[..rows.len().min(self.capacity)];
        self.raw.n_tokens = rows.len() as i32;
        for (i, row) in rows.iter().enumerate() {
            // SAFETY: i is below the capacity of the arrays.
            unsafe {
                *self.raw.token.add(i) = row.token as i32;
                *self.raw.pos.add(i) = row.position as i32;
                *self.raw.n_seq_id.add(i) = 1;
                **self.raw.seq_id.add(i) = row.seq as i32;
                *self.raw.logits.add(i) = i8::from(row.logits);
            }
        }
    }
}
