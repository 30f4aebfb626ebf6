//! Tools: what the model learns of them, and what its calls become.

use serde_json::{Value, json};

use crate::conversation::{Tool, ToolChoice};
use crate::fault::{Fault, Fields, list};

/// The form in which a call of a tool is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `function_call`
    Function,
    /// `custom_tool_call`: free text, which the model writes as the string `input`.
    Custom,
    /// `local_shell_call`
    LocalShell,
    /// `tool_search_call`: the client finds tools.
    Search,
}

/// A tool that the model may call.
#[derive(Debug, Clone)]
pub(crate) struct Offered {
    /// What the model calls it.
    pub(crate) chat_name: String,
    /// What the client calls it.
    pub(crate) name: String,
    /// The client's group of tools that it is in.
    pub(crate) namespace: Option<String>,
    /// The form of its calls.
    pub(crate) kind: Kind,
}

/// Name of the tool that runs commands on the client's machine.
pub(crate) const LOCAL_SHELL: &str = "local_shell";
/// Name of the tool by which the client finds tools.
pub(crate) const TOOL_SEARCH: &str = "tool_search";

/// Types of tools, or beginnings of types, that only OpenAI's servers run.
const HOSTED: [&str; 8] = [
    "web_search",
    "file_search",
    "code_interpreter",
    "image_generation",
    "computer",
    "mcp",
    TOOL_SEARCH,
    "programmatic_tool_calling",
];

/// The name by which the model knows a tool of a namespace. `functions` is Codex's name for those
/// without one.
pub(crate) fn chat_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        None | Some("" | "functions") => name.into(),
        Some(namespace) if namespace == name => name.into(),
        Some(namespace) if namespace.ends_with("__") => format!("{namespace}{name}"),
        Some(namespace) => format!("{namespace}__{name}"),
    }
}

/// The tools of a request.
#[derive(Debug, Default)]
pub(crate) struct Toolbox {
    tools: Vec<Tool>,
    offered: Vec<Offered>,
}

/// A group of tools.
struct Namespace {
    name: String,
    /// Told with its first tool.
    description: Option<String>,
}

impl Toolbox {
    /// Adds a tool, or the tools of a namespace. Leaves out those that only OpenAI's servers run.
    pub(crate) fn add(&mut self, tool: Value) -> Result<(), Fault> {
        self.add_to(tool, None)
    }

    fn add_to(&mut self, tool: Value, namespace: Option<&mut Namespace>) -> Result<(), Fault> {
        let mut fields = Fields::of(tool)?;
        let kind = fields.required_text("type")?;
        let (kind, tool) = match kind.as_str() {
            "function" => (Kind::Function, function(&mut fields)?),
            "custom" => (Kind::Custom, custom(&mut fields)?),
            "namespace" if namespace.is_none() => return self.add_namespace(fields),
            LOCAL_SHELL => (Kind::LocalShell, local_shell()),
            TOOL_SEARCH if fields.text("execution")?.as_deref() == Some("client") => {
                (Kind::Search, search(&mut fields)?)
            }
            hosted if HOSTED.iter().any(|kind| hosted.starts_with(kind)) => return Ok(()),
            other => return Err(unsupported(other)),
        };
        self.offer(kind, tool, namespace);
        Ok(())
    }

    fn add_namespace(&mut self, mut fields: Fields) -> Result<(), Fault> {
        let (name, description) = (fields.required_text("name")?, fields.text("description")?);
        let mut namespace = Namespace { name, description };
        let add = |tool| self.add_to(tool, Some(&mut namespace));
        fields.list("tools", add).map(|_| ())
    }

    /// A tool of the same name is replaced.
    fn offer(&mut self, kind: Kind, mut tool: Tool, namespace: Option<&mut Namespace>) {
        let name = tool.name.clone();
        let mut group = None;
        if let Some(namespace) = namespace {
            let texts = [namespace.description.take(), tool.description.take()];
            let texts: Vec<_> =
                texts.into_iter().flatten().filter(|text| !text.is_empty()).collect();
            tool.description = Some(texts.join("\n\n")).filter(|text| !text.is_empty());
            tool.name = chat_name(Some(&namespace.name), &name);
            group = (tool.name != name).then(|| namespace.name.clone());
        }
        let offered = Offered { chat_name: tool.name.clone(), name, namespace: group, kind };
        let known = self.offered.iter().position(|known| known.chat_name == offered.chat_name);
        match known {
            Some(at) => (self.tools[at], self.offered[at]) = (tool, offered),
            None => {
                self.tools.push(tool);
                self.offered.push(offered);
            }
        }
    }

