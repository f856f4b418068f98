//! FORMAT.md moves with the code: it carries a hash over the format's sources.
//!
//! The hash covers the code and what it has in quotes (magic numbers are there), not comments, tests or layout,
//! so that it changes when bytes may have changed and seldom otherwise.

use super::source::File;
use super::{Finding, scan};

pub(super) const DOCUMENT: &str = "FORMAT.md";
const SOURCES: &str = "format/";
const MARK_BEGIN: &str = "<!-- format-sources: ";
const MARK_END: &str = " -->";

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let Some(hash) = hash_of_sources(files) else { return Vec::new() };
    let Some(document) = files.iter().find(|file| file.path == DOCUMENT) else {
        return vec![Finding::new(
            DOCUMENT,
            1,
            "missing, instead describe there the bytes that format/ reads and writes",
        )];
    };
    match mark(&document.text) {
        None => {
            let message =
                format!("no line `{MARK_BEGIN}HEX{MARK_END}`, instead add it (`cargo xtask tidy --accept-format`)");
            vec![Finding::new(DOCUMENT, 1, message)]
        }
        Some((at, found)) if found != hash => {
            let message = "format/ changed since this document was last checked against it, instead bring it up to date, \
                           then run `cargo xtask tidy --accept-format`";
            vec![Finding::new(DOCUMENT, scan::line_of(&document.text, at), message)]
        }
        Some(_) => Vec::new(),
    }
}

/// FORMAT.md's text with the hash of the present sources in its mark; the mark is added at the end if there is none.
pub(super) fn accepted(files: &[File]) -> Result<String, String> {
    let document = files.iter().find(|file| file.path == DOCUMENT).ok_or("FORMAT.md is missing: write it first")?;
    let hash = hash_of_sources(files).ok_or("there are no format sources to accept")?;
    let text = &document.text;
    Ok(match mark(text) {
        Some((at, found)) => format!("{}{hash}{}", &text[..at], &text[at + found.len()..]),
        None => format!("{text}\n{MARK_BEGIN}{hash}{MARK_END}\n"),
    })
}

/// Where the hash stands in the document, and what it is.
fn mark(text: &str) -> Option<(usize, &str)> {
    let start = text.find(MARK_BEGIN)? + MARK_BEGIN.len();
    let length = text[start..].find(MARK_END)?;
    Some((start, &text[start..start + length]))
}

/// The hash over all format sources by order of path; none if there are no such sources.
fn hash_of_sources(files: &[File]) -> Option<String> {
    let is_format = |file: &&File| file.in_engine().is_some_and(|path| path.starts_with(SOURCES));
    let mut sources: Vec<&File> = files.iter().filter(is_format).collect();
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    let mut hash = Fnv1a::new();
    let mut is_empty = true;
    for file in sources {
        // Files that are all tests have no words; their names do not count either.
        for word in file.shipped_quotes.split_whitespace() {
            is_empty = false;
            hash.update(word.as_bytes());
            hash.update(b" ");
        }
    }
    (!is_empty).then(|| format!("{:016x}", hash.0))
}

/// The 64-bit FNV-1a hash: enough to notice a change, and small enough to have here.
struct Fnv1a(u64);

impl Fnv1a {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::check_rule;

    const SOURCE: (&str, &str) = ("crates/engine/src/format/frame.rs", "const MAGIC: &[u8] = b\"A\";");

    fn files(list: &[(&str, &str)]) -> Vec<File> {
        list.iter().map(|(path, text)| File::new(path, text)).collect()
    }

    #[test]
    fn a_document_is_wanted_once_there_is_a_format() {
        check_rule(check, &[], &[]);
        check_rule(check, &[("crates/engine/src/format/mod.rs", "//! Docs only.")], &[]);
        check_rule(check, &[SOURCE], &["FORMAT.md:1: missing"]);
        check_rule(check, &[SOURCE, (DOCUMENT, "Bytes.\n")], &["FORMAT.md:1: no line"]);
    }

    #[test]
    fn an_accepted_document_passes_until_the_code_changes() {
        let document = accepted(&files(&[SOURCE, (DOCUMENT, "a\n<!-- format-sources: 00 -->\nb\n")])).unwrap();
        check_rule(check, &[SOURCE, (DOCUMENT, &document)], &[]);
        let restyled = (SOURCE.0, "// Why.\nconst MAGIC:\n &[u8] = b\"A\";\n#[test]\nfn t() {}");
        check_rule(check, &[restyled, (DOCUMENT, &document)], &[]);
        let changed = (SOURCE.0, "const MAGIC: &[u8] = b\"B\";");
        check_rule(check, &[changed, (DOCUMENT, &document)], &["FORMAT.md:2: format/ changed"]);
    }

    #[test]
    fn accepting_adds_a_missing_mark() {
        let document = accepted(&files(&[SOURCE, (DOCUMENT, "a\n")])).unwrap();
        check_rule(check, &[SOURCE, (DOCUMENT, &document)], &[]);
        assert!(accepted(&files(&[SOURCE])).is_err());
    }
}
