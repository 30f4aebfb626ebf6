//! Scheduling classes.

/// Scheduling classes, most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Someone is waiting for the response.
    Interactive,
    /// The default.
    Standard,
    /// Work without urgency.
    Batch,
}

impl Class {
    /// All classes, most urgent first.
    pub const ALL: [Self; 3] = [Self::Interactive, Self::Standard, Self::Batch];

    /// Name in headers, configuration, and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Standard => "standard",
            Self::Batch => "batch",
        }
    }

    /// The class with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    /// The class for OpenAI's `service_tier`.
    pub(crate) fn of_service_tier(tier: &str) -> Option<Self> {
        match tier {
            "priority" => Some(Self::Interactive),
            "auto" | "default" | "scale" => Some(Self::Standard),
            "flex" => Some(Self::Batch),
            _ => None,
        }
    }

    /// The `service_tier` in responses.
    pub fn service_tier(self) -> &'static str {
        match self {
            Self::Interactive => "priority",
            Self::Standard => "default",
            Self::Batch => "flex",
        }
    }

    /// Weight of the class while all classes have queued requests. Lower classes are slowed down
    /// but never starved.
    pub fn weight(self) -> f64 {
        match self {
            Self::Interactive => 16.0,
            Self::Standard => 4.0,
            Self::Batch => 1.0,
        }
    }

    /// How much of the queue this class and more urgent ones may fill together, so that more urgent
    /// classes always find space.
    pub(crate) fn share_of(self, bound: usize) -> usize {
        match self {
            Self::Interactive => bound,
            Self::Standard => bound - bound / 8,
            Self::Batch => bound - bound / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_found_by_its_name() {
        assert!(Class::ALL.iter().all(|class| Class::named(class.name()) == Some(*class)));
        assert_eq!(Class::named("urgent"), None);
    }

    #[test]
    fn service_tiers_are_those_of_the_public_api() {
        let tiers = ["priority", "auto", "default", "scale", "flex", "best"];
        use Class::{Batch, Interactive, Standard};
        let classes =
            [Some(Interactive), Some(Standard), Some(Standard), Some(Standard), Some(Batch), None];
        assert_eq!(tiers.map(Class::of_service_tier), classes);
        for class in Class::ALL {
            assert_eq!(Class::of_service_tier(class.service_tier()), Some(class));
        }
    }

    #[test]
    fn a_small_queue_has_room_for_every_class() {
        assert!(Class::ALL.iter().all(|class| class.share_of(1) == 1));
        assert_eq!(Class::ALL.map(|class| class.share_of(1000)), [1000, 875, 500]);
    }
}
