//! PURE. Finds the models among the files of a repository, and chooses one by its quantization.

use std::collections::BTreeMap;

use super::listing::ListedFile;
use super::text;
use crate::engine::model_files::split;

/// Quantizations to choose if none was named, best first.
const PREFERRED: [&str; 3] = ["Q4_K_M", "Q4_0", "Q8_0"];
/// Without a preferred one, the smallest with at least this many bits per weight.
const BITS_MIN: u32 = 4;
/// Files beside models that are not models: projectors of images, calibration data, draft heads.
const HELPERS: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];
/// Quantizations of one or few letters that are none of `Q4_K_M`, `IQ4_XS` and so on.
const OTHER_NAMES: [&str; 6] = ["BF16", "F16", "F32", "MXFP4", "MXFP4_MOE", "NVFP4"];
/// unsloth's mark of a mixed quantization.
const MIXED: &str = "UD";
/// Maximum models that an error lists.
const SHOWN_MAX: usize = 30;

/// A model of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedModel<'a> {
    /// Name of the quantization in upper case, such as `Q4_K_M`; empty if the name has none.
    quantization: String,
    /// All files, in order.
    pub files: Vec<&'a ListedFile>,
    /// A file of a split model that the repository lacks.
    missing: Option<String>,
}

impl ListedModel<'_> {
    /// Size of all files, if the hub tells it.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.files.iter().try_fold(0, |sum: u64, file| Some(sum.saturating_add(file.bytes?)))
    }

    fn path(&self) -> String {
        self.files.first().map(|file| file.path.join("/")).unwrap_or_default()
    }

    fn bits(&self) -> u32 {
        let digits = self.quantization.trim_start_matches(|c: char| !c.is_ascii_digit());
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits.get(..end).and_then(|n| n.parse().ok()).unwrap_or(0)
    }

    fn has_word(&self, word: &str) -> bool {
        let path = self.path().to_ascii_uppercase();
        let is_edge = |c: Option<char>| c.is_none_or(|c| "-./".contains(c));
        path.match_indices(word).any(|(at, found)| {
            let before = path.get(..at).and_then(|p| p.chars().next_back());
            let after = path.get(at + found.len()..).and_then(|p| p.chars().next());
            is_edge(before) && is_edge(after)
        })
    }
}

/// The model with a quantization, or the best one if none was named. The error is one line that
/// lists what there is.
pub(crate) fn choose<'a>(
    files: &'a [ListedFile],
    quantization: Option<&str>,
) -> Result<ListedModel<'a>, String> {
    let models = models(files);
    if models.is_empty() {
        return Err("has no GGUF model".into());
    }
    let exact = |wanted: &str| -> Vec<ListedModel<'a>> {
        models.iter().filter(|model| model.quantization == wanted).cloned().collect()
    };
    let of = |name: &str| {
        let found = exact(name);
        if found.is_empty() { exact(&format!("{MIXED}-{name}")) } else { found }
    };
    if let Some(wanted) = quantization.map(common_name) {
        let mut found = of(&wanted);
        if found.is_empty() {
            found = models.iter().filter(|model| model.has_word(&wanted)).cloned().collect();
        }
        return match found.is_empty() {
            true => Err(format!("has no quantization {wanted}; it has {}", list(&models))),
            false => single(found),
        };
    }
    if let [only] = &models[..] {
        return single(vec![only.clone()]);
    }
    if let Some(found) = PREFERRED.iter().map(|name| of(name)).find(|found| !found.is_empty()) {
        return single(found);
    }
    let smallest = models.iter().filter(|model| model.bits() >= BITS_MIN).min_by_key(|m| m.bytes());
    match smallest {
        Some(model) => single(of(&model.quantization)),
        None => Err(format!("has several models; name a quantization: {}", list(&models))),
    }
}

/// The model whose first file has this path.
pub(crate) fn find<'a>(
    files: &'a [ListedFile],
    path: &[String],
) -> Result<ListedModel<'a>, String> {
    let listed = grouped(files, |_| true);
    match listed.iter().find(|model| model.files.first().is_some_and(|first| first.path == path)) {
        Some(found) => single(vec![found.clone()]),
        None => {
            let has = list(&models(files));
            Err(format!("has no file {}; it has {has}", path.join("/")))
        }
    }
}

