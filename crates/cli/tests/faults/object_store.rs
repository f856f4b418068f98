//! A repository in an object store that has bad days: a backup that says it is done is sound, one that failed says why, and
//! earlier sets are not touched. What must hold after each of them, for other tests of stores too.

use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use pagehaul_testkit::damage::files_below;
use pagehaul_testkit::s3_faults::{S3_FAULTS, S3Fault};
use pagehaul_testkit::s3_server::{S3Server, SECRET_KEY};

use super::bench::{Place, Ran, Random, is_tried};
use super::signals::{Started, slow_at};
use super::wal::Wal;

/// Longer than a lease lives without beats.
pub(super) const DEAD_AFTER: Duration = Duration::from_secs(90);

/// A place whose repository is in one bucket, and half of its stripes in another.
pub(super) struct Stored {
    pub(super) place: Place,
    pub(super) server: S3Server,
}

impl Stored {
    pub(super) fn new(name: &str) -> Self {
        let server = S3Server::start(&["repo", "stripes"]);
        Stored { place: Place::new(name), server }
    }

    /// With one set, which is named, and the number of requests of another backup.
    pub(super) fn counted(name: &str) -> (Self, String, usize) {
        let stored = Stored::new(name);
        let earlier = label(&stored.backup());
        stored.server.faults.disarm();
        stored.backup();
        let request_count = stored.server.faults.disarm();
        stored.forget_all_but(&earlier);
        (stored, earlier, request_count)
    }

    /// A target in `bucket` that does not wait long for answers.
    pub(super) fn target(&self, bucket: &str) -> String {
        format!("{}&part-size=5MiB&timeout=5s&retries=3", self.server.target(bucket))
    }

    pub(super) fn run(&self, words: &[&str]) -> Ran {
        let repo = self.target("repo");
        self.run_with(&[words, &["--repo", &repo]].concat())
    }

    pub(super) fn run_with(&self, words: &[&str]) -> Ran {
        let mut command = self.place.pagehaul(words);
        let ran = Ran::of(command.envs(self.server.environment()));
        assert!(!ran.stdout.contains(SECRET_KEY) && !ran.stderr.contains(SECRET_KEY), "{ran}");
        ran
    }

    /// Arguments of a backup of two stripes, which are sent in parts.
    pub(super) fn backup_arguments(&self) -> Vec<String> {
        let [repo, stripes] = ["repo", "stripes"].map(|bucket| self.target(bucket));
        let to = ["--stripes", "2", "--stripe-to", &repo, "--stripe-to", &stripes, "--compression", "none", "--json"];
        [self.place.backup_arguments_to(&repo), to.map(str::to_owned).into()].concat()
    }

