//! PURE. Tracks a response well enough for another node to continue it.
//!
//! Events arrive in blocks. Resume marks (see [`inference_protocol::resume`]) are removed and
//! remembered; everything else goes to the client.

use std::ops::Range;

use bytes::Bytes;
use inference_protocol::openai::TEXT_CHOICES_MAX;
use inference_protocol::resume::{Mark, Resume, ResumedChoice, Usage, take_prefill};
use inference_protocol::sse::{self, DONE};

pub(crate) mod event;

use event::Event;

/// Most tokens of one response that are kept; larger than any context.
const TOKENS_MAX: usize = 1 << 20;

/// Progress of one response.
#[derive(Debug, Default)]
pub struct Progress {
    resume: Resume,
    /// The choice that events without a mark belong to.
    choice: Option<usize>,
    tokens: usize,
    usage: Option<Usage>,
    /// Events from an endpoint that sends no resume marks.
    unmarked: u64,
    /// Estimated tokens in those events.
    unmarked_tokens: u64,
    /// Usage that the last of those events reported.
    unmarked_usage: Option<Usage>,
    /// True if the client did not ask for the usage event.
    hides_usage: bool,
    /// True if events about the progress of the prefill are left out.
    hides_prefill: bool,
    is_complete: bool,
}

/// What a block of events contains.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// The events for the client.
    pub events: Bytes,
    /// True if the block contains anything of the response, even just resume marks.
    pub is_progress: bool,
    /// Payload of the error event at its end.
    pub error: Option<Vec<u8>>,
}

/// The response has more tokens or choices than possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excess;

impl Progress {
    /// Starts a response. `resume` holds its id, its seed, and whatever else a node needs at the
    /// start; and its tokens, if another process has begun it.
    pub fn new(resume: Resume) -> Self {
        let tokens = resume.choices.iter().map(|choice| choice.tokens.len()).sum();
        Self { resume, tokens, ..Self::default() }
    }

    /// Leaves out events about the progress of the prefill: another prefill would have others, so
    /// that events could not be told by their number.
    pub(super) fn hide_prefill(&mut self) {
        self.hides_prefill = true;
    }

    /// The resume state for the next node.
    pub fn resume(&self) -> &Resume {
        &self.resume
    }

    /// Reads a block of whole events. A response that is not streamed is a single event and
    /// complete with it.
    ///
    /// # Errors
    /// [`Excess`] if the resume marks contain too much.
    pub fn read(&mut self, block: &Bytes, is_streamed: bool) -> Result<Block, Excess> {
        let (mut read, mut kept) = (Block::default(), PartCollector::of(block));
        let mut end = 0;
        for event in sse::events(block) {
            end += event.len();
            if let Some(event) = take_prefill(event) {
                if is_streamed && !self.hides_prefill {
                    kept.keep(end - event.len()..end);
                }
                continue;
            }
            let event = self.take_resume_marks(event, &mut read)?;
            let part = end - event.len()..end;
            let Some(payload) = sse::payloads(event).next() else {
                // Someone else's comment stays. Our resume marks leave an empty line, which goes.
                if event.len() > 1 {
                    kept.keep(part);
                }
                continue;
            };
            let unmarked = self.is_unmarked().then(|| unmarked(payload));
            if unmarked.as_ref().map_or_else(|| is_error(payload), |event| event.is_error) {
                read.error = Some(payload.to_vec());
                break;
            }
            read.is_progress = true;
            let is_usage_only = |event: &Event| event.usage.is_some() && event.has_no_choices;
            if !(self.hides_usage && unmarked.as_ref().is_some_and(is_usage_only)) {
                kept.keep(part);
            }
            self.record_event(event, payload, unmarked);
            self.is_complete |= !is_streamed || payload == DONE.as_bytes();
        }
        read.events = kept.bytes();
        Ok(read)
    }

