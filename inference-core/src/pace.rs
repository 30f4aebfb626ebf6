//! PURE. How long steps take here, learned from the steps themselves, and how much prefill
//! a step can carry without holding up its readers.
//!
//! A step costs about what its decoding rows cost alone, plus a price for each prefill row.
//! Both are measured: the first by steps without prefill, for each number of readers; the
//! second by what mixed steps cost more.

/// Prefill may make a step this much longer than its readers alone would. 1.0 halves their
/// speed; readers keep 1 / (1 + this).
const PREFILL_TIME: f32 = 1.0;
/// Weight of the newest measurement.
const SMOOTHING: f32 = 0.15;
/// Prefill rows while readers read, before anything is known, and always.
const ROWS_FIRST: u32 = 32;
const ROWS_MIN: u32 = 4;
/// Rows are computed in tiles: a full one costs what a part of it does.
const TILE_ROWS: u32 = 4;

/// What was learned. See the module.
#[derive(Debug, Clone)]
pub struct Pace {
    /// Seconds of a step with so many readers and no prefill; 0 is unknown.
    reading: Vec<f32>,
    /// Seconds that one more row of prefill costs; 0 is unknown.
    prefill_row: f32,
}

impl Pace {
    /// Nothing is known of a model with `slots` slots.
    pub fn new(slots: u32) -> Self {
        Self { reading: vec![0.0; slots as usize + 1], prefill_row: 0.0 }
    }

    /// Learns from a step with `readers` decoding rows and `prefill` prefill rows.
    pub fn observe(&mut self, readers: u32, prefill: u32, seconds: f32) {
        let Some(reading) = self.reading.get_mut(readers as usize) else { return };
        match (readers, prefill) {
            (_, 0) => smooth(reading, seconds),
            // Small prefills are all overhead.
            (0, rows) if rows >= 64 => smooth(&mut self.prefill_row, seconds / rows as f32),
            (0, _) => {}
            (_, rows) if *reading > 0.0 => {
                let price = (seconds - *reading).max(0.05 * seconds) / rows as f32;
                smooth(&mut self.prefill_row, price);
            }
            _ => {}
        }
    }

    /// Prefill rows for a step with `readers` decoding rows.
    pub fn prefill_rows(&self, readers: u32, batch_rows: u32) -> u32 {
        let room = batch_rows.saturating_sub(readers);
        if readers == 0 {
            return room;
        }
        let reading = self.reading_seconds(readers);
        let rows = match (reading > 0.0, self.prefill_row > 0.0) {
            (true, true) => (PREFILL_TIME * reading / self.prefill_row) as u32,
            _ => ROWS_FIRST,
        };
        let total = readers + rows.max(ROWS_MIN);
        (total.next_multiple_of(TILE_ROWS) - readers).min(room)
    }

    /// A step with so many readers, or the nearest number that was measured.
    fn reading_seconds(&self, readers: u32) -> f32 {
        let at = readers as usize;
        let known = |i: &usize| self.reading.get(*i).is_some_and(|s| *s > 0.0);
        let below = (1..=at).rev().find(known);
        let above = (at + 1..self.reading.len()).find(known);
        below.or(above).map_or(0.0, |i| self.reading[i])
    }
}

fn smooth(value: &mut f32, newest: f32) {
    *value = if *value == 0.0 { newest } else { *value + SMOOTHING * (newest - *value) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine: 20 ms and 5 ms for each reader, 4 ms for each prefill row.
    fn cost(readers: u32, prefill: u32) -> f32 {
        let reading = if readers == 0 { 0.02 } else { 0.02 + 0.005 * readers as f32 };
        reading + 0.004 * prefill as f32
    }

    #[test]
    fn readers_keep_about_half_of_their_speed_whatever_is_prefilled() {
        let mut pace = Pace::new(16);
        for readers in [1, 4, 16] {
            pace.observe(readers, 0, cost(readers, 0));
        }
        for _ in 0..40 {
            for readers in [1, 4, 9, 16] {
                let rows = pace.prefill_rows(readers, 512);
                pace.observe(readers, rows, cost(readers, rows));
            }
        }
        for readers in [1, 4, 16] {
            let rows = pace.prefill_rows(readers, 512);
            let kept = cost(readers, 0) / cost(readers, rows);
            assert!((0.4..0.65).contains(&kept), "{readers} readers keep {kept} with {rows} rows");
        }
    }

    #[test]
    fn without_readers_a_step_is_all_prefill() {
        assert_eq!(Pace::new(4).prefill_rows(0, 512), 512);
    }

    #[test]
    fn rows_fill_whole_tiles_and_never_the_batch() {
        let mut pace = Pace::new(8);
        pace.observe(3, 0, 0.03);
        pace.observe(0, 100, 1.0);
        for readers in 1..=8 {
            assert_eq!((readers + pace.prefill_rows(readers, 512)) % TILE_ROWS, 0);
        }
        assert_eq!(pace.prefill_rows(8, 10), 2);
        assert_eq!(pace.prefill_rows(8, 8), 0);
    }

    #[test]
    fn a_machine_that_gets_slower_is_noticed() {
        let mut pace = Pace::new(4);
        let rows_at = |pace: &mut Pace, row: f32| {
            for _ in 0..60 {
                pace.observe(2, 0, 0.04);
                pace.observe(2, 20, 0.04 + 20.0 * row);
            }
            pace.prefill_rows(2, 512)
        };
        let fast = rows_at(&mut pace, 0.001);
        assert!(rows_at(&mut pace, 0.004) < fast / 2);
    }
}
