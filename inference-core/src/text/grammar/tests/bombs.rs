//! Tests constraints designed to cost too much: each ends in time, with an error or not, and
//! nothing panics.

use std::time::{Duration, Instant};

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::{large, refused, schema};
use crate::text::grammar::{CONSTRAINT_BYTES_MAX, Grammar, GrammarError};
use crate::types::constraint::Constraint;
use crate::types::request::Token;

/// Time limit for compiling on a busy machine. Alone and optimized, the slowest takes some tenths
/// of a second.
const COMPILE: Duration = Duration::from_secs(10);
/// Time limit for one step of a response, of which the slowest takes some tens of milliseconds.
const STEP: Duration = Duration::from_secs(5);
/// Smaller than the stack of an engine thread.
const STACK_BYTES: usize = 512 * 1024;

/// Compiles on a small stack and takes some random steps.
fn defuse(name: &str, constraint: Constraint) {
    let name = name.to_string();
    let run = move || {
        let vocabulary = large();
        let begin = Instant::now();
        let compiled = vocabulary.grammars.compile(&constraint);
        let took = begin.elapsed();
        assert!(took < COMPILE, "{name}: {took:?}");
        let (steps, longest, end) = match compiled {
            Ok(grammar) => walk(grammar),
            Err(e) => (0, Duration::ZERO, Some(e)),
        };
        println!("{name}: {took:?} {steps} steps, {longest:?}, {end:?}");
        let is_fault = matches!(&end, Some(GrammarError::Internal(_) | GrammarError::Rejected(_)));
        assert!(!is_fault, "{name}: {end:?}");
        let tells_of_panic = |e: &GrammarError| e.to_string().contains("panic");
        assert!(!end.as_ref().is_some_and(tells_of_panic), "{name}: {end:?}");
        assert!(longest < STEP, "{name}: {longest:?}");
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(run).unwrap();
    thread.join().unwrap();
}

fn walk(mut grammar: Grammar) -> (usize, Duration, Option<GrammarError>) {
    let vocabulary = large();
    let mut rng = Pcg64::seed_from_u64(5);
    let mut longest = Duration::ZERO;
    for step in 0..40 {
        let begin = Instant::now();
        let mut logits = vec![0.0f32; vocabulary.pieces.len()];
        if let Err(e) = grammar.mask(&mut logits) {
            return (step, longest.max(begin.elapsed()), Some(e));
        }
        longest = longest.max(begin.elapsed());
        let allowed: Vec<Token> =
            (0..vocabulary.end).filter(|t| logits[*t as usize] == 0.0).collect();
        if allowed.is_empty() {
            return (step, longest, None);
        }
        let token = allowed[rng.next_u32() as usize % allowed.len()];
        let begin = Instant::now();
        let accepted = grammar.accept(token);
        longest = longest.max(begin.elapsed());
        if let Err(e) = accepted {
            return (step, longest, Some(e));
        }
    }
    (40, longest, None)
}

fn list(count: usize, between: &str, item: impl Fn(usize) -> String) -> String {
    (0..count).map(item).collect::<Vec<_>>().join(between)
}

fn pattern(text: &str) -> Constraint {
    schema(&serde_json::json!({"type": "string", "pattern": text}).to_string())
}

#[test]
fn schemas_that_count_far_are_defused() {
    for key in ["maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"]
    {
        for count in ["100000", "1000000000", "18446744073709551615", "1e300"] {
            let text = format!(r#"{{"{key}": {count}, "items": {{"maxLength": 3}}}}"#);
            defuse(&format!("{key} {count}"), schema(&text));
        }
    }
    for (key, number) in [
        ("multipleOf", "1e-300"),
        ("multipleOf", "123456789"),
        ("multipleOf", "0.0000001"),
        ("multipleOf", "0"),
        ("multipleOf", "99991"),
        ("multipleOf", "9973"),
        ("minimum", "1e308"),
        ("maximum", "-1.7976931348623157e308"),
        ("exclusiveMinimum", "0.1234567890123456"),
    ] {
        for kind in ["integer", "number"] {
            let text = format!(r#"{{"type": "{kind}", "{key}": {number}}}"#);
            defuse(&format!("{kind} {key} {number}"), schema(&text));
        }
    }
}

#[test]
fn schemas_that_multiply_are_defused() {
    let either = |i| format!(r#"{{"anyOf": [{{"minLength": {i}}}, {{"maxLength": {i}}}]}}"#);
    defuse("all of either", schema(&format!(r#"{{"allOf": [{}]}}"#, list(30, ",", either))));
    let twice = |i: usize| {
        let next = i + 1;
        format!(
            r##""d{i}": {{"allOf": [{{"$ref": "#/$defs/d{next}"}}, {{"$ref": "#/$defs/d{next}"}},
            {{"properties": {{"x{i}": {{"$ref": "#/$defs/d{next}"}}}}}}]}}"##
        )
    };
    let text = format!(
        r##"{{"$ref": "#/$defs/d0", "$defs": {{{}, "d40": {{}}}}}}"##,
        list(40, ",", twice)
    );
    defuse("twice forty times", schema(&text));
    let circle = r##"{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}"##;
    defuse("circle", schema(circle));
    let all = r##"{"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}}}"##;
    defuse("circle in allOf", schema(all));
    let endless = r##"{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}"##;
    defuse("endless", schema(endless));
    let big = list(440, ",", |i| format!(r#""p{i}": {{"type": "integer"}}"#));
    let strings =
        |n: usize| list(200, ",", |i| format!(r#"{{"type": "string", "minLength": {}}}"#, n + i));
    let text = format!(
        r#"{{"allOf": [{{"anyOf": [{}]}}, {{"anyOf": [{}]}}, {{"properties": {{{big}}}}}]}}"#,
        strings(1),
        strings(300)
    );
    defuse("products with a large one", schema(&text));
    let refs = list(1200, ",", |_| r##"{"$ref": "#/$defs/b", "type": "string"}"##.into());
    let text = format!(r##"{{"anyOf": [{refs}], "$defs": {{"b": {{"properties": {{{big}}}}}}}}}"##);
    defuse("many of a large one", schema(&text.replace("integer", "null")));
    let any =
        r##"{"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"type": "array", "items": {"$ref": "#"}}]}"##;
    defuse("ambiguous", schema(any));
}

#[test]
fn schemas_that_are_long_or_deep_are_defused() {
    let chain = |i: usize| format!(r##""{i}":{{"$ref":"#/$defs/{}"}}"##, i + 1);
    let text =
        format!(r##"{{"$ref":"#/$defs/0","$defs":{{{},"2000":{{}}}}}}"##, list(2000, ",", chain));
    defuse("chain", schema(&text));
    let chain = |i: usize| format!(r##""{i}":{{"items":{{"$ref":"#/$defs/{}"}}}}"##, i + 1);
    let text =
        format!(r##"{{"$ref":"#/$defs/0","$defs":{{{},"1800":{{}}}}}}"##, list(1800, ",", chain));
    defuse("chain of arrays", schema(&text));
    for depth in [15, 60, 120, 5000] {
        let text = format!("{}{{}}{}", r#"{"items":"#.repeat(depth), "}".repeat(depth));
        defuse(&format!("depth {depth}"), schema(&text));
        let text = format!(r#"{{"const": {}{}}}"#, "[".repeat(depth), "]".repeat(depth));
        defuse(&format!("const depth {depth}"), schema(&text));
    }
    let text = format!(r#"{{"enum": [{}]}}"#, list(6000, ",", |i| format!(r#""value {i}""#)));
    defuse("enum", schema(&text));
    let property = |i| format!(r#""p{i}": {{"type": "integer"}}"#);
    let text = format!(r#"{{"properties": {{{}}}}}"#, list(2000, ",", property));
    defuse("properties", schema(&text));
    let text = text.replace("integer", "string");
    let closed = text.replacen('{', r#"{"additionalProperties": false, "#, 1);
    defuse("properties, closed", schema(&closed));
    let pattern = |i| format!(r#""^{i}[a-z]*x.{{0,9}}$": {{}}"#);
    let text = format!(r#"{{"patternProperties": {{{}}}}}"#, list(300, ",", pattern));
    defuse("patterns", schema(&text));
    let name = "n".repeat(60_000);
    defuse(
        "name",
        schema(&format!(r#"{{"properties": {{"{name}": {{}}}}, "required": ["{name}"]}}"#)),
    );
    defuse("const", schema(&format!(r#"{{"const": "{name}"}}"#)));
    let any =
        list(900, ",", |i| format!(r#"{{"type": "object", "properties": {{"k{i}": {{}}}}}}"#));
    defuse("anyOf", schema(&format!(r#"{{"anyOf": [{any}]}}"#)));
    let bad = "é".repeat(90);
    defuse("cut inside a character", schema(&format!(r#"{{"minLength": "x{bad}"}}"#)));
}

#[test]
fn expressions_are_defused() {
    let choice = list(300, "|", |i| format!("a{i}.*b"));
    let optional = format!("{}{}", "a?".repeat(500), "a".repeat(500));
    let nested = format!("{}a{}", "(".repeat(240), ")*".repeat(240));
    for text in [
        "(a{1,1000}){1,1000}",
        "((a{1,100}){1,100}){1,100}",
        "a{1,1000000}",
        "(x+x+)+y",
        "(a|aa)+$",
        "(a|b)*a(a|b){20}",
        ".*a.{30}",
        "(.*a.{20})|(.*b.{21})|(.*c.{22})",
        r"\w{1,500}\d{1,500}\p{L}{1,2000}",
        r"(\p{L}|\p{N}){0,2000}x",
        "(a?){500}a{500}",
        "(?=a)b",
        "^(([a-z])+.)+[A-Z]([a-z])+$",
        "(([^,]*,){20})*x",
        &choice,
        &optional,
        &nested,
        &"a".repeat(4096),
        &"a".repeat(4097),
        &".*a".repeat(60),
        &"(a|b)*c".repeat(500),
    ] {
        let name = text.get(..40).unwrap_or(text);
        defuse(&format!("regex {name}"), Constraint::Regex(text.into()));
        defuse(&format!("pattern {name}"), pattern(text));
    }
}

#[test]
fn lark_grammars_are_defused() {
    let chain = list(6000, "\n", |i| format!("r{i}: r{}", i + 1));
    let deep =
        |open: &str, close: &str| format!("{}\"x\"{}", open.repeat(20_000), close.repeat(20_000));
    let laughs = list(60, "\n", |i| format!("r{i}: r{n} r{n}", n = i + 1));
    let tokens = list(60, "\n", |i| format!("T{i}: T{n} T{n}", n = i + 1));
    let words = "lorem ipsum dolor ".repeat(3000);
    for (name, text) in [
        ("chain", format!("start: r0\n{chain}\nr6000: \"x\"")),
        ("brackets", format!("start: {}", deep("(", ")"))),
        ("square brackets", format!("start: {}", deep("[", "]"))),
        ("lines of brackets", format!("start: {}", deep("(\n", ")\n"))),
        ("laughs", format!("start: r0\n{laughs}\nr60: \"x\" | \"y\"")),
        ("laughs of tokens", format!("start: T0\n{tokens}\nT60: \"x\" | \"y\"")),
        ("counts", "start: (\"a\" | \"b\"){1,100000000}".into()),
        ("nested counts", "start: x{1000,2000}\nx: y{1000,2000}\ny: \"a\"{1000,2000}".into()),
        ("ambiguous", "start: start start | \"a\" | \"b\" | /[a-z]/".into()),
        ("right recursion", "start: /[a-z ]/ start |".into()),
        ("empty loop", "start: (a*)*\na: (start | \"\")*".into()),
        ("itself", "start: start".into()),
        ("endless", "start: \"a\" start".into()),
        ("any", "start: /(?s:.)/*".into()),
        ("substrings", format!("start: %regex {{\"substring_chars\": \"{words}\"}}")),
        ("words", format!("start: %regex {{\"substring_words\": \"{words}\"}}")),
        (
            "inner schema",
            "start: %json {\"maxItems\": 1000000000, \"pattern\": \".*a.{30}\"}".into(),
        ),
        ("tokens", "start: <[0-151935]>{1000}".into()),
        ("unknown token", "start: <[999999999]>".into()),
        ("not", "start: /a.{9}/ A\nA: ~(/.*a.{20}/) & /.*b.{20}/".into()),
        ("bad json", "start: %json {".into()),
        ("lazy", "start: a b\na[lazy]: /.*x.{20}/\nb: /.*/".into()),
        ("captures", "start: a*\na[capture]: /[a-z]/".into()),
    ] {
        defuse(&format!("lark {name}"), Constraint::Lark(text));
    }
}

#[test]
fn gbnf_grammars_are_defused() {
    let chain = list(999, "\n", |i| match i {
        0 => "root ::= r1".into(),
        i => format!("r{i} ::= \"(\" r{} \")\"", i + 1),
    });
    let laughs = list(60, "\n", |i| match i {
        0 => "root ::= r1 r1".into(),
        i => format!("r{i} ::= r{n} r{n} | \"b\"", n = i + 1),
    });
    let words = |n| list(n, " | ", |i| format!("\"w{i} \" [a-z]* root"));
    let classes = list(400, " | ", |i| format!("[a-z]{{{i}}} \"x{i}\" root?"));
    let entangled =
        list(120, "\n", |i| format!("r{i} ::= [a-z]+ [a-y]* r{}? | \"a\" root", (i * 7 + 1) % 120));
    for (name, text) in [
        ("chain", format!("{chain}\nr999 ::= \"x\"")),
        ("laughs", format!("{laughs}\nr60 ::= \"a\"")),
        ("counts", "root ::= ((\"a\"{1,2000}){1,2000}){1,2000}".into()),
        ("recursive counts", "root ::= ((\"a\" root?){1,2000}){1,2000}".into()),
        ("too many", "root ::= \"a\"{1,1000000}".into()),
        ("ambiguous", "root ::= \"a\" (root root? | root*)* | [a-z]+ root?".into()),
        ("right recursion", "root ::= [a-z ] root |".into()),
        ("endless", "root ::= \"a\" root".into()),
        ("any", "root ::= (. root)?".into()),
        ("any text between", "root ::= \"a\" .* root? \"b\"".into()),
        ("entangled", format!("root ::= r0 r1\n{entangled}")),
        ("words", format!("root ::= {}", words(490))),
        ("more words", format!("root ::= {}", words(2000))),
        ("classes", format!("root ::= {classes}")),
        ("brackets", format!("root ::= {}\"a\"{}", "(".repeat(30_000), ")".repeat(30_000))),
        ("empty", "root ::= (\"\" (root)?)* \"x\"".into()),
        ("literal", format!("root ::= \"{}\" root?", "a".repeat(60_000))),
        ("rules", list(5000, "\n", |i| format!("r{i} ::= \"x\""))),
        ("exponential", "root ::= [ab]* \"a\" [ab]{20} (\"(\" root \")\")?".into()),
    ] {
        defuse(&format!("gbnf {name}"), Constraint::Gbnf(text));
    }
}

#[test]
fn choices_are_defused() {
    let many = |n| (0..n).map(|i| format!("choice number {i}")).collect();
    defuse("choice", Constraint::Choice(many(1000)));
    defuse("choice too many", Constraint::Choice(many(1001)));
    defuse("choice long", Constraint::Choice(vec!["é".repeat(CONSTRAINT_BYTES_MAX / 2)]));
}

#[test]
fn what_is_too_large_is_refused_as_such() {
    let long = "a".repeat(CONSTRAINT_BYTES_MAX + 1);
    for constraint in [
        schema(&long),
        Constraint::Lark(long.clone()),
        Constraint::Gbnf(long.clone()),
        Constraint::Regex(long.clone()),
        Constraint::Choice(vec![long]),
        schema(&format!(r#"{{"const": {}{}}}"#, "[".repeat(100), "]".repeat(100))),
        Constraint::Gbnf("root ::= \"a\"{2001}".into()),
        pattern(&"a".repeat(5000)),
    ] {
        let error = refused(constraint);
        assert!(matches!(error, GrammarError::TooComplex(_)), "{error:?}");
    }
}
