//! `paddler-peer`: Paddler (<https://github.com/intentee/paddler>, Apache-2.0) as a benchmark peer.
//!
//! Paddler publishes its balancer and its agent as libraries, but not the command line that starts
//! them. This file is that missing part, for the crates at version 4.0.0:
//!
//! ```text
//! paddler-peer balancer --inference-addr A --management-addr B --openai-addr C
//! paddler-peer agent --management-addr B --slots N [--name X]
//! ```
//!
//! The wiring and every fixed value below repeat Paddler's own `paddler_cli` and
//! `paddler_bootstrap` with their defaults: the same services, the same runtimes, nothing tuned and
//! nothing left out except the web panel and statsd, both of which are off by default in Paddler,
//! too.

use std::{net::SocketAddr, sync::Arc, thread, time::Duration};

use anyhow::{Context as _, Result};
use clap::Parser;
use nanoid::nanoid;
use paddler_agent::llamacpp_arbiter_service::LlamaCppArbiterService;
use paddler_agent::management_socket_client_service::ManagementSocketClientService;
use paddler_agent::reconciliation_service as agent_reconciliation;
use paddler_agent::slot_aggregated_status_manager::SlotAggregatedStatusManager;
use paddler_balancer::buffered_request_manager::BufferedRequestManager;
use paddler_balancer::compatibility::openai_service as openai;
use paddler_balancer::inference_service as inference;
use paddler_balancer::management_service as management;
use paddler_balancer::reconciliation_service as balancer_reconciliation;
use paddler_balancer::state_database::{StateDatabase, memory::Memory};
use paddler_messaging::balancer_desired_state::BalancerDesiredState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use trzcina::{ServiceManager, ServiceShutdownOptions};

#[derive(Parser)]
#[command(name = "paddler-peer", about = "Starts Paddler 4.0.0's balancer or agent")]
enum Command {
    /// Accepts requests and hands them to agents
    Balancer {
        /// Address of Paddler's native API
        #[arg(long)]
        inference_addr: SocketAddr,
        /// Address that agents connect to; the model is set here as well
        #[arg(long)]
        management_addr: SocketAddr,
        /// Address of the OpenAI-compatible API
        #[arg(long)]
        openai_addr: SocketAddr,
    },
    /// Runs the model
    Agent {
        /// The balancer's management address
        #[arg(long)]
        management_addr: SocketAddr,
        /// Number of requests served at once
        #[arg(long)]
        slots: i32,
        #[arg(long)]
        name: Option<String>,
    },
}

/// The services of `paddler balancer`, with its default timeouts and limits.
async fn balancer(
    inference_addr: SocketAddr,
    management_addr: SocketAddr,
    openai_addr: SocketAddr,
) -> Result<ServiceManager> {
    let shutdown_options = ServiceShutdownOptions::default();
    let (desired_state_tx, balancer_desired_state_rx) = broadcast::channel(100);
    let agent_controller_pool = Arc::default();
    let balancer_applicable_state_holder = Arc::default();
    let buffered_request_manager = Arc::new(BufferedRequestManager::new(
        Arc::clone(&agent_controller_pool),
        Duration::from_secs(10), // --buffered-request-timeout
        30,                      // --max-buffered-requests
    ));
    // --state-database memory://
    let state_database: Arc<dyn StateDatabase> =
        Arc::new(Memory::new(desired_state_tx, BalancerDesiredState::default()));
    let management_configuration = management::configuration::Configuration {
        addr: management_addr,
        cors_allowed_hosts: vec![],
    };
    let configuration = inference::configuration::Configuration {
        addr: inference_addr,
        cors_allowed_hosts: vec![],
        inference_item_timeout: Duration::from_secs(30), // --inference-item-timeout
    };

    let openai_configuration = openai::configuration::Configuration { addr: openai_addr };

    let mut services = ServiceManager::default();
    services.register_service(inference::InferenceService {
        agent_controller_pool: Arc::clone(&agent_controller_pool),
        balancer_applicable_state_holder: Arc::clone(&balancer_applicable_state_holder),
        buffered_request_manager: buffered_request_manager.clone(),
        configuration: configuration.clone(),
        shutdown_options: shutdown_options.clone(),
    });
    services.register_service(management::ManagementService {
        agent_controller_pool: Arc::clone(&agent_controller_pool),
        balancer_applicable_state_holder: Arc::clone(&balancer_applicable_state_holder),
        buffered_request_manager: buffered_request_manager.clone(),
        chat_template_override_sender_collection: Arc::default(),
        configuration: management_configuration,
        embedding_sender_collection: Arc::default(),
        generate_tokens_sender_collection: Arc::default(),
        model_metadata_sender_collection: Arc::default(),
        shutdown_options: shutdown_options.clone(),
        state_database: state_database.clone(),
        statsd_prefix: "paddler_".to_owned(), // also the prefix on /metrics
    });
    services.register_service(balancer_reconciliation::ReconciliationService {
        agent_controller_pool,
        balancer_applicable_state_holder,
        balancer_desired_state: state_database.read_balancer_desired_state().await?,
        balancer_desired_state_rx,
        is_converted_to_applicable_state: false,
    });
    services.register_service(openai::OpenAIService {
        buffered_request_manager,
        inference_service_configuration: configuration,
        openai_service_configuration: openai_configuration,
        shutdown_options,
    });
    Ok(services)
}

