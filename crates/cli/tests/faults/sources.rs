//! Several sources in one settings file, their hooks, and expire by the rules of each.

use super::bench::{Place, Ran};

#[test]
fn one_settings_file_serves_several_sources() {
    let place = Place::new("sources");
    let pgdata = place.bench.cluster.server.data_directory().display().to_string();
    let settings = format!(
        "[global]\nrepo = \"repo\"\npgdata = \"{pgdata}\"\nconnection = \"user=sources\"\n\n\
         [sources.shop]\nkeep-full = 1\n\n[sources.crm]\nrepo = \"repo-of-crm\"\nkeep-full = 2\n\n\
         [hooks]\nbefore-backup = [\"sh\", \"-c\", \"echo before $PAGEHAUL_VERB $PAGEHAUL_SOURCE >> told\"]\n\
         after-backup = [\"sh\", \"-c\", \"echo after $PAGEHAUL_LABEL $PAGEHAUL_EXIT_CODE >> told\"]\n\
         after-expire = [\"sh\", \"-c\", \"echo expired $PAGEHAUL_SOURCE; exit 3\"]\n\
         failed-restore = [\"sh\", \"-c\", \"echo failed $PAGEHAUL_VERB $PAGEHAUL_EXIT_CODE >> told\"]\n\
         failed-check = [\"sh\", \"-c\", \"echo failed $PAGEHAUL_VERB $PAGEHAUL_SOURCE >> told\"]\n\
         after-synthesize = [\"sh\", \"-c\", \"echo after $PAGEHAUL_VERB $PAGEHAUL_SOURCE >> told\"]\n"
    );
    std::fs::write(place.directory.join("pagehaul.toml"), settings).unwrap();
    let run = |words: &[&str]| Ran::of(&mut place.pagehaul(words));
    let mut labels = Vec::new();
    for source in ["shop", "shop", "crm", "crm"] {
        let ran = run(&["backup", source, "--json"]);
        assert_eq!(ran.code, Some(0), "{ran}");
        labels.push(ran.json()["label"].as_str().unwrap().to_owned());
    }
    let told = std::fs::read_to_string(place.directory.join("told")).unwrap();
    let expected = format!("before backup shop\nafter {} 0\nbefore backup shop\nafter {} 0\n", labels[0], labels[1]);
    assert!(told.starts_with(&expected), "{told}");

    let info = run(&["info", "--json"]);
    let listed = info.json();
    let names: Vec<&str> = listed.as_array().unwrap().iter().map(|source| source["source"].as_str().unwrap()).collect();
    assert_eq!((names.len(), names.contains(&"shop"), names.contains(&"crm")), (2, true, true), "{info}");

    run(&["expire"]).assert_error(2, &["several", "--all"]);
    let dry = run(&["expire", "--all", "--json"]);
    assert_eq!(dry.json().as_array().unwrap().len(), 2, "{dry}");
    let expired = run(&["expire", "--all", "--confirm", "--json"]);
    assert_eq!(expired.code, Some(0), "a hook that fails afterwards is a note: {expired}");
    assert!(expired.stderr.contains("note: unable to run the hook after-expire"), "{expired}");
    let decision = |document: &serde_json::Value, label: &str| {
        let sets = document.as_array().unwrap().iter().flat_map(|report| report["sets"].as_array().unwrap());
        let set = sets.into_iter().find(|set| set["label"] == label).unwrap();
        (set["decision"].as_str().unwrap().to_owned(), set["outcome"].as_str().map(str::to_owned))
    };
    let document = expired.json();
    assert_eq!(decision(&document, &labels[0]), ("remove".to_owned(), Some("removed".to_owned())));
    for kept in &labels[1..] {
        assert_eq!(decision(&document, kept).0, "keep", "{expired}");
    }

    run(&["restore", "shop", "--target-dir", "/proc/nowhere"]).assert_error_text();
    let told = std::fs::read_to_string(place.directory.join("told")).unwrap();
    assert!(told.ends_with("failed restore 60\n"), "{told}");
    // Nothing is archived here, and a full set is full already.
    assert_ne!(run(&["check", "shop", "--timeout", "1s"]).code, Some(0));
    assert_eq!(run(&["synthesize", "shop"]).code, Some(0));
    let told = std::fs::read_to_string(place.directory.join("told")).unwrap();
    assert!(told.ends_with("failed check shop\nafter synthesize shop\n"), "{told}");
}

