//! Requests of HTTP/1 that are none: a list by hand, and mutations of good ones. Each gets a
//! refusal, an answer or a closed connection; never a 5xx, and nothing that another one pays for.
//!
//! `FLOTILLA_FUZZ_SEED` repeats a run; each prints its seed.

use fleet_tests::raw::{Raw, statuses};
use futures_util::StreamExt;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::Answered;

mod list;

const HASTY: &str = "timeouts: {header_ms: 300, body_ms: 300, keep_alive_ms: 300}\n";
const MUTATIONS: usize = 1500;
const CLIENTS: usize = 64;
/// Bytes that parsers treat in a way of their own.
const SPECIAL: &[u8] = b"\r\n\0 \t:;,=/?%#\"\\{}[]0123456789abcdefxX-+.\x7f\x80\xff";

/// Everything that a server says to one connection's bytes.
async fn say(answered: &Answered, bytes: &[u8]) -> Vec<u8> {
    let mut raw = Raw::connect(answered.fleet.client.address()).await;
    raw.send(bytes).await;
    raw.rest().await
}

fn is_no_fault_of_ours(sent: &[u8], said: &[u8]) -> Vec<u16> {
    let statuses = statuses(said);
    let shown = String::from_utf8_lossy(&sent[..sent.len().min(2000)]);
    let wrong = statuses.iter().any(|status| *status >= 500);
    assert!(!wrong, "{statuses:?} for {shown:?}: {}", String::from_utf8_lossy(said));
    statuses
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_none_are_refused_one_by_one() {
    let answered = Answered::start(HASTY).await;
    answered.works().await;
    let before = answered.fleet.rss_mib();
    let cases = list::cases(&answered.fleet.key);
    let tried = cases.iter().map(|case| async {
        let said = say(&answered, &case.bytes).await;
        let statuses = is_no_fault_of_ours(&case.bytes, &said);
        let said = String::from_utf8_lossy(&said).to_lowercase();
        let is_right = case.fits(&statuses) && !said.contains("x-smuggled");
        (!is_right).then(|| format!("{}: {statuses:?}", case.name))
    });
    let tried = futures_util::stream::iter(tried).buffer_unordered(16);
    let wrong: Vec<String> = tried.filter_map(std::future::ready).collect().await;
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(cases.len() >= 60, "only {} cases", cases.len());
    answered.is_unharmed(before).await;
}

/// Good requests, and some of them in a row.
fn good(key: &str) -> Vec<Vec<u8>> {
    let chat = r#"{"model":"flotilla-demo","messages":[{"role":"user","content":"Hi"}],"n":1}"#;
    let head = format!("host: flotilla\r\nauthorization: Bearer {key}\r\n");
    let post = format!("POST /v1/chat/completions HTTP/1.1\r\n{head}");
    let whole = format!("{post}content-length: {}\r\n\r\n{chat}", chat.len());
    let chunked = format!(
        "{post}transfer-encoding: chunked\r\n\r\n{:x}\r\n{chat}\r\n0\r\ntrailer: x\r\n\r\n",
        chat.len()
    );
    let get = format!("GET /v1/models HTTP/1.1\r\n{head}accept: */*\r\ncookie: a=b; c=d\r\n\r\n");
    let absolute = format!("GET http://flotilla/v1/models?a=%20 HTTP/1.1\r\n{head}\r\n");
    let expect = format!(
        "{post}expect: 100-continue\r\nconnection: keep-alive\r\ncontent-length: {}\r\n\r\n{chat}",
        chat.len()
    );
    let options = format!("OPTIONS * HTTP/1.1\r\n{head}origin: null\r\n\r\n");
    let row = format!("{get}{whole}{get}");
    [whole, chunked, get, absolute, expect, options, row].map(String::into_bytes).into()
}

/// One to four changes.
fn mutate(mut bytes: Vec<u8>, random: &mut Pcg64) -> Vec<u8> {
    for _ in 0..=random.next_u32() % 4 {
        let mut below = |max: usize| random.next_u32() as usize % max.max(1);
        let at = below(bytes.len());
        let end = (at + 1 + below(40)).min(bytes.len());
        let special = SPECIAL[below(SPECIAL.len())];
        match below(9) {
            0 => bytes[at] = special,
            1 => bytes.insert(at, special),
            2 => drop(bytes.drain(at..end)),
            3 => bytes.truncate(at.max(1)),
            4 => {
                let part = bytes[at..end].repeat(1 + below(2000));
                bytes.splice(at..at, part);
            }
            5 => bytes.splice(at..at, vec![special; 1 + below(70_000)]).for_each(drop),
            6 => bytes[at] ^= 1 << below(8),
            7 => {
                let mut lines: Vec<&[u8]> = bytes.split_inclusive(|b| *b == b'\n').collect();
                let (one, other) = (below(lines.len()), below(lines.len()));
                lines.swap(one, other);
                bytes = lines.concat();
            }
            _ => {
                let number = ["-1", "18446744073709551616", "9223372036854775808", "0x10", "1e3"];
                bytes.splice(at..at, number[below(number.len())].bytes()).for_each(drop);
            }
        }
        if bytes.is_empty() {
            bytes.push(special);
        }
    }
    bytes
}

fn seed() -> u64 {
    let fixed = std::env::var("FLOTILLA_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok());
    fixed.unwrap_or_else(|| {
        let mut random = [0; 8];
        getrandom::fill(&mut random).unwrap();
        u64::from_le_bytes(random)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn mutated_requests_are_answered_refused_or_cut_and_others_are_served() {
    let answered = Answered::start(HASTY).await;
    answered.works().await;
    let (seed, before) = (seed(), answered.fleet.rss_mib());
    eprintln!("FLOTILLA_FUZZ_SEED={seed}");
    let mut random = Pcg64::seed_from_u64(seed);
    let good = good(&answered.fleet.key);
    let cases = (0..MUTATIONS).map(|turn| mutate(good[turn % good.len()].clone(), &mut random));
    let answered_ = &answered;
    let tried = cases.map(|bytes| async move {
        let said = say(answered_, &bytes).await;
        is_no_fault_of_ours(&bytes, &said)
    });
    let mut tried = futures_util::stream::iter(tried).buffer_unordered(CLIENTS);
    let (mut served, mut refused, mut cut) = (0, 0, 0);
    while let Some(statuses) = tried.next().await {
        match statuses.last() {
            Some(200..=299) => served += 1,
            Some(_) => refused += 1,
            None => cut += 1,
        }
        if (served + refused + cut) % 100 == 0 {
            answered.works().await;
        }
    }
    let grown = answered.is_unharmed(before).await;
    eprintln!("{served} served, {refused} refused, {cut} cut: {grown:.1} MiB more");
    assert_eq!(served + refused + cut, MUTATIONS);
    assert!(served > 50 && refused > 200, "the mutations are all alike");
}
