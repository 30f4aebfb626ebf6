//! Tests of the translation.

use proptest::prelude::*;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::*;
use crate::text::grammar::Grammar;
use crate::text::grammar::tests::{accepts, bytes};
use crate::types::constraint::Constraint;

fn grammar(text: &str) -> Grammar {
    let compiled = bytes().grammars.compile(&Constraint::Gbnf(text.into()));
    compiled.unwrap_or_else(|e| panic!("{e}:\n{text}\n{}", to_lark(text).unwrap_or_default()))
}

fn check(text: &str, yes: &[&str], no: &[&str]) {
    let grammar = grammar(text);
    let lark = || to_lark(text).unwrap();
    for answer in yes {
        assert!(accepts(&grammar, answer.as_bytes()), "{answer:?} is of\n{text}\n{}", lark());
    }
    for answer in no {
        assert!(!accepts(&grammar, answer.as_bytes()), "{answer:?} is not of\n{text}\n{}", lark());
    }
}

fn error(text: &str) -> String {
    to_lark(text).unwrap_err().to_string()
}

const ARITHMETIC: &str = r#"
# Equations, each on a line.
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"#;

pub(in crate::text::grammar) const JSON: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"#;

const CHESS: &str = r#"
root   ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move   ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn   ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"#;

const CODE: &str = r#"
root ::= (declaration)*
declaration ::= type name "(" parameter? ")" "{" statement* "}"
type ::= "int" ws | "float" ws | "char" ws
name ::= [a-zA-Z_] [a-zA-Z_0-9]*
parameter ::= type name
statement ::= ( type name ws "=" ws expression ";" ) | ( name ws "=" ws expression ";" ) |
  ( name ws "(" expression? ")" ";" ) | ( "return" ws expression ";" ) |
  ( "while" "(" expression ")" "{" statement* "}" )
expression ::= term (("+" | "-") term)*
term ::= name | number | "(" expression ")"
number ::= [0-9]+
ws ::= ([ \t\n]+)
"#;

#[test]
fn equations_may_end_their_lines() {
    check(
        ARITHMETIC,
        &["a=1\n", "a+b *(c1-2)= 3\nx=y\n", "a= 1\n\n\n", "a=1 \n"],
        &["a=1", "=1\n", "a=b+c\n", "(a=1\n", ""],
    );
}

