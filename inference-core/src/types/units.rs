//! PURE. Human-readable numbers.

/// `512 B`, `3.5 KiB`, `120 MiB`, `1.94 GiB`: three significant digits.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {}", UNITS.get(unit).unwrap_or(&"EiB"))
}

/// `13.2 GB/s`, in decimal units as memory vendors use.
pub(crate) fn rate(bytes_per_second: f64) -> String {
    format!("{:.1} GB/s", bytes_per_second / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits_that_matter() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(120 << 20), "120 MiB");
        assert_eq!(bytes(1000 << 20), "0.98 GiB");
        assert_eq!(bytes(25 << 30), "25.0 GiB");
        assert!(bytes(u64::MAX).ends_with("EiB"));
        assert_eq!(rate(13.21e9), "13.2 GB/s");
    }
}
