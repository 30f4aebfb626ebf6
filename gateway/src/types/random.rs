//! Randomness for ids, seeds, and jitter.

use std::cell::RefCell;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

/// Random bits for ids, seeds and jitter; nothing that must not be guessed. Asking the system
/// for each would be a tenth of a request.
pub(crate) fn random() -> u128 {
    thread_local! {
        static RANDOM: RefCell<Pcg64> = RefCell::new(Pcg64::from_seed(system_random()));
    }
    RANDOM.with_borrow_mut(|random| {
        u128::from(random.next_u64()) << 64 | u128::from(random.next_u64())
    })
}

fn system_random() -> [u8; 32] {
    let mut bytes = [0; 32];
    // Fails only before the machine has booted; an id that repeats confuses logs only.
    let _ = getrandom::fill(&mut bytes);
    bytes
}
