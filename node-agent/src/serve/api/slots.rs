//! `POST /slots/{id}?action=save|restore|erase`: what slots hold, in files, as in llama-server.

use std::time::Instant;

use hyper::body::Incoming;
use hyper::{Request, Response};
use inference_core::types::request::{
    FILE_NAME_BYTES_MAX, SlotAction, SlotRequest, SlotResult, is_slot_file_name,
};
use inference_protocol::openai::{self, to_json};
use serde::Deserialize;
use serde_json::json;

use super::sampling::invalid;
use super::{Caller, body};
use crate::serve::node::Node;
use crate::serve::stream::receive_slot;
use crate::types::error::Error;
use crate::types::response::{self, Body};

#[derive(Deserialize)]
struct File {
    filename: String,
}

/// Does with the slot `id` what the query of the request says.
pub(super) async fn act(
    node: &Node,
    caller: Caller,
    id: &str,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    if !node.saves_slots {
        return Err(Error::NoSlotFiles);
    }
    let slot = check(id.parse().ok(), node.engine.state().ready()?.slots)?;
    let action = action(request).await?;
    let owner = caller.prefix_group.unwrap_or(caller.tenant);
    let begun = Instant::now();
    let done = node.engine.slot(SlotRequest { owner, slot, action: action.clone() }, caller.via)?;
    let SlotResult { tokens, bytes } = receive_slot(done).await?;
    let ms = begun.elapsed().as_secs_f64() * 1e3;
    tracing::info!(slot, tokens, bytes, "{}", what(&action));
    Ok(response::json(to_json(&match action {
        SlotAction::Save(filename) => json!({
            "id_slot": slot, "filename": filename, "n_saved": tokens, "n_written": bytes,
            "timings": {"save_ms": ms},
        }),
        SlotAction::Restore(filename) => json!({
            "id_slot": slot, "filename": filename, "n_restored": tokens, "n_read": bytes,
            "timings": {"restore_ms": ms},
        }),
        SlotAction::Erase => json!({"id_slot": slot, "n_erased": tokens}),
    })))
}

/// What a request asks for: by its query, and by its body if a file is named.
async fn action(request: Request<Incoming>) -> Result<SlotAction, Error> {
    let query = request.uri().query().unwrap_or_default().split('&');
    let name = query.filter_map(|pair| pair.strip_prefix("action=")).next().unwrap_or_default();
    let of_file: fn(String) -> SlotAction = match name {
        "save" => SlotAction::Save,
        "restore" => SlotAction::Restore,
        "erase" => return body::read(request).await.map(|_| SlotAction::Erase),
        _ => return Err(invalid("action", "action must be save, restore or erase")),
    };
    file_name(&body::read(request).await?).map(of_file)
}

/// What was done, for the log.
fn what(action: &SlotAction) -> &'static str {
    match action {
        SlotAction::Save(_) => "slot saved",
        SlotAction::Restore(_) => "slot restored",
        SlotAction::Erase => "slot erased",
    }
}

/// Checks the number of a slot.
pub(super) fn check(id: Option<u32>, slots: u32) -> Result<u32, Error> {
    let last = slots.saturating_sub(1);
    let wrong = || invalid("id_slot", &format!("id_slot must be 0 to {last}"));
    id.filter(|id| *id < slots).ok_or_else(wrong)
}

fn file_name(body: &[u8]) -> Result<String, Error> {
    let File { filename } = openai::parse(body)?;
    match is_slot_file_name(&filename) {
        true => Ok(filename),
        false => Err(invalid(
            "filename",
            &format!(
                "filename must have 1 to {FILE_NAME_BYTES_MAX} bytes: letters, digits, '.', '_', \
                 '-' and spaces, and no '.' or space at its start"
            ),
        )),
    }
}
