//! PURE. Checks the status of a node. A node with the join key is trusted with prompts but not with
//! the accounting: impossible figures are refused or dropped, so that no node attracts all requests
//! or makes fleet totals useless.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use inference_protocol::fleet::{ModelStatus, NodeStatus, PrefixStatus, VERSION, Vitals};
use inference_protocol::ids::{MODEL_NAME_BYTES_MAX, is_plain_id};

/// Models per node.
const MODELS_MAX: usize = 64;
/// Slots per node; many times what any machine decodes concurrently.
const SLOTS_MAX: u32 = 4096;
/// Context size in tokens; sixteen times today's longest.
const FAMILY_BYTES_MAX: usize = 64;
const CONTEXT_TOKENS_MAX: u32 = 1 << 24;
/// Key of an engine: a digest.
const PREFIX_KEY_BYTES_MAX: usize = 64;
/// Largest plausible speed in tokens per second.
const SPEED_MAX: f32 = 1e7;
/// Largest plausible memory size: one pebibyte.
const MEMORY_BYTES_MAX: u64 = 1 << 50;

/// Why a status is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StatusProblem {
    /// The node speaks this version of the node link.
    Version(u32),
    /// The node name is not a plain identifier.
    Name,
    /// The node reports this many slots.
    Slots(u32),
    /// The node lists too many models, or a model name is too long.
    Models,
    /// The name or the digest of this model is invalid.
    Model(String),
    /// The node lists a model twice.
    Duplicate,
    /// The node reports a context of this many tokens for a model.
    Context(String, u32),
}

impl Display for StatusProblem {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(
                f,
                "the node speaks version {version} of the node link, this gateway version {VERSION}"
            ),
            Self::Name => f.write_str("the node name is not a plain name"),
            Self::Slots(slots) => {
                write!(f, "the node reports {slots} slots; at most {SLOTS_MAX} are allowed")
            }
            Self::Models => f.write_str("the node lists too many models, or too long names"),
            Self::Model(name) => write!(f, "invalid name or digest of the model {name:?}"),
            Self::Duplicate => f.write_str("the node lists a model twice"),
            Self::Context(model, tokens) => write!(
                f,
                "the node reports a context of {tokens} tokens for {model}; at most \
                 {CONTEXT_TOKENS_MAX} are allowed"
            ),
        }
    }
}

/// Checks a status. Drops implausible figures that decide nothing.
///
/// # Errors
/// Why the node cannot be linked, or stay linked.
pub(crate) fn check(mut status: NodeStatus) -> Result<NodeStatus, StatusProblem> {
    if status.version != VERSION {
        return Err(StatusProblem::Version(status.version));
    }
    if !is_plain_id(&status.node) {
        return Err(StatusProblem::Name);
    }
    if status.slots > SLOTS_MAX {
        return Err(StatusProblem::Slots(status.slots));
    }
    check_models(&status.models)?;
    status.prefill_tokens_per_second = status.prefill_tokens_per_second.filter(is_speed);
    status.decode_tokens_per_second = status.decode_tokens_per_second.filter(is_speed);
    // A node queues no more than this, so cap the figure.
    status.slots_busy_elsewhere = status.slots_busy_elsewhere.min(SLOTS_MAX);
    status.vitals = status.vitals.map(vitals);
    status.prefixes = status.prefixes.filter(is_plausible);
    Ok(status)
}

fn check_models(models: &[ModelStatus]) -> Result<(), StatusProblem> {
    let is_name = |text: &str| {
        !text.is_empty()
            && text.len() <= MODEL_NAME_BYTES_MAX
            && !text.chars().any(char::is_control)
    };
    if models.len() > MODELS_MAX || models.iter().any(|model| model.id.len() > MODEL_NAME_BYTES_MAX)
    {
        return Err(StatusProblem::Models);
    }
    if let Some(model) = models.iter().find(|model| !is_name(&model.id) || !is_name(&model.digest))
    {
        return Err(StatusProblem::Model(model.id.clone()));
    }
    let names: BTreeSet<&str> = models.iter().map(|model| model.id.as_str()).collect();
    if names.len() < models.len() {
        return Err(StatusProblem::Duplicate);
    }
    if let Some(model) = models.iter().find(|model| !is_family(&model.details.family)) {
        return Err(StatusProblem::Model(model.id.clone()));
    }
    match models.iter().find(|model| model.context_tokens > CONTEXT_TOKENS_MAX) {
        Some(model) => Err(StatusProblem::Context(model.id.clone(), model.context_tokens)),
        None => Ok(()),
    }
}

fn is_family(text: &str) -> bool {
    text.len() <= FAMILY_BYTES_MAX && !text.chars().any(char::is_control)
}

