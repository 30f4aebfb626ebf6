//! The README's picture of a node that is killed in the middle of a response (`make screenshot`): a
//! real response of a real fleet, with the times at which its words came, played slowly.

use std::time::{Duration, Instant};

use fleet_tests::process::{Agent, Fleet};
use fleet_tests::{chat, streamed};
use rustix::process::{Signal, kill_process};

use crate::kills::again;

const QUESTION: &str = "Count from 1 to 40.";
/// Words that come before the node is killed.
const BEFORE: usize = 40;
/// How long the picture moves, in seconds.
const SECONDS: f64 = 9.0;

/// A word, and when it came.
struct Word {
    text: String,
    at: Duration,
}

struct Recording {
    words: Vec<Word>,
    killed: Duration,
    nodes: [String; 2],
}

async fn node(fleet: &Fleet, name: &str) -> (String, Agent) {
    (name.into(), fleet.join(name, &[]).await)
}

/// One attempt; `None` if the node had sent everything before it was killed.
async fn record() -> Option<Recording> {
    let fleet = Fleet::start("").await;
    let nodes = [node(&fleet, "node-1").await, node(&fleet, "node-2").await];
    let start = Instant::now();
    let mut stream = fleet.client.stream(&streamed(chat(QUESTION))).await;
    let serving = stream.node();
    let (mut words, mut shown, mut killed) = (Vec::new(), 0, Duration::ZERO);
    while stream.next_chunk().await {
        let text = stream.transcript.text[shown..].to_string();
        shown = stream.transcript.text.len();
        words.push(Word { text, at: start.elapsed() });
        if words.len() == BEFORE {
            let (_, agent) = nodes.iter().find(|(name, _)| *name == serving).unwrap();
            // Its words that are under way still arrive.
            let _ = kill_process(agent.engine(), Signal::KILL);
            agent.server.signal(Signal::KILL);
            killed = start.elapsed();
        }
    }
    let told = &stream.transcript;
    assert!(told.done && told.errors.is_empty(), "{told:?}");
    let numbers: Vec<String> = (1..=40).map(|n| n.to_string()).collect();
    assert_eq!(told.text, numbers.join(", "));
    let [_, resumed] = again(&fleet.admin).await;
    let [a, b] = nodes.map(|(name, _)| name);
    let nodes = if serving == a { [a, b] } else { [b, a] };
    (resumed > 0).then_some(Recording { words, killed, nodes })
}

const WIDTH: usize = 84;
const HEAD: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 222\" \
    font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, monospace\" font-size=\"15\">
<title>A node is killed in the middle of a response, and another node continues it</title>
<style>
  text { fill: #d5d9e0; white-space: pre }
  .a { fill: #7ee2a8 } .b { fill: #7cc4ff } .x { fill: #ff8080; font-weight: bold } .d { fill: #8b93a1 }
  tspan, .late { animation: show .01s backwards } @keyframes show { from { opacity: 0 } }
</style>
<rect width=\"860\" height=\"222\" rx=\"8\" fill=\"#14171c\"/>
";

impl Recording {
    /// Where the response goes on at another node: the longest wait after the kill.
    fn resumed(&self) -> usize {
        let gap = |i: &usize| self.words[*i].at - self.words[*i - 1].at;
        (1..self.words.len()).filter(|i| self.words[*i].at > self.killed).max_by_key(gap).unwrap()
    }

    fn svg(&self) -> String {
        let last = self.words.last().unwrap().at.as_secs_f64();
        let at = |time: Duration| time.as_secs_f64() / last * SECONDS;
        let resumed = self.resumed();
        let pause = (self.words[resumed].at - self.words[resumed - 1].at).as_millis();
        let [first, second] = &self.nodes;
        let mut svg = HEAD.to_string();
        let mut line = |y: usize, class: &str, delay: f64, text: &str| {
            svg.push_str(&format!(
                "<text x=\"20\" y=\"{y}\" class=\"{class} late\" \
                 style=\"animation-delay:{delay:.2}s\">{text}</text>\n"
            ));
        };
        line(
            34,
            "d",
            0.0,
            "$ curl -N $OPENAI_BASE_URL/chat/completions -d '{\"stream\": true, ...",
        );
        line(
            56,
            "d",
            0.0,
            &format!(
                "      \"messages\": [{{\"role\": \"user\", \"content\": \"{QUESTION}\"}}]}}'"
            ),
        );
        line(
            150,
            "x",
            at(self.killed),
            &format!("$ kill -9 ...    the machine of {first}, in the middle of the response"),
        );
        line(
            174,
            "b",
            at(self.words[resumed].at),
            &format!("{second} continues with the next token, after a pause of {pause} ms"),
        );
        let slower = SECONDS / last;
        line(
            202,
            "d",
            SECONDS,
            &format!(
                "A recording of a real fleet, played {slower:.0} times slower. Green: {first}, blue: {second}."
            ),
        );
        self.words_into(&mut svg, resumed, at);
        svg + "</svg>\n"
    }

    fn words_into(&self, svg: &mut String, resumed: usize, at: impl Fn(Duration) -> f64) {
        let (mut y, mut column) = (92, 0);
        for (i, word) in self.words.iter().enumerate() {
            if column == 0 || column + word.text.len() > WIDTH {
                svg.push_str(if column == 0 { "" } else { "</text>\n" });
                svg.push_str(&format!("<text x=\"20\" y=\"{y}\">"));
                (y, column) = (y + 22, 0);
            }
            let class = if i < resumed { "a" } else { "b" };
            svg.push_str(&format!(
                "<tspan class=\"{class}\" style=\"animation-delay:{:.2}s\">{}</tspan>",
                at(word.at),
                word.text
            ));
            column += word.text.len();
        }
        svg.push_str("</text>\n");
    }
}

#[tokio::test]
#[ignore = "takes a picture: make screenshot"]
async fn a_node_is_killed_in_the_middle_of_a_response() {
    let path = std::env::var("FLOTILLA_PICTURE").expect("FLOTILLA_PICTURE says where it goes");
    for _ in 0..20 {
        if let Some(recording) = record().await {
            return std::fs::write(&path, recording.svg()).unwrap();
        }
    }
    panic!("no node was killed in the middle of its response");
}