    pub(super) fn backup(&self) -> Ran {
        let arguments = self.backup_arguments();
        self.run_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub(super) fn labels(&self, state: &str) -> Vec<String> {
        let ran = self.run(&["info", "--json"]);
        assert_eq!(ran.code, Some(0), "{ran}");
        let sources = ran.json();
        let sets = sources.as_array().unwrap().iter().flat_map(|source| source["sets"].as_array().unwrap().clone());
        sets.filter(|set| set["state"] == state).map(|set| set["label"].as_str().unwrap().to_owned()).collect()
    }

    pub(super) fn assert_sound(&self, label: &str) {
        let ran = self.run(&["verify", "main", "--set", label]);
        assert_eq!(ran.code, Some(0), "{ran}");
    }

    /// Objects that belong to no complete set of `labels`, to no marker and to no fence.
    pub(super) fn leftovers(&self, labels: &[String]) -> Vec<PathBuf> {
        let mut all = files_below(&self.server.bucket_directory("repo"));
        all.extend(files_below(&self.server.bucket_directory("stripes")));
        let is_known = |path: &PathBuf| {
            let text = path.display().to_string();
            labels.iter().any(|label| text.contains(label.as_str()) && !text.contains(".lease/"))
                || ["pagehaul-repository.json", "identity-0001.json"].iter().any(|name| text.ends_with(name))
        };
        all.retain(|path| !is_known(path));
        all
    }

    /// What must hold after a backup with a fault: `earlier` as before, and a new set only if it said so.
    pub(super) fn check(&self, what: &str, earlier: &str, ran: &Ran) {
        let complete = self.labels("complete");
        assert!(complete.iter().any(|label| label == earlier), "{what}: {complete:?}");
        match ran.code {
            Some(0) => {
                let label = ran.json()["label"].as_str().unwrap().to_owned();
                assert!(complete.contains(&label), "{what}: {ran}");
                self.assert_sound(&label);
            }
            _ => {
                ran.assert_error_text();
                assert!(ran.stderr.contains("hint: "), "{what}: {ran}");
                // Only the answer to the last request may be what failed: then the set is there, and whole.
                complete.iter().filter(|label| *label != earlier).for_each(|label| self.assert_sound(label));
            }
        }
    }

    pub(super) fn forget_all_but(&self, earlier: &str) {
        for bucket in ["repo", "stripes"] {
            for path in files_below(&self.server.bucket_directory(bucket)) {
                let text = path.display().to_string();
                if text.contains("/sets/") && !text.contains(earlier) {
                    std::fs::remove_file(path).unwrap();
                }
            }
        }
    }
}

pub(super) fn label(ran: &Ran) -> String {
    assert_eq!(ran.code, Some(0), "{ran}");
    ran.json()["label"].as_str().unwrap().to_owned()
}

#[test]
fn f34_f61_a_stripe_whose_parts_are_joined_late_is_in_the_set() {
    let stored = Stored::new("late_join");
    let repo = stored.target("repo");
    let arguments =
        [stored.place.backup_arguments_to(&repo), ["--compression", "none"].map(str::to_owned).into()].concat();
    let words: Vec<&str> = arguments.iter().map(String::as_str).chain(["--stripes", "1", "--json"]).collect();
    stored.server.faults.arm(S3Fault::LateJoin, 0..usize::MAX);
    let ran = stored.run_with(&words);
    stored.server.faults.disarm();
    // The first answer came too late, and the others said that there is no such upload.
    assert!(stored.server.faults.refused.load(SeqCst) > 1, "{ran}");
    stored.assert_sound(&label(&ran));
}

#[test]
fn f25_a_stripe_that_is_gone_from_its_bucket_is_given_back_and_repaired() {
    let stored = Stored::new("parity_stored");
    let arguments = [stored.backup_arguments(), ["--parity", "1"].map(str::to_owned).into()].concat();
    let ran = stored.run_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let label = label(&ran);
    let object = |name: &str| {
        let all = ["repo", "stripes"].map(|bucket| files_below(&stored.server.bucket_directory(bucket))).concat();
        all.into_iter().find(|path| path.ends_with(name)).unwrap()
    };
    let degraded = |lost: &str| {
        let ran = stored.run(&["verify", "main", "--set", &label]);
        let is_told = ["DEGRADED", lost, "pagehaul repair main"].iter().all(|part| ran.stderr.contains(part));
        assert!(ran.code == Some(40) && is_told, "{ran}");
    };
    let (gone, cut) = (object("stripe-0001.phs"), object("stripe-0000.phs"));
    let content = std::fs::read(&gone).unwrap();
    std::fs::remove_file(&gone).unwrap();
    degraded("stripe 1");
    let target = stored.place.directory.join("degraded");
    // A bad day on top.
    stored.server.faults.arm(S3Fault::SlowDown, 20..23);
    let ran = stored.run(&["restore", "main", "--target-dir", &target.display().to_string(), "--json"]);
    stored.server.faults.disarm();
    assert!(ran.code == Some(0) && ran.json()["repaired_frame_count"].as_u64() > Some(0), "{ran}");
    stored.place.assert_starts_whole(&target);

    let ran = stored.run(&["repair", "main", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran}");
    assert!(std::fs::read(object("stripe-0001-r1.phs")).unwrap() == content, "other bytes than before: {ran}");
    stored.assert_sound(&label);
    // What was put back serves as well as what was lost.
    std::fs::write(&cut, &std::fs::read(&cut).unwrap()[..5000]).unwrap();
    degraded("stripe 0");
    let target = stored.place.directory.join("cut");
    let ran = stored.run(&["restore", "main", "--target-dir", &target.display().to_string()]);
    assert_eq!(ran.code, Some(0), "{ran}");
    stored.place.assert_starts_whole(&target);
}

#[test]
fn f48_a_store_that_wants_all_parts_of_one_size_gets_them() {
    let stored = Stored::new("f48_like_parts");
    let repo = stored.target("repo");
    let to = ["--stripes", "1", "--compression", "none", "--json"].map(str::to_owned);
    let arguments = [stored.place.backup_arguments_to(&repo), to.into()].concat();
    stored.server.faults.arm(S3Fault::LikeParts, 0..usize::MAX);
    let ran = stored.run_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(ran.code, Some(0), "{ran}");
    stored.server.faults.disarm();
    let joined = stored.server.faults.joined.load(std::sync::atomic::Ordering::SeqCst);
    assert!(joined > 2, "no object had more than {joined} parts");
    stored.assert_sound(&label(&ran));
}

#[test]
fn what_became_small_comes_back_in_few_requests() {
    const BUFFER_BYTES: u64 = 128 << 10;
    let stored = Stored::new("small");
    let repo = stored.target("repo");
    let to = ["--compression", "zstd:3", "--frame-size", "64KiB", "--transfer-size", "128KiB", "--stripes", "2"];
    let arguments = [stored.place.backup_arguments_to(&repo), to.map(str::to_owned).into()].concat();
    let ran = stored.run_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(ran.code, Some(0), "{ran}");
    let target = stored.place.directory.join("target");
    stored.server.faults.disarm();
    let place = target.display().to_string();
    let ran = stored.run(&["restore", "main", "--target-dir", &place, "--transfer-size", "128KiB", "--json"]);
    let request_count = stored.server.faults.disarm() as u64;
    assert_eq!(ran.code, Some(0), "{ran}");
    let buffers = ran.json()["restored_bytes"].as_u64().unwrap() / BUFFER_BYTES;
    assert!(request_count < buffers / 2, "{request_count} requests for {buffers} buffers");
    stored.place.assert_whole(&target);
}

#[test]
fn what_became_small_is_repaired_and_given_back_in_few_requests() {
    const FRAME_BYTES: u64 = 64 << 10;
    let stored = Stored::new("small_rows");
    let repo = stored.target("repo");
    let to = ["--compression", "zstd:3", "--frame-size", "64KiB", "--stripes", "4", "--parity", "1", "--json"];
    let arguments = [stored.place.backup_arguments_to(&repo), to.map(str::to_owned).into()].concat();
    let ran = stored.run_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let (label, frames) = (label(&ran), ran.json()["source_bytes"].as_u64().unwrap() / FRAME_BYTES);
    let directory = stored.server.bucket_directory("repo");
    let lost = files_below(&directory).into_iter().find(|path| path.ends_with("stripe-0001.phs")).unwrap();
    let content = std::fs::read(&lost).unwrap();
    std::fs::remove_file(&lost).unwrap();

    let target = stored.place.directory.join("target");
    let place = target.display().to_string();
    for words in [&["restore", "main", "--target-dir", &place, "--json"][..], &["repair", "main", "--json"]] {
        stored.server.faults.disarm();
        let ran = stored.run(words);
        let request_count = stored.server.faults.disarm() as u64;
        assert_eq!(ran.code, Some(0), "{ran}");
        // A request for each frame to look at it, and for four more where one is lost, would be twice as many as frames.
        assert!(request_count < frames / 2, "{request_count} requests for {frames} frames: {ran}");
    }
    stored.place.assert_whole(&target);
    let back = files_below(&directory).into_iter().find(|path| path.ends_with("stripe-0001-r1.phs")).unwrap();
    assert!(std::fs::read(back).unwrap() == content);
    stored.assert_sound(&label);
}

#[test]
fn f23_f25_a_store_that_goes_away_during_a_repair_has_lost_nothing() {
    let stored = Stored::new("silent_rows");
    let arguments = [stored.backup_arguments(), ["--parity", "1"].map(str::to_owned).into()].concat();
    let label = label(&stored.run_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>()));
    let object = |name: &str| {
        let all = ["repo", "stripes"].map(|bucket| files_below(&stored.server.bucket_directory(bucket))).concat();
        all.into_iter().find(|path| path.ends_with(name))
    };
    std::fs::remove_file(object("stripe-0001.phs").unwrap()).unwrap();
    stored.server.faults.disarm();
    assert_eq!(stored.run(&["repair", "main"]).code, Some(0));
    let request_count = stored.server.faults.disarm();
    std::fs::remove_file(object("stripe-0001-r1.phs").unwrap()).unwrap();
    for share in [4, 6, 8] {
        stored.server.faults.arm(S3Fault::SlowDown, request_count * share / 10..usize::MAX);
        stored.run(&["repair", "main"]).assert_error(30, &["\nhint: "]);
        stored.server.faults.disarm();
    }
    assert_eq!(stored.run(&["repair", "main", "--set", &label]).code, Some(0));
    stored.assert_sound(&label);
}

#[test]
fn a_set_is_copied_out_of_a_store_without_its_key() {
    let stored = Stored::new("keyless");
    let [key, copy] = ["key", "copy"].map(|name| stored.place.directory.join(name).display().to_string());
    let made = stored.run_with(&["key", "new", "--output", &key, "--json"]).json();
    let recipient = ["--recipient", made["recipient"].as_str().unwrap()].map(str::to_owned);
    let arguments = [stored.backup_arguments(), recipient.into()].concat();
    let label = label(&stored.run_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>()));
    let ran = stored.run(&["copy", "main", "--to", &copy]);
    assert_eq!(ran.code, Some(0), "{ran}");
    let ran = stored.run_with(&["verify", "main", "--repo", &copy, "--set", &label, "--identity", &key]);
    assert_eq!(ran.code, Some(0), "{ran}");
}

