//! Resume marks in the streams of nodes, and what a gateway remembers of them.

use bytes::Bytes;
use flotilla_gateway::scheduler::progress::{Block, Excess, Progress};
use inference_protocol::resume::{Mark, Resume, Usage};
use inference_protocol::sse::{Splitter, events};

use crate::input::{Choices, split};

/// Marks survive being written and read, no client sees one, and what is known of an answer does
/// not depend on how its events arrive.
pub fn resume(data: &[u8]) {
    let (stream, choices) = split(data);
    let mut choices = Choices::new(choices);
    check_mark(&any_mark(&mut choices), stream);
    check_resume(stream);

    let block = Splitter::new(usize::MAX).push(stream).expect("no limit").into_owned();
    events(&block).filter_map(Mark::take).for_each(|(mark, rest)| check_mark(&mark, rest));
    let is_streamed = choices.byte() & 1 == 0;
    let all: Vec<&[u8]> = events(&block).collect();
    let mut apart = Vec::new();
    let mut rest = all.as_slice();
    while !rest.is_empty() {
        let (some, left) = rest.split_at(rest.len().min(1 + choices.below(4)));
        apart.push(Bytes::from(some.concat()));
        rest = left;
    }
    let whole = read(&[Bytes::from(block.clone())], is_streamed);
    assert_eq!(whole, read(&apart, is_streamed), "the same in pieces");
    if let Some(known) = whole {
        for event in events(&known.client) {
            assert_eq!(Mark::take(event), None, "a client sees a mark");
        }
        assert!(known.client.len() <= block.len());
    }
}

/// What a gateway makes of a stream.
#[derive(Debug, PartialEq)]
struct Known {
    client: Vec<u8>,
    resume: Resume,
    error: Option<Vec<u8>>,
    counts: (bool, bool, usize, u64, Option<Usage>),
}

/// Reads blocks up to the first error of the node's; nothing where they say too much.
fn read(blocks: &[Bytes], is_streamed: bool) -> Option<Known> {
    let mut progress = Progress::new(Resume::new(7, 1));
    let (mut client, mut failed) = (Vec::new(), None);
    for block in blocks {
        match progress.read(block, is_streamed) {
            Ok(Block { events, error, .. }) => {
                client.extend_from_slice(&events);
                failed = error;
            }
            Err(Excess) => return None,
        }
        if failed.is_some() {
            break;
        }
    }
    let counts = (
        progress.is_resumable(),
        progress.is_complete(),
        progress.choices(),
        progress.tokens(),
        progress.usage(),
    );
    Some(Known { client, resume: progress.resume().clone(), error: failed, counts })
}

fn any_mark(choices: &mut Choices<'_>) -> Mark {
    let mut number = || u32::from_le_bytes([0; 4].map(|_: u8| choices.byte()));
    if number() % 2 == 0 {
        let [prompt, completion, cached] =
            [(); 3].map(|()| u64::from(number()) << 32 | u64::from(number()));
        return Mark::Usage(Usage { prompt, completion, cached });
    }
    let choice = number();
    let tokens = (0..number() % 9).map(|_| number()).collect();
    Mark::Tokens { choice, tokens }
}

/// A mark that is written before `rest` is read again, and `rest` is left.
fn check_mark(mark: &Mark, rest: &[u8]) {
    let mut line = String::new();
    mark.write(&mut line);
    let event = [line.as_bytes(), rest].concat();
    assert_eq!(Mark::take(&event), Some((mark.clone(), rest)));
}

/// What a gateway tells the next node is understood there.
fn check_resume(bytes: &[u8]) {
    if let Ok(resume) = serde_json::from_slice::<Resume>(bytes) {
        let written = serde_json::to_string(&resume).expect("a struct of texts and numbers");
        assert_eq!(serde_json::from_str::<Resume>(&written).expect("our own JSON"), resume);
    }
}
