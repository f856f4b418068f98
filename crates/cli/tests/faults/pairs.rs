//! All commands at once on one repository: each does what it should or says whom it waits for, and what is left is whole.

use std::path::PathBuf;
use std::process::{Child, Stdio};

use super::bench::{Place, Ran};
use super::wal::Wal;

/// A command under way, and what it was.
struct Running {
    what: String,
    child: Child,
}

struct Crowd<'a> {
    wal: &'a Wal,
    running: Vec<Running>,
    targets: Vec<PathBuf>,
}

impl<'a> Crowd<'a> {
    fn of(wal: &'a Wal) -> Self {
        Crowd { wal, running: Vec::new(), targets: Vec::new() }
    }

    fn place(&self) -> &Place {
        &self.wal.place
    }

    fn start(&mut self, what: &str, arguments: &[String]) {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = self.place().pagehaul(&words);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        self.running.push(Running { what: what.to_owned(), child });
    }

    fn start_on(&mut self, what: &str, words: &[&str]) {
        let repo = self.place().repo().display().to_string();
        self.start(
            what,
            &[words, &["--repo", &repo]].concat().iter().map(|word| (*word).to_owned()).collect::<Vec<_>>(),
        );
    }

    fn start_restore(&mut self, set: &str) {
        let target = self.place().directory.join(format!("target-{}", self.targets.len()));
        let arguments = [self.place().restore_arguments(&target), ["--set", set].map(str::to_owned).into()].concat();
        self.targets.push(target);
        self.start("restore", &arguments);
    }

    /// How all of them ended.
    fn ends(&mut self) -> Vec<(String, Ran)> {
        let ended = self.running.drain(..).map(|it| (it.what, Ran::from(it.child.wait_with_output().unwrap())));
        ended.collect()
    }
}

/// It did what it should, or was refused for a reason that another command is.
fn assert_each_did_its_part(ends: &[(String, Ran)]) {
    for (what, ran) in ends {
        match (what.as_str(), ran.code) {
            (_, Some(0)) => {}
            // The listing may come while the files of one push are there in part.
            ("list", Some(40)) => assert!(ran.stdout.contains("MISSING"), "{ran}"),
            // Of two expires one may have to wait; whom for, it can only say as long as that one is there.
            ("expire", Some(50)) => ran.assert_error(50, &["another expire is running", "\nhint: "]),
            // A set that has gone, or is about to, is refused with its reason.
            ("restore" | "verify" | "incremental", Some(30 | 50)) => ran.assert_error_text(),
            _ => panic!("{what}: {ran}"),
        }
    }
    for what in ["backup", "push", "info"] {
        let failed = ends.iter().find(|(name, ran)| name == what && ran.code != Some(0));
        assert!(failed.is_none(), "{what}: {}", failed.unwrap().1);
    }
}

/// Every command twice, so that each meets each other one and one of its own kind.
#[test]
fn f19_all_commands_at_once_leave_whole_sets() {
    let wal = Wal::with_repository("pairs");
    let place = &wal.place;
    let full = place.backup_arguments();
    let [old, next, newest] = [(); 3].map(|()| place.backup_label(&full));
    let mut crowd = Crowd::of(&wal);
    for round in 0..2 {
        let incremental = [full.clone(), ["--type", "incr"].map(str::to_owned).into()].concat();
        crowd.start("backup", &full);
        crowd.start("incremental", &incremental);
        // The same files from both, the second of them also from the other end.
        let files: Vec<_> = wal.segments.iter().map(PathBuf::as_path).collect();
        let files: Vec<_> = if round == 0 { files } else { files.into_iter().rev().collect() };
        crowd.start("push", &wal.push_arguments(&files));
        // One that goes, and one that stays.
        crowd.start_restore([&old, &newest][round]);
        crowd.start_on("verify", &["verify", "main", "--set", [&next, &newest][round]]);
        crowd.start_on("expire", &["expire", "main", "--keep-full", "1", "--confirm"]);
        crowd.start_on("info", &["info", "--json"]);
        crowd.start_on("list", &["wal", "list"]);
    }
    let ends = crowd.ends();
    assert_each_did_its_part(&ends);
    let restored = ends.iter().filter(|(what, _)| what == "restore").zip(&crowd.targets);
    for ((_, ran), target) in restored {
        if ran.code == Some(0) {
            place.assert_whole(target);
        } else {
            assert!(!target.join("global/pg_control").exists(), "{ran}");
        }
    }
    let complete = place.complete_sets();
    assert!(!complete.is_empty());
    complete.iter().for_each(|label| place.assert_sound(label));
    place.assert_restores(complete.last().unwrap());
    // They are older than all sets, so an expire may have taken them already: one more push, alone, brings them back.
    let files: Vec<_> = wal.segments.iter().map(PathBuf::as_path).collect();
    assert_eq!(wal.push(&files).code, Some(0));
    wal.segments.iter().for_each(|segment| wal.assert_delivers(segment));
    place.assert_server_is_free();
    // Alone again, an expire finishes what another one left.
    let repo = place.repo().display().to_string();
    place.run_well(&["expire", "main", "--repo", &repo, "--keep-full", "1", "--confirm"].map(str::to_owned));
    place.complete_sets().iter().for_each(|label| place.assert_sound(label));
    let left = place.sets();
    assert!(left.iter().all(|(label, state)| state == "complete" && *label != old && *label != next), "{left:?}");
}