fn is_plausible(prefixes: &PrefixStatus) -> bool {
    let is_key = !prefixes.key.is_empty() && prefixes.key.len() <= PREFIX_KEY_BYTES_MAX;
    is_key && prefixes.heir.iter().all(|heir| is_plain_id(heir))
}

fn is_speed(speed: &f32) -> bool {
    speed.is_finite() && (0.0..=SPEED_MAX).contains(speed)
}

fn vitals(reported: Vitals) -> Vitals {
    let share = |share: Option<f32>| share.filter(|share| (0.0..=1.0).contains(share));
    let bytes = |bytes: u64| if bytes <= MEMORY_BYTES_MAX { bytes } else { 0 };
    Vitals {
        memory_resident_bytes: bytes(reported.memory_resident_bytes),
        memory_available_bytes: bytes(reported.memory_available_bytes),
        kv_cells: reported.kv_cells,
        kv_cells_in_use: reported.kv_cells_in_use.min(reported.kv_cells),
        kv_cells_cached: reported.kv_cells_cached.min(reported.kv_cells),
        pressure_cpu: share(reported.pressure_cpu),
        pressure_memory: share(reported.pressure_memory),
        pressure_io: share(reported.pressure_io),
    }
}

#[cfg(test)]
mod tests {
    use inference_protocol::fleet::{NodeState, PrefixStatus};

    use super::*;

    type Change = fn(&mut NodeStatus);

    fn right() -> NodeStatus {
        let (id, digest) = ("m".to_string(), "d".to_string());
        NodeStatus {
            version: VERSION,
            node: "a".into(),
            epoch: 1,
            state: NodeState::Ready,
            models: vec![ModelStatus { id, digest, context_tokens: 8, ..ModelStatus::default() }],
            slots: 4,
            slots_busy_elsewhere: 0,
            queued: 0,
            engine_restarts: 0,
            prefill_tokens_per_second: Some(100.0),
            decode_tokens_per_second: Some(20.0),
            vitals: Some(Vitals { pressure_cpu: Some(0.5), ..Vitals::default() }),
            prefixes: Some(PrefixStatus { key: "0f".into(), ..PrefixStatus::default() }),
        }
    }

    #[test]
    fn what_can_be_is_taken_as_it_is() {
        assert_eq!(check(right()), Ok(right()));
    }

    #[test]
    fn figures_that_cannot_be_end_the_link() {
        let wrong: [(Change, &str); 9] = [
            (|s| s.version += 1, "version"),
            (|s| s.node = "a b".into(), "plain name"),
            (|s| s.slots = u32::MAX, "slots"),
            (|s| s.models[0].context_tokens = u32::MAX, "context"),
            (|s| s.models[0].id = "x".repeat(129), "too long"),
            (|s| s.models[0].id.clear(), "invalid"),
            (|s| s.models[0].id = "a\nb".into(), "invalid"),
            (|s| s.models[0].digest = "x".repeat(129), "invalid"),
            (|s| s.models = vec![s.models[0].clone(); 2], "twice"),
        ];
        for (change, why) in wrong {
            let mut status = right();
            change(&mut status);
            let refused = check(status).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn figures_that_decide_nothing_are_left_out() {
        for speed in [f32::INFINITY, f32::NAN, -1.0, 1e30] {
            let mut status = right();
            status.prefill_tokens_per_second = Some(speed);
            status.decode_tokens_per_second = Some(speed);
            let odd = Vitals { pressure_io: Some(speed), ..Vitals::default() };
            status.vitals = Some(Vitals { memory_resident_bytes: u64::MAX, ..odd });
            let status = check(status).unwrap();
            assert_eq!(status.prefill_tokens_per_second, None);
            assert_eq!(status.decode_tokens_per_second, None);
            assert_eq!(status.vitals, Some(Vitals::default()));
        }
        let saving = || PrefixStatus { key: "k".into(), ..PrefixStatus::default() };
        let heir = |name: &str| PrefixStatus { heir: Some(name.into()), ..saving() };
        let long = PrefixStatus { key: "k".repeat(65), ..PrefixStatus::default() };
        for (prefixes, is_kept) in [
            (heir("b"), true),
            (heir("b\nc"), false),
            (long, false),
            (PrefixStatus::default(), false),
        ] {
            let mut status = right();
            status.prefixes = Some(prefixes);
            assert_eq!(check(status).unwrap().prefixes.is_some(), is_kept);
        }
        // JSON has no infinity. A number too large for the type is refused or dropped, too.
        let line = serde_json::to_string(&right()).unwrap().replace("100.0", "1e300");
        let read = serde_json::from_str::<NodeStatus>(&line);
        let speed = read.map_or(None, |read| check(read).unwrap().prefill_tokens_per_second);
        assert_eq!(speed, None);
    }
}
