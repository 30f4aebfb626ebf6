//! PURE. Slots of the endpoints of a model.

use super::Fleet;

/// Slots of the endpoints of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// All.
    pub(crate) slots: u64,
    /// Those that are not busy.
    pub(crate) free: u64,
}

impl<L> Fleet<L> {
    /// Slots of all ready endpoints that serve the model.
    pub(crate) fn slots_of(&self, model: &str) -> u64 {
        let ready = self.endpoints_of(model).filter(|(_, endpoint)| endpoint.is_ready());
        ready.map(|(_, endpoint)| u64::from(endpoint.status.slots)).sum()
    }

    /// Slots of the ready nodes that serve the model; of external endpoints if only they do.
    pub(crate) fn room_of(&self, model: &str) -> Room {
        let counts_externals = self.is_external_only(model);
        let usable = self.endpoints_of(model).filter(|(_, endpoint)| {
            endpoint.is_ready()
                && !endpoint.is_cordoned
                && !endpoint.health.is_ejected()
                && endpoint.external.is_some() == counts_externals
        });
        usable.fold(Room::default(), |room, (_, endpoint)| Room {
            slots: room.slots + u64::from(endpoint.status.slots),
            free: room.free + u64::from(endpoint.status.slots.saturating_sub(endpoint.busy())),
        })
    }
}
