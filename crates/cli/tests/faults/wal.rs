//! The WAL archive through the command: what its exit codes promise to the server, whatever fails around it.

use std::path::{Path, PathBuf};

use pagehaul_engine::catalog::Repository;

use super::bench::{Place, Ran, Random, sample_size};
use super::strace::{self, MUTATING, inject};

/// Segments that a test has.
const SEGMENT_COUNT: usize = 4;

/// A place with finished segments of the bench's cluster.
pub(crate) struct Wal {
    pub(crate) place: Place,
    /// In order.
    pub(crate) segments: Vec<PathBuf>,
    /// The file of the key that signs, and whose signatures are believed.
    keys: Option<[String; 2]>,
}

impl Wal {
    pub(crate) fn new(name: &str) -> Self {
        let place = Place::new(name);
        let directory = place.directory.join("files");
        std::fs::create_dir(&directory).unwrap();
        // Checkpoints of other tests remove segments at any time.
        let mut segments = Vec::new();
        for _ in 0..20 {
            segments = copy_segments(&place, &directory);
            if segments.len() == SEGMENT_COUNT {
                break;
            }
        }
        assert_eq!(segments.len(), SEGMENT_COUNT);
        Wal { place, segments, keys: None }
    }

    /// The same, with an empty repository.
    pub(crate) fn with_repository(name: &str) -> Self {
        let wal = Wal::new(name);
        wal.make_repository();
        wal
    }

    /// The same, whose WAL is signed and is believed only where it is.
    fn with_signatures(name: &str) -> Self {
        let wal = Wal::with_repository(name);
        let key = wal.place.directory.join("signer").display().to_string();
        let made = wal.place.run_well(&["key", "new", "--signing", "--output", &key, "--json"].map(str::to_owned));
        let signer = made.json()["signer"].as_str().unwrap().to_owned();
        Wal { keys: Some([key, signer]), ..wal }
    }

    pub(crate) fn make_repository(&self) {
        Repository::open_or_create(&self.place.repo().display().to_string()).unwrap();
    }

    pub(crate) fn push_arguments(&self, files: &[&Path]) -> Vec<String> {
        let repo = self.place.repo().display().to_string();
        let files = files.iter().map(|file| file.display().to_string());
        let sign = self.keys.iter().flat_map(|[key, _]| ["--sign-key".to_owned(), key.clone()]);
        ["wal", "push", "--repo", &repo].map(str::to_owned).into_iter().chain(sign).chain(files).collect()
    }

    pub(crate) fn push(&self, files: &[&Path]) -> Ran {
        self.place.run(&self.push_arguments(files))
    }

    fn get_arguments(&self, name: &str) -> Vec<String> {
        let repo = self.place.repo().display().to_string();
        let destination = self.destination().display().to_string();
        let signers = self.keys.iter().flat_map(|[_, signer]| ["--signer".to_owned(), signer.clone()]);
        ["wal", "get", "--repo", &repo, name, &destination].map(str::to_owned).into_iter().chain(signers).collect()
    }

    fn get(&self, name: &str) -> Ran {
        std::fs::remove_file(self.destination()).ok();
        self.place.run(&self.get_arguments(name))
    }

    fn destination(&self) -> PathBuf {
        self.place.directory.join("RECOVERYXLOG")
    }

    pub(crate) fn assert_delivers(&self, segment: &Path) {
        let ran = self.get(&name_of(segment));
        assert_eq!(ran.code, Some(0), "{ran}");
        assert!(std::fs::read(self.destination()).unwrap() == std::fs::read(segment).unwrap(), "{}", segment.display());
    }

    /// Nothing but objects, the marker and the fence.
    fn assert_no_leftovers(&self, why: &str) {
        for path in self.place.stored_paths() {
            let name = path.file_name().unwrap().to_string_lossy();
            assert!(
                !name.starts_with('.') || name.contains("pagehaul-repository"),
                "{why}: left over: {}",
                path.display()
            );
        }
    }
}

/// Makes the server finish some segments and copies those that follow each other.
fn copy_segments(place: &Place, directory: &Path) -> Vec<PathBuf> {
    let cluster = &place.bench.cluster;
    let mut segments: Vec<PathBuf> = Vec::new();
    while segments.len() < SEGMENT_COUNT {
        let end = cluster.value("SELECT pg_logical_emit_message(true, 'x', repeat(md5(random()::text), 9000))");
        let name = cluster.value(&format!("SELECT pg_walfile_name('{end}')"));
        cluster.run(&["SELECT pg_switch_wal()"]);
        let copy = directory.join(&name);
        if std::fs::copy(cluster.server.data_directory().join("pg_wal").join(&name), &copy).is_err() {
            return Vec::new();
        }
        let follows = |before: &PathBuf| number_of(before) + 1 == number_of(&copy);
        if !segments.last().is_none_or(follows) {
            segments.clear();
        }
        segments.push(copy);
    }
    segments
}

