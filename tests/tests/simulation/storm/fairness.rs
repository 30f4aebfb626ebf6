//! Who has had how much, between any two who have been waiting without a break: by fair queueing
//! that differs by no more than the largest pieces of both (Golestani, 1994). What is charged is
//! corrected later: who comes with a debt may get that much less at first, and who waits with a
//! credit that much more.

use std::collections::BTreeMap;

use flotilla_gateway::types::class::Class;

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

    /// What one was charged was corrected: so much for its class, and for itself.
    pub fn corrected(&mut self, class: Class, tenant: &str, [of_class, of_tenant]: [f64; 2]) {
        self.classes.corrected(&class, of_class);
        self.tenants.entry(class).or_default().corrected(&tenant.to_string(), of_tenant);
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
    /// Most that one may be ahead of all who come, or behind, by corrections.
    accounts: BTreeMap<K, Account>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Account {
    debt: f64,
    credit: f64,
}

#[derive(Debug, Default)]
struct Waiting {
    count: usize,
    /// The largest piece of work that it ever waited for.
    largest: f64,
}

impl<K> Default for Shares<K> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), leads: BTreeMap::new(), accounts: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Shares<K> {
    fn waits(&mut self, who: &K, work: f64) {
        let waiting = self.waiting.entry(who.clone()).or_default();
        waiting.count += 1;
        waiting.largest = waiting.largest.max(work);
        if waiting.count == 1 {
            self.begins(who);
        }
    }

    /// One begins to wait beside others: who has a debt may get less until it is paid.
    fn begins(&mut self, who: &K) {
        let account =
            |accounts: &BTreeMap<K, Account>, of| accounts.get(of).copied().unwrap_or_default();
        self.accounts.entry(who.clone()).or_default().credit = 0.0;
        let mine = account(&self.accounts, who);
        let others = self.waiting.iter().filter(|(other, w)| *other != who && w.count > 0);
        for (other, _) in others {
            let theirs = account(&self.accounts, other);
            self.leads.insert((who.clone(), other.clone()), -(theirs.debt + mine.credit));
            self.leads.insert((other.clone(), who.clone()), -(mine.debt + theirs.credit));
        }
    }

    /// What one was charged has moved by so much.
    fn corrected(&mut self, who: &K, moved: f64) {
        let account = self.accounts.entry(who.clone()).or_default();
        account.debt += moved.max(0.0);
        account.credit += (-moved).max(0.0);
        for ((one, other), lead) in &mut self.leads {
            *lead += if one == who { moved } else { 0.0 };
            *lead -= if other == who { moved } else { 0.0 };
        }
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
        let account = self.accounts.entry(who.clone()).or_default();
        account.debt = 0.0;
        account.credit = (account.credit - work).max(0.0);
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
