//! Finds the files of a model: asks the hub for the repository's files, and chooses.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::client::{ByteRange, FileResponse, RequestError};
use super::endpoint::host_of;
use super::listing::{self, ListedFile, Listing};
use super::quantization;
use super::reference::Reference;
use super::refusal::{Refusal, RefusedRequest, refusal};
use super::retry::RetryState;
use super::source::Source;
use super::text;
use super::transfer::Tools;
use crate::engine::model_files::split;
use crate::types::exit::{EXIT_UNAVAILABLE, Failed};

/// Maximum size of the list of files in bytes; 1,000 files take about 300 kB.
const LIST_BYTES_MAX: usize = 8 << 20;
/// Timeout for one list of files.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// Length of a key in hex digits.
const KEY_DIGITS: usize = 16;

/// A file to download.
#[derive(Debug, Clone)]
pub(crate) struct RemoteFile {
    pub source: Source,
    pub name: String,
    /// Size, if it is known before the download.
    pub bytes: Option<u64>,
    pub sha256: Option<String>,
}

/// All files of a model, in order.
#[derive(Debug, Clone)]
pub(crate) struct RemoteModel {
    pub files: Vec<RemoteFile>,
    /// Identifies the contents, as far as they are known before the download.
    pub key: String,
    /// The commit of its repository.
    pub commit: Option<String>,
}

impl RemoteModel {
    /// The files that a file's name implies, without asking anyone.
    pub(crate) fn of_source(source: &Source) -> Result<Self, String> {
        let names = split::all_files(&source.file_name()?)?;
        let is_alone = names.len() == 1;
        let file = |name: String| RemoteFile {
            // Use a URL as it was given, if possible.
            source: if is_alone { source.clone() } else { source.beside(&name) },
            name,
            bytes: None,
            sha256: None,
        };
        let key = short_digest(&source.identity());
        Ok(Self { files: names.into_iter().map(file).collect(), key, commit: None })
    }
}

/// Finds the files of a model. Asks only the hub: a URL's files are implied by its name.
pub(crate) async fn resolve(
    reference: &Reference,
    tools: &mut Tools,
) -> Result<RemoteModel, Failed> {
    let (repo, revision) = match reference {
        Reference::File(source @ Source::Web(_)) => {
            return RemoteModel::of_source(source).map_err(usage);
        }
        Reference::File(Source::Hub { repo, revision, .. })
        | Reference::Repository { repo, revision, .. } => (repo, revision),
    };
    let listing = list(repo, revision, tools).await?;
    let found = match reference {
        Reference::File(Source::Hub { path, .. }) => quantization::find(&listing.files, path),
        Reference::Repository { quantization, .. } => {
            quantization::choose(&listing.files, quantization.as_deref())
        }
        Reference::File(Source::Web(_)) => return Err(usage("not a repository")),
    };
    let model = found.map_err(|why| usage(format_args!("hf:{repo} {why}")))?;
    // All files come from the commit that was listed, even if the branch moves meanwhile.
    let revision = listing.commit.as_ref().unwrap_or(revision);
    let remote = |file: &&ListedFile| RemoteFile {
        source: Source::Hub {
            repo: repo.clone(),
            revision: revision.clone(),
            path: file.path.clone(),
        },
        name: file.name().into(),
        bytes: file.bytes,
        sha256: file.sha256.clone(),
    };
    let files = model.files.iter().map(remote).collect();
    let key = content_key(&model.files, revision);
    Ok(RemoteModel { files, key, commit: listing.commit.clone() })
}

/// The same for the same contents, whichever commit they are from.
fn content_key(files: &[&ListedFile], revision: &str) -> String {
    let content = files.iter().map(|file| {
        let content = file.sha256.as_deref().unwrap_or(revision);
        format!("{}\n{content}\n", file.path.join("/"))
    });
    short_digest(&content.collect::<String>())
}

/// A name for a file or folder.
pub(crate) fn short_digest(of: &str) -> String {
    let mut digest = text::hex(&Sha256::digest(of));
    digest.truncate(KEY_DIGITS);
    digest
}

fn usage(why: impl std::fmt::Display) -> Failed {
    Failed::new(super::EXIT_USAGE, why)
}

async fn list(repo: &str, revision: &str, tools: &mut Tools) -> Result<Listing, Failed> {
    let whole = Source::Hub { repo: repo.into(), revision: revision.into(), path: Vec::new() };
    let mut retry = RetryState::new(tools.retries, tools.seed);
    loop {
        let stop = tools.stop.clone();
        let listed = tokio::time::timeout(LIST_TIMEOUT, attempt(&whole, tools));
        let listed = stop.unless(listed).await.map_err(interrupted)?;
        let timed_out =
            || Refusal::Temporary("the hub did not list its files in time".into(), None);
        let (why, retry_after) = match listed.unwrap_or_else(|_| Err(timed_out())) {
            Ok(listing) => return Ok(listing),
            Err(Refusal::Permanent(failed)) => return Err(failed),
            Err(Refusal::Temporary(why, retry_after)) => (why, retry_after),
        };
        let wait = retry.record_failure(retry_after).map_err(|end| {
            Failed::new(EXIT_UNAVAILABLE, format_args!("{}: {why}; {end}", whole.shown()))
        })?;
        let seconds = wait.as_secs_f64();
        tools.progress.print(&format!("{}: {why}; retrying in {seconds:.1} s", whole.shown()));
        stop.unless(tokio::time::sleep(wait)).await.map_err(interrupted)?;
    }
}

fn interrupted(code: u8) -> Failed {
    Failed::new(code, "interrupted")
}

async fn attempt(whole: &Source, tools: &mut Tools) -> Result<Listing, Refusal> {
    let unavailable = |why: String| Refusal::Permanent(Failed::new(EXIT_UNAVAILABLE, why));
    let url = whole
        .list_url(tools.client.endpoint().hub())
        .ok_or_else(|| unavailable(format!("{}: not on the hub", whole.shown())))?;
    let Tools { client, progress, .. } = tools;
    let mut warn = |line: &str| progress.print(line);
    let mut response = match client.get(&url, &ByteRange::All, &mut warn).await {
        Ok(response) => response,
        Err(RequestError::Permanent(why)) => return Err(unavailable(why)),
        Err(RequestError::Temporary(why)) => return Err(Refusal::Temporary(why, None)),
    };
    let host = host_of(&response.url);
    if response.status != 200 {
        let endpoint = tools.client.endpoint();
        let hub = endpoint.is_hub(&response.url);
        let request = RefusedRequest { source: whole, host: &host, hub, key: endpoint.has_key() };
        return Err(refusal(response.status, &response.headers, &request));
    }
    let body = read_body(&mut response).await?;
    let body = body.ok_or_else(|| {
        unavailable(format!("{host} sent a list of files of more than {LIST_BYTES_MAX} bytes"))
    })?;
    listing::parse(&body).map_err(|why| unavailable(format!("{host} {why}")))
}

/// The whole body; `None` if it is too large.
async fn read_body(response: &mut FileResponse) -> Result<Option<Vec<u8>>, Refusal> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(bytes)) if body.len() + bytes.len() > LIST_BYTES_MAX => return Ok(None),
            Ok(Some(bytes)) => body.extend_from_slice(&bytes),
            Ok(None) => return Ok(Some(body)),
            Err(why) => return Err(Refusal::Temporary(why.to_string(), None)),
        }
    }
}
