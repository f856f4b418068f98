//! Names and texts inside of T-SQL.

use crate::error::{Error, ErrorKind, Result};

/// Longest name of a database, file or login (`sysname`), in UTF-16 units.
pub const NAME_UNITS_MAX: usize = 128;

/// `name` as an identifier: `[a]]b]`.
///
/// # Errors
/// `Usage` for what no name may be: empty, longer than 128, with a control character.
pub fn identifier(name: &str) -> Result<String> {
    check("name", name, NAME_UNITS_MAX)?;
    Ok(format!("[{}]", name.replace(']', "]]")))
}

/// `text` as a Unicode literal of at most `units_max` UTF-16 units: `N'it''s'`.
///
/// # Errors
/// `Usage` for a text that is empty, longer, or has control characters; `what` names it.
pub fn literal(what: &str, text: &str, units_max: usize) -> Result<String> {
    check(what, text, units_max)?;
    Ok(plain_literal(text))
}

/// `text` as a Unicode literal, whatever it is: for texts of our own.
pub(super) fn plain_literal(text: &str) -> String {
    format!("N'{}'", text.replace('\'', "''"))
}

fn check(what: &str, text: &str, units_max: usize) -> Result<()> {
    let refused = |cause: String| Error::new(ErrorKind::Usage, format!("use {text:?} as a {what} in T-SQL"), cause);
    if text.is_empty() {
        return Err(refused("it is empty".to_owned()));
    }
    if text.chars().any(char::is_control) {
        return Err(refused("it has control characters".to_owned()));
    }
    if text.encode_utf16().count() > units_max {
        return Err(refused(format!("it has more than {units_max} characters")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_and_quotes_are_doubled() {
        assert_eq!(identifier("a]; DROP DATABASE x--").unwrap(), "[a]]; DROP DATABASE x--]");
        assert_eq!(literal("path", "C:\\it's'; --", 259).unwrap(), "N'C:\\it''s''; --'");
    }

    #[test]
    fn what_cannot_be_a_name_is_refused() {
        for bad in ["", "a\0b", "a\nGO\nb", &"x".repeat(129), &"😀".repeat(65)] {
            assert_eq!(identifier(bad).unwrap_err().kind(), ErrorKind::Usage, "{bad}");
        }
        assert!(identifier(&"x".repeat(128)).is_ok());
    }
}