    fn take_resume_marks<'e>(
        &mut self,
        mut event: &'e [u8],
        read: &mut Block,
    ) -> Result<&'e [u8], Excess> {
        while let Some((mark, rest)) = Mark::take(event) {
            event = rest;
            read.is_progress = true;
            match mark {
                Mark::Usage(usage) => (self.usage, self.choice) = (Some(usage), None),
                Mark::Tokens { choice, tokens } => self.add(choice as usize, &tokens)?,
            }
        }
        Ok(event)
    }

    fn add(&mut self, choice: usize, tokens: &[u32]) -> Result<(), Excess> {
        self.tokens += tokens.len();
        if choice >= TEXT_CHOICES_MAX as usize || self.tokens > TOKENS_MAX {
            return Err(Excess);
        }
        if self.resume.choices.len() <= choice {
            self.resume.choices.resize_with(choice + 1, ResumedChoice::default);
        }
        self.resume.choices[choice].tokens.extend(tokens);
        self.choice = Some(choice);
        Ok(())
    }

    /// True if the next event belongs to no mark.
    fn is_unmarked(&self) -> bool {
        self.choice.is_none() && self.usage.is_none()
    }

    fn record_event(&mut self, event: &[u8], payload: &[u8], unmarked: Option<Event>) {
        let said = self.choice.and_then(|choice| self.resume.choices.get_mut(choice));
        match said {
            Some(said) => {
                said.events += 1;
                said.bytes += event.len() as u64;
            }
            None if self.usage.is_some() => self.resume.is_usage_sent |= payload != DONE.as_bytes(),
            None => {
                let read = unmarked.unwrap_or_default();
                self.unmarked += 1;
                self.unmarked_tokens = self.unmarked_tokens.saturating_add(read.tokens);
                self.unmarked_usage = read.usage.or(self.unmarked_usage);
            }
        }
    }

    /// Prepares for the event stream of another endpoint. `hides_usage`: it reports usage in an
    /// event that the client did not ask for.
    pub fn switch_endpoint(&mut self, hides_usage: bool) {
        self.choice = None;
        self.hides_usage = hides_usage;
    }

    /// True if another node could continue: everything the client has received is covered by resume
    /// marks.
    pub fn is_resumable(&self) -> bool {
        self.unmarked == 0
    }

    /// True once the response is complete.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Choices seen so far.
    pub fn choices(&self) -> usize {
        self.resume.choices.len()
    }

    /// Tokens generated, as far as known.
    pub fn tokens(&self) -> u64 {
        self.tokens as u64 + self.unmarked_tokens
    }

    /// Reported usage, if any.
    pub fn usage(&self) -> Option<Usage> {
        self.usage.or(self.unmarked_usage)
    }
}

/// Collects the parts of a block to keep. Copies only if they are not contiguous.
struct PartCollector<'b> {
    block: &'b Bytes,
    piece: Range<usize>,
    copied: Vec<u8>,
}

impl<'b> PartCollector<'b> {
    fn of(block: &'b Bytes) -> Self {
        Self { block, piece: 0..0, copied: Vec::new() }
    }

    /// Keeps a part. Parts must come in order.
    fn keep(&mut self, part: Range<usize>) {
        if !self.copied.is_empty() {
            self.copied.extend_from_slice(&self.block[part]);
        } else if self.piece.is_empty() {
            self.piece = part;
        } else if self.piece.end == part.start {
            self.piece.end = part.end;
        } else {
            self.copied = [&self.block[self.piece.clone()], &self.block[part]].concat();
        }
    }

    fn bytes(self) -> Bytes {
        match self.copied.is_empty() {
            true => self.block.slice(self.piece),
            false => self.copied.into(),
        }
    }
}

/// True for an error event.
fn is_error(payload: &[u8]) -> bool {
    payload.starts_with(b"{\"error\"")
}