#[test]
fn json_is_json() {
    let yes = [
        r#"{}"#,
        r#"{"a": [1, 2.5e3, -0, true], "b": {"c": "d\"\u00e9"}}"#,
        "{\n  \"a\":\n\t\tnull\n}\n",
        r#"{"é中🦀": []}"#,
    ];
    let no = ["[]", r#"{"a" 1}"#, r#"{"a": 01}"#, r#"{"a": "b}"#, "{\"a\": \"\n\"}", "{   }"];
    check(JSON, &yes, &no);
    let lark = to_lark(JSON).unwrap();
    // Strings and numbers must stay whole: one lexeme per character would be slow.
    assert!(lark.lines().count() < 25, "{lark}");
}

#[test]
fn what_does_not_recur_is_one_expression() {
    check(
        CHESS,
        &["1. e4 e5\n2. Nf3 Nc6\n", "1. e4 e5\n2. O-O-O exd8=Q+\n13. R1xa1# Qh4\n"],
        &["1. e4 e5\n", "1. e9 e5\n2. e4 e5\n"],
    );
    assert_eq!(to_lark(CHESS).unwrap().matches("\nT").count(), 1);
    check("root ::= item+\nitem ::= \"- \" [^\\n]+ \"\\n\"", &["- a\n- b c\n"], &["- \n", "a\n"]);
}

#[test]
fn words_of_the_language_may_begin_names() {
    let yes = [
        "int main(){}",
        "int main(char c){x = 1;int y = x+(2);while(z){f (x);}return y;}",
        "int f(){integer = 1;returned (1);}",
        "int f(){int = 1;}",
        "",
    ];
    check(CODE, &yes, &["int main(){", "int 1(){}", "intmain(){}", "int f(){x = ;}"]);
}

#[test]
fn classes_know_all_of_unicode() {
    check(
        "root ::= [α-ωぁ-ゟ]+ [^\\x00-\\x7f] \"\\U0001F980\" .",
        &["αβあé🦀\n", "ぁß🦀🦀"],
        &["αe🦀x", "αé🦀", "aé🦀x"],
    );
    check(r#"root ::= [\]\-a\\^] [a-] "\x41\u0042\"\\""#, &["]-AB\"\\", "^aAB\"\\"], &["babAB"]);
}

#[test]
fn repetitions_are_counted() {
    check(
        "root ::= \"a\"{2} \"b\"{1,} \"c\"{0,2} (\"d\" \"e\"){,1}",
        &["aab", "aabbccde"],
        &["ab"],
    );
    check("root ::= \"a\" \"b\"{3,4}", &["abbb", "abbbb"], &["abb", "abbbbb"]);
    let nested = "root ::= x{2,3}\nx ::= \"(\" x? \")\"";
    check(nested, &["()()", "(())()()"], &["()", "()()()()"]);
}

#[test]
fn one_text_that_begins_another_is_no_trap() {
    let nested = "root ::= (\"a\" | \"ab\" | \"abc\") (\"bd\" | \"cd\" | \"(\" root \")\")";
    check(nested, &["abd", "abcd", "abbd", "abccd", "a(abd)", "abc(ab(abccd))"], &["ab", "acb"]);
    let lead = "root ::= (\"a\" | \"aé\") (\"è\" | \"(\" root \")\")";
    check(lead, &["aè", "aéè", "a(aè)"], &["aé"]);
    let even = "root ::= \"a\" root \"a\" | \"b\"";
    check(even, &["b", "aabaa"], &["aab", "aabaaa"]);
    let same = "root ::= \"a\" root? \"a\"";
    check(same, &["aa", "aaaa", "aaaaaa"], &["a", "aaa", "aaaaa"]);
}

#[test]
fn nothing_may_be_an_alternative() {
    check("root ::= \"(\" root \")\" |", &["", "(())"], &["("]);
    check("root ::= | \"(\" root \")\"\n  | \"x\"", &["", "(x)"], &["(", "xx"]);
    check("root ::= a b a\na ::= \"\"\nb ::= (a | \"x\" b \"y\")", &["", "xxyy"], &["xy y"]);
}

#[test]
fn mistakes_are_reported_with_their_lines() {
    for (text, line, word) in [
        ("root ::= a\n\na ::= b", 3, "`b`"),
        ("root ::= \"a\"\nroot ::= \"b\"", 2, "`root`"),
        ("\n\nroot ::= a\na ::= b \"x\"\nb ::= \"y\"? a", 4, "left recursion"),
        ("root ::= root \"a\" | \"b\"", 1, "left recursion"),
        ("root ::= (\n\"a\"\n", 3, "line 1"),
        ("root ::= \"a\nb", 1, "missing"),
        ("root ::= [a\n", 1, "missing"),
        ("root ::= [z-a]", 1, "empty"),
        ("root ::= []", 1, "no character"),
        ("root ::= \"\\q\"", 1, "\\q"),
        ("root ::= \"\\xg1\"", 1, "hexadecimal"),
        ("root ::= \"\\ud800\"", 1, "0xd800"),
        ("root ::= \"a\"{3,2}", 1, "less"),
        ("root ::= \"a\"{}", 1, "{m}"),
        ("root ::= \"a\"**", 1, "brackets"),
        ("root ::= \"a\"\n| \"b\"\n)", 3, "')'"),
        ("root ::= <think>", 1, "token"),
        ("root = \"a\"", 1, "::="),
        ("# c\n@", 2, "'@'"),
    ] {
        let error = error(text);
        assert!(error.contains(&format!("line {line}:")), "{text}: {error}");
        assert!(error.contains(word), "{text}: {error}");
    }
    assert!(error("a ::= \"b\"").contains("root"));
    assert!(error("").contains("root"));
}

#[test]
fn a_rule_that_leads_to_a_circle_is_not_blamed_for_it() {
    assert!(error("root ::= a\na ::= b\nb ::= c\nc ::= b").contains("`b` begins"));
}

/// Grammars over a few letters, and their words by definition.
fn any_rules() -> impl Strategy<Value = Vec<Node>> {
    let leaf = prop_oneof![
        prop::sample::select(vec!["a", "b", "ab", "ba", "abc"])
            .prop_map(|text| Node::Seq(text.chars().map(|c| Node::Set(CharSet::one(c))).collect())),
        Just(Node::Set(CharSet::new([('a', 'b')]))),
        (1usize..3).prop_map(|rule| Node::Seq(vec![
            Node::Set(CharSet::one('(')),
            Node::Rule(rule),
            Node::Set(CharSet::one(')')),
        ])),
    ];
    let node = leaf.prop_recursive(3, 10, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(Node::Seq),
            prop::collection::vec(inner.clone(), 1..4).prop_map(Node::Alt),
            (inner, 0u32..2, 0u32..3, any::<bool>()).prop_map(|(inner, least, more, endless)| {
                Node::Repeat(Box::new(inner), least, (!endless).then_some(least + more))
            }),
        ]
    });
    prop::collection::vec(node, 3)
}