fn number_of(path: &Path) -> u64 {
    u64::from_str_radix(&name_of(path)[8..], 16).unwrap()
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn the_same_segment_again_is_well_and_other_bytes_are_not() {
    let wal = Wal::with_repository("wal_twice");
    let first = wal.segments[0].as_path();
    for outcome in ["stored", "was_there"] {
        let ran = wal.place.run(&[wal.push_arguments(&[first]), vec!["--json".to_owned()]].concat());
        assert_eq!(ran.code, Some(0), "{ran}");
        assert_eq!(ran.json()["files"][0]["outcome"], outcome, "{ran}");
    }
    let mut other = std::fs::read(first).unwrap();
    other[600_000] ^= 1;
    let directory = wal.place.directory.join("other");
    std::fs::create_dir(&directory).unwrap();
    let copy = directory.join(name_of(first));
    std::fs::write(&copy, &other).unwrap();
    wal.push(&[&copy]).assert_error(50, &["has other bytes", "nothing was overwritten"]);
    assert!(std::fs::read(&copy).unwrap() == other);
    wal.assert_delivers(first);
    // Of several files the sound ones are stored, and the code says that not all are.
    wal.push(&[&copy, &wal.segments[1]]).assert_error(50, &[]);
    wal.assert_delivers(&wal.segments[1]);
    std::fs::write(&copy, &other[..other.len() / 2]).unwrap();
    wal.push(&[&copy]).assert_error(40, &["instead of"]);
    wal.push(&[&wal.place.directory.join("nothing")]).assert_error(2, &["archive_command"]);
    wal.push(&[&wal.place.directory.join(name_of(&wal.segments[3]))]).assert_error(20, &["No such file"]);
}

#[test]
fn f44_wal_get_ends_with_1_only_if_the_file_is_surely_not_there() {
    let wal = Wal::new("wal_codes");
    let (first, missing) = (wal.segments[0].as_path(), name_of(&wal.segments[2]));
    let could_not_ask = |why: &str, ran: &Ran| {
        assert_eq!(ran.code, Some(126), "{why}: {ran}");
        ran.assert_error_text();
    };
    could_not_ask("no repository", &wal.get(&missing));
    std::fs::create_dir(wal.place.repo()).unwrap();
    could_not_ask("an empty mount point", &wal.get(&missing));
    wal.push(&[first]).assert_error(30, &["not a pagehaul repository"]);
    assert_eq!(std::fs::read_dir(wal.place.repo()).unwrap().count(), 0, "nothing is made in it");
    wal.make_repository();
    assert_eq!(wal.push(&[first]).code, Some(0));
    wal.assert_delivers(first);
    assert_eq!(wal.get(&missing).code, Some(1));
    assert_eq!(wal.get("00000009.history").code, Some(1));
    assert!(!wal.destination().exists());
    could_not_ask("no name of a WAL file", &wal.get("RECOVERYXLOG"));
    let with = |more: &[&str]| {
        let more = more.iter().map(|word| (*word).to_owned()).collect();
        wal.place.run(&[wal.get_arguments(&missing), more].concat())
    };
    could_not_ask("no such source", &with(&["--source", "nobody"]));
    could_not_ask("no source's name", &with(&["--source", "../x"]));
    could_not_ask("an unknown flag", &with(&["--no-such-flag"]));
    could_not_ask("a bad number", &with(&["--decoders", "0"]));
    could_not_ask("too many words", &with(&["word"]));
    could_not_ask("no settings file", &with(&["--config", "nowhere.toml"]));
    could_not_ask("too few words", &wal.place.run(&["wal", "get"].map(str::to_owned)));
    let config = wal.place.directory.join("broken.toml");
    std::fs::write(&config, "[wal]\nno-such-key = 1\n").unwrap();
    could_not_ask("a bad settings file", &with(&["--config", "broken.toml"]));
    let nowhere = wal.place.directory.join("nowhere/RECOVERYXLOG").display().to_string();
    let mut arguments = wal.get_arguments(&name_of(first));
    *arguments.last_mut().unwrap() = nowhere;
    could_not_ask("no directory to write to", &wal.place.run(&arguments));

    let stored = wal.place.stored_paths();
    let object = |end: &str| {
        let found = stored.iter().find(|path| path.to_string_lossy().ends_with(end));
        wal.place.directory.join(found.unwrap_or_else(|| panic!("{end}: {stored:?}")))
    };
    let damage = |path: &Path, what: &str, name: &str| {
        let good = std::fs::read(path).unwrap();
        std::fs::write(path, &good[..good.len() / 2]).unwrap();
        could_not_ask(what, &wal.get(name));
        std::fs::write(path, good).unwrap();
    };
    damage(&object(".phw"), "a damaged object", &name_of(first));
    damage(&object("identity-0001.json"), "a damaged fence", &missing);
    damage(&object("pagehaul-repository.json"), "a damaged marker", &missing);
    wal.assert_delivers(first);
}

#[test]
fn f44_wal_get_whose_calls_fail_never_says_not_there() {
    if !strace::is_usable("wal_get_errno") {
        return;
    }
    let wal = Wal::with_repository("wal_get_errno");
    assert_eq!(wal.push(&[&wal.segments[0]]).code, Some(0));
    let arguments = wal.get_arguments(&name_of(&wal.segments[0]));
    let calls = ["openat", "getdents64", "pread64", "fdatasync", "renameat2", "rename", "pwrite64", "fstat", "statx"];
    let trace = strace::trace(&wal.place, &calls, &arguments);
    let directory = wal.place.directory.clone();
    let ours = |line: &str| !line.contains("openat(") || strace::names(line, &directory);
    let mut random = Random::for_test("wal_get_errno");
    let chosen = random.choose(strace::places(&trace, ours), sample_size(30));
    let mut failed = 0;
    for at in &chosen {
        std::fs::remove_file(wal.destination()).ok();
        let ran = inject(&wal.place, &at.call, "error=EIO", &at.number.to_string(), &arguments);
        match ran.code {
            Some(0) => {
                assert!(std::fs::read(wal.destination()).unwrap() == std::fs::read(&wal.segments[0]).unwrap(), "{at}");
            }
            Some(code) => {
                failed += 1;
                // A process that cannot even be started ends with 127.
                assert!(code >= 126, "{at}: {ran}");
            }
            None => panic!("{at}: {ran}"),
        }
    }
    assert!(failed * 3 > chosen.len(), "{failed} of {} failed", chosen.len());
}

#[test]
fn a_push_killed_at_any_change_is_done_by_the_next_one() {
    if !strace::is_usable("wal_kill") {
        return;
    }
    let wal = Wal::with_signatures("wal_kill");
    let files = [wal.segments[0].as_path(), wal.segments[1].as_path()];
    let arguments = wal.push_arguments(&files);
    let trace = strace::trace(&wal.place, MUTATING, &arguments);
    assert_eq!(wal.get(&name_of(files[1])).code, Some(0));
    let all = strace::places(&trace, |_| true);
    let mut random = Random::for_test("wal_kill");
    let chosen = strace::sample(all, sample_size(40), &mut random);
    let mut killed = 0;
    for at in &chosen {
        std::fs::remove_dir_all(wal.place.repo()).unwrap();
        wal.make_repository();
        killed += usize::from(strace::kill(&wal.place, at, &arguments));
        // What is there is whole; what is not is not there.
        for segment in files {
            let ran = wal.get(&name_of(segment));
            if ran.code == Some(0) {
                assert!(std::fs::read(wal.destination()).unwrap() == std::fs::read(segment).unwrap(), "killed at {at}");
            }
        }
        let ran = wal.push(&files);
        assert_eq!(ran.code, Some(0), "killed at {at}: {ran}");
        files.iter().for_each(|segment| wal.assert_delivers(segment));
        wal.assert_no_leftovers(&format!("killed at {at}"));
    }
    assert!(killed * 2 > chosen.len(), "{killed} of {} were killed", chosen.len());
}

#[test]
fn b05_a_push_whose_calls_fail_is_never_acknowledged() {
    if !strace::is_usable("wal_push_errno") {
        return;
    }
    let wal = Wal::with_signatures("wal_push_errno");
    let (first, second) = (wal.segments[0].as_path(), wal.segments[1].as_path());
    assert_eq!(wal.push(&[first]).code, Some(0));
    let object_of_second = |wal: &Wal| {
        wal.place.stored_paths().into_iter().filter(|path| path.extension().is_some_and(|end| end == "phw")).nth(1)
    };
    let arguments = wal.push_arguments(&[second]);
    let trace = strace::trace(&wal.place, &["openat", "pwrite64", "fdatasync", "fsync", "renameat2"], &arguments);
    let forget = |wal: &Wal| {
        if let Some(path) = object_of_second(wal) {
            std::fs::remove_file(wal.place.directory.join(path)).unwrap();
        }
    };
    forget(&wal);
    let repo = wal.place.repo();
    let places = strace::places(&trace, |line| !line.contains("openat(") || strace::names(line, &repo));
    assert!(places.len() >= 5, "{places:?}");
    for at in &places {
        for errno in if at.call.contains("sync") { &["EIO"][..] } else { &["ENOSPC", "EIO"] } {
            let ran = inject(&wal.place, &at.call, &format!("error={errno}"), &at.number.to_string(), &arguments);
            if ran.code == Some(0) {
                wal.assert_delivers(second);
            } else {
                ran.assert_error(30, &[]);
            }
            if at.call == "pwrite64" || at.call == "fdatasync" {
                assert_eq!(ran.code, Some(30), "{at} {errno}: {ran}");
                assert!(object_of_second(&wal).is_none(), "{at} {errno}: nothing is stored that was not acknowledged");
            }
            let again = wal.push(&[second]);
            assert_eq!(again.code, Some(0), "{at} {errno}: {again}");
            wal.assert_delivers(second);
            wal.assert_delivers(first);
            wal.assert_no_leftovers(&format!("{at} {errno}"));
            forget(&wal);
        }
    }
}

/// A push that was killed after it gave its object a name, and before it synced that, has acknowledged nothing. The next
/// one, which finds the object, must not do so either before the name and all directories above it are durable.
#[test]
fn f07_what_is_there_is_acknowledged_only_when_it_is_durable() {
    if !strace::is_usable("wal_there") {
        return;
    }
    let wal = Wal::with_repository("wal_there");
    let segment = wal.segments[0].as_path();
    assert_eq!(wal.push(&[segment]).code, Some(0));
    let arguments = wal.push_arguments(&[segment]);
    let trace = strace::trace(&wal.place, &["fsync"], &arguments);
    let places = strace::places(&trace, |_| true);
    // The log id's directory, the timeline's, the cluster's, wal, the source's, the repository's.
    assert_eq!(places.len(), 6, "{places:?}");
    for at in &places {
        let ran = inject(&wal.place, &at.call, "error=EIO", &at.number.to_string(), &arguments);
        ran.assert_error(30, &["make durable"]);
        let again = wal.push(&[segment]);
        assert_eq!(again.code, Some(0), "{at}: {again}");
    }
    wal.assert_delivers(segment);
}

#[test]
fn a_gap_is_shown_and_ends_with_40() {
    let wal = Wal::with_repository("wal_gap");
    let repo = wal.place.repo().display().to_string();
    let list = |more: &[&str]| {
        let words = ["wal", "list", "--repo", &repo].into_iter().chain(more.iter().copied());
        wal.place.run(&words.map(str::to_owned).collect::<Vec<_>>())
    };
    assert_eq!(wal.push(&[&wal.segments[0], &wal.segments[1]]).code, Some(0));
    assert_eq!(list(&[]).code, Some(0));
    assert_eq!(wal.push(&[&wal.segments[3]]).code, Some(0));
    for more in [&[][..], &["--names-only"]] {
        let ran = list(more);
        assert_eq!(ran.code, Some(40), "{ran}");
        let gap = ran.stdout.lines().find(|line| line.contains("MISSING")).unwrap_or_else(|| panic!("{ran}"));
        assert!(gap.contains(&name_of(&wal.segments[2])), "{gap}");
    }
    let json = list(&["--json"]).json();
    let timeline = &json[0]["clusters"][0]["timelines"][0];
    assert_eq!(timeline["gaps"][0]["first"], name_of(&wal.segments[2]));
    assert_eq!(timeline["segment_count"], 3);
    assert!(timeline["stored_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn f44_a_hole_is_no_end_of_wal_where_recovery_asks() {
    let wal = Wal::with_repository("wal_hole");
    assert_eq!(wal.push(&[&wal.segments[0], &wal.segments[2]]).code, Some(0));
    let repo = wal.place.repo().display().to_string();
    let to = wal.place.directory.join("got").display().to_string();
    let get = |segment: usize, more: &[&str]| {
        let name = name_of(&wal.segments[segment]);
        let words = ["wal", "get", "--repo", &repo, &name, &to].into_iter().chain(more.iter().copied());
        wal.place.run(&words.map(str::to_owned).collect::<Vec<_>>())
    };
    for helper in [&["--no-helper"][..], &[]] {
        let strict = [helper, &["--fail-in-gap"]].concat();
        assert_eq!(get(0, &strict).code, Some(0));
        let ran = get(1, &strict);
        assert_eq!(ran.code, Some(126), "{ran}");
        assert!(ran.stderr.contains("later WAL of its timeline"), "{ran}");
        assert_eq!(get(1, helper).code, Some(1), "a standby waits for it");
        assert_eq!(get(3, &strict).code, Some(1), "the end of WAL");
    }
}
