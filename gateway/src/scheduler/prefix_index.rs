//! PURE. Guesses which endpoints have the beginning of a request cached, from what was sent where.
//!
//! A request body is cut into blocks, and the hash of each block covers everything before it. In a
//! chat, fields after the messages change from turn to turn, but the messages before do not, so the
//! bodies of one conversation share a prefix, as do requests with the same system prompt. The
//! tenant is part of the hash, because nodes share no cache between tenants. Nodes evict caches
//! without telling us; a wrong guess costs one prefill.
//!
//! Tenants share the index fairly: when it is full, a tenant that has been idle for long loses
//! blocks first, then the tenant with the most blocks. A tenant that floods the index evicts its
//! own blocks.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// Bytes per block.
const BLOCK_BYTES: usize = 256;
/// Blocks per request that are indexed: 64 KiB.
const BLOCKS_MAX: usize = 256;
/// Blocks indexed, over all tenants.
const KNOWN_MAX: usize = 1 << 17;
/// Most blocks evicted at once, so that no request waits long for eviction.
const FORGOTTEN_MAX: usize = 256;
/// A tenant that has sent nothing for this long loses blocks first: its caches on the nodes are
/// mostly gone by then.
const IDLE_AFTER: Duration = Duration::from_secs(3600);
/// Endpoints remembered that have left and have an heir, the most recent ones.
const HEIRS_MAX: usize = 64;
/// Endpoints remembered per block, the most recent ones.
const ENDPOINTS_MAX: usize = 4;

/// The prefix hashes of a request, one per block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prefix {
    tenant: u64,
    blocks: Vec<u64>,
}

impl Prefix {
    /// Hashes the body of a request by this tenant.
    pub fn new(tenant: &str, body: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        tenant.hash(&mut hasher);
        let tenant = hasher.finish();
        let blocks = body.chunks_exact(BLOCK_BYTES).take(BLOCKS_MAX);
        let hash = |block: &[u8]| {
            hasher.write(block);
            hasher.finish()
        };
        Self { tenant, blocks: blocks.map(hash).collect() }
    }

    /// True if the request is too short to be indexed.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

/// An indexed block.
#[derive(Debug)]
struct IndexedBlock<I> {
    /// Endpoints that received the block, most recent first.
    endpoints: Vec<I>,
    /// True if the block was sent again since it was last considered for eviction: it then stays
    /// once more (second chance).
    is_used: bool,
}

impl<I: Copy + PartialEq> IndexedBlock<I> {
    fn record_endpoint(&mut self, endpoint: I) {
        self.endpoints.retain(|known| *known != endpoint);
        self.endpoints.insert(0, endpoint);
        self.endpoints.truncate(ENDPOINTS_MAX);
    }
}

/// A tenant's share of the index.
#[derive(Debug, Default)]
struct TenantShare {
    /// Its blocks, in order of eviction.
    blocks: VecDeque<u64>,
    /// When the tenant last sent a request.
    used: Duration,
}

/// What was sent where. Bounded; the module describes eviction.
#[derive(Debug)]
pub(crate) struct PrefixIndex<I> {
    known: HashMap<u64, IndexedBlock<I>>,
    shares: HashMap<u64, TenantShare>,
    /// Tenants by number of blocks.
    by_size: BTreeSet<(usize, u64)>,
    /// Tenants by last use.
    by_use: BTreeSet<(Duration, u64)>,
    /// Endpoints that have left, and those that have what they had cached.
    heirs: VecDeque<(I, I)>,
}

impl<I> Default for PrefixIndex<I> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            shares: HashMap::new(),
            by_size: BTreeSet::new(),
            by_use: BTreeSet::new(),
            heirs: VecDeque::new(),
        }
    }
}

impl<I: Copy + PartialEq> PrefixIndex<I> {
    /// Records that a request was sent to an endpoint.
    pub(crate) fn insert(&mut self, prefix: &Prefix, endpoint: I, now: Duration) {
        if prefix.is_empty() {
            return;
        }
        let mut share = self.take_share(prefix.tenant);
        share.used = now;
        for block in &prefix.blocks {
            let known = self.known.entry(*block).or_insert_with(|| {
                share.blocks.push_back(*block);
                IndexedBlock { endpoints: Vec::new(), is_used: false }
            });
            known.is_used = !known.endpoints.is_empty();
            known.record_endpoint(endpoint);
        }
        self.put_share(prefix.tenant, share);
        while self.known.len() > KNOWN_MAX {
            self.evict(now);
        }
    }