/// All models, sorted by path.
fn models(files: &[ListedFile]) -> Vec<ListedModel<'_>> {
    grouped(files, |name| {
        let name = name.to_ascii_lowercase();
        name.ends_with(".gguf") && !HELPERS.iter().any(|word| name.contains(word))
    })
}

/// Files by folder and name; those of a split model by what their names have in common, and their
/// number.
type Groups<'a> = BTreeMap<(&'a [String], &'a str, u32), BTreeMap<u32, &'a ListedFile>>;

fn grouped(files: &[ListedFile], is_wanted: impl Fn(&str) -> bool) -> Vec<ListedModel<'_>> {
    let mut groups = Groups::new();
    for file in files.iter().filter(|file| is_wanted(file.name())) {
        let folder = file.path.split_last().map_or(&[][..], |(_, folder)| folder);
        let (stem, number, count) = split::parse(file.name()).unwrap_or((file.name(), 1, 1));
        groups.entry((folder, stem, count)).or_default().insert(number, file);
    }
    groups.into_iter().filter_map(|((_, stem, count), parts)| model(stem, count, &parts)).collect()
}

fn model<'a>(
    stem: &str,
    count: u32,
    parts: &BTreeMap<u32, &'a ListedFile>,
) -> Option<ListedModel<'a>> {
    // Further files without the first one are no model.
    let first = parts.get(&1)?;
    let missing = (1..=count).find(|number| !parts.contains_key(number));
    let files: Vec<&ListedFile> = parts.values().copied().collect();
    Some(ListedModel {
        quantization: quantization_of(&first.path),
        missing: missing.map(|number| split::part_name(stem, number, count)),
        files,
    })
}

fn single(mut found: Vec<ListedModel<'_>>) -> Result<ListedModel<'_>, String> {
    match (found.pop(), found.is_empty()) {
        (Some(ListedModel { missing: Some(name), .. }), true) => {
            Err(format!("has not all files of the split model: {name} is missing"))
        }
        (Some(model), true) => Ok(model),
        (Some(last), false) => {
            let paths: Vec<String> =
                found.iter().chain([&last]).take(SHOWN_MAX).map(ListedModel::path).collect();
            Err(format!(
                "has several models in this quantization: name a file, hf:owner/repo/FILE: {}",
                paths.join(", ")
            ))
        }
        (None, _) => Err("has no such model".into()),
    }
}

/// The quantization in a file's name, or else in its folder's.
fn quantization_of(path: &[String]) -> String {
    let Some((name, folders)) = path.split_last() else { return String::new() };
    let stem = match split::parse(name) {
        Some((stem, ..)) => stem,
        None => name.get(..name.len().saturating_sub(".gguf".len())).unwrap_or(name),
    };
    let of_stem = last_words(stem);
    of_stem.or_else(|| last_words(folders.last()?)).unwrap_or_default()
}

/// The quantization at the end of a name.
fn last_words(name: &str) -> Option<String> {
    let mut words = name.rsplit(['-', '.']);
    let last = common_name(words.next()?);
    let is_mixed = words.next().is_some_and(|word| word.eq_ignore_ascii_case(MIXED));
    is_quantization(&last).then(|| if is_mixed { format!("{MIXED}-{last}") } else { last })
}

fn common_name(name: &str) -> String {
    let name = name.to_ascii_uppercase();
    match name.as_str() {
        "FP16" => "F16".into(),
        "FP32" => "F32".into(),
        _ => name,
    }
}

fn is_quantization(name: &str) -> bool {
    let digits = ["IQ", "TQ", "Q"].iter().find_map(|letters| name.strip_prefix(letters));
    let plain = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
    OTHER_NAMES.contains(&name)
        || digits.is_some_and(|rest| {
            rest.len() <= 10
                && rest.bytes().all(plain)
                && rest.bytes().next().is_some_and(|b| (b'1'..=b'8').contains(&b))
        })
}

/// Quantizations with their sizes, or names of files without one.
fn list(models: &[ListedModel<'_>]) -> String {
    let shown = models.iter().take(SHOWN_MAX).map(|model| {
        let name = match model.quantization.as_str() {
            "" => model.path(),
            name => name.to_string(),
        };
        match model.bytes() {
            Some(bytes) => format!("{name} ({})", text::bytes(bytes)),
            None => name,
        }
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    match models.len() {
        0 => "no GGUF model".into(),
        all if all > SHOWN_MAX => format!("{shown} and {} more", all - SHOWN_MAX),
        _ => shown,
    }
}

#[cfg(test)]
mod tests;
