//! Translates constraints to llguidance's input, and starts the thread that compiles them: not
//! pure.

use std::thread;

use llguidance::api::TopLevelGrammar;

use super::{CHOICES_MAX, CONSTRAINT_BYTES_MAX, GrammarError, gbnf, limits};
use super::{pattern, schema};
use crate::types::constraint::Constraint;

/// Runs `f` on its own thread: compiling recurses as deeply as the constraint is nested, and a
/// stack overflow cannot be caught. A panic of `f` becomes an error.
pub(super) fn deep<T: Send>(f: impl FnOnce() -> T + Send) -> Result<T, GrammarError> {
    let failed = |why: &str| GrammarError::Internal(why.into());
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("grammar".into());
        let thread = thread.stack_size(limits::STACK_BYTES).spawn_scoped(scope, f);
        let thread = thread.map_err(|e| failed(&format!("no thread to compile on: {e}")))?;
        thread.join().map_err(|_| failed("compiling panicked"))
    })
}

/// Like [`prepare`]; the constraint becomes the rule `answer` of our Lark grammar `lark`.
pub(super) fn prepare_within(
    lark: &str,
    constraint: &Constraint,
) -> Result<TopLevelGrammar, GrammarError> {
    let schema = match constraint {
        Constraint::JsonObject => schema::any_object(),
        Constraint::JsonSchema(text) => schema::prepare(sized("the JSON schema", text)?, true)?,
        Constraint::LenientJsonSchema(text) => {
            schema::prepare(sized("the JSON schema", text)?, false)?
        }
        other => {
            let answer = answer(other)?;
            return Ok(TopLevelGrammar::from_lark(format!("{lark}\nanswer: {answer}\n")));
        }
    };
    Ok(TopLevelGrammar::from_lark(format!("{lark}\nanswer: %json {schema}\n")))
}

/// A constraint that is not JSON, as the body of a rule.
fn answer(constraint: &Constraint) -> Result<String, GrammarError> {
    match constraint {
        Constraint::Gbnf(text) => {
            Ok(format!("%lark {{\n{}\n}}", gbnf::to_lark(sized("the grammar", text)?)?))
        }
        Constraint::Regex(text) => {
            pattern::check_regex(text)?;
            Ok(format!("/{}/", pattern::between_slashes(text)))
        }
        Constraint::Choice(texts) => Ok(choice(texts)?.replacen("start: ", "", 1)),
        _ => Err(GrammarError::Invalid("this grammar cannot be part of another one".into())),
    }
}

/// Checks a constraint's size and translates it for llguidance.
pub(super) fn prepare(constraint: &Constraint) -> Result<TopLevelGrammar, GrammarError> {
    Ok(match constraint {
        Constraint::JsonObject => TopLevelGrammar::from_json_schema(schema::any_object()),
        Constraint::JsonSchema(text) => {
            let schema = schema::prepare(sized("the JSON schema", text)?, true)?;
            TopLevelGrammar::from_json_schema(schema)
        }
        Constraint::LenientJsonSchema(text) => {
            let schema = schema::prepare(sized("the JSON schema", text)?, false)?;
            TopLevelGrammar::from_json_schema(schema)
        }
        Constraint::Gbnf(text) => {
            TopLevelGrammar::from_lark(gbnf::to_lark(sized("the grammar", text)?)?)
        }
        Constraint::Lark(text) => {
            pattern::check_lark(sized("the grammar", text)?)?;
            TopLevelGrammar::from_lark(text.clone())
        }
        Constraint::Regex(text) => {
            pattern::check_regex(text)?;
            TopLevelGrammar::from_regex(text)
        }
        Constraint::Choice(texts) => TopLevelGrammar::from_lark(choice(texts)?),
    })
}

fn sized<'a>(what: &str, text: &'a str) -> Result<&'a str, GrammarError> {
    if text.len() > CONSTRAINT_BYTES_MAX {
        let why = format!("{what} has more than {CONSTRAINT_BYTES_MAX} bytes");
        return Err(GrammarError::TooComplex(why));
    }
    Ok(text)
}

/// A single regular expression: a lexer would take the longest of texts with a common prefix.
fn choice(texts: &[String]) -> Result<String, GrammarError> {
    let bytes: usize = texts.iter().map(String::len).sum();
    if texts.len() > CHOICES_MAX || bytes > CONSTRAINT_BYTES_MAX {
        let why = format!(
            "the choice has more than {CHOICES_MAX} texts, or {CONSTRAINT_BYTES_MAX} bytes"
        );
        return Err(GrammarError::TooComplex(why));
    }
    if texts.is_empty() || texts.iter().any(String::is_empty) {
        return Err(GrammarError::Invalid("a choice needs texts, and none may be empty".into()));
    }
    let texts: Vec<String> = texts.iter().map(|text| pattern::literal(text)).collect();
    Ok(format!("start: /{}/", texts.join("|")))
}
