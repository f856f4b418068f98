//! Tells apart, byte by byte, what in a Rust source is code, comment or text in quotes.

/// What a byte of a source belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Code,
    Comment,
    /// Inside a string or character literal, its quotes included.
    Quoted,
}

/// The class of every byte of `text`.
pub(super) fn classify(text: &str) -> Vec<Class> {
    let bytes = text.as_bytes();
    let mut classes = vec![Class::Code; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let (class, end) = next_token(bytes, at);
        classes[at..end].fill(class);
        at = end;
    }
    classes
}

/// `text` with every byte that is not of a class in `kept` turned into a space; lines stay where they are.
pub(super) fn keep_only(text: &str, classes: &[Class], kept: &[Class]) -> String {
    let keep = |(byte, class): (u8, &Class)| if kept.contains(class) || byte == b'\n' { byte } else { b' ' };
    let bytes: Vec<u8> = text.bytes().zip(classes).map(keep).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The class of the token that starts at `at`, and where it ends. Code comes one word or sign at a time.
fn next_token(bytes: &[u8], at: usize) -> (Class, usize) {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        return (Class::Comment, at + rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len()));
    }
    if rest.starts_with(b"/*") {
        return (Class::Comment, block_comment_end(bytes, at));
    }
    if let Some(end) = literal_end(bytes, at) {
        return (Class::Quoted, end);
    }
    let word = rest.iter().take_while(|byte| is_word(**byte)).count();
    (Class::Code, at + word.max(1))
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

/// The end of the string or character literal that starts at `at`, if one does.
fn literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    let prefix = bytes[at..].iter().take_while(|byte| matches!(byte, b'b' | b'c' | b'r')).count();
    let open = at + prefix;
    let raw = prefix > 0 && bytes[open - 1] == b'r';
    let hashes = if raw { bytes[open..].iter().take_while(|byte| **byte == b'#').count() } else { 0 };
    match bytes.get(open + hashes)? {
        b'"' if prefix <= 2 && raw => Some(raw_string_end(bytes, open + hashes + 1, hashes)),
        b'"' if prefix <= 1 => Some(quoted_end(bytes, open + 1, b'"')),
        b'\'' if prefix == 0 || &bytes[at..open] == b"b" => character_end(bytes, open),
        _ => None,
    }
}

fn raw_string_end(bytes: &[u8], start: usize, hashes: usize) -> usize {
    let closes = |at: &usize| {
        bytes[*at] == b'"' && bytes[at + 1..].iter().take(hashes).filter(|b| **b == b'#').count() == hashes
    };
    (start..bytes.len()).find(closes).map_or(bytes.len(), |at| at + 1 + hashes)
}

/// The end of a literal with escapes, from its first byte after the opening quote.
fn quoted_end(bytes: &[u8], start: usize, quote: u8) -> usize {
    let mut at = start;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of a character literal; none if the quote starts a lifetime.
fn character_end(bytes: &[u8], open: usize) -> Option<usize> {
    let first = *bytes.get(open + 1)?;
    if first == b'\\' {
        return Some(quoted_end(bytes, open + 1, b'\''));
    }
    let width = match first {
        0xf0.. => 4,
        0xe0.. => 3,
        0xc0.. => 2,
        _ => 1,
    };
    (bytes.get(open + 1 + width) == Some(&b'\'')).then_some(open + width + 2)
}

/// Whether a byte can be part of a name. Bytes beyond ASCII count, so that letters of any script stay whole.
pub(super) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(keep_only(text, &classify(text), &[Class::Code]), expected);
    }

    #[test]
    fn comments_are_blanked_nested_ones_too() {
        check("a // b\nc", "a     \nc");
        check("a/* x /* y */ z */b", "a                 b");
    }

    #[test]
    fn strings_of_all_kinds_are_blanked() {
        check(r#"f("a\"b", b"c");"#, "f(      ,     );");
        check(r##"f(r#"a"b"#, br"c");"##, "f(        ,      );");
        check("f(\"// no\n comment\") // yes", "f(      \n         )       ");
    }

    #[test]
    fn characters_are_blanked_but_lifetimes_and_names_stay() {
        check("f('{', '\\'', b'}')", "f(   ,     ,     )");
        check("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)");
        check("var\"x\"", "var   ");
        check("r#type + 'é'", "r#type +     ");
    }
}
