//! Measures how fast this machine's threads read memory, which limits the decode speed of a single
//! request.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use serde::Serialize;

/// Smallest and largest buffer of all threads together, in bytes.
const BUFFER_MIN: u64 = 256 << 20;
const BUFFER_MAX: u64 = 2 << 30;
/// The buffer is this many times the largest cache.
const CACHES: u64 = 4;
/// The buffer takes at most 1 / `SHARE` of the available memory.
const SHARE: u64 = 4;
/// Sums accumulated in parallel: whole vectors, and no more than there are registers.
const LANES: usize = 8;
/// Streams that each thread reads in turn: one stream does not fill the memory's queues.
const STREAMS: usize = 4;

/// Measured memory bandwidth. See the module.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bandwidth {
    /// Bytes per second of the fastest pass.
    pub best: f64,
    /// Bytes per second of the median pass.
    pub median: f64,
    /// Number of reading threads.
    pub threads: usize,
    /// Bytes read per pass.
    pub buffer: u64,
}

/// Size of the buffer in bytes: well above the cache, well below the memory. `None` if that is too
/// small for a meaningful measurement.
pub fn buffer_bytes(cache: u64, available: u64) -> Option<u64> {
    let wanted = cache.saturating_mul(CACHES).clamp(BUFFER_MIN, BUFFER_MAX);
    let bytes = wanted.min(available / SHARE);
    (bytes > cache.saturating_mul(3) / 2 && bytes >= 1 << 20).then_some(bytes)
}

/// Reads `bytes` with `threads` threads, `passes` times.
pub fn measure(threads: usize, bytes: u64, passes: usize) -> Result<Bandwidth, String> {
    let threads = threads.clamp(1, 1024);
    let words = usize::try_from(bytes).unwrap_or(usize::MAX) / 8 / threads;
    let words = words.next_multiple_of(LANES * STREAMS);
    let barrier = Barrier::new(threads + 1);
    let mut seconds = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // Write before reading: all untouched pages map to the same zero page.
                let mut buffer: Vec<u64> = Vec::new();
                let made = buffer.try_reserve_exact(words).is_ok();
                if made {
                    buffer.extend(0..words as u64);
                }
                for _ in 0..=passes {
                    barrier.wait();
                    black_box(sum(black_box(&buffer)));
                    barrier.wait();
                }
                made
            });
        }
        for _ in 0..=passes {
            barrier.wait();
            let begun = Instant::now();
            barrier.wait();
            seconds.push(begun.elapsed().as_secs_f64());
        }
    });
    // Discard the first pass, which warms up.
    let mut seconds = seconds.split_off(1.min(seconds.len()));
    seconds.sort_by(f64::total_cmp);
    let bytes = (words * 8 * threads) as u64;
    let (Some(best), Some(median)) = (seconds.first(), seconds.get(seconds.len() / 2)) else {
        return Err("no pass was made".into());
    };
    let speed = |seconds: &f64| bytes as f64 / seconds.max(1e-9);
    Ok(Bandwidth { best: speed(best), median: speed(median), threads, buffer: bytes })
}

fn sum(words: &[u64]) -> u64 {
    let part = words.len() / (LANES * STREAMS) * LANES;
    let (a, rest) = words.split_at(part);
    let (b, rest) = rest.split_at(part);
    let (c, d) = rest.split_at(part);
    let chunks = |words| <[u64]>::as_chunks::<LANES>(words).0.iter();
    let mut lanes = [0u64; LANES];
    for (((a, b), c), d) in chunks(a).zip(chunks(b)).zip(chunks(c)).zip(chunks(d)) {
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = lane.wrapping_add(a[i] ^ b[i]).wrapping_add(c[i] ^ d[i]);
        }
    }
    lanes.iter().fold(0, |sum, lane| sum.wrapping_add(*lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_is_above_the_cache_and_below_the_memory() {
        assert_eq!(buffer_bytes(32 << 20, 64 << 30), Some(256 << 20));
        assert_eq!(buffer_bytes(260 << 20, 64 << 30), Some(1040 << 20));
        assert_eq!(buffer_bytes(32 << 20, 512 << 20), Some(128 << 20));
        assert_eq!(buffer_bytes(260 << 20, 1 << 30), None, "it would fit into the cache");
        assert_eq!(buffer_bytes(0, 0), None);
    }

    #[test]
    fn every_word_is_read() {
        let mut words = vec![0; LANES * STREAMS * 3];
        for i in 0..words.len() {
            words[i] = 7;
            assert_eq!(sum(&words), 7, "word {i}");
            words[i] = 0;
        }
    }

    #[test]
    fn a_small_measurement_has_a_speed() {
        let measured = measure(2, 4 << 20, 3).unwrap();
        assert!(measured.best >= measured.median && measured.median > 1e6, "{measured:?}");
        assert_eq!((measured.threads, measured.buffer), (2, 4 << 20));
    }
}
