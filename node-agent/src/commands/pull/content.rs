//! PURE. Checks that the first bytes of a file are those of a model, not of an error page.

/// Number of bytes that are checked.
pub(crate) const HEAD_BYTES: usize = 512;

/// First bytes of every GGUF file (ggml/docs/gguf.md).
const GGUF: &[u8] = b"GGUF";
/// First bytes of a Git LFS pointer, which replaces a large file.
const POINTER: &[u8] = b"version https://git-lfs";

/// What a server sent instead of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WrongContent {
    /// A page, such as one that asks for a login.
    HtmlPage,
    /// A Git LFS pointer.
    LfsPointer,
    NotGguf,
}

impl std::fmt::Display for WrongContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::HtmlPage => {
                "the server sent an HTML page instead of the file: check the address (on the hub, \
                 /resolve/ instead of /blob/), or set HF_TOKEN"
            }
            Self::LfsPointer => {
                "the server sent a Git LFS pointer instead of the file: use /resolve/ instead of /raw/ \
                 in the address"
            }
            Self::NotGguf => "the file is not a GGUF model: it does not start with 'GGUF'",
        })
    }
}

/// Checks the first [`HEAD_BYTES`] of a file, or all if it has fewer.
pub(crate) fn check(name: &str, head: &[u8]) -> Result<(), WrongContent> {
    let is_model = name.to_ascii_lowercase().ends_with(".gguf");
    if is_model && head.starts_with(GGUF) {
        return Ok(());
    }
    if !is_page(name) && is_html(head) {
        return Err(WrongContent::HtmlPage);
    }
    if head.starts_with(POINTER) {
        return Err(WrongContent::LfsPointer);
    }
    if is_model {
        return Err(WrongContent::NotGguf);
    }
    Ok(())
}

/// Checks the `Content-Type` of a file.
pub(crate) fn check_type(name: &str, content_type: &str) -> Result<(), WrongContent> {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    let is_html =
        ["text/html", "application/xhtml+xml"].iter().any(|html| kind.eq_ignore_ascii_case(html));
    if is_html && !is_page(name) { Err(WrongContent::HtmlPage) } else { Ok(()) }
}

fn is_page(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with(".html") || name.ends_with(".htm")
}

fn is_html(head: &[u8]) -> bool {
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let begins = |tag: &[u8]| text.get(..tag.len()).is_some_and(|t| t.eq_ignore_ascii_case(tag));
    begins(b"<!doctype html") || begins(b"<html") || begins(b"<head")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_models_pass_as_models() {
        assert!(check("m.gguf", b"GGUF\x03\0\0\0").is_ok());
        assert!(check("M.GGUF", b"GGUF\x03\0\0\0").is_ok());
        for (head, why) in [
            (&b"\n <!DOCTYPE html><html>"[..], WrongContent::HtmlPage),
            (b"\xef\xbb\xbf<html lang=en>", WrongContent::HtmlPage),
            (b"version https://git-lfs.github.com/spec/v1\n", WrongContent::LfsPointer),
            (b"ggjt", WrongContent::NotGguf),
            (b"GG", WrongContent::NotGguf),
            (b"", WrongContent::NotGguf),
        ] {
            assert_eq!(check("m.gguf", head), Err(why));
        }
        assert!(check("m.bin", b"anything").is_ok());
        assert!(check("m.bin", b"<html>").is_err());
        assert!(check("m.html", b"<html>").is_ok());
        assert!(check_type("m.gguf", "Text/HTML; charset=utf-8").is_err());
        assert!(check_type("m.gguf", "text/plain").is_ok());
        assert!(check_type("m.html", "text/html").is_ok());
    }
}
