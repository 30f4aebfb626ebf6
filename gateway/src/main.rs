//! `flotilla-gateway`: commands, logging, signals.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::CommandFactory;
use flotilla_gateway::commands::error::CommandError;
use flotilla_gateway::commands::init::Created;
use flotilla_gateway::commands::join_command::{Join, JoinKey, local_url, url_of};
use flotilla_gateway::commands::key::{KeysFile, NewKey};
use flotilla_gateway::commands::nodes::AdminClient;
use flotilla_gateway::config::locate::Places;
use flotilla_gateway::config::reference::Reference;
use flotilla_gateway::config::yaml::Problem;
use flotilla_gateway::config::{Admin, Config, effective, files, load, schema};
use flotilla_gateway::context::settings::LiveSettings;
use flotilla_gateway::control::admin::NodeList;
use flotilla_gateway::dispatcher::views::NodeAction;
use flotilla_gateway::tasks::reload::Source;
use flotilla_gateway::types::request_context;
use flotilla_gateway::{app, commands};
use flotilla_listeners::log::start_log;
use flotilla_listeners::systemd::notify_stopping;
use flotilla_manual::{ManArgs, exit};
use options::{
    AdminArgs, Cli, Command, ConfigArgs, ConfigCommand, EXAMPLES, GatewayArgs, HealthArgs,
    InitArgs, JoinArgs, KeyCommand, KeyPlaceArgs, NodeArgs, WorkArgs, WorkCommand,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

mod options;

// The manifest explains why, and why only here.
#[cfg(target_arch = "x86_64")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let program = flotilla_manual::with_help_sections(Cli::command(), EXAMPLES);
    let cli: Cli = match flotilla_manual::parse(program.clone(), std::env::args_os()) {
        Ok(cli) => cli,
        Err(code) => return ExitCode::from(code),
    };
    let done = match cli.command {
        Command::Run(file) => run(&file),
        Command::Init(of) => init(&of),
        Command::Join(of) => join(&of),
        Command::Check(file) => check(&file),
        Command::Config(command) => config(&command),
        Command::Key(command) => key(command),
        Command::Completions(of) => print(&String::from_utf8_lossy(
            &flotilla_manual::generate_completions(&program, of.shell),
        )),
        Command::Man(to) => manual(program, &to),
        Command::Health(of) => health(&of),
        command => run_remote(command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error.to_string());
            ExitCode::from(error.exit_code())
        }
    }
}

/// Prints a command's output. (`println!` panics if stdout cannot be written.)
fn print_line(text: &str) -> Result<(), CommandError> {
    print(&format!("{text}\n"))
}

fn print(text: &str) -> Result<(), CommandError> {
    let mut out = std::io::stdout();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| CommandError::Write(format!("cannot write to stdout: {e}")))
}

fn manual(program: clap::Command, to: &ManArgs) -> Result<(), CommandError> {
    let written =
        flotilla_manual::write_man_pages(program, to.to.as_deref(), &mut std::io::stdout());
    written.map_err(|e| CommandError::Write(format!("cannot write the man page: {e}")))
}

fn config(command: &ConfigCommand) -> Result<(), CommandError> {
    match command {
        ConfigCommand::Schema => print_line(&format!("{:#}", schema::schema())),
        ConfigCommand::Reference => print(&Reference::shipped().markdown()),
        ConfigCommand::Print(file) => {
            let path = &locate(file.config.as_deref())?;
            print(&effective::print(path).map_err(|problems| invalid_config(path, &problems))?)
        }
    }
}

/// Prints an error. If stderr cannot be written, there is no one left to tell.
fn print_error(text: &str) {
    let _ = writeln!(std::io::stderr(), "flotilla-gateway: {text}");
}

/// The configuration file that is given or found.
fn locate(given: Option<&Path>) -> Result<PathBuf, CommandError> {
    Places::of_process().find(given).ok_or_else(|| CommandError::Usage(NO_CONFIG.into()))
}

