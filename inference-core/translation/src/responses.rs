//! OpenAI's Responses API, `POST /v1/responses`.
//!
//! Source: OpenAI's OpenAPI description, and what the official SDKs and Codex send. A
//! [`crate::store::Store`] keeps responses for `previous_response_id` and `GET`.

use inference_protocol::openai::to_json;
use serde_json::json;

use crate::fields::Field;

mod echo;
mod items;
mod references;
pub(crate) mod request;
pub(crate) mod response;
mod tools;
mod unescape;
mod view;

/// What `encrypted_content` of our reasoning items begins with; the reasoning follows. It is no
/// secret: clients without a stored response send it back, and it tells ours from others'.
const SEALED: &str = "flotilla-reasoning:";

/// Every field of a request.
pub const FIELDS: &[Field] = &[
    Field::honored("model", "Required at a gateway."),
    Field::honored(
        "input",
        "Required. Text, or items: `message`, `reasoning`, `function_call`, `custom_tool_call`, `local_shell_call`, \
         `tool_search_call`, the outputs of these, `additional_tools`, and `item_reference` to an item of a stored \
         response (8 MiB of them at most). Items of tools that run on OpenAI's servers are left out. Images, files, \
         audio and other items are rejected. Successive messages of the user, and of `system` or `developer`, become \
         one. A last message of the assistant is continued.",
    ),
    Field::honored("instructions", "The system message."),
    Field::honored(
        "previous_response_id",
        "Continues a stored response. Its `instructions` and `tools` do not apply.",
    ),
    Field::honored("store", "`true` by default: see [Stored responses](#stored-responses)."),
    Field::honored(
        "tools",
        "`function`; `custom`, whose grammar the model sees and is not forced to follow; `local_shell`; `namespace`; \
         `tool_search` with `execution: client`. Tools that only OpenAI's servers run (`web_search`, `file_search`, \
         `code_interpreter`, `image_generation`, `computer`, `mcp`, other `tool_search`) are left out: the model does \
         not learn of them. Other types are rejected.",
    ),
    Field::honored(
        "tool_choice",
        "`auto`, `none`, `required`, or an object of type `function`, `custom` or `allowed_tools`. Ignored without \
         tools, except `required`.",
    ),
    Field::honored("parallel_tool_calls", ""),
    Field::honored(
        "text",
        "`format` of type `text`, `json_object` or `json_schema`. `verbosity` has no effect.",
    ),
    Field::honored(
        "reasoning",
        "`effort` is a variable of some templates. `none` switches reasoning off, other values switch it on, if the \
         template has a switch. `summary` repeats the reasoning as a summary.",
    ),
    Field::honored("max_output_tokens", "At least 1; reasoning counts."),
    Field::honored("temperature", ""),
    Field::honored("top_p", ""),
    Field::honored("top_logprobs", "0 to 20, with `message.output_text.logprobs` in `include`."),
    Field::honored(
        "include",
        "`message.output_text.logprobs`, and `reasoning.encrypted_content`, in which reasoning comes back without a \
         stored response (not encrypted). Other values have no effect.",
    ),
    Field::honored("stream", "Server-sent events."),
    Field::honored(
        "metadata",
        "Up to 16 strings, returned as they are. `user_id` is the end user, if `safety_identifier` and `user` are absent.",
    ),
    Field::honored("service_tier", "As in chat completions."),
    Field::honored("user", "The end user, if `safety_identifier` is absent."),
    Field::honored("safety_identifier", "The end user; see `users` of API keys."),
    Field::honored("stop", "Not OpenAI's: a string, or a list of them."),
    Field::honored("top_k", "Not OpenAI's."),
    Field::honored(
        "seed",
        "Not OpenAI's, like `min_p`, `frequency_penalty`, `presence_penalty`, `repeat_penalty`, `logit_bias`, \
         `grammar`, `chat_template_kwargs` and the other fields of [chat completions](api.md) for sampling and \
         constraints.",
    ),
    Field::honored(
        "background",
        "`true` needs a gateway with a `store`: see [Responses in the background](background.md).",
    ),
    Field::ignored("client_metadata", ""),
    Field::ignored("context_management", ""),
    Field::ignored("max_tool_calls", "It counts calls of tools that OpenAI's servers run."),
    Field::ignored("moderation", ""),
    Field::ignored("prompt_cache_key", "Prefixes are cached without it."),
    Field::ignored("prompt_cache_options", ""),
    Field::ignored("prompt_cache_retention", ""),
    Field::ignored("stream_options", "The last event has the usage in any case."),
    Field::ignored("truncation", "Also `auto`: a conversation that is too long is rejected."),
    Field::rejected("conversation", "use previous_response_id, or send the conversation as input"),
    Field::rejected("prompt", "there are no stored prompts; send instructions and input"),
];

/// The body of a response to `DELETE /v1/responses/{id}`.
pub fn deleted(id: &str) -> String {
    to_json(&json!({"id": id, "object": "response", "deleted": true}))
}
