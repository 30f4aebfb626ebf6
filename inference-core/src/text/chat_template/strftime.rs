//! PURE. `datetime.strftime` in the C locale, as in glibc.

use std::fmt::Write;

use chrono::NaiveDateTime;

/// Directives that chrono formats as Python does.
const SAME: &str = "aAbBdHIjmMpPSUwWyYcxXeklDFTRrCGgVuhnts";
/// Directives that accept padding flags.
const NUMERIC: &str = "dHIjmMSUwWyYeklCGgVu";

/// Formats the time. Unknown directives stay as they are; a time without a zone has no name (`%Z`)
/// and no offset (`%z`).
pub(crate) fn strftime(now: NaiveDateTime, format: &str) -> String {
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let flags = rest.chars().take_while(|c| matches!(c, '-' | '_' | '0' | '^' | '#')).count();
        let directive = rest[flags..].chars().next();
        match directive.and_then(|d| one(now, &rest[..flags], d)) {
            Some(text) => {
                out.push_str(&text);
                rest = &rest[flags + directive.map_or(0, char::len_utf8)..];
            }
            None => out.push('%'),
        }
    }
    out + rest
}

fn one(now: NaiveDateTime, flags: &str, directive: char) -> Option<String> {
    let text = match directive {
        '%' => "%".to_string(),
        'f' => format!("{:06}", now.and_utc().timestamp_subsec_micros()),
        'z' | 'Z' => String::new(),
        d if SAME.contains(d) => {
            let mut padding = flags.trim_matches(['^', '#']);
            if !NUMERIC.contains(d) {
                padding = "";
            }
            let mut text = String::new();
            write!(text, "{}", now.format(&format!("%{padding}{d}"))).ok()?;
            text
        }
        _ => return None,
    };
    Some(if flags.contains('^') { text.to_uppercase() } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_format_gives_a_text() {
        let now = NaiveDateTime::default();
        assert_eq!(strftime(now, "%d %b %Y"), "01 Jan 1970");
        assert_eq!(strftime(now, "%-d|%_d|%^b|%f|%Z|%%|%"), "1| 1|JAN|000000||%|%");
        assert_eq!(strftime(now, "%Q%-%é %-é %"), "%Q%é %-é %");
    }
}
