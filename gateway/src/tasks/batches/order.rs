//! PURE. The order in which lines of a batch are run: lines whose prompts begin alike follow each
//! other, so that a node still has the beginning in its cache. Lines that share nothing keep the
//! order of the input.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};

use serde::Deserialize;
use serde_json::value::RawValue;

/// How many bytes of prompts are compared, from short to long beginnings. A shorter one is not
/// worth it: nodes compute it in no time.
const DEPTHS: [usize; 4] = [256, 1024, 4096, 16_384];

/// How the prompt of a line begins: a hash for each depth, which covers all bytes until there.
pub(super) type Beginning = [u64; DEPTHS.len()];

/// The parts of a body that chat templates write, in their order.
#[derive(Deserialize)]
struct Prompt<'a> {
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    system: Option<&'a RawValue>,
    #[serde(borrow)]
    instructions: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
}

/// How the prompt of this body begins.
pub(super) fn beginning(body: &str) -> Beginning {
    let Ok(prompt) = serde_json::from_str::<Prompt<'_>>(body) else { return Beginning::default() };
    let Prompt { tools, system, instructions, messages, prompt, input } = prompt;
    let parts = [tools, system, instructions, messages, prompt, input];
    let (mut hasher, mut hashes, mut position) = (DefaultHasher::new(), Vec::new(), 0);
    for part in parts.into_iter().flatten() {
        let mut left = part.get().as_bytes();
        while let Some(depth) = DEPTHS.get(hashes.len()).filter(|_| !left.is_empty()) {
            let (read, rest) = left.split_at(left.len().min(depth - position));
            hasher.write(read);
            (left, position) = (rest, position + read.len());
            if position == *depth {
                hashes.push(hasher.finish());
            }
        }
    }
    // A prompt that is shorter than a depth is the same there only as an equal one.
    std::array::from_fn(|depth| hashes.get(depth).copied().unwrap_or_else(|| hasher.finish()))
}

/// The numbers of the lines in the order in which they are run.
pub(super) fn order(lines: &[Beginning]) -> Vec<usize> {
    let mut first_with: HashMap<(usize, u64), usize> = HashMap::new();
    for (line, hashes) in lines.iter().enumerate() {
        for (depth, hash) in hashes.iter().enumerate() {
            first_with.entry((depth, *hash)).or_insert(line);
        }
    }
    let mut numbers: Vec<usize> = (0..lines.len()).collect();
    let first = |line: usize| -> [usize; DEPTHS.len()] {
        let hashes = lines.get(line).copied().unwrap_or_default();
        std::array::from_fn(|depth| {
            first_with.get(&(depth, hashes[depth])).copied().unwrap_or_default()
        })
    };
    // Stable: lines that begin alike keep their order.
    numbers.sort_by_cached_key(|line| first(*line));
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(system: &str, question: &str) -> String {
        let messages = serde_json::json!([{"role": "system", "content": system},
            {"role": "user", "content": question}]);
        serde_json::json!({"model": "m", "messages": messages}).to_string()
    }

    fn ordered(bodies: &[String]) -> Vec<usize> {
        order(&bodies.iter().map(|body| beginning(body)).collect::<Vec<_>>())
    }

    #[test]
    fn lines_with_the_same_beginning_follow_each_other_and_others_keep_their_order() {
        let (a, b) = ("a".repeat(300), "b".repeat(300));
        let bodies =
            [chat(&a, "1"), chat("short", "2"), chat(&b, "3"), chat(&a, "4"), chat(&b, "5")];
        assert_eq!(ordered(&bodies), [0, 3, 1, 2, 4]);
        let alone: Vec<_> = (0..9).map(|number| chat("short", &number.to_string())).collect();
        assert_eq!(ordered(&alone), (0..9).collect::<Vec<_>>());
    }

    #[test]
    fn longer_beginnings_are_nested_in_shorter_ones() {
        let shared = "s".repeat(300);
        let long = |with: &str| shared.clone() + &with.repeat(900);
        let bodies = [
            chat(&long("x"), "0"),
            chat(&long("y"), "1"),
            chat("alone", "2"),
            chat(&long("x"), "3"),
            chat(&long("y"), "4"),
        ];
        assert_eq!(ordered(&bodies), [0, 3, 1, 4, 2]);
    }

    #[test]
    fn all_parts_of_a_prompt_count_whatever_their_order_in_the_body() {
        let long = "p".repeat(300);
        let messages = r#""messages":[{"role":"user","content":"Hi"}]"#;
        let one = beginning(&format!(r#"{{"system":"{long}",{messages}}}"#));
        assert_eq!(one, beginning(&format!(r#"{{{messages},"system":"{long}"}}"#)));
        for (name, value) in [("instructions", "i"), ("prompt", "p"), ("input", "n")] {
            let body = format!(r#"{{"{name}":"{}"}}"#, value.repeat(300));
            assert_ne!(beginning(&body), beginning("{}"), "{name}");
        }
        assert_eq!(beginning("nonsense"), Beginning::default());
    }

    #[test]
    fn a_batch_of_many_lines_is_ordered_and_each_is_run_once() {
        let bodies: Vec<_> =
            (0..2000).map(|n| chat(&(n % 7).to_string().repeat(500), &n.to_string())).collect();
        let order = ordered(&bodies);
        let groups: Vec<_> = order.iter().map(|line| line % 7).collect();
        assert!(groups.is_sorted(), "the groups as they first appear");
        let mut all = order;
        all.sort_unstable();
        assert!(all.into_iter().eq(0..2000));
    }
}