const NO_CONFIG: &str =
    "no configuration: set --config FILE, or create one with 'flotilla-gateway init'";

fn check(file: &ConfigArgs) -> Result<(), CommandError> {
    load_config(&locate(file.config.as_deref())?).and_then(|_| print_line("ok"))
}

fn init(of: &InitArgs) -> Result<(), CommandError> {
    let places = Places::of_process();
    let folder = of.dir.as_deref().unwrap_or(places.state_dir());
    if of.keys_only {
        return commands::init::create_keys(folder, &of.choices());
    }
    let Created { config, certificate, api_key } = commands::init::create(folder, of.choices())?;
    let Some(key) = api_key else {
        return Err(CommandError::Usage(format!("{} exists already", config.display())));
    };
    let certificate = certificate.map(|file| format!("Certificate: {}\n", file.display()));
    print_line(&format!(
        "Configuration: {}\n{}API key, shown once: {key}\nJoin a node: {}\n{MODEL}",
        config.display(),
        certificate.unwrap_or_default(),
        first_join(&config, of)?
    ))
}

/// What to put into the line that joins a node.
const MODEL: &str =
    "MODEL is a GGUF file, or hf:OWNER/REPO[:QUANT]; 'flotilla-agent recommend' lists what fits.";

/// The line that joins a node, if the address or the certificate says where nodes reach the
/// gateway.
fn first_join(config: &Path, of: &InitArgs) -> Result<String, CommandError> {
    let config = load_config(config)?;
    // Without TLS, only this machine reaches the gateway.
    let name = of.tls_name.first().filter(|_| config.tls.is_some());
    let url = name.map(|name| url_of(name, of.listen.port(), true));
    let join = Join::new(&config, url.as_deref(), JoinKey::Inline).map(|join| join.command());
    Ok(join.unwrap_or_else(|_| "flotilla-gateway join-command --url URL".into()))
}

fn join(of: &JoinArgs) -> Result<(), CommandError> {
    let config = load_config(&locate(of.config.config.as_deref())?)?;
    let key = if of.key_file { JoinKey::File } else { JoinKey::Inline };
    let join = Join::new(&config, of.url.as_deref(), key)?;
    print_line(&if of.env { join.environment() } else { join.command() })
}

/// What the first run prints.
fn welcome(config: &Config, key: &str, created: &Created) -> String {
    let url = local_url(config);
    let join = Join::new(config, Some(&url), JoinKey::File).map(|join| join.command());
    let mut text = format!(
        "Endpoint: {url}/v1\n\
         API key, shown once: {key}\n\
         Join a node on this machine: {}\n\
         {MODEL}\n\
         Configuration: {}\n",
        join.unwrap_or_else(|error| error.to_string()),
        created.config.display(),
    );
    if let Some(file) = &created.certificate {
        text.push_str(&format!("Certificate, for clients: {}\n", file.display()));
    }
    text
}

fn load_config(path: &Path) -> Result<Config, CommandError> {
    load::load(path).map_err(|problems| invalid_config(path, &problems))
}

fn invalid_config(path: &Path, problems: &[Problem]) -> CommandError {
    let lines: Vec<String> = problems.iter().map(|p| format!("  {p}")).collect();
    CommandError::Usage(format!("{} is invalid:\n{}", path.display(), lines.join("\n")))
}

