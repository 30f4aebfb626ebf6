//! Unpredictable randomness.

/// Random bits for ids, epochs, jitter and seeds.
pub(crate) fn random() -> u128 {
    let mut bytes = [0; 16];
    // Fails only during early boot; a duplicate id only confuses logs.
    let _ = getrandom::fill(&mut bytes);
    u128::from_le_bytes(bytes)
}