/// The services of `paddler agent`.
fn agent(management_addr: SocketAddr, slots: i32, name: Option<String>) -> ServiceManager {
    let (agent_desired_state_tx, agent_desired_state_rx) = mpsc::unbounded_channel();
    let (history_tx, history_rx) = mpsc::unbounded_channel();
    let (raw_prompt_tx, raw_prompt_rx) = mpsc::unbounded_channel();
    let (embedding_tx, embedding_rx) = mpsc::unbounded_channel();
    let agent_applicable_state_holder = Arc::default();
    let model_metadata_holder = Arc::default();
    let slot_aggregated_status_manager = Arc::new(SlotAggregatedStatusManager::new(slots));
    let slot_aggregated_status = slot_aggregated_status_manager.slot_aggregated_status.clone();

    let mut services = ServiceManager::default();
    services.register_service(LlamaCppArbiterService {
        agent_applicable_state: None,
        agent_applicable_state_holder: Arc::clone(&agent_applicable_state_holder),
        agent_name: name.clone(),
        continue_from_conversation_history_request_rx: history_rx,
        continue_from_raw_prompt_request_rx: raw_prompt_rx,
        desired_slots_total: slots,
        generate_embedding_batch_request_rx: embedding_rx,
        continuous_batch_arbiter_handle: None,
        model_metadata_holder: Arc::clone(&model_metadata_holder),
        slot_aggregated_status_manager,
    });
    services.register_service(ManagementSocketClientService {
        agent_applicable_state_holder: Arc::clone(&agent_applicable_state_holder),
        agent_desired_state_tx,
        continue_from_conversation_history_request_tx: history_tx,
        continue_from_raw_prompt_request_tx: raw_prompt_tx,
        generate_embedding_batch_request_tx: embedding_tx,
        model_metadata_holder,
        name,
        receive_stream_stopper_collection: Arc::default(),
        slot_aggregated_status: slot_aggregated_status.clone(),
        socket_url: format!("ws://{management_addr}/api/v1/agent_socket/{}", nanoid!()),
    });
    services.register_service(agent_reconciliation::ReconciliationService {
        agent_applicable_state_holder,
        agent_desired_state: None,
        agent_desired_state_rx,
        is_converted_to_applicable_state: false,
        slot_aggregated_status,
    });
    services
}

#[tokio::main]
async fn main() -> Result<()> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let command = Command::parse();

    let shutdown = CancellationToken::new();
    let on_signal = shutdown.clone();
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        on_signal.cancel();
    });

    // Like Paddler, run the services on an actix runtime in a thread of its own.
    let (done_tx, done_rx) = oneshot::channel();
    thread::spawn(move || {
        let result = actix_web::rt::System::new().block_on(async move {
            let services = match command {
                Command::Balancer { inference_addr, management_addr, openai_addr } => {
                    balancer(inference_addr, management_addr, openai_addr).await?
                }
                Command::Agent { management_addr, slots, name } => {
                    agent(management_addr, slots, name)
                }
            };
            let running = services.start(shutdown);
            let outcomes = running.run_to_completion(ServiceShutdownOptions::default()).await;
            outcomes.into_result().map_err(anyhow::Error::from)
        });
        let _ = done_tx.send(result);
    });
    done_rx.await.context("the service thread stopped without a result")?
}
