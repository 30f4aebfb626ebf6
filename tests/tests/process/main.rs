//! Real gateways, agents and engines, on loopback: what a user or an operator would see.
//!
//! They share two cores, so the Makefile runs two at a time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stderr, reason = "skipped tests and scores say so")]

mod acme;
mod background;
mod bad_input;
mod batches;
mod bench;
mod bucket;
mod chat_template;
mod disconnects;
mod discovery;
mod draft_model;
mod embeddings;
mod encryption;
mod example_clients;
mod families;
mod faults;
mod first_run;
mod guards;
mod hand_over;
mod hostile;
mod http_rules;
mod hub_models;
mod kernels;
mod kill_streams;
mod kills;
mod llama_server_api;
mod llama_server_flags;
mod logs;
mod machine;
mod memory;
mod model;
mod mtp_head;
mod mutants;
mod node_certificates;
mod openapi;
mod operate;
mod parameters;
mod peer_parameters;
mod picture;
mod prefix_disk;
mod preparing;
mod proxies;
mod pull;
mod read_on;
mod replaced;
mod resume;
mod same_name;
mod same_response;
mod sampling_defaults;
mod sandbox;
mod scoring;
mod scripts;
mod sdk;
mod shared_budgets;
mod shared_spend;
mod shared_store;
mod slots;
mod soak;
mod split_model;
mod stored_keys;
mod structured;
mod surface;
mod tokenizers;
mod traffic;
mod tune;
mod unprefixed_paths;
mod unsupported;
mod users;
mod webhooks;
mod work_storm;
