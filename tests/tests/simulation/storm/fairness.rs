//! Who has had how much, between any two who have been waiting without a break: by fair queueing
//! that differs by no more than the largest pieces of both (Golestani, 1994).

use std::collections::BTreeMap;

use flotilla_gateway::admission::Class;

/// Sums of fractions.
const SLACK: f64 = 1e-6;

/// Tenants of each class, and the classes themselves.
#[derive(Debug, Default)]
pub struct Fairness {
    classes: Shares<Class>,
    tenants: BTreeMap<Class, Shares<String>>,
}

impl Fairness {
    /// A request lines up that costs so much.
    pub fn waits(&mut self, class: Class, tenant: &str, work: f64) {
        self.classes.waits(&class, work / class.weight());
        self.tenants.entry(class).or_default().waits(&tenant.to_string(), work);
    }

    /// One has left the line without a slot.
    pub fn leaves(&mut self, class: Class, tenant: &str) {
        self.classes.leaves(&class);
        self.tenants.entry(class).or_default().leaves(&tenant.to_string());
    }

    /// One gets its slot. What is not fair about that.
    pub fn is_served(&mut self, class: Class, tenant: &str, work: f64) -> Option<String> {
        let tenants = self.tenants.entry(class).or_default();
        let over = self.classes.is_served(&class, work / class.weight());
        let over = over.map(|other| format!("{class:?} gets more than its part beside {other:?}"));
        let also = tenants.is_served(&tenant.to_string(), work);
        over.or(also.map(|other| format!("{tenant} gets more than {other} in {class:?}")))
    }
}

/// What some have had who share something.
#[derive(Debug)]
struct Shares<K> {
    waiting: BTreeMap<K, Waiting>,
    /// What the first has had more than the second, since both wait.
    leads: BTreeMap<(K, K), f64>,
}

#[derive(Debug, Default)]
struct Waiting {
    count: usize,
    /// The largest piece of work that it ever waited for.
    largest: f64,
}

impl<K> Default for Shares<K> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), leads: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Shares<K> {
    fn waits(&mut self, who: &K, work: f64) {
        let waiting = self.waiting.entry(who.clone()).or_default();
        waiting.count += 1;
        waiting.largest = waiting.largest.max(work);
    }

    fn leaves(&mut self, who: &K) {
        let Some(waiting) = self.waiting.get_mut(who) else { return };
        waiting.count -= 1;
        if waiting.count == 0 {
            self.leads.retain(|(one, other), _| one != who && other != who);
        }
    }

    /// Who has had too little beside that, if anybody.
    fn is_served(&mut self, who: &K, work: f64) -> Option<K> {
        let mine = self.waiting.get(who)?.largest;
        let mut wronged = None;
        let others =
            self.waiting.iter().filter(|(other, waiting)| *other != who && waiting.count > 0);
        for (other, waiting) in others {
            *self.leads.entry((other.clone(), who.clone())).or_default() -= work;
            let lead = self.leads.entry((who.clone(), other.clone())).or_default();
            *lead += work;
            if *lead > mine + waiting.largest + SLACK {
                wronged = Some(other.clone());
            }
        }
        self.leaves(who);
        wronged
    }
}
