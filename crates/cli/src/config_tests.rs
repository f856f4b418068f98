//! Which setting wins, and what a bad file is answered with.

use clap::CommandFactory;

use super::*;
use crate::args::Typed;

fn file(text: &str) -> ConfigFile {
    ConfigFile { path: "/etc/pagehaul/pagehaul.toml".into(), text: text.to_owned(), tables: text.parse().unwrap() }
}

/// The value of `id` for `words` with the file `text`.
fn value(text: &str, words: &[&str], id: &str) -> Option<String> {
    let command = with_defaults(Typed::command(), &file(text), None).unwrap();
    let matches = command.try_get_matches_from(["pagehaul"].iter().chain(words)).unwrap();
    let (_, verb) = matches.subcommand().unwrap();
    let verb = verb.subcommand().map_or(verb, |(_, verb)| verb);
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
        let command = with_defaults(Typed::command(), &file(text), None).unwrap();
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
    let error = with_defaults(Typed::command(), &file(text), None).unwrap_err();
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
    check_refused("[proof]\nrepo = \"/g\"", &["\"proof\"", "[global], [backup]"]);
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
    check_refused("[restore]\ntype = \"yesterday\"", &["type = \"yesterday\""]);
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

const TWO_SOURCES: &str = "\
[global]\nrepo = \"/g\"\nkeep-full = 4\nreaders = 1\n[backup]\nreaders = 2\nencoders = 2\n\
[sources.shop]\npgdata = \"/shop\"\nreaders = 3\nkeep-window = \"14d\"\n[sources.shop.backup]\nencoders = 5\n\
[sources.crm]\nrepo = \"/crm\"\nstripe-to = [\"/d1\", \"/d2\"]\n\
[hooks]\nbefore-backup = [\"/bin/a\"]\nafter-backup = [\"/bin/b\"]\n[sources.crm.hooks]\nbefore-backup = [\"/bin/c\", \"x y\"]\n";

/// The value of `id` for `words` and the source that they mean.
fn value_for_source(text: &str, words: &[&str], id: &str) -> Option<String> {
    let (command, file) = (Typed::command(), file(text));
    let arguments: Vec<OsString> = ["pagehaul"].iter().chain(words).map(OsString::from).collect();
    let choice = choose(&command, &file, &arguments).unwrap_or_else(|error| panic!("{error}"));
    let source = match &choice {
        Choice::One(source) => Some(source.as_str()),
        Choice::Plain => None,
        Choice::Each(sources) => panic!("{sources:?}"),
    };
    let matches = with_defaults(command, &file, source).unwrap().try_get_matches_from(arguments).unwrap();
    let (_, verb) = matches.subcommand().unwrap();
    verb.get_raw(id).map(|values| values.map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(","))
}

#[test]
fn the_tables_of_a_source_win_over_the_others_and_flags_over_them() {
    let value = |words: &[&str], id: &str| value_for_source(TWO_SOURCES, words, id);
    assert_eq!(value(&["backup", "shop"], "pgdata").as_deref(), Some("/shop"));
    assert_eq!(value(&["backup", "shop"], "repo").as_deref(), Some("/g"));
    assert_eq!(value(&["backup", "crm"], "repo").as_deref(), Some("/crm"));
    assert_eq!(value(&["backup", "crm", "--repo", "/x"], "repo").as_deref(), Some("/x"));
    assert_eq!(value(&["backup", "crm"], "stripe_to").as_deref(), Some("/d1,/d2"));
    assert_eq!(value(&["backup", "shop"], "readers").as_deref(), Some("3"));
    assert_eq!(value(&["backup", "crm"], "readers").as_deref(), Some("2"));
    assert_eq!(value(&["backup", "shop"], "encoders").as_deref(), Some("5"));
    assert_eq!(value(&["verify", "crm"], "readers").as_deref(), Some("1"));
    assert_eq!(value(&["expire", "shop"], "keep_window").as_deref(), Some("14d"));
    assert_eq!(value(&["expire", "shop"], "keep_full").as_deref(), Some("4"));
    assert_eq!(value(&["pin", "20261121-201530F", "--source", "crm"], "repo").as_deref(), Some("/crm"));
    // A source that the file does not know, in a repository that the command line names.
    assert_eq!(value(&["backup", "other", "--repo", "/x"], "readers").as_deref(), Some("2"));
    let one = "[sources.shop]\nrepo = \"/s\"\npgdata = \"/p\"\n";
    assert_eq!(value_for_source(one, &["backup"], "source").as_deref(), Some("shop"));
    assert_eq!(value_for_source(one, &["restore", "--target-dir", "/t"], "source").as_deref(), Some("shop"));
}

#[test]
fn verbs_about_signatures_have_settings_too() {
    let text = "[global]\nrepo = \"/g\"\nsign-key = \"/k\"\nsigner = [\"ssh-ed25519 AAAA\"]\n";
    for words in [&["head", "show"][..], &["head", "sign"], &["info"], &["expire"]] {
        assert_eq!(value(text, words, "sign_key").as_deref(), Some("/k"), "{words:?}");
        assert_eq!(value(text, words, "signer").as_deref(), Some("ssh-ed25519 AAAA"), "{words:?}");
        assert_eq!(value(text, words, "repo").as_deref(), Some("/g"), "{words:?}");
    }
}

#[test]
fn a_command_line_that_means_no_single_source() {
    let chosen = |words: &[&str]| {
        let arguments: Vec<OsString> = ["pagehaul"].iter().chain(words).map(OsString::from).collect();
        choose(&Typed::command(), &file(TWO_SOURCES), &arguments)
    };
    let both = Choice::Each(vec!["crm".to_owned(), "shop".to_owned()]);
    let sorted = |choice: Choice| match choice {
        Choice::Each(mut names) => {
            names.sort();
            Choice::Each(names)
        }
        other => other,
    };
    assert_eq!(sorted(chosen(&["expire", "--all"]).unwrap()), both);
    assert_eq!(sorted(chosen(&["info"]).unwrap()), both);
    assert_eq!(chosen(&["info", "--repo", "/x"]).unwrap(), Choice::Plain);
    assert_eq!(chosen(&["demo"]).unwrap(), Choice::Plain);
    let several = chosen(&["expire"]).unwrap_err();
    assert!(several.hint_text().unwrap().contains("--all"), "{several}");
    assert_eq!(chosen(&["backup"]).unwrap_err().kind(), ErrorKind::Usage);
    let unknown = chosen(&["backup", "shopp"]).unwrap_err();
    assert!(unknown.kind() == ErrorKind::Configuration && unknown.to_string().contains("shop"), "{unknown}");
}

#[test]
fn what_is_wrong_in_the_tables_of_a_source_is_told_with_its_line() {
    check_refused("[sources.shop]\n\nrepos = \"/x\"\n", &["\"repos\" in [sources.shop]", "line 3", "repo,"]);
    check_refused("[sources.shop.backup]\nreader = 1\n", &["\"reader\" in [sources.shop.backup]", "line 2"]);
    check_refused("[sources]\nshop = 1\n", &["\"shop\" in [sources]", "line 2"]);
    check_refused("[sources.\"a/b\"]\nrepo = \"/x\"\n", &["\"a/b\" in [sources]"]);
    check_refused("[backup]\n\nreader = 5\n", &["line 3"]);
    check_refused("[hooks]\nbefore-wal = [\"/bin/a\"]\n", &["\"before-wal\" in [hooks]", "line 2", "before-backup"]);
    check_refused("[hooks]\nbefore-backup = \"/bin/a x\"\n", &["before-backup", "line 2", "no shell"]);
    check_refused("[sources.shop.hooks]\nafter-backup = []\n", &["after-backup", "sources.shop.hooks"]);
    check_refused("[hooks]\ninherit-secrets = \"yes\"\n", &["inherit-secrets", "line 2", "true or false"]);
}

#[test]
fn hooks_of_a_source_come_before_those_of_the_file() {
    let hook = |source: Option<&str>, key: &str| {
        let hooks = hooks_of(&file(TWO_SOURCES), source).unwrap();
        hooks.commands.into_iter().find(|(name, _)| name == key).map(|(_, words)| words.join("|"))
    };
    assert_eq!(hook(None, "before-backup").as_deref(), Some("/bin/a"));
    assert_eq!(hook(Some("shop"), "before-backup").as_deref(), Some("/bin/a"));
    assert_eq!(hook(Some("crm"), "before-backup").as_deref(), Some("/bin/c|x y"));
    assert_eq!(hook(Some("crm"), "after-backup").as_deref(), Some("/bin/b"));
}
