//! `flotilla-agent pull`: downloads a model file, and resumes interrupted downloads.
//!
//! [`transfer`] fetches one file: it sends requests through [`client`], [`response`] and
//! [`refusal`] judge the responses, [`part`] holds the bytes, [`retry`] decides about further
//! attempts. A file gets its name only when it is complete and its digest is right. [`hub`] finds
//! the files of a model in a repository, [`cache`] keeps downloaded models for `serve`.

pub(crate) mod cache;
pub(crate) mod client;
pub(crate) mod content;
pub(crate) mod endpoint;
pub(crate) mod hub;
pub(crate) mod listing;
pub(crate) mod part;
pub(crate) mod part_info;
pub(crate) mod progress;
pub(crate) mod quantization;
pub(crate) mod reference;
pub(crate) mod refusal;
pub(crate) mod response;
pub(crate) mod retry;
pub(crate) mod source;
pub(crate) mod space;
pub(crate) mod stop;
pub(crate) mod text;
pub(crate) mod transfer;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::types::causes::with_causes;
use crate::types::exit::Failed;
use cache::CacheUse;
use client::Client;
use endpoint::Endpoint;
use hub::RemoteModel;
use progress::DownloadProgress;
use reference::Reference;
use stop::Stop;
use transfer::{Job, Tools, fetch};

pub(crate) use flotilla_manual::exit::{BUSY as EXIT_BUSY, USAGE as EXIT_USAGE, WRITE as EXIT_IO};

/// Default for the maximum number of consecutive failures.
pub(crate) const RETRIES: u32 = 8;
/// Default for the seconds without data after which to reconnect.
pub(crate) const STALL_SECONDS: u32 = 30;

/// `pull`
#[derive(Debug, Args)]
#[command(after_help = "Environment:\n  HF_TOKEN (key for the hub), HF_ENDPOINT (another hub), \
                        HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE.\n  \
                        The last line on stdout is the file's path.")]
pub(crate) struct PullArgs {
    /// hf:owner/repo:quantization, hf:owner/repo/file.gguf, or a URL; the first file of a split
    /// model includes the others
    #[arg(value_name = "SOURCE")]
    pub source: String,
    /// File to write, or folder to write into [default: the current folder]
    #[arg(long, value_name = "FILE|DIR")]
    pub to: Option<PathBuf>,
    /// Download into the cache where `serve` looks for models, and update a model that is there
    #[arg(long, conflicts_with_all = ["to", "force"])]
    pub cache: bool,
    /// With --cache: do not look for a new version, and need no network if the model is there
    #[arg(long, requires = "cache")]
    pub if_missing: bool,
    /// Expected SHA-256; for a split model, once for each file, in order
    /// [default: the hub's, if it has one]
    #[arg(long, value_name = "HEX")]
    pub sha256: Vec<String>,
    /// Branch, tag or commit of an hf: source [default: main]
    #[arg(long, value_name = "REV")]
    pub revision: Option<String>,
    /// Replace an existing file that differs
    #[arg(long)]
    pub force: bool,
    /// Hide the progress bar
    #[arg(long)]
    pub no_progress: bool,
    /// Give up after this many consecutive failures; each byte received resets the count
    #[arg(long, value_name = "N", default_value_t = RETRIES,
        value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub retries: u32,
    /// Seconds without data after which to reconnect
    #[arg(long, value_name = "SECONDS", default_value_t = STALL_SECONDS,
        value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub stall_seconds: u32,
}

