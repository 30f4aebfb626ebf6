//! Files, as at OpenAI: `/v1/files` and what is below it.

use std::convert::Infallible;
use std::io::{self, Read};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use flotilla_listeners::request_body::DISCARD_FIRST_MAX;
use futures_util::{StreamExt, TryStreamExt, stream};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use inference_protocol::openai::{ParseError, to_json};
use inference_protocol::time::unix_seconds;
use multer::{Field, Multipart};
use serde_json::json;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::form_source::{FormSource, Unread};
use super::lists::{self, RecordPath, invalid};
use crate::config::store::StoreSettings;
use crate::context::Gateway;
use crate::control::only;
use crate::store::{Content, FileRecord, Store, StoreError, Upload};
use crate::types::error::Error;
use crate::types::response::{self, Body};

/// The path of a request for files.
pub(crate) fn path(path: &str) -> Option<RecordPath<'_>> {
    RecordPath::at(path, "/v1/files", "content")
}

/// What uploaded files are for.
const PURPOSE: &str = "batch";
/// Purpose of the files that batches write.
pub(crate) const OUTPUT_PURPOSE: &str = "batch_output";
/// Longest name of a file, and of any other text in an upload.
const TEXT_BYTES_MAX: usize = 512;
/// How long an upload may take for each second's worth of [`UPLOAD_BYTES_PER_SECOND`].
const UPLOAD_BYTES_PER_SECOND: u64 = 64 * 1024;
/// Bytes of a form beside its file.
const FORM_BYTES_MAX: u64 = 64 * 1024;
/// Read at a time for a download.
const BLOCK: usize = 64 * 1024;
/// Bounds of `expires_after[seconds]`, as at OpenAI.
pub(crate) const EXPIRY_S: std::ops::RangeInclusive<u64> = 3600..=2_592_000;

/// Handles a request for files of the caller's tenant.
pub(crate) async fn serve(
    gateway: &Gateway,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    let path = request.uri().path().to_string();
    let path = self::path(&path).ok_or(Error::UnknownPath)?;
    let methods = match path {
        RecordPath::All => "GET, POST",
        RecordPath::One(_) => "GET, DELETE",
        RecordPath::Below(_) => "GET",
    };
    only(&request, methods)?;
    let settings = gateway.settings.now();
    let caller = settings.keys.authenticate(request.headers())?;
    let (store, limits) = gateway.store_of(&settings)?;
    let tenant = &*caller.tenant;
    let found = |id: &str| {
        let id = id.to_string();
        move |error: StoreError| error.of(&id)
    };
    match path {
        RecordPath::All if request.method() == Method::POST => {
            let _permit = caller.limiter.admit()?;
            let stalls = settings.config.timeouts.body;
            upload(store, limits, tenant, stalls, request).await
        }
        RecordPath::All => list(store, tenant, request.uri().query()).await,
        RecordPath::One(id) if request.method() == Method::DELETE => {
            store.delete_file(tenant, id).await.map_err(found(id))?;
            Ok(response::json(to_json(&json!({"id": id, "object": "file", "deleted": true}))))
        }
        RecordPath::One(id) => {
            let file = store.file(tenant, id).await.map_err(found(id))?;
            Ok(response::json(to_json(&file.view())))
        }
        RecordPath::Below(id) => {
            let file = store.file(tenant, id).await.map_err(found(id))?;
            download(store, tenant, file, "application/octet-stream").await
        }
    }
}

async fn list(store: &Store, tenant: &str, query: Option<&str>) -> Result<Response<Body>, Error> {
    let page = lists::page(query, 10_000, 10_000)?;
    let purpose = lists::parameter(query, "purpose");
    let after = page.after.clone().unwrap_or_default();
    let listed = store.files(tenant, purpose, page).await;
    let (files, has_more) = listed.map_err(|error| error.of(&after))?;
    Ok(lists::response(files.iter().map(FileRecord::view).collect(), has_more))
}

/// What an upload says.
#[derive(Default)]
struct Form {
    purpose: Option<String>,
    anchor: Option<String>,
    expires_after_s: Option<u64>,
    file: Option<(Upload, String)>,
}

