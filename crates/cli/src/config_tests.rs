//! Which setting wins, and what a bad file is answered with.

use clap::CommandFactory;

use super::*;
use crate::args::Typed;

fn file(text: &str) -> ConfigFile {
    ConfigFile { path: "/etc/pagehaul/pagehaul.toml".into(), tables: text.parse().unwrap() }
}

/// The value of `id` for `words` with the file `text`.
fn value(text: &str, words: &[&str], id: &str) -> Option<String> {
    let command = with_defaults(Typed::command(), &file(text)).unwrap();
    let matches = command.try_get_matches_from(["pagehaul"].iter().chain(words)).unwrap();
    let (_, verb) = matches.subcommand().unwrap();
    verb.get_raw(id).map(|values| values.map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(","))
}

#[test]
fn the_command_line_wins_over_the_commands_table_over_global() {
    let text =
        "[global]\nrepo = \"/g\"\nreaders = 3\n[backup]\nreaders = 5\nstripe-to = [\"/a\", \"/b\"]\nexplain = true\n";
    assert_eq!(value(text, &["backup"], "repo").as_deref(), Some("/g"));
    assert_eq!(value(text, &["backup", "--repo", "/x"], "repo").as_deref(), Some("/x"));
    assert_eq!(value(text, &["backup"], "readers").as_deref(), Some("5"));
    assert_eq!(value(text, &["backup", "--readers=7"], "readers").as_deref(), Some("7"));
    assert_eq!(value(text, &["verify"], "readers").as_deref(), Some("3"));
    assert_eq!(value(text, &["backup"], "stripe_to").as_deref(), Some("/a,/b"));
    assert_eq!(value(text, &["backup", "--stripe-to", "/c"], "stripe_to").as_deref(), Some("/c"));
    assert_eq!(value(text, &["backup"], "explain").as_deref(), Some("true"));
    assert_eq!(value("[global]\nsource = \"shop\"", &["backup", "--repo", "/x"], "source").as_deref(), Some("shop"));
}

#[test]
fn commands_of_a_group_share_its_table() {
    let text = "[global]\nrepo = \"/g\"\nsource = \"shop\"\n[wal]\nsource = \"store\"\nencoders = 3\n";
    let value = |words: &[&str], id: &str| {
        let command = with_defaults(Typed::command(), &file(text)).unwrap();
        let matches = command.try_get_matches_from(["pagehaul", "wal"].iter().chain(words)).unwrap();
        let (_, verb) = matches.subcommand().unwrap().1.subcommand().unwrap();
        verb.get_raw(id).map(|mut values| values.next().unwrap().to_string_lossy().into_owned())
    };
    assert_eq!(value(&["push", "f"], "repo").as_deref(), Some("/g"));
    assert_eq!(value(&["push", "f"], "source").as_deref(), Some("store"));
    assert_eq!(value(&["push", "f"], "encoders").as_deref(), Some("3"));
    assert_eq!(value(&["get", "n", "d", "--source", "x"], "source").as_deref(), Some("x"));
    check_refused("[wal]\nname = \"x\"", &["\"name\" in [wal]", "pgdata, compression, encoders"]);
}

fn check_refused(text: &str, parts: &[&str]) {
    let error = with_defaults(Typed::command(), &file(text)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    for part in parts {
        assert!(error.to_string().contains(part), "{part} is not in {error}");
    }
}

#[test]
fn what_is_not_known_is_refused_with_what_is() {
    check_refused(
        "[backup]\nreader = 5",
        &["\"reader\" in [backup]", "/etc/pagehaul/pagehaul.toml", "readers, encoders"],
    );
    check_refused("[global]\nrepos = \"/g\"", &["\"repos\" in [global]", "repo,"]);
    check_refused("[prove]\nrepo = \"/g\"", &["\"prove\"", "[global], [backup]"]);
    check_refused("repo = \"/g\"", &["\"repo\"", "[global], [backup]"]);
    check_refused("backup = 1", &["outside of a table"]);
    check_refused("[info]\nconfig = \"/x\"", &["\"config\" in [info]"]);
}

#[test]
fn bad_values_name_file_and_key() {
    check_refused("[backup]\nreaders = \"many\"", &["readers = \"many\"", "invalid digit", "pagehaul backup --help"]);
    check_refused("[backup]\nreaders = [1, 2]", &["it takes one value"]);
    check_refused("[backup]\nreaders = 1.5", &["not a text"]);
    check_refused("[global]\nquiet = \"perhaps\"", &["quiet = \"perhaps\""]);
    check_refused("[restore]\ntype = \"time\"", &["type = \"time\""]);
}

#[test]
fn passwords_in_connection_strings_are_seen() {
    for with in [
        "password=x",
        "host=/run user=u password = 'x y'",
        "postgresql://u:p@host/db",
        "postgres://host/db?user=u&password=p",
    ] {
        assert!(holds_password(with), "{with}");
    }
    for without in ["", "host=/run passfile=/x", "postgresql://u@host:5432/db", "user=password", "postgresql:///db?x=y"]
    {
        assert!(!holds_password(without), "{without}");
    }
}

#[test]
fn a_password_needs_a_file_that_only_its_owner_reads() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pagehaul.toml");
    let tables: Table = "[backup]\nconnection = \"password=x\"".parse().unwrap();
    for (mode, is_fine) in [(0o644, false), (0o640, false), (0o600, true), (0o400, true)] {
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(refuse_readable_password(&path, &tables).is_ok(), is_fine, "{mode:o}");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn the_file_is_looked_up_before_the_command_line_is_parsed() {
    let named = |words: &[&str]| {
        let words: Vec<OsString> = ["pagehaul"].iter().chain(words).map(OsString::from).collect();
        named_on_command_line(&words)
    };
    assert_eq!(named(&["backup", "--config", "/x"]), Some("/x".into()));
    assert_eq!(named(&["--config=/y", "backup"]), Some("/y".into()));
    assert_eq!(named(&["backup", "--", "--config=/y"]), None);
}
