//! Randomness that nobody can predict.

/// Random bits for ids, epochs, jitter and seeds.
pub(crate) fn random() -> u128 {
    let mut bytes = [0; 16];
    // Fails only before the machine has booted; an id that repeats confuses logs only.
    let _ = getrandom::fill(&mut bytes);
    u128::from_le_bytes(bytes)
}