#[test]
fn s02_no_error_of_a_store_shows_the_secret() {
    let stored = Stored::new("bad_key");
    label(&stored.backup());
    for fault in [S3Fault::SlowDown, S3Fault::ErrorInside, S3Fault::Reset] {
        stored.server.faults.arm(fault, 0..usize::MAX);
        stored.run(&["info"]).assert_error(30, &["hint: "]);
    }
    stored.server.faults.disarm();
    let repo = stored.target("repo");
    let mut command = stored.place.pagehaul(&["info", "--repo", &repo]);
    let ran = Ran::of(command.envs(stored.server.environment()).env("AWS_SECRET_ACCESS_KEY", "another-secret"));
    ran.assert_error(30, &["credentials"]);
    assert!(!ran.stderr.contains("another-secret"), "{ran}");
    // With several endpoints requests are signed elsewhere.
    for repo in [repo.clone(), format!("{repo}&endpoint={}", stored.server.endpoint())] {
        let ran = Ran::of(stored.place.pagehaul(&["info", "--repo", &repo]).env("AWS_EC2_METADATA_DISABLED", "true"));
        ran.assert_error_text();
        assert!(ran.stderr.contains("credential"), "{ran}");
    }
}

#[test]
fn f60_credentials_that_expire_and_clocks_that_drift_during_a_backup_are_named() {
    let stored = Stored::new("expired");
    let earlier = label(&stored.backup());
    for (fault, named) in [
        (S3Fault::Expired, "the credentials have expired"),
        (S3Fault::Skewed, "clocks of this machine and of the store"),
    ] {
        stored.server.faults.arm(fault, 12..usize::MAX);
        stored.backup().assert_error(30, &[named]);
        stored.server.faults.disarm();
        assert_eq!(stored.labels("complete"), [&*earlier]);
    }
}

