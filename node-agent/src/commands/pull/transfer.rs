//! Transfers one file, from the check whether it already exists to its last byte on disk.

mod here;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use super::answer::{self, Entity, FILE_BYTES_MAX, Linked, Offer};
use super::client::{Answer, Bytewise, Client, Trouble};
use super::content::{self, HEAD_BYTES};
use super::endpoint::host_of;
use super::memo::Memo;
use super::part::{Part, boot_id, folder_of};
use super::patience::Patience;
use super::progress::Progress;
use super::refusal::{self, Asked, Refusal};
use super::source::Source;
use super::stop::Stop;
use super::{io_failed, space, text};
use crate::types::exit::{EXIT_UNAVAILABLE, Failed};

/// A file to fetch.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// Where to fetch it from.
    pub source: Source,
    /// Path to write to.
    pub target: PathBuf,
    /// Required SHA-256, if given.
    pub sha256: Option<String>,
    /// True if another file at that path may be replaced.
    pub force: bool,
}

/// What is needed to fetch files; shared by all files of a model.
pub(crate) struct Tools {
    /// HTTP client.
    pub client: Client,
    /// Progress display.
    pub progress: Progress,
    /// Stop signal.
    pub stop: Stop,
    /// Maximum consecutive failures.
    pub retries: u32,
    /// Seed for jitter.
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
    patience: Patience,
    /// The hub's metadata of the file.
    pub(super) linked: Linked,
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
    let patience = Patience::new(tools.retries, tools.seed);
    let mut transfer = Transfer { job, tools, part, patience, linked: Linked::default() };
    let done = transfer.run().await;
    let at = transfer.part.at();
    let Transfer { mut part, linked, tools, .. } = transfer;
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
            tools.progress.say(&format!("{shown}: {}, sha256 {digest}", text::bytes(at)));
        }
        Ok(None) => part.leave(),
        Err(Failed { code, message }) => {
            let kept = if at > 0 { kept(part.path(), at) } else { String::new() };
            part.leave();
            return Err(Failed { code, message: format!("{message}{kept}") });
        }
    }
    Ok(Fetched { commit: linked.commit })
}

fn kept(part: &Path, at: u64) -> String {
    format!("; {} are kept in {}: run this again to go on", text::bytes(at), part.display())
}

