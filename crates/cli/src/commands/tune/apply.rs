//! Writes recommended settings into the settings file; everything else in it, comments too, stays as it is.

use std::path::Path;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::io;
use pagehaul_tune::recommend::{ConfigValue, config_values};
use pagehaul_tune::space::Settings;
use pagehaul_tune::trial::Targets;
use toml_edit::{Array, DocumentMut, Item, Table, value};

/// Sets the keys of [backup] and [restore] in the file at `path`, which need not be there.
///
/// # Errors
/// `Configuration` if it is there and does not read, `Target` if it cannot be written; then it is as it was.
pub(super) fn write(path: &Path, settings: &Settings, targets: &Targets) -> Result<()> {
    let text = match std::fs::read_to_string(path) {
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read.map_err(|cause| unusable(path, &cause.to_string()))?,
    };
    let changed = changed(&text, settings, targets).map_err(|cause| unusable(path, &cause))?;
    io::replace_durable(path, changed.as_bytes())
        .map_err(|cause| Error::new(ErrorKind::Target, format!("write {}", path.display()), cause))
}

fn unusable(path: &Path, cause: &str) -> Error {
    Error::new(ErrorKind::Configuration, format!("change {}", path.display()), cause)
        .hint("mend the file, or give --config another one; the settings stand above, to be copied by hand")
}

fn changed(text: &str, settings: &Settings, targets: &Targets) -> std::result::Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|cause: toml_edit::TomlError| cause.to_string())?;
    for (name, keys) in config_values(settings, targets) {
        let table = document.entry(name).or_insert(Item::Table(Table::new()));
        let table = table.as_table_like_mut().ok_or_else(|| format!("{name} is not a table in it"))?;
        for (key, own) in keys {
            let item = match own {
                ConfigValue::Count(count) => value(i64::from(count)),
                ConfigValue::Text(text) => value(text),
                ConfigValue::Texts(texts) => value(texts.into_iter().collect::<Array>()),
            };
            table.insert(key, item);
        }
    }
    Ok(document.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagehaul_tune::space::Space;

    fn targets() -> Targets {
        Targets {
            pgdata: "/pg".into(),
            connection: None,
            repo: "/b".to_owned(),
            stripe_to: vec!["/d1".to_owned(), "/d2".to_owned()],
            restore_to: "/b".to_owned(),
        }
    }

    #[test]
    fn what_is_not_ours_stays() {
        let old = "# ours\n[global]\nrepo = \"/b\" # the big disk\n\n[backup]\ncompression = \"lz4\"\ndescription = \"nightly\"\n";
        let new = changed(old, &Space::defaults(2, 2), &targets()).unwrap();
        assert!(new.starts_with("# ours\n[global]\nrepo = \"/b\" # the big disk\n"), "{new}");
        let table: toml::Table = new.parse().unwrap();
        assert_eq!(table["backup"]["compression"].as_str(), Some("page:2"));
        assert_eq!(table["backup"]["description"].as_str(), Some("nightly"));
        assert_eq!(table["backup"]["stripe-to"].as_array().map(Vec::len), Some(2));
        assert_eq!(table["restore"]["file-writers"].as_integer(), Some(4));
        assert_eq!(changed(&new, &Space::defaults(2, 2), &targets()).unwrap(), new, "a second time changes nothing");
        assert!(changed("backup = 3\n", &Space::defaults(2, 2), &targets()).is_err());
        assert!(changed("[backup\n", &Space::defaults(2, 2), &targets()).is_err());
    }
}