/// Whatever the store does to whichever request of a push: what is acknowledged is there with the same bytes.
#[test]
fn f07_f08_a_push_that_says_done_is_in_the_store() {
    let wal = Wal::new("push_s3");
    let stored = Stored { server: S3Server::start(&["repo"]), place: wal.place };
    let mut random = Random::for_test("push_s3");
    let pgdata = stored.place.bench.cluster.server.data_directory().display().to_string();
    let adopted = stored.run(&["wal", "adopt", "--source", "main", "--pgdata", &pgdata]);
    assert_eq!(adopted.code, Some(0), "{adopted}");
    let [first, other] = [0, 1].map(|index: usize| wal.segments[index].display().to_string());
    // Who may only add archives.
    stored.server.faults.arm(S3Fault::OnlyNew, 0..usize::MAX);
    let pushed = stored.run(&["wal", "push", "--source", "main", &first]);
    assert_eq!(pushed.code, Some(0), "{pushed}");
    let request_count = stored.server.faults.disarm();
    let before = files_below(&stored.server.bucket_directory("repo"));
    let name = wal.segments[1].file_name().unwrap().to_str().unwrap();
    let destination = stored.place.directory.join("RECOVERYXLOG");
    let destination_text = destination.display().to_string();
    for fault in S3_FAULTS.into_iter().filter(is_tried) {
        for last in [false, true] {
            let at = random.below(request_count);
            let what = format!("{fault:?} from request {at} of {request_count}, to the end: {last}");
            stored.server.faults.arm(fault, at..if last { usize::MAX } else { at + 1 });
            let pushed = stored.run(&["wal", "push", "--source", "main", &other]);
            stored.server.faults.disarm();
            if pushed.code != Some(0) {
                assert!(last, "{what}: {pushed}");
                pushed.assert_error_text();
                let again = stored.run(&["wal", "push", "--source", "main", &other]);
                assert_eq!(again.code, Some(0), "{what}: {again}");
            }
            let got = stored.run(&["wal", "get", "--source", "main", name, &destination_text]);
            assert_eq!(got.code, Some(0), "{what}: {got}");
            assert!(std::fs::read(&destination).unwrap() == std::fs::read(&wal.segments[1]).unwrap(), "{what}");
            let mut objects = files_below(&stored.server.bucket_directory("repo"));
            objects.retain(|path| !before.contains(path));
            assert!(!objects.is_empty(), "{what}: it is stored");
            objects.iter().for_each(|path| std::fs::remove_file(path).unwrap());
        }
    }
}

