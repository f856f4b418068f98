//! Sizes and rates as people type them.

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::terms::bytes_from_text;

/// The bytes that `text`, the value of `flag`, means: `1MiB`, `64K`, `10MB`.
///
/// # Errors
/// `Usage`, with examples.
pub(crate) fn parse_size(flag: &str, text: &str) -> Result<u64> {
    bytes_from_text(text).ok_or_else(|| {
        Error::new(ErrorKind::Usage, format!("use {text:?} for {flag}"), "not a size").hint(
            "examples are 1MiB, 512KiB, 64K, 1G (binary: K, M, G, T, KiB, MiB, GiB, TiB), 10MB (decimal: kB, MB, GB, TB)",
        )
    })
}

/// As [`parse_size`], for values that the engine keeps in 32 bits.
///
/// # Errors
/// `Usage`, with examples.
pub(crate) fn parse_size_u32(flag: &str, text: &str) -> Result<u32> {
    u32::try_from(parse_size(flag, text)?).map_err(|_| {
        Error::new(ErrorKind::Usage, format!("use {text:?} for {flag}"), "out of range")
            .hint("it is less than 4GiB; an example is 1MiB")
    })
}

/// The bytes a second that `text`, the value of `flag`, means: `200MB/s`, `200MB`.
///
/// # Errors
/// `Usage`, with examples.
pub(crate) fn parse_rate(flag: &str, text: &str) -> Result<u64> {
    let size = text.strip_suffix("/s").unwrap_or(text);
    bytes_from_text(size).filter(|rate| *rate > 0).ok_or_else(|| {
        Error::new(ErrorKind::Usage, format!("use {text:?} for {flag}"), "not a rate")
            .hint("examples are 200MB/s, 200MB, 64MiB/s, 1G; units as for sizes")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_type_them() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("17b", 17),
            ("64K", 65_536),
            ("64k", 65_536),
            ("512KiB", 524_288),
            ("1MiB", 1 << 20),
            ("1 MiB", 1 << 20),
            ("1m", 1 << 20),
            ("1G", 1 << 30),
            ("2GiB", 2 << 30),
            ("1T", 1 << 40),
            ("10kB", 10_000),
            ("200MB", 200_000_000),
            ("3GB", 3_000_000_000),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_size("--x", text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_examples() {
        for text in ["", "x", "-1", "1.5MiB", "1MiBs", "1X", "MiB", "99999999999999999999", "99999999999T", "1MiB/s"] {
            let error = parse_size("--transfer-size", text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{text}");
            assert!(error.hint_text().unwrap().contains("1MiB"), "{text}");
            assert!(error.message().contains("--transfer-size"), "{text}");
        }
        assert!(parse_size_u32("--x", "4GiB").is_err());
        assert_eq!(parse_size_u32("--x", "4095M").unwrap(), 4095 << 20);
    }

    #[test]
    fn rates_with_and_without_their_second() {
        assert_eq!(parse_rate("--max-rate", "200MB/s").unwrap(), 200_000_000);
        assert_eq!(parse_rate("--max-rate", "200MB").unwrap(), 200_000_000);
        assert_eq!(parse_rate("--max-rate", "1MiB/s").unwrap(), 1 << 20);
        for text in ["0", "fast", "200MB/h", "/s"] {
            assert!(parse_rate("--max-rate", text).unwrap_err().hint_text().unwrap().contains("200MB/s"), "{text}");
        }
    }
}
