//! Small searches in code whose comments and quotes are blanked already.

use super::lexer::is_word;
use std::ops::Range;

/// The line, counted from 1, of the byte at `at`.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count()
}

/// Where `needle` stands in `code`, not as a part of a longer name.
pub(super) fn occurrences<'a>(code: &'a str, needle: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    let joins =
        |inner: Option<u8>, outer: Option<&u8>| inner.is_some_and(is_word) && outer.is_some_and(|byte| is_word(*byte));
    code.match_indices(needle).map(|(at, _)| at).filter(move |&at| {
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        !joins(needle.bytes().next(), before) && !joins(needle.bytes().last(), bytes.get(at + needle.len()))
    })
}

/// `text` with the given ranges turned into spaces; lines stay where they are.
pub(super) fn blank(text: &str, ranges: &[Range<usize>]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for range in ranges {
        for byte in &mut bytes[range.clone()] {
            *byte = if *byte == b'\n' { b'\n' } else { b' ' };
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The items of `code` that only tests see: those under `#[cfg(test)]`, `#[cfg(all(test, ..))]` or `#[test]`.
pub(super) fn test_items(code: &str) -> Vec<Range<usize>> {
    let mut items = Vec::new();
    let mut from = 0;
    while let Some(start) = code[from..].find("#[").map(|at| from + at) {
        let end = closing(code, start + 1);
        from = end;
        if is_test_attribute(&code[start..end]) {
            from = item_end(code, end);
            items.push(start..from);
        }
    }
    items
}

fn is_test_attribute(attribute: &str) -> bool {
    let attribute: String = attribute.split_whitespace().collect();
    attribute == "#[cfg(test)]" || attribute == "#[test]" || attribute.starts_with("#[cfg(all(test,")
}

/// Where the item that follows an attribute ends. `start` is just after the attribute; more of them may come.
fn item_end(code: &str, start: usize) -> usize {
    let bytes = code.as_bytes();
    let mut at = start + blanks(&code[start..]);
    while code[at..].starts_with("#[") {
        at = closing(code, at + 1);
        at += blanks(&code[at..]);
    }
    // A field or an arm ends with a comma; in an item commas can stand between generics.
    let is_item = ITEM_WORDS.contains(&word_at(code, at));
    while at < bytes.len() {
        match bytes[at] {
            b'{' => return closing(code, at),
            b'(' | b'[' => at = closing(code, at),
            b';' => return at + 1,
            b',' if !is_item => return at + 1,
            b'}' => return at,
            _ => at += 1,
        }
    }
    bytes.len()
}

const ITEM_WORDS: &[&str] = &[
    "pub",
    "fn",
    "mod",
    "use",
    "impl",
    "struct",
    "enum",
    "union",
    "const",
    "static",
    "type",
    "trait",
    "unsafe",
    "async",
    "extern",
    "macro_rules",
];

fn blanks(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

/// The name or keyword at `at`; empty if there is none.
pub(super) fn word_at(code: &str, at: usize) -> &str {
    let length = code.as_bytes()[at..].iter().take_while(|byte| is_word(**byte)).count();
    &code[at..at + length]
}

/// Just after the bracket that closes the one at `open`; the end of the text if none does.
pub(super) fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(code: &str, left: &str) {
        let kept = blank(code, &test_items(code));
        assert_eq!(kept.split_whitespace().collect::<Vec<_>>().join(" "), left);
    }

    #[test]
    fn test_modules_functions_uses_and_fields_go() {
        check("a(); #[cfg(test)] mod tests { fn x() { y(); } } b();", "a(); b();");
        check("#[test] #[should_panic] fn x<A, B>(a: [u8; 2]) -> A { y() } fn b() {}", "fn b() {}");
        check("#[cfg(all(test, unix))] use a::{b, c}; fn b() {}", "; fn b() {}");
        check("#[cfg(test)] mod tests; fn b() {}", "fn b() {}");
        check("struct S { #[cfg(test)] a: u8, b: u8 }", "struct S { b: u8 }");
        check("struct S { #[cfg(test)] a: u8 } fn b() {}", "struct S { } fn b() {}");
    }

    #[test]
    fn other_attributes_stay() {
        check("#[cfg(unix)] fn a() {}", "#[cfg(unix)] fn a() {}");
        check("#[cfg(not(test))] fn a() {}", "#[cfg(not(test))] fn a() {}");
    }

    #[test]
    fn names_are_found_whole() {
        assert_eq!(occurrences("asleep( sleep( x::sleep(", "sleep(").count(), 2);
        assert_eq!(occurrences("File::create_new File::create(", "File::create").count(), 1);
    }
}
