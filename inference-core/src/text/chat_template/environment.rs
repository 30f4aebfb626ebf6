//! PURE. The environment that templates run in: what Hugging Face's `chat_template_utils` provides,
//! on top of minijinja.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{AutoEscape, Environment, Error, State, Value};

use super::methods::invalid;
use super::{filters, json, methods, repr};

/// Maximum instructions per rendering. A chat of hundreds of messages needs some tens of thousands;
/// this many take some tenths of a second.
const FUEL: u64 = 5_000_000;
/// Maximum depth of macros that call each other, in minijinja's units: one call costs 4.
const RECURSION_MAX: usize = 400;
/// Names that templates may rely on; clients' variables cannot override them.
pub(crate) const GLOBALS: [&str; 8] =
    ["cycler", "dict", "joiner", "namespace", "raise_exception", "range", "lipsum", "debug"];

/// Creates an environment without templates.
pub(crate) fn build() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_debug(false);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, _, value| {
        match value.as_str() {
            Some(text) => out.write_str(text),
            None => out.write_str(&repr::to_str(value)),
        }
        .map_err(Error::from)
    });
    add_filters(&mut environment);
    add_functions(&mut environment);
    Ok(environment)
}

fn add_filters(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", json::to_json);
    environment.add_filter("length", filters::length);
    environment.add_filter("count", filters::length);
    environment.add_filter("trim", filters::trim);
    environment.add_filter("default", filters::default);
    environment.add_filter("d", filters::default);
    environment.add_filter("replace", filters::replace);
    environment.add_filter("join", filters::join);
    environment.add_filter("string", filters::string);
    environment.add_filter("items", filters::items);
    environment.add_filter("dictsort", filters::dictsort);
    environment.add_filter("indent", filters::indent);
    environment.add_filter("int", filters::int);
    environment.add_filter("float", filters::float);
    environment.add_filter("round", filters::round);
    environment.add_filter("escape", filters::escape);
    environment.add_filter("e", filters::escape);
    environment.add_filter("center", filters::center);
    environment.add_filter("wordcount", filters::wordcount);
    environment.add_filter("striptags", minijinja_contrib::filters::striptags);
    environment.add_filter("truncate", minijinja_contrib::filters::truncate);
    environment.add_test("sequence", filters::is_sequence);
    environment.add_test("iterable", filters::is_iterable);
    environment.add_test("callable", filters::is_callable);
}

fn add_functions(environment: &mut Environment<'static>) {
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment
        .add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    environment.add_function("dict", dict);
    environment.remove_global("debug");
    // Templates can only assign to minijinja's own namespace.
    let own = environment.globals().find(|(name, _)| *name == "namespace").map(|(_, value)| value);
    environment.add_function(
        "namespace",
        move |state: &mut State, args: Rest<Value>, named: Kwargs| {
            let own = own.as_ref().ok_or_else(|| invalid("there are no namespaces"))?;
            own.call(state, &[dict(args, named)?])
        },
    );
}

/// Source of an error that a template raised itself.
#[derive(Debug)]
pub(super) struct Raised;

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the template raised it")
    }
}

impl std::error::Error for Raised {}

/// Ends the rendering with the template's own error message.
fn raise_exception(message: &Value) -> Result<Value, Error> {
    Err(invalid(repr::to_str(message)).with_source(Raised))
}

/// `dict(mapping_or_pairs, **more)`.
fn dict(args: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let mut pairs: Vec<(Value, Value)> = vec![];
    let mut add = |key: Value, value: Value| match pairs.iter_mut().find(|(k, _)| *k == key) {
        Some((_, old)) => *old = value,
        None => pairs.push((key, value)),
    };
    for source in args.iter() {
        if source.kind() == ValueKind::Map {
            for key in source.try_iter()? {
                let value = source.get_item(&key)?;
                add(key, value);
            }
        } else {
            for pair in source.try_iter()? {
                add(pair.get_item_by_index(0)?, pair.get_item_by_index(1)?);
            }
        }
    }
    for name in named.args() {
        add(Value::from(name), named.peek(name)?);
    }
    Ok(Value::from_pairs(pairs))
}