impl Transfer<'_> {
    /// Returns the file's digest; `None` if the file already existed.
    async fn run(&mut self) -> Result<Option<String>, Failed> {
        if here::is_here(self).await? {
            return Ok(None);
        }
        self.go_on().await?;
        while !self.attempt().await? {}
        self.check_whole().map(Some)
    }

    /// Resumes what an earlier pull left, if possible.
    async fn go_on(&mut self) -> Result<(), Failed> {
        let Some((bytes, memo)) = self.part.left()? else { return Ok(()) };
        let source = self.job.source.identity();
        let resume = memo.resume_point(bytes, &source, self.job.sha256.as_deref(), &boot_id());
        let until = match resume {
            Ok(until) => until,
            Err(why) => {
                self.tools.progress.say(&format!("{}: {why}: beginning again", self.name()));
                return self.part.reset().map_err(|e| self.disk(&e));
            }
        };
        let say = format!("{}: checking the {} that are here", self.name(), text::bytes(until));
        self.tools.progress.say(&say);
        self.part.go_on(memo).map_err(|e| self.disk(&e))?;
        while self.part.hash_step(until).map_err(|e| self.disk(&e))? {
            self.unless_stopped(tokio::task::yield_now()).await?;
        }
        self.patience.progressed(until);
        Ok(())
    }

    /// Sends one request and receives its body. True if the file is complete.
    async fn attempt(&mut self) -> Result<bool, Failed> {
        let at = self.part.at();
        let bytes = match self.part.memo().filter(|_| at > 0) {
            None => Bytewise::All,
            Some(memo) => Bytewise::From(at, memo.validator.clone()),
        };
        let mut answer = self.ask(&bytes).await?;
        self.check_digests()?;
        if answer.status == 416 {
            self.restart("the file on the server is shorter than what is here")?;
            return Ok(false);
        }
        let resume = self.part.memo().filter(|_| at > 0).map(|memo| (at, memo));
        let until = match answer::judge(answer.status, &answer.headers, &self.linked, resume) {
            Offer::Whole(entity) => {
                if at > 0 {
                    self.restart("the server sends the file from its first byte")?;
                }
                self.begin(entity, &answer)?
            }
            Offer::Rest(until) => {
                self.room(self.part.memo().and_then(|m| m.length))?;
                Some(until)
            }
            Offer::Again(why) => return self.restart(&why).map(|()| false),
            Offer::Refuse(why) => return Err(self.wrong(why)),
        };
        self.tools.progress.begin(&self.name(), self.part.at(), self.length());
        match self.receive(&mut answer, until).await? {
            Received::End if self.is_whole() => return Ok(true),
            Received::End => {}
            Received::Lost(why) => self.lost(&why).await?,
            Received::TooMuch => self.restart("the server sent more than it announced")?,
        }
        Ok(false)
    }

    /// Sends requests until there is a response with bytes of the file, or one that says that the
    /// requested bytes do not exist (416).
    pub(super) async fn ask(&mut self, bytes: &Bytewise) -> Result<Answer, Failed> {
        let url = self.job.source.url(self.tools.client.endpoint().hub());
        loop {
            self.patience.request().map_err(unavailable)?;
            let Tools { client, progress, stop, .. } = &mut *self.tools;
            let mut warn = |line: &str| progress.say(line);
            let got = stop.unless(client.get(&url, bytes, &mut warn)).await;
            let (why, wait) = match got.map_err(interrupted)? {
                Err(Trouble::Refused(why)) => return Err(unavailable(why)),
                Err(Trouble::Lost(why)) => (why, None),
                Ok(answer) => {
                    self.patience.answered();
                    self.linked = answer.linked.clone().or(std::mem::take(&mut self.linked));
                    match self.sort(answer, bytes) {
                        Ok(answer) => return Ok(answer),
                        Err(Refusal::Final(failed)) => return Err(failed),
                        Err(Refusal::Later(why, wait)) => (why, wait),
                    }
                }
            };
            self.pause(&why, wait).await?;
        }
    }

    fn sort(&self, answer: Answer, bytes: &Bytewise) -> Result<Answer, Refusal> {
        match (answer.status, bytes) {
            (200 | 206, _) | (416, Bytewise::From(..)) => return Ok(answer),
            _ => {}
        }
        let endpoint = self.tools.client.endpoint();
        let asked = Asked {
            source: &self.job.source,
            host: &host_of(&answer.url),
            hub: endpoint.is_hub(&answer.url),
            key: endpoint.has_key(),
        };
        Err(refusal::refusal(answer.status, &answer.headers, &asked))
    }

    /// Starts the file from its first byte; returns its length, if known.
    fn begin(&mut self, entity: Entity, answer: &Answer) -> Result<Option<u64>, Failed> {
        let kind = answer.headers.get("content-type").and_then(|v| v.to_str().ok());
        content::check_type(&self.name(), kind.unwrap_or_default())
            .map_err(|why| self.wrong(why))?;
        let sha256 = self.job.sha256.clone().or(entity.sha256);
        if sha256.is_none() && !answer::has_an_end(&answer.headers, answer.http1) {
            return Err(self.wrong("the server does not say where the file ends: give --sha256"));
        }
        let memo = Memo {
            source: self.job.source.identity(),
            length: entity.length,
            validator: entity.validator,
            sha256,
            boot: boot_id(),
        };
        self.part.reset().map_err(|e| self.disk(&e))?;
        self.room(memo.length)?;
        self.part.begin(memo).map_err(|e| self.disk(&e))?;
        Ok(entity.length)
    }

    async fn receive(
        &mut self,
        answer: &mut Answer,
        until: Option<u64>,
    ) -> Result<Received, Failed> {
        let until = until.unwrap_or(FILE_BYTES_MAX);
        loop {
            let bytes = match self.unless_stopped(answer.chunk()).await? {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Ok(Received::End),
                Err(why) => return Ok(Received::Lost(format!("{}: {why}", host_of(&answer.url)))),
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
            self.patience.progressed(at);
        }
    }

    /// Handles a body that broke off.
    async fn lost(&mut self, why: &str) -> Result<(), Failed> {
        self.pause(why, None).await?;
        if self.part.at() > 0 && !self.part.memo().is_some_and(Memo::is_resumable) {
            self.restart("the server gives no way to go on where it stopped")?;
        }
        Ok(())
    }

    fn restart(&mut self, why: &str) -> Result<(), Failed> {
        let name = self.name();
        self.patience
            .restart()
            .map_err(|end| unavailable(format_args!("{name}: {why}; {end}")))?;
        self.tools.progress.say(&format!("{name}: {why}: beginning again"));
        self.part.reset().map_err(|e| self.disk(&e))
    }

    async fn pause(&mut self, why: &str, asked: Option<u64>) -> Result<(), Failed> {
        let wait = self.patience.after_failure(asked);
        let wait = wait.map_err(|end| unavailable(format_args!("{why}; {end}")))?;
        let seconds = wait.as_secs_f64();
        self.tools.progress.say(&format!("{}: {why}; again in {seconds:.1} s", self.name()));
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
        self.part.memo().and_then(|m| m.length)
    }

    /// Checks the disk space for what is missing of `length` bytes.
    fn room(&self, length: Option<u64>) -> Result<(), Failed> {
        let missing = length.unwrap_or(0).saturating_sub(self.part.at());
        space::check(folder_of(&self.job.target), missing)
    }

    /// Checks that the digest on the command line equals the hub's.
    pub(super) fn check_digests(&self) -> Result<(), Failed> {
        match (&self.job.sha256, &self.linked.sha256) {
            (Some(ours), Some(theirs)) if ours != theirs => Err(self.wrong(format_args!(
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
        let expected = self.part.memo().and_then(|m| m.sha256.clone());
        let expected = self.job.sha256.clone().or(expected);
        match expected {
            Some(expected) if expected != digest => Err(self.reject(format_args!(
                "what came has sha256 {digest}, not {expected}; it was removed: run this again"
            ))),
            _ => Ok(digest),
        }
    }

    /// Deletes bytes that are proven wrong.
    fn reject(&mut self, why: impl Display) -> Failed {
        match self.part.discard() {
            Ok(()) => self.wrong(why),
            Err(e) => self.disk(&e),
        }
    }

    pub(super) fn wrong(&self, why: impl Display) -> Failed {
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