/// Downloads all files of a model.
pub(crate) fn run(args: PullArgs) -> Result<(), Failed> {
    let usage = |why: String| Failed::new(EXIT_USAGE, why);
    let reference = Reference::parse(&args.source, args.revision.as_deref()).map_err(usage)?;
    let client = hub_client(Duration::from_secs(args.stall_seconds.into()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        // Reads from the network while this thread hashes and writes.
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(Failed::software)?;
    let done = runtime.block_on(async {
        let stop = Stop::on_signals().map_err(Failed::software)?;
        let progress = DownloadProgress::new(args.no_progress);
        let mut tools = Tools {
            client,
            progress,
            stop,
            retries: args.retries,
            seed: crate::types::random::random() as u64,
        };
        args.fetch(&reference, &mut tools).await
    });
    // Do not wait for a DNS lookup in progress.
    runtime.shutdown_background();
    print_path(&done?)
}

/// The client for the hub of the environment and its key.
pub(crate) fn hub_client(stall: Duration) -> Result<Client, Failed> {
    let variable = |name: &str| std::env::var(name).ok();
    let endpoint =
        Endpoint::new(variable("HF_ENDPOINT").as_deref(), variable("HF_TOKEN").as_deref());
    let endpoint = endpoint.map_err(|why| Failed::new(EXIT_USAGE, why))?;
    Client::new(endpoint, stall).map_err(|e| Failed::software(with_causes(&e)))
}

/// Fetches one file after the other; returns the path of the first.
async fn fetch_all(jobs: Vec<Job>, tools: &mut Tools) -> Result<PathBuf, Failed> {
    let mut first = PathBuf::new();
    let mut commit: Option<String> = None;
    for (n, mut job) in jobs.into_iter().enumerate() {
        if n == 0 {
            first.clone_from(&job.target);
        }
        // Fetch all files of a model from one commit, even if the branch moves meanwhile.
        if let Some(commit) = &commit {
            job.source = job.source.at_revision(commit);
        }
        let fetched = fetch(&job, tools).await?;
        commit = commit.or(fetched.commit);
    }
    Ok(first)
}

impl PullArgs {
    /// Downloads all files; returns the path of the first.
    async fn fetch(&self, reference: &Reference, tools: &mut Tools) -> Result<PathBuf, Failed> {
        let usage = |why: String| Failed::new(EXIT_USAGE, why);
        if self.cache {
            let sha256 = match self.sha256.len() {
                0 => Vec::new(),
                files => self.digests(files).map_err(usage)?,
            };
            let how = CacheUse { update: !self.if_missing, sha256 };
            return cache::fetch(reference, &how, tools).await;
        }
        let model = match reference {
            Reference::File(source) => RemoteModel::of_source(source).map_err(usage)?,
            Reference::Repository { .. } => hub::resolve(reference, tools).await?,
        };
        fetch_all(self.jobs(&model).map_err(usage)?, tools).await
    }

    /// One job for each file; the error is one line for the operator.
    fn jobs(&self, model: &RemoteModel) -> Result<Vec<Job>, String> {
        let (folder, own_name) = self.place()?;
        let names: Vec<String> = model.files.iter().map(|file| file.name.clone()).collect();
        let targets = match own_name {
            None => names.clone(),
            Some(own) => crate::engine::model_files::split::all_files(&own)?,
        };
        if targets.len() != names.len() {
            return Err(format!(
                "{} is the first of {} files: name a folder with --to, or a file whose name \
                 ends in -00001-of-{:05}.gguf",
                names.first().map_or("", String::as_str),
                names.len(),
                names.len()
            ));
        }
        let digests = self.digests(names.len())?;
        let job = |((file, target), sha256): ((&hub::RemoteFile, &String), Option<String>)| Job {
            source: file.source.clone(),
            target: folder.join(target),
            sha256: sha256.or_else(|| file.sha256.clone()),
            force: self.force,
        };
        Ok(model.files.iter().zip(&targets).zip(digests).map(job).collect())
    }

    /// The folder to write to, and the file's name if the operator chose it.
    fn place(&self) -> Result<(PathBuf, Option<String>), String> {
        let Some(to) = &self.to else { return Ok((PathBuf::new(), None)) };
        if to.is_dir() {
            return Ok((to.clone(), None));
        }
        let folder = part::folder_of(to);
        let is_folder = to.as_os_str().as_encoded_bytes().ends_with(b"/");
        if is_folder || !folder.is_dir() {
            let missing = if is_folder { to.as_path() } else { folder };
            return Err(format!(
                "--to: the folder {} does not exist: create it first",
                missing.display()
            ));
        }
        let name = to.file_name().and_then(|n| n.to_str()).ok_or("--to: the name is not UTF-8")?;
        source::check_name(name).map_err(|e| format!("--to: the file's name {e}"))?;
        Ok((folder.to_path_buf(), Some(name.to_string())))
    }

    fn digests(&self, files: usize) -> Result<Vec<Option<String>>, String> {
        if self.sha256.is_empty() {
            return Ok(vec![None; files]);
        }
        if self.sha256.len() != files {
            return Err(format!(
                "{files} files, but {} --sha256: set one for each file, in order",
                self.sha256.len()
            ));
        }
        let read = |hex: &String| {
            let wrong = || format!("--sha256 {}: expected 64 hex digits", hex.escape_debug());
            text::sha256(hex).ok_or_else(wrong).map(Some)
        };
        self.sha256.iter().map(read).collect()
    }
}

/// A file system error, with advice for a full disk.
pub(crate) fn io_failed(path: &Path, error: &io::Error) -> Failed {
    let hint = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; the disk is full: free some space"
        }
        _ => "",
    };
    Failed::new(EXIT_IO, format_args!("{}: {error}{hint}", path.display()))
}

