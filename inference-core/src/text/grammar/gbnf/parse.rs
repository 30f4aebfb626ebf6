//! PURE. Parses the text of a GBNF grammar.

use std::collections::HashMap;
use std::iter::Peekable;
use std::str::Chars;

use super::{CharSet, GrammarError, Node, Rule, at_line};
use crate::text::grammar::limits::{DEPTH_MAX, REPETITIONS_MAX, RULES_MAX};

/// The rules, and the number of the rule `root`.
pub(super) fn rules(text: &str) -> Result<(Vec<Rule>, usize), GrammarError> {
    let mut reader = Reader {
        chars: text.chars().peekable(),
        line: 1,
        names: HashMap::new(),
        uses: Vec::new(),
        depth: 0,
    };
    let rules = reader.grammar()?;
    match reader.names.get("root") {
        Some(root) => Ok((rules, *root)),
        None => Err(GrammarError::Invalid("the grammar has no rule `root`".into())),
    }
}

struct Reader<'a> {
    chars: Peekable<Chars<'a>>,
    line: usize,
    /// Rule numbers, in the order in which their names first occur.
    names: HashMap<String, usize>,
    /// Name and line of each rule's first use, by number.
    uses: Vec<(String, usize)>,
    depth: usize,
}

impl Reader<'_> {
    fn grammar(&mut self) -> Result<Vec<Rule>, GrammarError> {
        let mut found: HashMap<usize, Rule> = HashMap::new();
        self.blanks(true);
        while self.chars.peek().is_some() {
            let (line, name) = (self.line, self.name()?);
            let number = self.number(name.clone())?;
            self.blanks(false);
            for c in "::=".chars() {
                self.expect(c, "`::=` after the name of a rule")?;
            }
            self.blanks(true);
            let body = self.alternatives(false)?;
            if let Some(first) = found.insert(number, Rule { name: name.clone(), line, body }) {
                return Err(at_line(line, format!("`{name}` is also line {}", first.line)));
            }
            self.blanks(true);
        }
        let missing = |(number, (name, line)): (usize, &(String, usize))| {
            found.remove(&number).ok_or_else(|| at_line(*line, format!("no rule `{name}`")))
        };
        self.uses.iter().enumerate().map(missing).collect()
    }

    fn number(&mut self, name: String) -> Result<usize, GrammarError> {
        if let Some(number) = self.names.get(&name) {
            return Ok(*number);
        }
        let number = self.uses.len();
        if number == RULES_MAX {
            let why = format!("the grammar has more than {RULES_MAX} rules");
            return Err(GrammarError::TooComplex(why));
        }
        self.names.insert(name.clone(), number);
        self.uses.push((name, self.line));
        Ok(number)
    }

    /// Parses alternatives up to a character that cannot start one.
    fn alternatives(&mut self, nested: bool) -> Result<Node, GrammarError> {
        let mut found = vec![self.sequence(nested)?];
        loop {
            self.blanks(nested);
            if !nested && self.chars.peek() == Some(&'\n') && self.next_line_begins_with('|') {
                self.blanks(true);
            }
            if self.chars.next_if_eq(&'|').is_none() {
                break;
            }
            self.blanks(true);
            found.push(self.sequence(nested)?);
        }
        Ok(if found.len() == 1 { found.remove(0) } else { Node::Alt(found) })
    }

    fn next_line_begins_with(&self, wanted: char) -> bool {
        let mut ahead = self.chars.clone();
        let mut comment = false;
        let first = ahead.find(|c| match c {
            '\n' | '\r' => {
                comment = false;
                false
            }
            '#' => {
                comment = true;
                false
            }
            c => !comment && !c.is_whitespace(),
        });
        first == Some(wanted)
    }

    fn sequence(&mut self, nested: bool) -> Result<Node, GrammarError> {
        let mut found = Vec::new();
        loop {
            self.blanks(nested);
            let Some(item) = self.item()? else { break };
            found.push(self.repeated(item)?);
        }
        Ok(if found.len() == 1 { found.remove(0) } else { Node::Seq(found) })
    }

    fn item(&mut self) -> Result<Option<Node>, GrammarError> {
        Ok(Some(match self.chars.peek() {
            Some('"') => self.literal()?,
            Some('[') => self.class()?,
            Some('(') => self.group()?,
            Some('.') => {
                self.chars.next();
                Node::Set(CharSet::all())
            }
            Some(c) if is_of_name(*c) => {
                let name = self.name()?;
                Node::Rule(self.number(name)?)
            }
            None | Some('\n' | '\r' | '|' | ')') => return Ok(None),
            Some('<' | '!') => {
                return Err(at_line(self.line, "tokens (`<...>`, `!<...>`) are not supported"));
            }
            Some(c) => return Err(at_line(self.line, format!("{c:?} begins nothing"))),
        }))
    }

    fn group(&mut self) -> Result<Node, GrammarError> {
        let line = self.line;
        self.chars.next();
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            let why = format!("the grammar, line {line}: brackets nest deeper than {DEPTH_MAX}");
            return Err(GrammarError::TooComplex(why));
        }
        self.blanks(true);
        let inner = self.alternatives(true)?;
        self.expect(')', &format!("`)` for the `(` of line {line}"))?;
        self.depth -= 1;
        Ok(inner)
    }

    fn literal(&mut self) -> Result<Node, GrammarError> {
        self.chars.next();
        let mut found = Vec::new();
        while self.chars.next_if_eq(&'"').is_none() {
            found.push(Node::Set(CharSet::one(self.character("a `\"` that ends the text")?)));
        }
        Ok(if found.len() == 1 { found.remove(0) } else { Node::Seq(found) })
    }

    fn class(&mut self) -> Result<Node, GrammarError> {
        self.chars.next();
        let negated = self.chars.next_if_eq(&'^').is_some();
        let mut ranges = Vec::new();
        while self.chars.next_if_eq(&']').is_none() {
            let what = "a `]` that ends the class";
            let from = self.character(what)?;
            let mut to = from;
            if self.chars.next_if_eq(&'-').is_some() {
                if self.chars.peek() == Some(&']') {
                    ranges.push(('-', '-'));
                } else {
                    to = self.character(what)?;
                }
            }
            if from > to {
                return Err(at_line(self.line, format!("the range {from:?} to {to:?} is empty")));
            }
            ranges.push((from, to));
        }
        let set = CharSet::new(ranges);
        let set = if negated { set.negated() } else { set };
        if set.is_empty() {
            return Err(at_line(self.line, "the class has no character"));
        }
        Ok(Node::Set(set))
    }

    /// Parses one character of a literal or a class; the error says that `what` is missing.
    fn character(&mut self, what: &str) -> Result<char, GrammarError> {
        match self.chars.next() {
            None | Some('\n') => Err(at_line(self.line, format!("{what} is missing"))),
            Some('\\') => self.escape(),
            Some(c) => Ok(c),
        }
    }

    fn escape(&mut self) -> Result<char, GrammarError> {
        let digits = match self.chars.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            other => {
                let c = other.map(String::from).unwrap_or_default();
                return Err(at_line(self.line, format!("`\\{c}` is no escape")));
            }
        };
        let mut code = 0u32;
        for _ in 0..digits {
            let digit = self.chars.next().and_then(|c| c.to_digit(16));
            let digit = digit.ok_or_else(|| {
                at_line(self.line, format!("an escape needs {digits} hexadecimal digits"))
            })?;
            code = code.wrapping_mul(16).wrapping_add(digit);
        }
        let unknown = || at_line(self.line, format!("there is no character {code:#x}"));
        char::from_u32(code).ok_or_else(unknown)
    }

    fn repeated(&mut self, item: Node) -> Result<Node, GrammarError> {
        let (least, most) = match self.chars.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => self.braces()?,
            _ => return Ok(item),
        };
        self.chars.next();
        if matches!(self.chars.peek(), Some('*' | '+' | '?' | '{')) {
            return Err(at_line(self.line, "a repetition of a repetition needs brackets"));
        }
        Ok(Node::Repeat(Box::new(item), least, most))
    }

    /// Parses `{m}`, `{m,}`, `{m,n}` or `{,n}`, up to the closing brace.
    fn braces(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        self.chars.next();
        let least = self.count()?;
        let most = if self.chars.next_if_eq(&',').is_some() { self.count()? } else { least };
        if self.chars.peek() != Some(&'}') || (least, most) == (None, None) {
            return Err(at_line(self.line, "repetitions are `{m}`, `{m,}`, `{m,n}` or `{,n}`"));
        }
        let least = least.unwrap_or(0);
        if most.is_some_and(|most| most < least) {
            return Err(at_line(self.line, "a repetition of at most less than at least"));
        }
        Ok((least, most))
    }

    fn count(&mut self) -> Result<Option<u32>, GrammarError> {
        self.blanks(false);
        let mut count = None;
        while let Some(digit) = self.chars.peek().and_then(|c| c.to_digit(10)) {
            self.chars.next();
            let next = count.unwrap_or(0) * 10 + digit;
            if next > REPETITIONS_MAX {
                let line = self.line;
                return Err(GrammarError::TooComplex(format!(
                    "the grammar, line {line}: more than {REPETITIONS_MAX} repetitions"
                )));
            }
            count = Some(next);
        }
        self.blanks(false);
        Ok(count)
    }

    fn name(&mut self) -> Result<String, GrammarError> {
        let mut name = String::new();
        while let Some(c) = self.chars.next_if(|c| is_of_name(*c)) {
            name.push(c);
        }
        match (name.is_empty(), self.chars.peek()) {
            (false, _) => Ok(name),
            (true, Some(c)) => Err(at_line(self.line, format!("a rule's name, not {c:?}"))),
            (true, None) => Err(at_line(self.line, "a rule's name is missing")),
        }
    }

    fn expect(&mut self, wanted: char, what: &str) -> Result<(), GrammarError> {
        match self.chars.next_if_eq(&wanted) {
            Some(_) => Ok(()),
            None => Err(at_line(self.line, format!("{what} is missing"))),
        }
    }

    /// Skips blanks and comments, and line breaks if `lines`.
    fn blanks(&mut self, lines: bool) {
        while let Some(c) = self.chars.peek().copied() {
            match c {
                '#' => while self.chars.next_if(|c| *c != '\n').is_some() {},
                '\n' if !lines => return,
                '\n' => {
                    self.line += 1;
                    self.chars.next();
                }
                c if c.is_whitespace() => {
                    self.chars.next();
                }
                _ => return,
            }
        }
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}
