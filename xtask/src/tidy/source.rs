//! One file as the rules see it: its text, and for Rust also its code without comments, quotes and tests.

use super::lexer::{self, Class};
use super::scan;

/// A text file of the tree.
pub(super) struct File {
    /// From the workspace's directory, with forward slashes.
    pub(super) path: String,
    pub(super) text: String,
    /// Rust only: code alone, tests included; comments and quotes are spaces.
    pub(super) code: String,
    /// Rust only: as `code`, with the tests blanked as well.
    pub(super) shipped: String,
    /// Rust only: as `shipped`, but with what stands in quotes.
    pub(super) shipped_quotes: String,
}

impl File {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let mut file = Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code: String::new(),
            shipped: String::new(),
            shipped_quotes: String::new(),
        };
        if file.is_rust() {
            file.read_code();
        }
        file
    }

    fn read_code(&mut self) {
        let classes = lexer::classify(&self.text);
        self.code = lexer::keep_only(&self.text, &classes, &[Class::Code]);
        let with_quotes = lexer::keep_only(&self.text, &classes, &[Class::Code, Class::Quoted]);
        if !self.is_test_file() {
            let tests = scan::test_items(&self.code);
            self.shipped = scan::blank(&self.code, &tests);
            self.shipped_quotes = scan::blank(&with_quotes, &tests);
        }
    }

    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The path below `crates/engine/src/`, if the file is there.
    pub(super) fn in_engine(&self) -> Option<&str> {
        self.path.strip_prefix("crates/engine/src/").filter(|_| self.is_rust())
    }

    /// Whether users run this code: a crate's own sources, except those of the crate that only tests use.
    pub(super) fn is_shipped_source(&self) -> bool {
        let mut parts = self.path.split('/');
        let in_sources = parts.next() == Some("crates") && parts.next().is_some() && parts.next() == Some("src");
        self.is_rust() && in_sources && !self.path.starts_with("crates/testkit/")
    }

    /// Whether the whole file is tests, by its name or by its first attribute.
    fn is_test_file(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        let by_name = name.ends_with("_tests.rs") || name == "tests.rs" || name == "conformance.rs";
        let by_folder = self.path.split('/').any(|part| part == "tests" || part == "benches");
        by_name || by_folder || self.code.contains("#![cfg(test)]")
    }
}
