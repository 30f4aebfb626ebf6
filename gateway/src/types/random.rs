//! Randomness for ids, seeds, and jitter.

use std::cell::RefCell;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

/// Random bits for ids, seeds, and jitter; not for secrets. A system call for each would take a
/// tenth of a request's time.
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
    // Fails only early in boot. A repeated id merely confuses logs.
    let _ = getrandom::fill(&mut bytes);
    bytes
}
