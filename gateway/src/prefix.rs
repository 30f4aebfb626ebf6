//! PURE. Which endpoints have computed how a request begins: a guess from what was sent where.
//!
//! A request's body is cut into blocks, and each block's hash covers everything before it. What
//! follows the messages of a chat changes from turn to turn, what comes before them does not,
//! so the bodies of a conversation begin alike, and so do those with one system prompt. Tenants are
//! part of the hash, because nodes share nothing between them. Nodes forget what they need room
//! for without saying so; being wrong costs one prompt.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Bytes of a block.
const BLOCK_BYTES: usize = 256;
/// Blocks of a request that are looked at: 64 KiB.
const BLOCKS_MAX: usize = 256;
/// Blocks that are remembered in each of two generations.
const GENERATION_MAX: usize = 1 << 16;
/// Endpoints that are remembered for a block, the last ones.
const ENDPOINTS_MAX: usize = 4;

/// The beginnings of a request: a hash for each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prefix(Vec<u64>);

impl Prefix {
    /// Of a body, for one tenant.
    pub fn new(tenant: &str, body: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        tenant.hash(&mut hasher);
        let blocks = body.chunks_exact(BLOCK_BYTES).take(BLOCKS_MAX);
        let hash = |block: &[u8]| {
            hasher.write(block);
            hasher.finish()
        };
        Self(blocks.map(hash).collect())
    }

    /// Whether the request is too short to be remembered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The endpoints that were sent a block, the last one first.
type Endpoints<I> = Vec<I>;

/// What was sent where. Bounded: of two generations of blocks, the older one is forgotten when
/// the younger is full; what is used moves to the younger.
#[derive(Debug)]
pub struct PrefixIndex<I> {
    young: HashMap<u64, Endpoints<I>>,
    old: HashMap<u64, Endpoints<I>>,
}

impl<I> Default for PrefixIndex<I> {
    fn default() -> Self {
        Self { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<I: Copy + PartialEq> PrefixIndex<I> {
    /// A request was sent to an endpoint.
    pub fn insert(&mut self, prefix: &Prefix, endpoint: I) {
        for block in &prefix.0 {
            if self.young.len() >= GENERATION_MAX {
                self.old = std::mem::take(&mut self.young);
            }
            let old = self.old.remove(block);
            let endpoints = self.young.entry(*block).or_insert_with(|| old.unwrap_or_default());
            endpoints.retain(|known| *known != endpoint);
            endpoints.insert(0, endpoint);
            endpoints.truncate(ENDPOINTS_MAX);
        }
    }

    /// The endpoints that hold a request's beginning, and how much of it, 0 to 1.
    pub fn held(&self, prefix: &Prefix) -> Vec<(I, f64)> {
        let mut held: Vec<(I, usize)> = Vec::new();
        for (depth, block) in prefix.0.iter().enumerate() {
            let Some(endpoints) = self.young.get(block).or_else(|| self.old.get(block)) else {
                break;
            };
            let mut longer = false;
            for endpoint in endpoints {
                match held.iter_mut().find(|(known, _)| known == endpoint) {
                    Some((_, blocks)) if *blocks == depth => (*blocks, longer) = (depth + 1, true),
                    Some(_) => {}
                    None if depth == 0 => {
                        held.push((*endpoint, 1));
                        longer = true;
                    }
                    None => {}
                }
            }
            if !longer {
                break;
            }
        }
        let all = prefix.0.len() as f64;
        held.into_iter().map(|(endpoint, blocks)| (endpoint, blocks as f64 / all)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(blocks: usize, salt: u8) -> Vec<u8> {
        (0..blocks * BLOCK_BYTES).map(|i| (i / BLOCK_BYTES) as u8 ^ salt).collect()
    }

    fn held(index: &PrefixIndex<u32>, tenant: &str, body: &[u8]) -> Vec<(u32, f64)> {
        index.held(&Prefix::new(tenant, body))
    }

    #[test]
    fn a_second_turn_finds_where_the_first_one_went() {
        let mut index = PrefixIndex::default();
        let first = [body(8, 0), b"}]".to_vec()].concat();
        index.insert(&Prefix::new("a", &first), 1);
        let second = [body(8, 0), body(2, 9), b"}]".to_vec()].concat();
        assert_eq!(held(&index, "a", &second), [(1, 0.8)]);
        index.insert(&Prefix::new("a", &second), 2);
        assert_eq!(held(&index, "a", &second), [(2, 1.0), (1, 0.8)]);
    }

    #[test]
    fn tenants_hold_nothing_together_and_other_beginnings_are_others() {
        let mut index = PrefixIndex::default();
        index.insert(&Prefix::new("a", &body(4, 0)), 1);
        assert_eq!(held(&index, "b", &body(4, 0)), []);
        assert_eq!(held(&index, "a", &[body(1, 7), body(4, 0)].concat()), []);
        assert_eq!(held(&index, "a", b"short"), []);
    }

    #[test]
    fn endpoints_of_a_block_are_the_last_ones() {
        let mut index = PrefixIndex::default();
        (0..9).for_each(|endpoint| index.insert(&Prefix::new("a", &body(2, 0)), endpoint));
        let endpoints: Vec<u32> = held(&index, "a", &body(2, 0)).iter().map(|h| h.0).collect();
        assert_eq!(endpoints, [8, 7, 6, 5]);
    }

    #[test]
    fn the_index_is_bounded_and_keeps_what_is_used() {
        let mut index = PrefixIndex::default();
        let used = Prefix::new("used", &body(4, 0));
        for tenant in 0..1000 {
            index.insert(&Prefix::new(&tenant.to_string(), &body(256, 0)), tenant);
            index.insert(&used, 7);
        }
        assert!(index.young.len() <= GENERATION_MAX && index.old.len() <= GENERATION_MAX);
        assert_eq!(index.held(&used), [(7, 1.0)]);
        assert_eq!(held(&index, "0", &body(256, 0)), []);
        assert_eq!(held(&index, "999", &body(256, 0)), [(999, 1.0)]);
    }

    #[test]
    fn a_body_of_any_length_costs_no_more_than_its_first_blocks() {
        assert_eq!(Prefix::new("a", &vec![0; 1 << 20]).0.len(), BLOCKS_MAX);
    }
}