fn run(file: &ConfigArgs) -> Result<(), CommandError> {
    start_log(request_context::visit_current);
    let places = Places::of_process();
    let created = match places.find(file.config.as_deref()) {
        Some(config) => Created::existing(config),
        None => {
            let of = InitArgs::of_environment().map_err(|e| CommandError::Usage(e.to_string()))?;
            commands::init::create(places.state_dir(), of.choices())?
        }
    };
    let path = &created.config;
    let config = load_config(path)?;
    if let Some(key) = &created.api_key {
        print(&welcome(&config, key, &created))?;
    }
    if let Some(file) = config.keys_file.as_ref().filter(|_| !config.has_keys_file) {
        let file = file.display();
        tracing::warn!(%file, "keys file not found; create a key with 'flotilla-gateway key new'");
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(software)?;
    let done = runtime.block_on(async {
        let scheme = |tls: bool| if tls { "https" } else { "http" };
        let public = scheme(config.tls.is_some());
        let admin = scheme(config.admin.as_ref().is_some_and(|admin| admin.tls.is_some()));
        let settings = LiveSettings::new(config).await;
        let settings = settings.map_err(|e| CommandError::Unavailable(e.to_string()))?;
        let stop = CancellationToken::new();
        stop_on_signal(stop.clone()).map_err(software)?;
        let source = Source::new(path.to_path_buf()).map_err(software)?;
        if let Some(address) = settings.admin().address() {
            tracing::info!("admin listener: listening on {admin}://{address}");
        }
        if let Some(address) = settings.http().address() {
            tracing::info!("plain HTTP listener: redirecting http://{address} to https");
        }
        if let Some(address) = settings.public().address() {
            tracing::info!("listening on {public}://{address}");
        }
        app::run(settings, source, stop).await.map_err(software)
    });
    // All tasks have been joined. Do not wait for threads that a hanging disk blocks.
    runtime.shutdown_background();
    done
}

/// The first signal drains, the second exits immediately.
fn stop_on_signal(stop: CancellationToken) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let watch = async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        next().await;
        tracing::info!("stopping: finishing requests in flight");
        notify_stopping();
        stop.cancel();
        next().await;
        #[expect(clippy::disallowed_methods, reason = "the operator insists")]
        std::process::exit(i32::from(exit::SOFTWARE));
    };
    // Runs as long as the process.
    tokio::spawn(watch);
    Ok(())
}

fn key(command: KeyCommand) -> Result<(), CommandError> {
    match command {
        KeyCommand::New { name, limits, place } => {
            let new = NewKey::generate(&name, |digest| limits.entry(&name, digest))?;
            match place.gateway() {
                Some(gateway) => {
                    ask(&gateway, async |remote| remote.add_keys(&[new.entry]).await)?;
                    print_line(&format!("# The key, shown once:\n{}", new.secret))
                }
                None => new_key(&name, new, &place),
            }
        }
        KeyCommand::List(place) => {
            let keys = match (place.gateway(), keys_config(&place)) {
                (Some(gateway), _) => ask(&gateway, async |remote| remote.keys().await)?,
                (None, Some(config)) => load_config(&config)?.keys,
                (None, None) => KeysFile::open(&existing_keys_file(&place)?)?.keys,
            };
            print_line(&commands::key::table(&keys))
        }
        KeyCommand::Revoke { name, place } => {
            match place.gateway() {
                Some(gateway) => {
                    ask(&gateway, async |remote| remote.delete_key(&name).await)?;
                }
                None => revoke(&name, &existing_keys_file(&place)?)?,
            }
            print_line(&format!("Revoked the key '{name}'."))
        }
        KeyCommand::Import { file, gateway } => {
            let keys = KeysFile::open(&file)?.keys;
            let changes = ask(&gateway, async |remote| remote.put_keys(&keys).await)?;
            print_line(&format!("{} keys added, {} replaced", changes.added, changes.replaced))
        }
        KeyCommand::Export(gateway) => {
            print(&commands::key::file(&ask(&gateway, async |remote| remote.keys().await)?)?)
        }
    }
}

/// Asks a running gateway.
fn ask<T>(
    gateway: &GatewayArgs,
    question: impl AsyncFnOnce(&AdminClient) -> Result<T, String>,
) -> Result<T, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let remote = remote(gateway)?;
    runtime.map_err(software)?.block_on(question(&remote)).map_err(CommandError::Unavailable)
}