/// What may only add cannot harm what is there; and the next backups, the archive and restores do not mind what it leaves.
#[test]
fn s19_f62_credentials_that_may_only_add_suffice() {
    let stored = Stored::new("append_only");
    stored.server.faults.arm(S3Fault::OnlyNew, 0..usize::MAX);
    let labels = [(); 2].map(|()| label(&stored.backup()));
    stored.server.age(DEAD_AFTER);
    let third = label(&stored.backup());
    for label in labels.iter().chain([&third]) {
        stored.assert_sound(label);
    }
    let target = stored.place.directory.join("target");
    let ran = stored.run(&["restore", "main", "--target-dir", &target.display().to_string()]);
    assert_eq!(ran.code, Some(0), "{ran}");
    stored.place.assert_whole(&target);
    let expire = ["expire", "main", "--keep-full", "1", "--confirm"];
    stored.run(&expire).assert_error(30, &["may not delete"]);
    assert_eq!(stored.labels("complete").len(), 3);
    // Somebody else, who may.
    stored.server.faults.disarm();
    let ran = stored.run(&expire);
    assert_eq!(ran.code, Some(0), "{ran}");
    assert_eq!(stored.labels("complete"), std::slice::from_ref(&third));
    stored.assert_sound(&third);
}

#[test]
fn f42_a_backup_that_slept_through_its_lease_gives_no_set() {
    let stored = Stored::new("f42_slept");
    let earlier = label(&stored.backup());
    let arguments = slow_at(stored.backup_arguments(), "4MB/s");
    let mut slept = Started::with_environment(&stored.place, &arguments, &stored.server.environment());
    slept.wait_for_phase("read, encode");
    // Whoever comes while it lives leaves it alone.
    let second = label(&stored.backup());
    assert_eq!(stored.labels("running").len(), 1);
    slept.send("STOP");
    stored.server.age(DEAD_AFTER);
    let third = label(&stored.backup());
    assert_eq!(stored.labels("running").len(), 0, "it is removed as a dead one");
    slept.send("CONT");
    slept.wait().assert_error(50, &["lease", "\nhint: "]);
    assert_eq!(stored.labels("complete"), [earlier, second, third.clone()]);
    stored.assert_sound(&third);
    assert_eq!(stored.leftovers(&stored.labels("complete")), Vec::<PathBuf>::new());
}

/// A list that leaves a set out must not decide what goes.
#[test]
fn f50_a_list_that_leaves_out_a_signed_set_decides_nothing() {
    let stored = Stored::new("f50_partial");
    let path = |name: &str| stored.place.directory.join(name).display().to_string();
    let (key, memory) = (path("signer"), path("heads"));
    assert_eq!(stored.run_with(&["key", "new", "--signing", "--output", &key]).code, Some(0));
    let signing = ["--sign-key", &key, "--known-heads", &memory];
    let backup = || {
        let arguments = stored.backup_arguments();
        let words: Vec<&str> = arguments.iter().map(String::as_str).chain(signing).collect();
        label(&stored.run_with(&words))
    };
    let labels = [backup(), backup(), backup()];
    let expire = [&["expire", "main", "--keep-full", "1", "--confirm"][..], &signing].concat();
    stored.server.faults.arm(S3Fault::PartialList, 0..usize::MAX);
    stored.run(&expire).assert_error(30, &["leaves out", "\nhint: "]);
    stored.server.faults.disarm();
    assert_eq!(stored.labels("complete"), labels);
    labels.iter().for_each(|label| stored.assert_sound(label));
    let ran = stored.run(&expire);
    assert_eq!(ran.code, Some(0), "{ran}");
    assert_eq!(stored.labels("complete"), labels[2..]);
}

#[test]
fn s09_a_store_that_sends_elsewhere_is_not_followed() {
    let stored = Stored::new("s09_redirect");
    let earlier = label(&stored.backup());
    stored.server.faults.arm(S3Fault::Redirect, 0..usize::MAX);
    let ran = stored.backup();
    ran.assert_error(30, &["TemporaryRedirect", "\nhint: ", "which is not followed"]);
    stored.server.faults.disarm();
    assert_eq!(stored.labels("complete"), [earlier]);
}
