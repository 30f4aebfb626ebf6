//! Checks `store`: where files, batches and responses in the background are kept, and their limits.

use std::path::PathBuf;

use super::files::Files;
use super::section::{Problems, Section};
use crate::store::StorageLimits;

/// Where files, batches and responses in the background are kept, and their limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSettings {
    /// The folder.
    pub dir: PathBuf,
    /// Bytes of all files.
    pub storage: StorageLimits,
    /// Bytes of one uploaded file.
    pub file_bytes_max: u64,
    /// Age at which files, and batches and responses that have ended, are deleted, in seconds.
    pub age_s_max: u64,
    /// Batches and their lines.
    pub batches: BatchLimits,
    /// Responses in the background.
    pub background: BackgroundLimits,
}

/// Limits of responses in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackgroundLimits {
    /// Those of a tenant that have not ended.
    pub per_tenant_max: usize,
    /// Those of all tenants that run or wait in the queue.
    pub concurrent_max: usize,
    /// Those of one tenant that run or wait in the queue.
    pub tenant_concurrent_max: usize,
}

/// Limits of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// Batches of a tenant that have not ended.
    pub per_tenant_max: usize,
    /// Lines of one batch.
    pub lines_max: usize,
    /// Lines of all batches that run or wait in the queue.
    pub concurrent_max: usize,
    /// Lines of one tenant's batches that run or wait in the queue.
    pub tenant_concurrent_max: usize,
}

const MIB: u64 = 1024 * 1024;
const TIB: u64 = 1024 * 1024 * MIB;
const DAY_S: u64 = 24 * 60 * 60;

/// Reads the section. `None` without a folder, or after a problem.
pub(super) fn read(
    section: Option<Section>,
    files: &Files,
    problems: &mut Problems,
) -> Option<StoreSettings> {
    let mut section = section?;
    let dir = section.required_text("dir", problems).map(|dir| files.written_path(&dir));
    if dir.as_ref().is_some_and(|dir| dir.exists() && !dir.is_dir()) {
        section.report("dir", "is a file; expected a folder", problems);
    }
    let mut number = |key, default, max| section.number(key, default, 1..=max, problems);
    let bytes_max = number("bytes_max", 16 * 1024 * MIB, 1024 * TIB);
    let tenant_bytes_max = number("bytes_per_tenant_max", 2 * 1024 * MIB, 1024 * TIB);
    let file_bytes_max = number("file_bytes_max", 200 * MIB, 64 * 1024 * MIB);
    let age_days = number("age_days", 30, 3650);
    let batches = BatchLimits {
        per_tenant_max: number("batches_per_tenant_max", 32, 100_000) as usize,
        lines_max: number("batch_lines_max", 50_000, 10_000_000) as usize,
        concurrent_max: number("lines_concurrent_max", 512, 100_000) as usize,
        tenant_concurrent_max: number("lines_concurrent_per_tenant_max", 256, 100_000) as usize,
    };
    let background = BackgroundLimits {
        per_tenant_max: number("background_per_tenant_max", 1000, 1_000_000) as usize,
        concurrent_max: number("background_concurrent_max", 256, 100_000) as usize,
        tenant_concurrent_max: number("background_concurrent_per_tenant_max", 64, 100_000) as usize,
    };
    section.finish(problems);
    Some(StoreSettings {
        dir: dir?,
        storage: StorageLimits { bytes_max, tenant_bytes_max },
        file_bytes_max,
        age_s_max: age_days * DAY_S,
        batches,
        background,
    })
}