fn revoke(name: &str, path: &Path) -> Result<(), CommandError> {
    let mut keys = KeysFile::open(path)?;
    let before = keys.keys.len();
    keys.keys.retain(|key| key.name != name);
    if keys.keys.len() == before {
        let message = format!("no key named '{name}' in {}", path.display());
        return Err(CommandError::Usage(message));
    }
    keys.save()
}

fn existing_keys_file(place: &KeyPlaceArgs) -> Result<PathBuf, CommandError> {
    keys_file(place)?.ok_or_else(|| CommandError::Usage(NO_KEYS_FILE.into()))
}

const NO_KEYS_FILE: &str = "no keys file: set --config FILE, --keys-file FILE, or --store";

fn new_key(name: &str, new: NewKey, file: &KeyPlaceArgs) -> Result<(), CommandError> {
    let Some(path) = keys_file(file)? else {
        print_line(&format!("# The key, shown once:\n{}\n# For the configuration:", new.secret))?;
        return print_line(new.yaml()?.trim_end());
    };
    let mut keys = KeysFile::open(&path)?;
    let known = keys_config(file).as_deref().map(load_config).transpose()?;
    let known = known.map(|config| config.keys);
    if keys.keys.iter().chain(known.iter().flatten()).any(|key| key.name == name) {
        return Err(CommandError::Usage(format!(
            "a key named '{name}' exists; revoke it first, or use another name"
        )));
    }
    keys.keys.push(new.entry);
    keys.save()?;
    print_line(&format!("# The key, shown once:\n{}", new.secret))
}

/// Path of the keys file, if one is specified.
fn keys_file(file: &KeyPlaceArgs) -> Result<Option<PathBuf>, CommandError> {
    let Some(config) = keys_config(file) else { return Ok(file.keys_file.clone()) };
    let none = || {
        CommandError::Usage(format!(
            "{} sets no keys_file; set --store for the keys of its store",
            config.display()
        ))
    };
    load_config(&config)?.keys_file.ok_or_else(none).map(Some)
}

/// The configuration whose keys file is used, unless a keys file is given.
fn keys_config(file: &KeyPlaceArgs) -> Option<PathBuf> {
    match file.keys_file {
        Some(_) => None,
        None => Places::of_process().find(file.config.as_deref()),
    }
}

/// Runs the commands that talk to a running gateway.
fn run_remote(command: Command) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(software)?;
    let act = |of: NodeArgs, action| -> Result<(), CommandError> {
        let remote = remote(&of.gateway)?;
        runtime
            .block_on(remote.apply_action(&of.node, action))
            .map_err(CommandError::Unavailable)?;
        print_line(&format!("{}: done", of.node))
    };
    match command {
        Command::Nodes { json, gateway } => {
            let nodes =
                runtime.block_on(remote(&gateway)?.nodes()).map_err(CommandError::Unavailable)?;
            match json {
                true => print_line(&inference_protocol::openai::to_json(&NodeList { nodes })),
                false => print_line(&commands::nodes::table(&nodes)),
            }
        }
        Command::Top { once, gateway } => {
            let remote = remote(&gateway)?;
            match once {
                true => print_line(
                    &runtime
                        .block_on(commands::top::once(&remote))
                        .map_err(CommandError::Unavailable)?,
                ),
                false => {
                    runtime.block_on(commands::top::run(&remote)).map_err(CommandError::Unavailable)
                }
            }
        }
        Command::Cordon(of) => act(of, NodeAction::Cordon),
        Command::Uncordon(of) => act(of, NodeAction::Uncordon),
        Command::Drain { wait_s: 0, node } => act(node, NodeAction::Drain),
        Command::Drain { wait_s, node: of } => {
            let remote = remote(&of.gateway)?;
            let drained = remote.drain(&of.node, Duration::from_secs(wait_s));
            runtime.block_on(drained).map_err(CommandError::Unavailable)?;
            print_line(&format!("{}: drained", of.node))
        }
        Command::Batches(of) => runtime.block_on(batches(of)),
        Command::Jobs(of) => runtime.block_on(jobs(of)),
        Command::Usage(of) => {
            let usage = runtime.block_on(remote(&of.gateway)?.usage(&of.query()));
            print(&usage.map_err(CommandError::Unavailable)?)
        }
        // `main` handles all other commands.
        _ => Ok(()),
    }
}

