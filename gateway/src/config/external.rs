//! Reads the external endpoints of a configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::ExternalEndpoint;
use super::files::{self, Files};
use super::section::{Problems, Section};
use crate::access::spend::Prices;
use crate::config::values::{header, report, server_url, unique_name};
use crate::scheduler::fleet::Terms;
use crate::types::secret::KeyDigest;
use crate::upstream::external::request::{LengthField, RESERVED};
use crate::upstream::external::{Client, ClientSettings};

const CERTIFICATES_BYTES_MAX: u64 = 1024 * 1024;

/// Reads `external`.
pub(super) fn read(
    root: &mut Section,
    files: &Files,
    problems: &mut Problems,
) -> Vec<ExternalEndpoint> {
    let mut names = BTreeSet::new();
    let items = root.list("external", problems);
    items.into_iter().filter_map(|item| read_one(item, files, &mut names, problems)).collect()
}

fn read_one(
    mut item: Section,
    files: &Files,
    names: &mut BTreeSet<String>,
    problems: &mut Problems,
) -> Option<ExternalEndpoint> {
    let written = format!("{item:?}");
    let before = problems.len();
    let name = unique_name(&mut item, names, problems);
    let url = item.required_text("url", problems);
    item.pattern("url", "^[Hh][Tt][Tt][Pp][Ss]?://[^/?#]+[^?#]*$");
    if url.as_deref().is_some_and(|url| server_url(url).is_none()) {
        item.report("url", "expected http://host/v1 or https://host/v1", problems);
    }
    let models: BTreeMap<String, String> = item.texts_by_name("models", problems);
    let key_file = item.text("key_file", problems);
    let key = key_file.map(|file| files.key(&file)).transpose();
    let key = report(&format!("{}.key_file", item.path), key, problems).flatten();
    let ca_file = item.text("ca_file", problems).map(|file| files.path(&file));
    let roots = ca_file.map(|path| files::read(&path, CERTIFICATES_BYTES_MAX)).transpose();
    let roots = report(&format!("{}.ca_file", item.path), roots, problems).flatten();
    let concurrent_max = item.number("concurrent_max", 16, 1..=100_000, problems) as u32;
    let names = (LengthField::ALL.as_slice(), LengthField::name as fn(LengthField) -> _);
    let length = item.choice("max_tokens_field", names, LengthField::default(), problems);
    let fields = read_fields(&mut item, problems);
    let terms = Terms {
        weight: item.number("weight", 1, 1..=1000, problems) as u32,
        prices: read_prices(&mut item, problems),
    };
    let path = item.path.clone();
    item.finish(problems);
    let authorization = key.as_deref().map(header).transpose();
    let authorization = report(&format!("{path}.key_file"), authorization, problems)?;
    if problems.len() > before {
        return None;
    }
    let written = KeyDigest::of(format!("{written}{key:?}{roots:?}"));
    let roots = roots.as_deref().map(str::as_bytes);
    let names = models.keys().cloned().collect();
    let settings = ClientSettings { base: url?, models, length: length?, fields };
    let client = Client::new(settings, authorization, roots);
    let client = Arc::new(report(&path, client, problems)?);
    Some(ExternalEndpoint { name: name?, client, models: names, concurrent_max, terms, written })
}

/// Reads the fields to pass on besides the known ones.
fn read_fields(item: &mut Section, problems: &mut Problems) -> BTreeSet<String> {
    let fields = item.texts("fields", problems);
    if fields.iter().any(|field| RESERVED.contains(&field.as_str())) {
        let message = "the gateway sets the model, the stream and the length itself, to enforce the limits \
                       of keys; these fields are not allowed: ";
        item.report("fields", &format!("{message}{}", RESERVED.join(", ")), problems);
    }
    fields.into_iter().collect()
}

fn read_prices(item: &mut Section, problems: &mut Problems) -> Prices {
    Prices {
        prompt: item.decimal("prompt_price_per_million", problems),
        completion: item.decimal("completion_price_per_million", problems),
        hour: item.decimal("price_per_hour", problems),
        day_max: item.optional_decimal("spend_per_day_max", problems),
    }
}