async fn upload(
    store: &Store,
    limits: &StoreSettings,
    tenant: &str,
    stalls: Duration,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    let (head, body) = request.into_parts();
    let kind = head.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let boundary = multer::parse_boundary(kind.unwrap_or_default());
    let expected = "expected multipart/form-data with the fields purpose and file";
    let boundary = boundary.map_err(|_| invalid("content-type", expected))?;
    let announced = body.size_hint().lower();
    if announced > limits.file_bytes_max + FORM_BYTES_MAX {
        return Err(too_large(limits));
    }
    let unread = Unread::new();
    let frames = BodyStream::new(body)
        .try_filter_map(async |frame| Ok(frame.into_data().ok()))
        .map_err(io::Error::other);
    let frames = FormSource::new(frames.boxed(), unread.clone());
    let mut form = Reading { fields: Multipart::new(frames, boundary), unread, stalls };
    let read =
        timeout(upload_time_max(limits, stalls), read_form(store, limits, tenant, &mut form));
    let read = read.await.unwrap_or(Err(Error::SlowBody));
    if read.as_ref().is_err_and(|error| !matches!(error, Error::Malformed(_))) {
        form.discard().await;
    }
    let form = read?;
    match form.purpose.as_deref() {
        Some(PURPOSE) => {}
        Some(_) => return Err(invalid("purpose", "this gateway has files only for 'batch'")),
        None => return Err(invalid("purpose", "it is missing; send 'batch'")),
    }
    let Some((upload, name)) = form.file else {
        return Err(invalid("file", "it is missing"));
    };
    let now = unix_seconds(SystemTime::now());
    let age_s = form.expires_after_s.unwrap_or(limits.age_s_max).min(limits.age_s_max);
    let record = FileRecord {
        id: upload.id().into(),
        name,
        purpose: PURPOSE.into(),
        bytes: upload.bytes(),
        created_at: now,
        expires_at: now + age_s,
    };
    let file = store.finish_upload(upload, tenant, record).await.map_err(|e| e.of("file"))?;
    tracing::info!(file = file.id, bytes = file.bytes, "file stored");
    Ok(response::json(to_json(&file.view())))
}

/// How long an upload may take: a client that stalls must not hold a file open.
pub(super) fn upload_time_max(limits: &StoreSettings, stalls: Duration) -> Duration {
    stalls + Duration::from_secs(limits.file_bytes_max / UPLOAD_BYTES_PER_SECOND)
}

/// A form that is being read.
struct Reading {
    fields: Multipart<'static>,
    unread: Unread,
    /// How long a client may send nothing.
    stalls: Duration,
}