    /// Records that an endpoint has from now on what another one had, which leaves.
    pub(crate) fn inherit(&mut self, left: I, heir: I) {
        if self.heirs.len() >= HEIRS_MAX {
            self.heirs.pop_front();
        }
        self.heirs.iter_mut().filter(|(_, to)| *to == left).for_each(|(_, to)| *to = heir);
        self.heirs.push_back((left, heir));
    }

    /// Who has what this endpoint had.
    fn holder(&self, endpoint: I) -> I {
        let heir = self.heirs.iter().find(|(left, _)| *left == endpoint);
        heir.map_or(endpoint, |(_, heir)| *heir)
    }

    /// Takes out a tenant's share; [`Self::put_share`] puts it back.
    fn take_share(&mut self, tenant: u64) -> TenantShare {
        let share = self.shares.remove(&tenant).unwrap_or_default();
        self.by_size.remove(&(share.blocks.len(), tenant));
        self.by_use.remove(&(share.used, tenant));
        share
    }

    fn put_share(&mut self, tenant: u64, share: TenantShare) {
        if !share.blocks.is_empty() {
            self.by_size.insert((share.blocks.len(), tenant));
            self.by_use.insert((share.used, tenant));
            self.shares.insert(tenant, share);
        }
    }

    /// Evicts blocks of the tenant that must make room, least recently used first.
    fn evict(&mut self, now: Duration) {
        let idle = self.by_use.first().filter(|(used, _)| now.saturating_sub(*used) > IDLE_AFTER);
        let largest = || self.by_size.last().map(|(_, tenant)| *tenant);
        let Some(tenant) = idle.map(|(_, tenant)| *tenant).or_else(largest) else {
            return self.known.clear();
        };
        let mut share = self.take_share(tenant);
        let mut left = (share.blocks.len() / 4).clamp(1, FORGOTTEN_MAX);
        // If all blocks were used, some go anyway.
        let mut spared = 4 * left;
        while left > 0
            && let Some(block) = share.blocks.pop_front()
        {
            match self.known.get_mut(&block) {
                Some(known) if known.is_used && spared > 0 => {
                    (known.is_used, spared) = (false, spared - 1);
                    share.blocks.push_back(block);
                }
                _ => {
                    self.known.remove(&block);
                    left -= 1;
                }
            }
        }
        self.put_share(tenant, share);
    }