async fn batches(of: WorkArgs) -> Result<(), CommandError> {
    let listing = of.listing();
    if let Some(WorkCommand::Cancel { id, gateway }) = of.action {
        let batch = remote(&gateway)?.cancel_batch(&id).await;
        let batch = batch.map_err(CommandError::Unavailable)?;
        return print_line(&format!("{}: {}", batch.id, batch.status));
    }
    let list = remote(&of.gateway)?.batches(&listing).await.map_err(CommandError::Unavailable)?;
    match of.json {
        true => print_line(&inference_protocol::openai::to_json(&list)),
        false => print_line(&commands::work::batch_table(&list)),
    }
}

async fn jobs(of: WorkArgs) -> Result<(), CommandError> {
    let listing = of.listing();
    if let Some(WorkCommand::Cancel { id, gateway }) = of.action {
        let task = remote(&gateway)?.cancel_task(&id).await.map_err(CommandError::Unavailable)?;
        return print_line(&format!("{}: {}", task.id, task.status));
    }
    let list = remote(&of.gateway)?.tasks(&listing).await.map_err(CommandError::Unavailable)?;
    match of.json {
        true => print_line(&inference_protocol::openai::to_json(&list)),
        false => print_line(&commands::work::task_table(&list)),
    }
}

/// Exits with 0 or 1 only; health checkers understand nothing else.
fn health(of: &HealthArgs) -> Result<(), CommandError> {
    let url = match &of.url {
        Some(url) => url.clone(),
        None => {
            let config = locate(of.config.as_deref()).and_then(|path| load_config(&path));
            commands::health::url(&config.map_err(CommandError::into_unhealthy)?)
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| CommandError::Unhealthy(e.to_string()))?;
    let within = Duration::from_millis(of.timeout_ms);
    let health = runtime.block_on(commands::health::check(&url, of.live, within))?;
    print_line(&health)
}

fn remote(gateway: &GatewayArgs) -> Result<AdminClient, CommandError> {
    let GatewayArgs { config, admin: AdminArgs { url, key_file, ca_file } } = gateway;
    let config = match (config, url) {
        (None, Some(_)) => None,
        (given, _) => Some(locate(given.as_deref())?),
    };
    let admin = config.as_deref().map(load_config).transpose()?;
    let admin =
        admin.map(|config| config.admin.ok_or_else(|| CommandError::Usage(NO_ADMIN.into())));
    let admin = admin.transpose()?;
    let named = |admin: &Admin| commands::nodes::url(admin.listen, admin.tls.is_some());
    let url = url.clone().or_else(|| admin.as_ref().map(named));
    let key_file = key_file.clone().or_else(|| admin.as_ref()?.key_file.clone());
    let ca_file = ca_file.clone().or_else(|| admin?.cert_file);
    let (Some(url), Some(key_file)) = (url, key_file) else {
        return Err(CommandError::Usage(
            "no admin key: set admin.key_file in the configuration, or --key-file FILE".into(),
        ));
    };
    let read = |path: &Path| files::read(path, CERTIFICATES_BYTES_MAX).map_err(CommandError::Usage);
    let key = read(&key_file)?.trim().to_string();
    let roots = ca_file.as_deref().map(read).transpose()?;
    AdminClient::new(&url, key, roots.as_deref().map(str::as_bytes)).map_err(CommandError::Usage)
}

const NO_ADMIN: &str = "the configuration has no admin listener: set admin.listen";
const CERTIFICATES_BYTES_MAX: u64 = 1024 * 1024;

fn software(error: impl std::fmt::Display) -> CommandError {
    CommandError::Software(error.to_string())
}