#[test]
fn a_hook_that_fails_before_a_command_stops_it() {
    let place = Place::new("hook_stops");
    let settings =
        "[hooks]\nbefore-backup = [\"false\"]\nfailed-backup = [\"sh\", \"-c\", \"echo $PAGEHAUL_EXIT_CODE > told\"]\n";
    std::fs::write(place.directory.join("pagehaul.toml"), settings).unwrap();
    place.run(&place.backup_arguments()).assert_error(10, &["before-backup", "nothing was done"]);
    assert!(!place.repo().exists());
    assert_eq!(std::fs::read_to_string(place.directory.join("told")).unwrap(), "10\n");
    // What only looks has no hooks.
    place.run_well(&[place.backup_arguments(), vec!["--dry-run".to_owned()]].concat());
}

#[test]
fn expire_says_why_and_pins_hold() {
    let place = Place::new("expire_cli");
    let arguments = place.backup_arguments();
    let labels = [place.backup_label(&arguments), place.backup_label(&arguments)];
    let repo = place.repo().display().to_string();
    let run = |words: &[&str]| Ran::of(&mut place.pagehaul(&[words, &["--repo", &repo]].concat()));
    run(&["expire"]).assert_error(2, &["there are none", "--keep-full"]);
    run(&["expire", "--keep-full", "1", "--at", "2026-12-24", "--confirm"]).assert_error(2, &["--at"]);
    let dry = run(&["expire", "--keep-full", "1"]);
    assert!(
        dry.code == Some(0) && dry.stderr.contains("no rule keeps it") && dry.stderr.contains("--confirm"),
        "{dry}"
    );
    assert_eq!(place.complete_sets(), labels);
    let pinned = run(&["pin", &labels[0], "--reason", "for the auditors", "--json"]);
    assert_eq!(pinned.code, Some(0), "{pinned}");
    let outcome = |ran: &Ran| {
        let document = ran.json();
        assert_eq!((document["source"].as_str(), document["label"].as_str()), (Some("main"), Some(labels[0].as_str())));
        (document["pinned"].as_bool(), document["changed"].as_bool(), document["reason"].as_str().map(str::to_owned))
    };
    let reason = Some("for the auditors".to_owned());
    assert_eq!(outcome(&pinned), (Some(true), Some(true), reason.clone()));
    let again = run(&["pin", &labels[0], "--reason", "for nobody", "--json"]);
    assert_eq!(outcome(&again), (Some(true), Some(false), reason), "the first reason stays");
    let info = run(&["info"]);
    assert!(info.stdout.contains("pinned: for the auditors"), "{info}");
    let kept = run(&["expire", "--keep-full", "1", "--confirm"]);
    assert!(kept.code == Some(0) && kept.stderr.contains("pinned: for the auditors"), "{kept}");
    assert_eq!(place.complete_sets(), labels);
    assert_eq!(outcome(&run(&["unpin", &labels[0], "--json"])), (Some(false), Some(true), None));
    assert_eq!(outcome(&run(&["unpin", &labels[0], "--json"])), (Some(false), Some(false), None));
    let removed = run(&["expire", "--keep-full", "1", "--confirm"]);
    assert!(removed.code == Some(0) && removed.stderr.contains("removed 1 backup"), "{removed}");
    assert_eq!(place.complete_sets(), &labels[1..]);
    run(&["pin", &labels[0]]).assert_error(30, &["no finished backup"]);
}
