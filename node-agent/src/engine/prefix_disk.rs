//! The folder of saved prefixes, as the agent and its engine find it.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use inference_core::scheduler::prefix_disk::{Key, PrefixFolder, digest_of};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::engine::options::EngineOptions;
use crate::types::cache_folder;

/// How long a stopping engine may write what is not written yet.
pub(crate) const FINISH_LIMIT: Duration = Duration::from_secs(5);
/// In the cache folder. It belongs to the engine: other files in it are deleted.
const FOLDER: &str = "prefixes";

/// Where prefixes are saved, and how many bytes they may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PrefixDiskOptions {
    pub folder: PathBuf,
    pub bytes: u64,
}

/// The options for `--prefix-disk-mib`. With 0, deletes the files of an earlier run: they hold
/// prompts. Blocks.
///
/// # Errors
/// There is no folder for it.
pub(crate) fn options(mib: u64) -> Result<Option<PrefixDiskOptions>, String> {
    let folder = cache_folder::find().map(|cache| cache.join(FOLDER));
    if mib == 0 {
        folder.filter(|folder| folder.is_dir()).iter().for_each(|folder| discard(folder));
        return Ok(None);
    }
    let unusable = "--prefix-disk-mib: there is no cache folder; set FLOTILLA_CACHE_DIR to one";
    let folder = folder.filter(|folder| folder.to_str().is_some()).ok_or(unusable)?;
    Ok(Some(PrefixDiskOptions { folder, bytes: mib << 20 }))
}

fn discard(folder: &Path) {
    let cleared = PrefixFolder::open(folder).and_then(|opened| {
        opened.clear()?;
        std::fs::remove_dir(folder)
    });
    match cleared {
        Ok(()) => tracing::info!(folder = %folder.display(), "saved prefixes deleted"),
        // Another agent uses it.
        Err(e) if e.kind() == ErrorKind::WouldBlock => {}
        Err(e) => tracing::warn!(folder = %folder.display(), reason = %e, "saved prefixes remain"),
    }
}

/// Opens the folder, in the engine. The error says why prefixes are not saved on disk.
pub(crate) fn open(options: &EngineOptions) -> Result<Option<(PrefixFolder, Key)>, String> {
    let Some(disk) = &options.prefix_disk else { return Ok(None) };
    let at = |e: io::Error| format!("{}: {e}", disk.folder.display());
    let folder = PrefixFolder::open(&disk.folder).map_err(|e| match e.kind() {
        ErrorKind::WouldBlock => format!("{}: another agent uses it", disk.folder.display()),
        _ => at(e),
    })?;
    Ok(Some((folder, state_key(options).map_err(at)?)))
}

/// The key of all states of an engine.
pub(crate) fn state_key(options: &EngineOptions) -> io::Result<Key> {
    Ok(key(options, program_digest()?))
}

/// Digest of this program: the same on all nodes that run it.
fn program_digest() -> io::Result<[u8; 32]> {
    digest_of(File::open("/proc/self/exe")?)
}

/// What determines the bytes of a state: the weights; the program, which llama.cpp and all kernels
/// are part of; and how it computes. The number of cells decides how some models scale positions.
/// All sets of kernels compute the same bits.
fn key(options: &EngineOptions, program: [u8; 32]) -> Key {
    let EngineOptions { digest, kv_type, flash_attention, kv_cells, batch_rows, .. } = options;
    let kv_type = kv_type.to_string();
    let settings = (kv_type, flash_attention.name(), kv_cells, batch_rows);
    let text = format!("{digest} {program:?} {settings:?}");
    Sha256::digest(text.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use inference_core::hardware::Kernel;
    use inference_core::llama::{FlashAttention, KvType};

    use super::*;

    #[test]
    fn all_that_changes_a_state_changes_its_key() {
        let program = program_digest().unwrap();
        let options = EngineOptions::made_up;
        let usual = key(&options(), program);
        let kernel = Kernel::ALL[0];
        let same = EngineOptions { slots: 7, threads: 9, kernel, ..options() };
        assert_eq!(usual, key(&same, program));
        let others = [
            EngineOptions { kv_type: KvType::Q8_0, ..options() },
            EngineOptions { flash_attention: FlashAttention::Off, ..options() },
            EngineOptions { kv_cells: 4097, ..options() },
            EngineOptions { batch_rows: 256, ..options() },
        ];
        for other in others {
            assert_ne!(usual, key(&other, program), "{other:?}");
        }
        assert_ne!(usual, key(&options(), [0; 32]));
    }
}
