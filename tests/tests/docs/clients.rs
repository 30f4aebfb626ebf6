//! The lists of tested clients in README.md and docs/app-developer.md: their versions are those
//! that the tests install, and each has its test.

use std::fmt::Write;

use fleet_tests::root;
use serde_json::Value;

use crate::claims::tests;
use crate::current;

/// A client that a test runs.
struct Client {
    /// Its name for people.
    name: &'static str,
    /// Name of the package.
    package: &'static str,
    from: Registry,
    /// What the test uses of it.
    uses: &'static str,
    /// The test.
    test: &'static str,
}

/// Where the package comes from, and the file that pins its version.
enum Registry {
    /// PyPI; the name in `tests/sdk/requirements-NAME.txt`.
    Python(&'static str),
    /// PyPI; the file of requirements.
    PythonFile(&'static str),
    /// npm; the folder of `package.json`.
    Node(&'static str),
}

use Registry::{Node, Python, PythonFile};

const fn client(
    name: &'static str,
    (package, from): (&'static str, Registry),
    uses: &'static str,
    test: &'static str,
) -> Client {
    Client { name, package, from, uses, test }
}

const CLIENTS: [Client; 19] = [
    client(
        "OpenAI for Python",
        ("openai", Python("openai")),
        "chats, responses, completions, streaming, tools, structured output, errors, asyncio",
        "the_official_openai_package_works",
    ),
    client(
        "OpenAI for Node.js",
        ("openai", Node("tests/sdk/node")),
        "the same, its streaming and tool runners, and retries",
        "the_official_openai_package_for_node_works",
    ),
    client(
        "Anthropic for Python",
        ("anthropic", Python("anthropic")),
        "messages, streaming, tools and their runner, structured output, message batches, errors, asyncio",
        "the_official_anthropic_package_works",
    ),
    client(
        "Anthropic for Node.js",
        ("@anthropic-ai/sdk", Node("tests/sdk/node")),
        "the same, and retries",
        "the_official_anthropic_package_for_node_works",
    ),
    client(
        "Ollama for Python",
        ("ollama", Python("ollama")),
        "chats, generation, streaming, tools, structured output, lists of models",
        "the_official_ollama_package_works",
    ),
    client(
        "Ollama for Node.js",
        ("ollama", Node("tests/sdk/node")),
        "chats, streaming, tools",
        "the_official_ollama_package_for_node_works",
    ),
    client(
        "Cohere for Python",
        ("cohere", Python("cohere")),
        "rerank in both versions, the kinds of errors",
        "the_official_cohere_package_ranks_documents_on_two_nodes",
    ),
    client(
        "LangChain",
        ("langchain-openai", Python("langchain")),
        "`ChatOpenAI` and `OpenAI`: streaming, batches, tools, structured output",
        "the_langchain_package_works",
    ),
    client(
        "LangChain for Anthropic",
        ("langchain-anthropic", Python("langchain-anthropic")),
        "`ChatAnthropic`: streaming, tools, structured output",
        "the_langchain_package_for_anthropic_works",
    ),
    client(
        "LlamaIndex",
        ("llama-index-llms-openai-like", Python("llama-index")),
        "`OpenAILike`: chats, streaming, tools",
        "the_llama_index_package_works",
    ),
    client(
        "LiteLLM",
        ("litellm", Python("litellm")),
        "`completion`, `text_completion`, streaming, tools, the kinds of errors",
        "the_litellm_package_works",
    ),
    client(
        "LiteLLM's proxy",
        ("litellm", Python("litellm-proxy")),
        "requests that it passes on",
        "litellms_proxy_passes_requests_as_the_example_says",
    ),
    client(
        "instructor",
        ("instructor", Python("instructor")),
        "objects from tool calls and from schemas",
        "the_instructor_package_works",
    ),
    client(
        "pydantic-ai",
        ("pydantic-ai-slim", Python("pydantic-ai")),
        "agents in OpenAI's and Anthropic's API: streaming, tools, structured output",
        "the_pydantic_ai_package_works",
    ),
    client(
        "llm",
        ("llm", Python("llm")),
        "prompts and schemas in a terminal",
        "the_llm_program_works",
    ),
    client(
        "AI SDK",
        ("ai", Node("tests/sdk/node")),
        "`@ai-sdk/openai-compatible` and `@ai-sdk/anthropic`: streaming, tools, structured output",
        "the_ai_sdk_works",
    ),
    client(
        "Claude Code",
        ("@anthropic-ai/claude-code", Node("tests/clients")),
        "`claude -p` with tools, while nodes die (`make test-clients`)",
        "claude_code_does_not_notice_lost_nodes",
    ),
    client(
        "Codex",
        ("@openai/codex", Node("tests/clients")),
        "`codex exec` with commands, while nodes die (`make test-clients`)",
        "codex_does_not_notice_lost_nodes",
    ),
    client(
        "Open WebUI",
        ("open-webui", PythonFile("tests/clients/requirements-open-webui.txt")),
        "chats of two users in Chromium, while nodes die (`make test-clients`)",
        "open_webui_shows_two_users_whole_answers_while_a_node_is_lost",
    ),
];

/// The version in a list of Python packages.
fn pinned(package: &str, file: &str) -> String {
    let text = current::read(file);
    let pins = text.lines().filter_map(|line| line.split_once("=="));
    let mut versions = pins.filter(|(pinned, _)| *pinned == package);
    versions.next().unwrap_or_else(|| panic!("{package} is not pinned")).1.into()
}

/// The version that the tests install.
fn version(client: &Client) -> String {
    let package = client.package;
    match client.from {
        Python(name) => pinned(package, &format!("tests/sdk/requirements-{name}.txt")),
        PythonFile(file) => pinned(package, file),
        Node(folder) => {
            let text = current::read(&format!("{folder}/package.json"));
            let json: Value = serde_json::from_str(&text).unwrap();
            let version = json["dependencies"][package].as_str();
            version.unwrap_or_else(|| panic!("{package} is not pinned")).into()
        }
    }
}

fn table() -> String {
    let mut text = String::from("| Client | Package | What the tests use |\n| --- | --- | --- |\n");
    for client in &CLIENTS {
        let Client { name, package, uses, .. } = client;
        writeln!(text, "| {name} | `{package}` {} | {uses} |", version(client)).unwrap();
    }
    text
}

/// All names, in lines of at most 120 characters.
fn sentence() -> String {
    let mut lines = vec![String::from("Tested:")];
    let last = CLIENTS.len() - 1;
    for (index, client) in CLIENTS.iter().enumerate() {
        let end = if index == last { '.' } else { ',' };
        for word in format!("{}{end}", client.name).split(' ') {
            let line = lines.last_mut().unwrap();
            match line.chars().count() + 1 + word.chars().count() > 120 {
                true => lines.push(word.into()),
                false => *line += &format!(" {word}"),
            }
        }
    }
    lines.join("\n") + "\n"
}

fn check(file: &str, list: &str) {
    const BEGIN: &str = "<!-- tested clients -->\n\n";
    let mut page = current::read(file);
    let from = page.find(BEGIN).expect("the mark is missing") + BEGIN.len();
    let to = from + page[from..].find("\n<!-- end -->").expect("the mark is missing");
    page.replace_range(from..to, list);
    current::check(file, &page);
}

#[test]
fn the_first_lines_of_the_readme_say_what_somebody_new_asks() {
    let readme = current::read("README.md");
    let first: Vec<&str> = readme.lines().take(60).collect();
    let first = first.join("\n");
    for part in [
        "**For** ",
        "**Not for** ",
        "losses",
        "make bench-peers",
        "docs/images/failover.svg",
        "install.sh | sh",
        "flotilla-gateway init",
        "flotilla-gateway run",
        "from openai import OpenAI",
        "Open WebUI",
        "**Missing today:**",
    ] {
        assert!(first.contains(part), "'{part}' is not in the first 60 lines");
    }
}

#[test]
fn the_lists_of_tested_clients_are_those_of_this_code() {
    check("docs/app-developer.md", &table());
    check("README.md", &sentence());
}

#[test]
fn every_tested_client_has_its_test() {
    let tests = tests();
    for client in &CLIENTS {
        assert!(tests.contains(client.test), "{}: {} is no test", client.name, client.test);
    }
    // And every client of the SDK tests is listed.
    for entry in std::fs::read_dir(root().join("tests/sdk")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(name) = name.strip_suffix("_package.py") else { continue };
        let name = name.replace('_', "-");
        let is_listed = |client: &Client| matches!(client.from, Python(list) if list == name);
        assert!(CLIENTS.iter().any(is_listed), "{name} is not listed");
    }
}
