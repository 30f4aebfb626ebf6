//! Saved prefixes between nodes, for the gateway that the agent dialed: it reads those of a leaving
//! node, and sends them to another one. See [`crate::serve::hand_over`].

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, StatusCode};
use inference_protocol::fleet::{HEIR_HEADER, PREFIXES_PATH};
use inference_protocol::ids::is_plain_id;
use inference_protocol::openai::to_json;
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::serve::node::{Link, Node};
use crate::types::error::Error;
use crate::types::response::{self, Body};

/// Bytes of a file that are read at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// How long the sender of a file may send nothing.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Handles a request for prefixes. A state is trusted by the engine that restores it, so that only
/// the gateway may send one.
pub(super) async fn serve(
    node: &Node,
    link: Link,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    if !link.trusted {
        return Err(Error::UnknownPath);
    }
    let path = request.uri().path();
    let file = path.strip_prefix(PREFIXES_PATH).and_then(|rest| rest.strip_prefix('/'));
    match (request.method().as_str(), file) {
        ("POST", None) => claim(node, &request).await,
        ("PUT", None) => receive(node, request).await,
        ("DELETE", None) => {
            node.hand_over.finish();
            Ok(no_content())
        }
        ("GET", Some(file)) => send(node, file).await,
        (_, None) => Err(Error::Method("POST, PUT, DELETE")),
        (_, Some(_)) => Err(Error::Method("GET")),
    }
}

fn no_content() -> Response<Body> {
    let mut response = response::text(StatusCode::NO_CONTENT, "");
    response.headers_mut().remove(header::CONTENT_TYPE);
    response
}

async fn claim(node: &Node, request: &Request<Incoming>) -> Result<Response<Body>, Error> {
    let heir = request.headers().get(HEIR_HEADER).and_then(|name| name.to_str().ok());
    let heir = heir.filter(|name| is_plain_id(name)).ok_or_else(|| Error::Invalid {
        param: HEIR_HEADER,
        message: format!("{HEIR_HEADER}: expected the name of a node"),
    })?;
    let offer = match (node.hand_over.claim(heir, &node.engine), &node.prefix_disk) {
        (None, Some(disk)) => node.hand_over.claim_idle(heir, &node.engine, &disk.folder).await,
        (offer, _) => offer,
    };
    let offer = offer.ok_or(Error::NothingOffered)?;
    tracing::info!(heir, prefixes = offer.prefixes().len(), "handing saved prefixes over");
    Ok(response::json(to_json(&offer.prefixes())))
}

async fn send(node: &Node, file: &str) -> Result<Response<Body>, Error> {
    let offer = node.hand_over.claimed().ok_or(Error::NothingOffered)?;
    let file = file.parse().ok().and_then(|file| offer.file(file)).ok_or(Error::NothingOffered)?;
    let (path, bytes) = file;
    let opened = File::open(path).await.map_err(Error::disk)?;
    // It ends early if the file does: its length then tells that it is not whole.
    let chunks = futures_util::stream::unfold(opened, |mut file| async move {
        let mut chunk = vec![0; CHUNK_BYTES];
        let read = file.read(&mut chunk).await.ok().filter(|read| *read > 0)?;
        chunk.truncate(read);
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(chunk))), file))
    });
    let body = StreamBody::new(chunks).boxed_unsync();
    let mut response =
        response::with_type_and_body(StatusCode::OK, "application/octet-stream", body);
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    Ok(response)
}

async fn receive(node: &Node, request: Request<Incoming>) -> Result<Response<Body>, Error> {
    let has_key = node.engine.state().ready()?.prefix_key.is_some();
    let disk = node.prefix_disk.as_ref().filter(|_| has_key);
    let disk = disk.ok_or(Error::UnknownPath)?;
    let bytes = request.body().size_hint().exact().unwrap_or(u64::MAX);
    if bytes > disk.bytes {
        return Err(Error::TooLarge(usize::try_from(disk.bytes).unwrap_or(usize::MAX)));
    }
    let busy = Error::Engine(inference_core::types::request::Failure::QueueFull);
    let arrival = node.hand_over.begin_arrival(&disk.folder).ok_or(busy)?;
    store(arrival.path(), request.into_body(), bytes).await?;
    arrival.finish(&node.engine);
    Ok(no_content())
}

/// Writes a body of `bytes` bytes to a new file.
async fn store(path: &Path, mut body: Incoming, bytes: u64) -> Result<(), Error> {
    let mut options = OpenOptions::new();
    // One that the engine did not take, long ago.
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(path).await.map_err(Error::disk)?;
    let mut left = bytes;
    while let Some(frame) = timeout(SILENCE_MAX, body.frame()).await.map_err(|_| Error::SlowBody)? {
        let Ok(data) = frame.map_err(|_| Error::SlowBody)?.into_data() else { continue };
        left = left.checked_sub(data.len() as u64).ok_or(Error::SlowBody)?;
        file.write_all(&data).await.map_err(Error::disk)?;
    }
    file.flush().await.map_err(Error::disk)?;
    if left == 0 { Ok(()) } else { Err(Error::SlowBody) }
}
