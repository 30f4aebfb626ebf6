//! Landlock: restricts the files that a thread and all that it starts may open.

use std::fs::File;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

/// The newest Landlock version whose restrictions we use; older kernels enforce what they support.
/// Version 6 (Linux 6.12) also blocks signals and abstract sockets to the outside.
const NEWEST: ABI = ABI::V6;

/// Restricts this thread to opening `readable` for reading and to the files in `folders`, and
/// blocks TCP connections and listeners.
pub(crate) fn confine(readable: &[&File], folders: &[&File]) -> Result<(), String> {
    match restrict(readable, folders) {
        Ok(RulesetStatus::NotEnforced) => {
            Err("Landlock is missing or disabled in this kernel (lsm=landlock,...)".into())
        }
        Ok(_) => Ok(()),
        Err(e) => Err(format!("Landlock: {e}")),
    }
}

fn restrict(readable: &[&File], folders: &[&File]) -> Result<RulesetStatus, RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    for file in readable {
        // The rule applies to the file itself, even if it is renamed.
        ruleset = ruleset.add_rule(PathBeneath::new(file, AccessFs::ReadFile))?;
    }
    for folder in folders {
        let access = AccessFs::ReadFile
            | AccessFs::WriteFile
            | AccessFs::ReadDir
            | AccessFs::MakeReg
            | AccessFs::RemoveFile;
        ruleset = ruleset.add_rule(PathBeneath::new(folder, access))?;
    }
    Ok(ruleset.restrict_self()?.ruleset)
}
