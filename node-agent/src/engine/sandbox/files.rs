//! Landlock: which files a thread, and all that it starts, may open.

use std::fs::File;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

/// The newest version of Landlock whose restrictions we use; older kernels enforce what they know.
/// Version 6 (Linux 6.12) also keeps signals and abstract sockets inside.
const NEWEST: ABI = ABI::V6;

/// From now on this thread opens `readable` for reading and nothing else, and connects to and
/// listens on no TCP port.
pub fn confine(readable: &[File]) -> Result<(), String> {
    match restrict(readable) {
        Ok(RulesetStatus::NotEnforced) => {
            Err("this kernel has no Landlock, or it is not enabled (lsm=landlock,...)".into())
        }
        Ok(_) => Ok(()),
        Err(e) => Err(format!("Landlock: {e}")),
    }
}

fn restrict(readable: &[File]) -> Result<RulesetStatus, RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    for file in readable {
        // The rule is about the file itself: it holds whatever becomes of the file's name.
        ruleset = ruleset.add_rule(PathBeneath::new(file, AccessFs::ReadFile))?;
    }
    Ok(ruleset.restrict_self()?.ruleset)
}
