//! Where in the settings file a key stands.

use toml_edit::{Document, TableLike};

/// The line of the key at the end of `path`, from 1; None if it is not there.
pub(super) fn line_of(text: &str, path: &[&str]) -> Option<usize> {
    let document = Document::parse(text).ok()?;
    let mut table: &dyn TableLike = document.as_table();
    let (last, before) = path.split_last()?;
    for name in before {
        table = table.get(name)?.as_table_like()?;
    }
    let (key, item) = table.get_key_value(last)?;
    let start = key.span().or_else(|| item.span())?.start;
    Some(text.get(..start)?.matches('\n').count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_tables_in_tables_are_found() {
        let text = "# settings\n[global]\nrepo = \"/r\"\n\n[sources.shop]\npgdata = \"/p\"\n[sources.shop.backup]\nreaders = 2\n";
        assert_eq!(line_of(text, &["global", "repo"]), Some(3));
        assert_eq!(line_of(text, &["sources", "shop", "pgdata"]), Some(6));
        assert_eq!(line_of(text, &["sources", "shop", "backup", "readers"]), Some(8));
        assert_eq!(line_of(text, &["sources", "shop"]), Some(5));
        assert_eq!(line_of(text, &["sources", "crm"]), None);
    }
}