    /// Reads a choice among the tools; leaves only those that the model may call.
    pub(crate) fn choose(&mut self, choice: Value) -> Result<Option<ToolChoice>, Fault> {
        let choice = match choice {
            Value::String(word) => word_choice(&word)?,
            object => self.object_choice(object)?,
        };
        match choice {
            ToolChoice::Required if self.tools.is_empty() => {
                Err(Fault::new("a call is required, and no tool can be called"))
            }
            // Other choices mean nothing without tools, and chat completions refuse them.
            choice => Ok(Some(choice).filter(|_| !self.tools.is_empty())),
        }
    }

    fn object_choice(&mut self, choice: Value) -> Result<ToolChoice, Fault> {
        let mut choice = Fields::of(choice)?;
        match choice.required_text("type")?.as_str() {
            "function" | "custom" => self.named(&choice.required_text("name")?),
            LOCAL_SHELL => self.named(LOCAL_SHELL),
            "allowed_tools" => {
                let mode =
                    choice.require("mode", |mode| word_choice(mode.as_str().unwrap_or("")))?;
                let allowed = choice.require("tools", |tools| list(tools, allowed_name))?;
                self.retain(&allowed);
                Ok(mode)
            }
            other => {
                let message = format!(
                    "{other:?} cannot be called here; expected function, custom or allowed_tools"
                );
                Err(Fault::of("type", message))
            }
        }
    }

    fn named(&self, name: &str) -> Result<ToolChoice, Fault> {
        let is_it = |tool: &&Offered| tool.name == name || tool.chat_name == name;
        match self.offered.iter().find(is_it) {
            Some(tool) => Ok(ToolChoice::Named(tool.chat_name.clone())),
            None => Err(Fault::of("name", "there is no such tool in tools")),
        }
    }

    fn retain(&mut self, allowed: &[String]) {
        let is_allowed = |tool: &Offered| allowed.contains(&tool.name);
        let mut offered = self.offered.iter();
        self.tools.retain(|_| offered.next().is_some_and(is_allowed));
        self.offered.retain(is_allowed);
    }

    /// The tools for the chat completion, and what their calls become.
    pub(crate) fn into_parts(self) -> (Vec<Tool>, Vec<Offered>) {
        (self.tools, self.offered)
    }
}

fn unsupported(kind: &str) -> Fault {
    let kind: String = kind.chars().take(64).collect();
    Fault::of("type", format!("tools of type {kind:?} are not supported"))
}

fn word_choice(word: &str) -> Result<ToolChoice, Fault> {
    match word {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        _ => Err(Fault::new("expected auto, none or required")),
    }
}

/// The name in `{"type": "function", "name": "f"}`; tools without a name go by their type.
fn allowed_name(tool: Value) -> Result<String, Fault> {
    let mut tool = Fields::of(tool)?;
    let kind = tool.required_text("type")?;
    Ok(tool.text("name")?.unwrap_or(kind))
}

fn function(fields: &mut Fields) -> Result<Tool, Fault> {
    Ok(Tool {
        name: fields.required_text("name")?,
        description: fields.text("description")?,
        parameters: fields.take("parameters"),
        strict: fields.flag("strict")?,
    })
}

fn custom(fields: &mut Fields) -> Result<Tool, Fault> {
    let name = fields.required_text("name")?;
    let mut description = fields.text("description")?.unwrap_or_default();
    if let Some(format) = fields.read("format", grammar)?.flatten() {
        description.push_str(&format);
    }
    let parameters = json!({
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": false,
    });
    let description = Some(description).filter(|text| !text.is_empty());
    Ok(Tool { name, description, parameters: Some(parameters), strict: None })
}

/// What the model learns of the format of a custom tool's input. It is not enforced.
fn grammar(format: Value) -> Result<Option<String>, Fault> {
    let mut format = Fields::of(format)?;
    match format.required_text("type")?.as_str() {
        "text" => Ok(None),
        "grammar" => {
            let syntax = format.required_text("syntax")?;
            let definition = format.required_text("definition")?;
            Ok(Some(format!("\n\nThe input matches this {syntax} grammar:\n{definition}")))
        }
        _ => Err(Fault::of("type", "expected text or grammar")),
    }
}

fn local_shell() -> Tool {
    let parameters = json!({
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"},
                "description": "The program and its arguments"},
            "working_directory": {"type": "string"},
            "timeout_ms": {"type": "integer"},
        },
        "required": ["command"],
        "additionalProperties": false,
    });
    Tool {
        name: LOCAL_SHELL.into(),
        description: Some("Runs a command on the user's machine and returns its output.".into()),
        parameters: Some(parameters),
        strict: None,
    }
}

fn search(fields: &mut Fields) -> Result<Tool, Fault> {
    let query = || json!({"type": "object", "properties": {"query": {"type": "string"}}});
    Ok(Tool {
        name: TOOL_SEARCH.into(),
        description: fields.text("description")?,
        parameters: Some(fields.take("parameters").unwrap_or_else(query)),
        strict: None,
    })
}
