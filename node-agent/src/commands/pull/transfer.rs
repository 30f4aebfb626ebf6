//! Transfers one file, from the check whether it already exists to its last byte on disk.

mod existing;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use super::client::{ByteRange, Client, FileResponse, RequestError};
use super::content::{self, HEAD_BYTES};
use super::endpoint::host_of;
use super::part::{Part, boot_id, folder_of};
use super::part_info::PartInfo;
use super::progress::DownloadProgress;
use super::refusal::{self, Refusal, RefusedRequest};
use super::response::{self, Entity, FILE_BYTES_MAX, HubMetadata, Verdict};
use super::retry::RetryState;
use super::source::Source;
use super::stop::Stop;
use super::{io_failed, space, text};
use crate::types::exit::{EXIT_UNAVAILABLE, Failed};

/// A file to fetch.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub source: Source,
    pub target: PathBuf,
    /// Required SHA-256, if given.
    pub sha256: Option<String>,
    /// True if another file at that path may be replaced.
    pub force: bool,
}

/// What is needed to fetch files; shared by all files of a model.
pub(crate) struct Tools {
    pub client: Client,
    pub progress: DownloadProgress,
    pub stop: Stop,
    /// Maximum consecutive failures.
    pub retries: u32,
    pub seed: u64,
}

/// Result of a fetch.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// The commit it is from, if the hub reports it.
    pub commit: Option<String>,
}

pub(super) struct Transfer<'a> {
    pub(super) job: &'a Job,
    pub(super) tools: &'a mut Tools,
    pub(super) part: Part,
    retry: RetryState,
    /// The hub's metadata of the file.
    pub(super) metadata: HubMetadata,
}

/// How a body ended.
enum Received {
    End,
    Lost(String),
    TooMuch,
}

/// Fetches a file, unless it exists. After a failure, what was fetched stays for the next time,
/// except for bytes that are proven wrong.
pub(crate) async fn fetch(job: &Job, tools: &mut Tools) -> Result<Fetched, Failed> {
    let part = Part::open(&job.target)?;
    let retry = RetryState::new(tools.retries, tools.seed);
    let mut transfer = Transfer { job, tools, part, retry, metadata: HubMetadata::default() };
    let done = transfer.run().await;
    let at = transfer.part.at();
    let Transfer { mut part, metadata, tools, .. } = transfer;
    tools.progress.end();
    match done {
        Ok(Some(digest)) => {
            let target = &job.target;
            let kept = kept(part.path(), at);
            part.finish(target, job.force).map_err(|e| {
                let Failed { code, message } = io_failed(target, &e);
                Failed { code, message: format!("{message}{kept}") }
            })?;
            let shown = target.display();
            tools.progress.print(&format!("{shown}: {}, sha256 {digest}", text::bytes(at)));
        }
        Ok(None) => part.remove_if_empty(),
        Err(Failed { code, message }) => {
            let kept = if at > 0 { kept(part.path(), at) } else { String::new() };
            part.remove_if_empty();
            return Err(Failed { code, message: format!("{message}{kept}") });
        }
    }
    Ok(Fetched { commit: metadata.commit })
}

fn kept(part: &Path, at: u64) -> String {
    format!("; {} are kept in {}: run this again to resume", text::bytes(at), part.display())
}

