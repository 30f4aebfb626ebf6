//! Checks whether the file already exists: the right one is not fetched again, and another one is
//! not replaced without `--force`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::commands::pull::client::ByteRange;
use crate::commands::pull::response::whole_length;
use crate::commands::pull::stop::Stop;
use crate::commands::pull::transfer::Transfer;
use crate::commands::pull::{EXIT_IO, io_failed, text};
use crate::types::exit::Failed;

/// Bytes to read and hash at a time.
const STEP_BYTES: usize = 1 << 20;

/// True if nothing is left to do. The error says that another file is in the way.
pub(super) async fn is_present(transfer: &mut Transfer<'_>) -> Result<bool, Failed> {
    let target = transfer.job.target.clone();
    let bytes = match std::fs::metadata(&target) {
        Ok(found) if found.is_file() => found.len(),
        Ok(_) => return Err(in_the_way(&target, "exists and is not a regular file")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(io_failed(&target, &e)),
    };
    let mut length = None;
    if transfer.job.sha256.is_none() {
        let response = transfer.request(&ByteRange::First).await?;
        length = whole_length(response.status, &response.headers).or(transfer.metadata.length);
    }
    let expected = transfer.job.sha256.clone().or(transfer.metadata.sha256.clone());
    let shown = target.display();
    let (same, note) = match &expected {
        Some(expected) => {
            let line = format!("{shown} exists: verifying its sha256");
            transfer.tools.progress.print(&line);
            let digest = digest_of(&target, &transfer.tools.stop).await?;
            (digest == *expected, format!("sha256 {digest}"))
        }
        None => (length == Some(bytes), format!("{bytes} bytes; no sha256 to compare with")),
    };
    // The right size alone is no proof: --force fetches the file again.
    if same && (expected.is_some() || !transfer.job.force) {
        transfer.tools.progress.print(&format!("{shown} already exists ({note})"));
        return Ok(true);
    }
    if transfer.job.force {
        return Ok(false);
    }
    Err(in_the_way(&target, &format!("exists and differs ({note})")))
}

async fn digest_of(path: &Path, stop: &Stop) -> Result<String, Failed> {
    let failed = |e: io::Error| io_failed(path, &e);
    let mut file = File::open(path).map_err(failed)?;
    let (mut hash, mut bytes) = (Sha256::new(), vec![0; STEP_BYTES]);
    loop {
        let read = file.read(&mut bytes).map_err(failed)?;
        if read == 0 {
            return Ok(text::hex(&hash.finalize()));
        }
        hash.update(bytes.get(..read).unwrap_or_default());
        let stopped = stop.unless(tokio::task::yield_now()).await;
        stopped.map_err(|code| Failed { code, message: "interrupted".into() })?;
    }
}

fn in_the_way(target: &Path, why: &str) -> Failed {
    let message = format!(
        "{} {why}: choose another name with --to, or replace it with --force",
        target.display()
    );
    Failed { code: EXIT_IO, message }
}