    /// Endpoints that have the request's beginning cached, with the share of its blocks (0 to 1).
    pub(crate) fn lookup(&self, prefix: &Prefix) -> Vec<(I, f64)> {
        let mut held: Vec<(I, usize)> = Vec::new();
        for (depth, block) in prefix.blocks.iter().enumerate() {
            let Some(known) = self.known.get(block) else { break };
            let mut longer = false;
            for endpoint in known.endpoints.iter().map(|endpoint| self.holder(*endpoint)) {
                match held.iter_mut().find(|(known, _)| *known == endpoint) {
                    Some((_, blocks)) if *blocks == depth => (*blocks, longer) = (depth + 1, true),
                    Some(_) => {}
                    None if depth == 0 => {
                        held.push((endpoint, 1));
                        longer = true;
                    }
                    None => {}
                }
            }
            if !longer {
                break;
            }
        }
        let all = prefix.blocks.len() as f64;
        held.into_iter().map(|(endpoint, blocks)| (endpoint, blocks as f64 / all)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(blocks: usize, salt: u8) -> Vec<u8> {
        (0..blocks * BLOCK_BYTES).map(|i| (i / BLOCK_BYTES) as u8 ^ salt).collect()
    }

    const NOW: Duration = Duration::from_secs(7);

    fn held(index: &PrefixIndex<u32>, tenant: &str, body: &[u8]) -> Vec<(u32, f64)> {
        index.lookup(&Prefix::new(tenant, body))
    }

    #[test]
    fn a_second_turn_finds_where_the_first_one_went() {
        let mut index = PrefixIndex::default();
        let first = [body(8, 0), b"}]".to_vec()].concat();
        index.insert(&Prefix::new("a", &first), 1, NOW);
        let second = [body(8, 0), body(2, 9), b"}]".to_vec()].concat();
        assert_eq!(held(&index, "a", &second), [(1, 0.8)]);
        index.insert(&Prefix::new("a", &second), 2, NOW);
        assert_eq!(held(&index, "a", &second), [(2, 1.0), (1, 0.8)]);
    }

    #[test]
    fn tenants_hold_nothing_together_and_other_beginnings_are_others() {
        let mut index = PrefixIndex::default();
        index.insert(&Prefix::new("a", &body(4, 0)), 1, NOW);
        assert_eq!(held(&index, "b", &body(4, 0)), []);
        assert_eq!(held(&index, "a", &[body(1, 7), body(4, 0)].concat()), []);
        assert_eq!(held(&index, "a", b"short"), []);
    }

    #[test]
    fn endpoints_of_a_block_are_the_last_ones() {
        let mut index = PrefixIndex::default();
        (0..9).for_each(|endpoint| index.insert(&Prefix::new("a", &body(2, 0)), endpoint, NOW));
        let endpoints: Vec<u32> = held(&index, "a", &body(2, 0)).iter().map(|h| h.0).collect();
        assert_eq!(endpoints, [8, 7, 6, 5]);
    }

    #[test]
    fn an_heir_has_what_all_had_whose_heir_it_is() {
        let mut index = PrefixIndex::default();
        for (tenant, endpoint) in [("a", 1), ("b", 2), ("c", 3)] {
            index.insert(&Prefix::new(tenant, &body(4, 0)), endpoint, NOW);
        }
        index.inherit(1, 2);
        assert_eq!(held(&index, "a", &body(4, 0)), [(2, 1.0)]);
        index.inherit(2, 3);
        for tenant in ["a", "b", "c"] {
            assert_eq!(held(&index, tenant, &body(4, 0)), [(3, 1.0)], "{tenant}");
        }
        // Both have it: it counts once.
        index.insert(&Prefix::new("a", &body(5, 0)), 3, NOW);
        assert_eq!(held(&index, "a", &body(5, 0)), [(3, 1.0)]);
        (100..1000).for_each(|left| index.inherit(left, left + 1000));
        assert_eq!(index.heirs.len(), HEIRS_MAX);
    }

    /// A body whose prefix is unique.
    fn own(number: u32) -> Vec<u8> {
        [number.to_le_bytes().to_vec(), vec![0; BLOCK_BYTES * 256]].concat()
    }

    #[test]
    fn a_tenant_that_floods_the_index_forgets_its_own_and_not_what_others_sent() {
        let mut index = PrefixIndex::default();
        let others: Vec<(String, Vec<u8>)> =
            (0..9).map(|i| (format!("other {i}"), body(40, i))).collect();
        others.iter().for_each(|(name, body)| index.insert(&Prefix::new(name, body), 1, NOW));
        let again = Prefix::new("flood", &own(u32::MAX));
        for number in 0..2000 {
            index.insert(&Prefix::new("flood", &own(number)), 2, NOW);
            index.insert(&again, 3, NOW);
            assert!(index.known.len() <= KNOWN_MAX, "{}", index.known.len());
        }
        for (name, body) in &others {
            assert_eq!(held(&index, name, body), [(1, 1.0)], "{name}");
        }
        assert_eq!(held(&index, "flood", &own(0)), []);
        assert_eq!(held(&index, "flood", &own(1999)), [(2, 1.0)]);
        assert_eq!(index.lookup(&again), [(3, 1.0)], "and keeps what it uses");
        let listed: usize = index.shares.values().map(|share| share.blocks.len()).sum();
        assert_eq!(listed, index.known.len());
        assert_eq!((index.by_size.len(), index.by_use.len()), (10, 10));
    }

    #[test]
    fn many_tenants_get_about_the_same_and_who_has_gone_makes_room_first() {
        let mut index = PrefixIndex::default();
        let gone = |i: u32| Prefix::new(&format!("gone {i}"), &own(i));
        (0..600).for_each(|i| index.insert(&gone(i), 1, NOW));
        let sizes: Vec<usize> = index.shares.values().map(|share| share.blocks.len()).collect();
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(*least >= 150 && *most <= 256, "{least} to {most}");
        let later = NOW + IDLE_AFTER + Duration::from_secs(1);
        for i in 0..300 {
            index.insert(&Prefix::new(&format!("here {i}"), &own(i)), 2, later);
        }
        for i in 0..300 {
            assert_eq!(held(&index, &format!("here {i}"), &own(i)), [(2, 1.0)], "{i}");
        }
    }

    #[test]
    fn a_body_of_any_length_costs_no_more_than_its_first_blocks() {
        assert_eq!(Prefix::new("a", &vec![0; 1 << 20]).blocks.len(), BLOCKS_MAX);
    }
}