/// Reads an event that no mark covers.
fn unmarked(payload: &[u8]) -> Event {
    match payload == DONE.as_bytes() {
        true => Event::default(),
        false => Event::read(payload),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(progress: &mut Progress, block: &str) -> String {
        let read = progress.read(&Bytes::copy_from_slice(block.as_bytes()), true).unwrap();
        assert_eq!(read.error, None);
        String::from_utf8(read.events.into()).unwrap()
    }

    #[test]
    fn marks_are_remembered_and_the_client_gets_the_rest() {
        let mut progress = Progress::new(Resume { seed: 0xab, ..Resume::default() });
        let block = ": t 0 5,6\ndata: a\n\ndata: b\n\n: t 1 9\ndata: c\n\n: t 0 8\n\n";
        assert_eq!(read(&mut progress, block), "data: a\n\ndata: b\n\ndata: c\n\n");
        let said = |tokens: &[u32], events| {
            let bytes = events * "data: a\n\n".len() as u64;
            ResumedChoice { tokens: tokens.to_vec(), events, bytes }
        };
        let resume = progress.resume();
        assert_eq!(resume.choices, [said(&[5, 6, 8], 2), said(&[9], 1)]);
        assert_eq!((resume.seed, resume.is_usage_sent), (0xab, false));
        assert_eq!((progress.tokens(), progress.usage()), (4, None));
        assert!(progress.is_resumable() && !progress.is_complete());
    }

    #[test]
    fn a_response_that_another_process_has_begun_has_its_tokens_and_none_of_its_events() {
        let known = ResumedChoice { tokens: vec![5, 6], events: 0, bytes: 0 };
        let mut progress = Progress::new(Resume { choices: vec![known], ..Resume::default() });
        assert_eq!((progress.tokens(), progress.choices()), (2, 1));
        assert_eq!(
            read(&mut progress, ": t 0\ndata: a\n\n: t 0 7\ndata: b\n\n"),
            "data: a\n\ndata: b\n\n"
        );
        assert_eq!(progress.resume().choices[0].tokens, [5, 6, 7]);
        assert_eq!((progress.tokens(), progress.resume().choices[0].events), (3, 2));
        assert!(progress.is_resumable());
    }

    #[test]
    fn the_end_is_told_by_usage_and_done() {
        let mut progress = Progress::default();
        read(&mut progress, ": t 0 5\ndata: a\n\n: u 3 1 0\ndata: usage\n\n");
        assert!(progress.resume().is_usage_sent && !progress.is_complete());
        assert_eq!(read(&mut progress, "data: [DONE]\n\n"), "data: [DONE]\n\n");
        assert!(progress.is_complete());
        assert_eq!(progress.usage(), Some(Usage { prompt: 3, completion: 1, cached: 0 }));
        assert_eq!(progress.resume().choices[0].events, 1);
    }

    #[test]
    fn a_whole_answer_is_one_event() {
        let mut progress = Progress::default();
        let first = progress.read(&Bytes::from_static(b": t 0 5\n\n"), false).unwrap();
        assert_eq!((first.events.len(), first.is_progress), (0, true));
        let last = progress.read(&Bytes::from_static(b": u 3 1 0\ndata: {}\n\n"), false).unwrap();
        assert_eq!(last.events, "data: {}\n\n");
        assert!(progress.is_complete());
        assert_eq!(progress.resume().choices[0].events, 0);
    }

    #[test]
    fn an_answer_without_marks_cannot_go_on_elsewhere() {
        let mut progress = Progress::default();
        assert_eq!(read(&mut progress, ": hello\n\ndata: a\n\n"), ": hello\n\ndata: a\n\n");
        let usage =
            "data: {\"choices\":[],\"usage\":{\"total_tokens\":12,\"completion_tokens\":2}}\n\n";
        assert_eq!(read(&mut progress, usage), usage);
        assert!(!progress.is_resumable());
        let used = Usage { prompt: 10, completion: 2, cached: 0 };
        assert_eq!((progress.tokens(), progress.usage()), (1, Some(used)));
        progress.switch_endpoint(true);
        assert_eq!(read(&mut progress, usage), "", "nobody asked for it");
        assert_eq!(read(&mut progress, "data: {\"usage\":null}\n\n"), "data: {\"usage\":null}\n\n");
    }

    #[test]
    fn the_progress_of_the_prefill_is_passed_on_and_is_no_part_of_the_response() {
        let mut progress = Progress::default();
        let block = Bytes::from_static(b": p data: {}\n\n: p data: {}\n\n");
        let first = progress.read(&block, true).unwrap();
        assert_eq!(
            (&first.events[..], first.is_progress),
            (&b"data: {}\n\ndata: {}\n\n"[..], false)
        );
        assert_eq!(progress.read(&block, false).unwrap().events, "");
        let mixed = ": p data: {}\n\n: t 0 5\ndata: a\n\n";
        assert_eq!(read(&mut progress, mixed), "data: {}\n\ndata: a\n\n");
        assert_eq!((progress.resume().choices[0].events, progress.tokens()), (1, 1));
        assert!(progress.is_resumable());
    }

    #[test]
    fn a_mark_within_a_mark_of_the_prefill_does_not_reach_the_client() {
        let mut progress = Progress::default();
        let nested = ": p : t 0 5\ndata: a\n\n";
        assert_eq!(read(&mut progress, nested), nested, "a comment of the node's");
        assert!(!progress.is_resumable());
    }

    #[test]
    fn an_error_ends_a_block() {
        let mut progress = Progress::default();
        let block = b": t 0 5\ndata: a\n\ndata: {\"error\":{}}\n\ndata: b\n\n";
        let read = progress.read(&Bytes::from_static(block), true).unwrap();
        assert_eq!(read.events, "data: a\n\n");
        assert_eq!(read.error.as_deref(), Some(&b"{\"error\":{}}"[..]));
    }

    #[test]
    fn a_node_cannot_make_us_remember_without_end() {
        let mut progress = Progress::default();
        assert_eq!(progress.read(&Bytes::from_static(b": t 128 5\n\n"), true), Err(Excess));
        let list = vec!["1"; TOKENS_MAX + 1].join(",");
        assert_eq!(progress.read(&format!(": t 0 {list}\n\n").into(), true), Err(Excess));
    }
}