fn print_path(path: &Path) -> Result<(), Failed> {
    let mut line = path.as_os_str().as_encoded_bytes().to_vec();
    line.push(b'\n');
    let mut out = io::stdout();
    let written = out.write_all(&line).and_then(|()| out.flush());
    written.map_err(|e| io_failed(Path::new("stdout"), &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, Command, FromArgMatches};

    fn parse(arguments: &[&str]) -> PullArgs {
        let command = PullArgs::augment_args(Command::new("pull").no_binary_name(true));
        PullArgs::from_arg_matches(&command.get_matches_from(arguments)).unwrap()
    }

    fn jobs_of(arguments: &[&str]) -> Result<Vec<Job>, String> {
        let args = parse(arguments);
        match Reference::parse(&args.source, None)? {
            Reference::File(source) => args.jobs(&RemoteModel::of_source(&source)?),
            Reference::Repository { .. } => Err("needs a hub".into()),
        }
    }

    fn error(arguments: &[&str]) -> String {
        jobs_of(arguments).unwrap_err()
    }

    #[test]
    fn a_file_goes_into_a_folder_or_gets_a_name() {
        let target = |arguments: &[&str]| jobs_of(arguments).unwrap()[0].target.clone();
        assert_eq!(target(&["hf:o/r/a/m.gguf"]), Path::new("m.gguf"));
        assert_eq!(target(&["hf:o/r/a/m.gguf", "--to", "/"]), Path::new("/m.gguf"));
        assert_eq!(target(&["hf:o/r/a/m.gguf", "--to", "x.gguf"]), Path::new("./x.gguf"));
        assert!(error(&["hf:o/r/m.gguf", "--to", "no-such/x.gguf"]).contains("create it first"));
        assert!(error(&["hf:o/r/m.gguf", "--to", "no-such/"]).contains("create it first"));
    }

    #[test]
    fn the_first_file_of_a_split_model_brings_the_others() {
        let source = "hf:o/r/q4/m-00001-of-00002.gguf";
        let jobs = jobs_of(&[source, "--to", "/n-00001-of-00002.gguf"]).unwrap();
        assert_eq!(jobs[1].source.identity(), "hf:o/r/q4/m-00002-of-00002.gguf at main");
        assert_eq!(jobs[1].target, Path::new("/n-00002-of-00002.gguf"));
        assert!(error(&[source, "--to", "one.gguf"]).contains("-00001-of-00002.gguf"));
        assert_eq!(jobs_of(&["hf:o/r/m-00002-of-00002.gguf"]).unwrap().len(), 1);
        let sha = "a".repeat(64);
        assert!(error(&[source, "--sha256", &sha]).contains("one for each"));
        let jobs = jobs_of(&[source, "--sha256", &sha, "--sha256", &"B".repeat(64)]).unwrap();
        assert_eq!(jobs[1].sha256, Some("b".repeat(64)));
        assert!(error(&["hf:o/r/m.gguf", "--sha256", "abc"]).contains("64 hex digits"));
    }
}