impl Transfer<'_> {
    /// Returns the file's digest; `None` if the file already existed.
    async fn run(&mut self) -> Result<Option<String>, Failed> {
        if existing::is_present(self).await? {
            return Ok(None);
        }
        self.resume().await?;
        while !self.attempt().await? {}
        self.check_whole().map(Some)
    }

    /// Resumes what an earlier pull left, if possible.
    async fn resume(&mut self) -> Result<(), Failed> {
        let Some((bytes, info)) = self.part.previous()? else { return Ok(()) };
        let source = self.job.source.identity();
        let resume = info.resume_point(bytes, &source, self.job.sha256.as_deref(), &boot_id());
        let until = match resume {
            Ok(until) => until,
            Err(why) => {
                self.tools.progress.print(&format!("{}: {why}: starting over", self.name()));
                return self.part.reset().map_err(|e| self.disk(&e));
            }
        };
        let line =
            format!("{}: verifying the {} already downloaded", self.name(), text::bytes(until));
        self.tools.progress.print(&line);
        self.part.resume(info).map_err(|e| self.disk(&e))?;
        while self.part.hash_step(until).map_err(|e| self.disk(&e))? {
            self.unless_stopped(tokio::task::yield_now()).await?;
        }
        self.retry.record_progress(until);
        Ok(())
    }

    /// Sends one request and receives its body. True if the file is complete.
    async fn attempt(&mut self) -> Result<bool, Failed> {
        let at = self.part.at();
        let bytes = match self.part.info().filter(|_| at > 0) {
            None => ByteRange::All,
            Some(info) => ByteRange::From(at, info.validator.clone()),
        };
        let mut response = self.request(&bytes).await?;
        self.check_digests()?;
        if response.status == 416 {
            self.restart("the file on the server is shorter than the partial file here")?;
            return Ok(false);
        }
        let resume = self.part.info().filter(|_| at > 0).map(|info| (at, info));
        let until =
            match response::judge(response.status, &response.headers, &self.metadata, resume) {
                Verdict::Whole(entity) => {
                    if at > 0 {
                        self.restart("the server sends the file from its first byte again")?;
                    }
                    self.begin(entity, &response)?
                }
                Verdict::Rest(until) => {
                    self.check_space(self.part.info().and_then(|m| m.length))?;
                    Some(until)
                }
                Verdict::StartOver(why) => return self.restart(&why).map(|()| false),
                Verdict::Refuse(why) => return Err(self.invalid(why)),
            };
        self.tools.progress.begin(&self.name(), self.part.at(), self.length());
        match self.receive(&mut response, until).await? {
            Received::End if self.is_whole() => return Ok(true),
            Received::End => {}
            Received::Lost(why) => self.handle_broken_body(&why).await?,
            Received::TooMuch => self.restart("the server sent more than it announced")?,
        }
        Ok(false)
    }

    /// Sends requests until there is a response with bytes of the file, or one that says that the
    /// requested bytes do not exist (416).
    pub(super) async fn request(&mut self, bytes: &ByteRange) -> Result<FileResponse, Failed> {
        let url = self.job.source.url(self.tools.client.endpoint().hub());
        loop {
            self.retry.record_request().map_err(unavailable)?;
            let Tools { client, progress, stop, .. } = &mut *self.tools;
            let mut warn = |line: &str| progress.print(line);
            let got = stop.unless(client.get(&url, bytes, &mut warn)).await;
            let (why, wait) = match got.map_err(interrupted)? {
                Err(RequestError::Permanent(why)) => return Err(unavailable(why)),
                Err(RequestError::Temporary(why)) => (why, None),
                Ok(response) => {
                    self.retry.record_response();
                    self.metadata =
                        response.metadata.clone().or(std::mem::take(&mut self.metadata));
                    match self.classify(response, bytes) {
                        Ok(response) => return Ok(response),
                        Err(Refusal::Permanent(failed)) => return Err(failed),
                        Err(Refusal::Temporary(why, wait)) => (why, wait),
                    }
                }
            };
            self.pause(&why, wait).await?;
        }
    }

    fn classify(&self, response: FileResponse, bytes: &ByteRange) -> Result<FileResponse, Refusal> {
        match (response.status, bytes) {
            (200 | 206, _) | (416, ByteRange::From(..)) => return Ok(response),
            _ => {}
        }
        let endpoint = self.tools.client.endpoint();
        let refused = RefusedRequest {
            source: &self.job.source,
            host: &host_of(&response.url),
            hub: endpoint.is_hub(&response.url),
            key: endpoint.has_key(),
        };
        Err(refusal::refusal(response.status, &response.headers, &refused))
    }

    /// Starts the file from its first byte; returns its length, if known.
    fn begin(&mut self, entity: Entity, response: &FileResponse) -> Result<Option<u64>, Failed> {
        let kind = response.headers.get("content-type").and_then(|v| v.to_str().ok());
        content::check_type(&self.name(), kind.unwrap_or_default())
            .map_err(|why| self.invalid(why))?;
        let sha256 = self.job.sha256.clone().or(entity.sha256);
        if sha256.is_none() && !response::has_an_end(&response.headers, response.http1) {
            return Err(self.invalid("the server does not send the file's length: set --sha256"));
        }
        let info = PartInfo {
            source: self.job.source.identity(),
            length: entity.length,
            validator: entity.validator,
            sha256,
            boot: boot_id(),
        };
        self.part.reset().map_err(|e| self.disk(&e))?;
        self.check_space(info.length)?;
        self.part.begin(info).map_err(|e| self.disk(&e))?;
        Ok(entity.length)
    }

    async fn receive(
        &mut self,
        response: &mut FileResponse,
        until: Option<u64>,
    ) -> Result<Received, Failed> {
        let until = until.unwrap_or(FILE_BYTES_MAX);
        loop {
            let bytes = match self.unless_stopped(response.chunk()).await? {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Ok(Received::End),
                Err(why) => {
                    return Ok(Received::Lost(format!("{}: {why}", host_of(&response.url))));
                }
            };
            let before = self.part.at();
            if before + bytes.len() as u64 > until {
                return Ok(Received::TooMuch);
            }
            self.part.append(&bytes).map_err(|e| self.disk(&e))?;
            let at = self.part.at();
            // Detect an error page now, not after gigabytes.
            if before < HEAD_BYTES as u64 && at >= HEAD_BYTES as u64 {
                self.check_content()?;
            }
            self.tools.progress.set(at);
            self.retry.record_progress(at);
        }
    }

    /// Handles a body that broke off.
    async fn handle_broken_body(&mut self, why: &str) -> Result<(), Failed> {
        self.pause(why, None).await?;
        if self.part.at() > 0 && !self.part.info().is_some_and(PartInfo::is_resumable) {
            self.restart("the server does not support resuming")?;
        }
        Ok(())
    }

    fn restart(&mut self, why: &str) -> Result<(), Failed> {
        let name = self.name();
        self.retry
            .record_restart()
            .map_err(|end| unavailable(format_args!("{name}: {why}; {end}")))?;
        self.tools.progress.print(&format!("{name}: {why}: starting over"));
        self.part.reset().map_err(|e| self.disk(&e))
    }

    async fn pause(&mut self, why: &str, retry_after: Option<u64>) -> Result<(), Failed> {
        let wait = self.retry.record_failure(retry_after);
        let wait = wait.map_err(|end| unavailable(format_args!("{why}; {end}")))?;
        let seconds = wait.as_secs_f64();
        self.tools.progress.print(&format!("{}: {why}; retrying in {seconds:.1} s", self.name()));
        self.unless_stopped(tokio::time::sleep(wait)).await
    }

    pub(super) async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, Failed> {
        self.tools.stop.unless(work).await.map_err(interrupted)
    }

    fn is_whole(&self) -> bool {
        self.length().is_none_or(|length| self.part.at() == length)
    }

    fn length(&self) -> Option<u64> {
        self.part.info().and_then(|m| m.length)
    }

    /// Checks the disk space for what is missing of `length` bytes.
    fn check_space(&self, length: Option<u64>) -> Result<(), Failed> {
        let missing = length.unwrap_or(0).saturating_sub(self.part.at());
        space::check(folder_of(&self.job.target), missing)
    }

    /// Checks that the digest on the command line equals the hub's.
    pub(super) fn check_digests(&self) -> Result<(), Failed> {
        match (&self.job.sha256, &self.metadata.sha256) {
            (Some(ours), Some(theirs)) if ours != theirs => Err(self.invalid(format_args!(
                "--sha256 is {ours}, but the file there has sha256 {theirs}: one of them is not \
                 the file you want"
            ))),
            _ => Ok(()),
        }
    }

    fn check_content(&mut self) -> Result<(), Failed> {
        content::check(&self.name(), self.part.head()).map_err(|why| self.reject(why))
    }

    fn check_whole(&mut self) -> Result<String, Failed> {
        self.check_content()?;
        let digest = self.part.digest();
        let expected = self.part.info().and_then(|m| m.sha256.clone());
        let expected = self.job.sha256.clone().or(expected);
        match expected {
            Some(expected) if expected != digest => Err(self.reject(format_args!(
                "the downloaded file has sha256 {digest}, not {expected}; it was removed: run this again"
            ))),
            _ => Ok(digest),
        }
    }

    /// Deletes bytes that are proven wrong.
    fn reject(&mut self, why: impl Display) -> Failed {
        match self.part.discard() {
            Ok(()) => self.invalid(why),
            Err(e) => self.disk(&e),
        }
    }

    pub(super) fn invalid(&self, why: impl Display) -> Failed {
        Failed::data(format_args!("{}: {why}", self.job.source.shown()))
    }

    fn disk(&self, error: &std::io::Error) -> Failed {
        io_failed(self.part.path(), error)
    }

    fn name(&self) -> String {
        let name = self.job.target.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}

fn interrupted(code: u8) -> Failed {
    Failed::new(code, "interrupted")
}

fn unavailable(why: impl Display) -> Failed {
    Failed::new(EXIT_UNAVAILABLE, why)
}