impl Reading {
    async fn field(&mut self) -> Result<Option<Field<'static>>, Error> {
        let next = timeout(self.stalls, self.fields.next_field());
        next.await.map_err(|_| Error::SlowBody)?.map_err(broken)
    }

    async fn part(&self, field: &mut Field<'_>) -> Result<Option<Bytes>, Error> {
        let part = timeout(self.stalls, field.chunk()).await.map_err(|_| Error::SlowBody)?;
        let part = part.map_err(broken)?;
        self.unread.record_read(part.as_ref().map_or(0, Bytes::len));
        Ok(part)
    }

    async fn text(&self, field: &mut Field<'_>) -> Result<String, Error> {
        let mut text = Vec::new();
        while let Some(part) = self.part(field).await? {
            if text.len() + part.len() > TEXT_BYTES_MAX {
                return Err(invalid(field.name().unwrap_or_default(), "it is too long"));
            }
            text.extend_from_slice(&part);
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Reads the rest of a refused part for a moment: a client that still sends would see a
    /// connection reset instead of the response.
    async fn discard(&mut self) {
        self.unread.discard();
        let _ = timeout(DISCARD_FIRST_MAX, self.fields.next_field()).await;
    }
}

async fn read_form(
    store: &Store,
    limits: &StoreSettings,
    tenant: &str,
    reading: &mut Reading,
) -> Result<Form, Error> {
    let mut form = Form::default();
    // The fields of an upload and a few that mean nothing here.
    for _ in 0..16 {
        let Some(mut field) = reading.field().await? else { return Ok(form) };
        let name = field.name().unwrap_or_default().to_string();
        match name.as_str() {
            "file" => {
                form.file = Some(read_file(store, limits, tenant, reading, &mut field).await?)
            }
            "purpose" => form.purpose = Some(reading.text(&mut field).await?),
            "expires_after[anchor]" => form.anchor = Some(reading.text(&mut field).await?),
            "expires_after[seconds]" => {
                let seconds = reading.text(&mut field).await?.parse().ok();
                form.expires_after_s = Some(expiry(seconds, "expires_after[seconds]")?);
            }
            _ => drop(reading.text(&mut field).await?),
        }
        if form.anchor.as_deref().is_some_and(|anchor| anchor != "created_at") {
            return Err(invalid("expires_after[anchor]", "expected created_at"));
        }
    }
    Err(invalid("file", "the form has too many fields"))
}

/// A number of seconds after which a file expires.
pub(crate) fn expiry(seconds: Option<u64>, name: &str) -> Result<u64, Error> {
    let (min, max) = (EXPIRY_S.start(), EXPIRY_S.end());
    let expected = || invalid(name, &format!("expected a whole number of seconds, {min} to {max}"));
    seconds.filter(|seconds| EXPIRY_S.contains(seconds)).ok_or_else(expected)
}

pub(super) fn too_large(limits: &StoreSettings) -> Error {
    Error::TooLarge(usize::try_from(limits.file_bytes_max).unwrap_or(usize::MAX))
}

async fn read_file(
    store: &Store,
    limits: &StoreSettings,
    tenant: &str,
    reading: &Reading,
    field: &mut Field<'_>,
) -> Result<(Upload, String), Error> {
    let name = field.file_name().unwrap_or("file");
    let name: String = name.chars().filter(|c| !c.is_control()).take(255).collect();
    let mut upload = store.upload(tenant).await.map_err(|e| e.of("file"))?;
    while let Some(part) = reading.part(field).await? {
        if upload.bytes() + part.len() as u64 > limits.file_bytes_max {
            return Err(too_large(limits));
        }
        upload.write(&part).await.map_err(|e| e.of("file"))?;
    }
    Ok((upload, name))
}

fn broken(error: multer::Error) -> Error {
    let why = match &error {
        multer::Error::StreamReadFailed(error) => match error.downcast_ref::<io::Error>() {
            Some(error) if error.kind() == io::ErrorKind::InvalidData => error.to_string(),
            _ => return Error::SlowBody,
        },
        error => error.to_string(),
    };
    let message = format!("the form cannot be read: {why}");
    Error::Malformed(ParseError { message, param: None })
}

/// The content of a file, or a part of it as it is read.
pub(super) async fn download(
    store: &Store,
    tenant: &str,
    record: FileRecord,
    content_type: &'static str,
) -> Result<Response<Body>, Error> {
    let opened = store.open(tenant, &record.id).await.map_err(|error| {
        tracing::error!(file = record.id, ?error, "content of a file cannot be read");
        Error::StoreUnavailable
    })?;
    let blocks = stream::unfold(opened, async |mut content| {
        let read = spawn_blocking(move || (next_block(&mut content), content)).await;
        let (block, content) = read.ok()?;
        // The connection breaks after less than was announced, so nobody takes it for the whole.
        (!block.is_empty()).then(|| (Ok::<_, Infallible>(Frame::data(block)), content))
    });
    let body = StreamBody::new(blocks.boxed()).boxed_unsync();
    let mut response = response::response(body);
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CONTENT_LENGTH, record.bytes.into());
    Ok(response)
}

/// The next part of a content; nothing at its end, and if it cannot be read.
fn next_block(content: &mut Content) -> Bytes {
    // One read: what is encrypted would be decrypted again for each part of it.
    let mut block = vec![0; BLOCK];
    loop {
        match content.read(&mut block) {
            Ok(read) => {
                block.truncate(read);
                return block.into();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::error!(%error, "content of a file cannot be read");
                return Bytes::new();
            }
        }
    }
}