/// Positions where a match of `node` that starts at `from` may end.
fn ends(node: &Node, rules: &[Node], text: &[u8], from: usize) -> Vec<usize> {
    let mut found = match node {
        Node::Set(set) => {
            let meets = |b: &u8| set.meets(&CharSet::one(char::from(*b)));
            if text.get(from).is_some_and(meets) { vec![from + 1] } else { vec![] }
        }
        Node::Seq(parts) => parts.iter().fold(vec![from], |at, part| {
            let mut next: Vec<usize> =
                at.into_iter().flat_map(|at| ends(part, rules, text, at)).collect();
            next.sort_unstable();
            next.dedup();
            next
        }),
        Node::Alt(parts) => parts.iter().flat_map(|part| ends(part, rules, text, from)).collect(),
        Node::Repeat(inner, least, most) => {
            let mut found = if *least == 0 { vec![from] } else { vec![] };
            let mut at = vec![from];
            // More repetitions than the text is long can only repeat the empty match.
            for count in 1..=most.unwrap_or(u32::MAX).min(text.len() as u32 + 2) {
                at = at.into_iter().flat_map(|at| ends(inner, rules, text, at)).collect();
                at.sort_unstable();
                at.dedup();
                if count >= *least {
                    found.extend(&at);
                }
            }
            found
        }
        Node::Rule(rule) => ends(&rules[*rule], rules, text, from),
    };
    found.sort_unstable();
    found.dedup();
    found
}

/// A random word of `node`; `None` if it gets too long.
fn word(node: &Node, rules: &[Node], rng: &mut Pcg64, left: &mut usize) -> Option<String> {
    *left = left.checked_sub(1)?;
    match node {
        Node::Set(set) => {
            let from = rng.next_u32() % 4;
            let chars = ['a', 'b', 'c', '(', ')'].into_iter().cycle().skip(from as usize).take(5);
            let mut chars = chars.filter(|c| set.meets(&CharSet::one(*c)));
            chars.next().map(String::from)
        }
        Node::Seq(parts) => parts.iter().map(|part| word(part, rules, rng, left)).collect(),
        Node::Alt(parts) => {
            let choice = rng.next_u32() as usize % parts.len();
            word(&parts[choice], rules, rng, left)
        }
        Node::Repeat(inner, least, most) => {
            let most = most.unwrap_or(least + 3);
            let count = least + rng.next_u32() % (most - least + 1);
            (0..count).map(|_| word(inner, rules, rng, left)).collect()
        }
        Node::Rule(rule) => word(&rules[*rule], rules, rng, left),
    }
}

fn write(node: &Node, out: &mut String) {
    let mut join = |parts: &[Node], between: &str| {
        out.push('(');
        for (i, part) in parts.iter().enumerate() {
            out.push_str(if i == 0 { "" } else { between });
            write(part, out);
        }
        out.push(')');
    };
    match node {
        Node::Seq(parts) => join(parts, " "),
        Node::Alt(parts) => join(parts, " | "),
        Node::Set(set) if set.meets(&CharSet::one('a')) && set.meets(&CharSet::one('b')) => {
            out.push_str("[ab]");
        }
        Node::Set(set) => {
            let c = ('('..='c').find(|c| set.meets(&CharSet::one(*c))).unwrap();
            out.push_str(&format!("\"{c}\""));
        }
        Node::Rule(rule) => out.push_str(&format!("r{rule}")),
        Node::Repeat(inner, least, most) => {
            join(std::slice::from_ref(inner), "");
            let most = most.map(|n| n.to_string()).unwrap_or_default();
            out.push_str(&format!("{{{least},{most}}}"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_translated_grammar_has_the_words_of_the_original(
        rules in any_rules(),
        mut texts in prop::collection::vec("[ab()c]{0,7}", 20),
        seed: u64,
    ) {
        let mut rng = Pcg64::seed_from_u64(seed);
        texts.extend((0..20).filter_map(|_| word(&rules[0], &rules, &mut rng, &mut 60)));
        let mut text = String::new();
        for (i, rule) in rules.iter().enumerate() {
            text.push_str(&if i == 0 { "root ::= ".into() } else { format!("r{i} ::= ") });
            write(rule, &mut text);
            text.push('\n');
        }
        let grammar = grammar(&text);
        for answer in texts {
            let is_word = ends(&rules[0], &rules, answer.as_bytes(), 0).contains(&answer.len());
            let accepted = accepts(&grammar, answer.as_bytes());
            let lark = to_lark(&text).unwrap();
            prop_assert_eq!(accepted, is_word, "{:?} of\n{}\n{}", answer, text, lark);
        }
    }
}
