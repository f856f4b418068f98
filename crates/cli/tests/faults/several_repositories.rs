//! One read, several repositories: each has its own commit, and one that fails takes no other with it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pagehaul_testkit::damage::files_below;
use pagehaul_testkit::s3_faults::{S3_FAULTS, S3Fault};
use pagehaul_testkit::s3_server::S3Server;
use serde_json::Value;

use super::bench::{Place, Ran, Random, sample_size};
use super::full_disk::SmallDisk;

/// Repositories in a directory and in a bucket.
struct Two {
    place: Place,
    server: S3Server,
}

impl Two {
    fn new(name: &str) -> Self {
        Two { place: Place::new(name), server: S3Server::start(&["repo"]) }
    }

    fn bucket(&self) -> String {
        format!("{}&part-size=5MiB&timeout=2s&retries=1", self.server.target("repo"))
    }

    fn directory(&self) -> String {
        self.place.repo().display().to_string()
    }

    fn run(&self, words: &[&str]) -> Ran {
        Ran::of(self.place.pagehaul(words).envs(self.server.environment()))
    }

    /// A backup to these, in their order.
    fn backup(&self, repos: [&str; 2], flags: &[&str]) -> Ran {
        let arguments = self.place.backup_arguments_to(repos[0]);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let more = ["--repo", repos[1], "--stripes", "2", "--compression", "lz4", "--json"];
        self.run(&[&arguments[..], &more, flags].concat())
    }

    fn complete(&self, repo: &str) -> Vec<String> {
        let ran = self.run(&["info", "--json", "--repo", repo]);
        assert_eq!(ran.code, Some(0), "{ran}");
        let sources = ran.json();
        let sets = sources.as_array().unwrap().iter().flat_map(|source| source["sets"].as_array().unwrap().clone());
        sets.filter(|set| set["state"] == "complete").map(|set| set["label"].as_str().unwrap().to_owned()).collect()
    }

    fn assert_sound(&self, repo: &str, label: &str) {
        let ran = self.run(&["verify", "main", "--repo", repo, "--set", label]);
        assert_eq!(ran.code, Some(0), "{ran}");
    }

    /// The label of a backup that one repository has, and what is said of the other.
    fn label_of_half(&self, ran: &Ran, good: &str, bad: &str) -> (String, Value) {
        assert_eq!(ran.code, Some(30), "{ran}");
        assert!(ran.stderr.contains("REPOSITORY LEFT OUT:"), "{ran}");
        let report = ran.json();
        let label = report["label"].as_str().unwrap().to_owned();
        let copies = report["repositories"].as_array().unwrap();
        let place = |text: &str| text.split('?').next().unwrap().to_owned();
        let is_of = |copy: &Value, repo: &str| place(copy["repo"].as_str().unwrap()) == place(repo);
        let state = |repo: &str| copies.iter().find(|copy| is_of(copy, repo)).unwrap();
        assert_eq!(state(good)["state"], "complete", "{report}");
        assert_eq!(state(bad)["state"], "failed", "{report}");
        self.assert_sound(good, &label);
        // Only what came after its commit may be what failed: then it is there, and whole.
        if self.complete(bad).contains(&label) {
            self.assert_sound(bad, &label);
        }
        (label, state(bad)["error"].clone())
    }
}

fn label(ran: &Ran) -> String {
    assert_eq!(ran.code, Some(0), "{ran}");
    ran.json()["label"].as_str().unwrap().to_owned()
}

/// Every object of the set `label` below `directory`, without where it lies.
fn objects(directory: &Path, label: &str) -> Vec<(String, Vec<u8>)> {
    let files = files_below(&directory.join("main/sets").join(label));
    files.iter().map(|path| (path.file_name().unwrap().display().to_string(), std::fs::read(path).unwrap())).collect()
}

#[test]
fn two_repositories_get_the_same_bytes_and_either_restores_alone() {
    let two = Two::new("two_repos");
    let (directory, bucket) = (two.directory(), two.bucket());
    let full = label(&two.backup([&directory, &bucket], &[]));
    let incremental = label(&two.backup([&bucket, &directory], &["--type", "incr"]));
    for made in [&full, &incremental] {
        let here = objects(&two.place.repo(), made);
        assert!(here.len() >= 4, "{}", here.len());
        assert!(here == objects(&two.server.bucket_directory("repo"), made), "{made}");
    }
    std::fs::remove_dir_all(two.place.repo()).unwrap();
    let target = two.place.directory.join("target");
    let ran = two.run(&["restore", "main", "--repo", &bucket, "--target-dir", &target.display().to_string()]);
    assert_eq!(ran.code, Some(0), "{ran}");
    two.place.assert_whole(&target);
    two.place.assert_starts_whole(&target);
}

#[test]
fn f08_a_repository_that_fails_at_any_request_does_not_fail_the_other() {
    let two = Two::new("half_of_two");
    let (directory, bucket) = (two.directory(), two.bucket());
    let earlier = label(&two.backup([&directory, &bucket], &[]));
    two.server.faults.disarm();
    let second = label(&two.backup([&directory, &bucket], &[]));
    let request_count = two.server.faults.disarm();
    let mut random = Random::for_test("half_of_two");
    let mut failed_count = 0;
    for (round, fault) in S3_FAULTS.into_iter().cycle().take(6 * sample_size(1).min(request_count)).enumerate() {
        let at = random.below(request_count);
        eprintln!("{fault:?} from request {at} of {request_count}");
        let repos = if round % 2 == 0 { [&*directory, &bucket] } else { [&*bucket, &directory] };
        two.server.faults.arm(fault, at..usize::MAX);
        let ran = two.backup(repos, &[]);
        two.server.faults.disarm();
        if ran.code != Some(0) {
            failed_count += 1;
            two.label_of_half(&ran, &directory, &bucket);
        }
        two.server.age(Duration::from_secs(90));
        let next = label(&two.backup(repos, &[]));
        two.assert_sound(&bucket, &next);
    }
    assert!(failed_count > 0, "none failed");
    for label in [&earlier, &second] {
        two.assert_sound(&bucket, label);
        two.assert_sound(&directory, label);
    }
    let unfinished = |path: &PathBuf| path.display().to_string().contains("in-progress") || path.ends_with("plan.json");
    assert!(!files_below(&two.server.bucket_directory("repo")).iter().any(unfinished));
}

#[test]
fn a_full_disk_of_one_repository_does_not_fail_the_other() {
    let two = Two::new("full_of_two");
    let (directory, bucket) = (two.directory(), two.bucket());
    let Some(disk) = SmallDisk::mount(&two.place.repo(), "size=2M") else { return };
    for repos in [[&*directory, &bucket], [&*bucket, &directory]] {
        let (_, error) = two.label_of_half(&two.backup(repos, &[]), &bucket, &directory);
        assert!(error.as_str().unwrap().contains("No space left"), "{error}");
    }
    assert_eq!(two.complete(&directory), Vec::<String>::new());
    disk.resize("size=64M");
    let both = label(&two.backup([&directory, &bucket], &[]));
    two.assert_sound(&directory, &both);
    two.assert_sound(&bucket, &both);
}

#[test]
fn f11_a_repository_of_another_cluster_is_left_out() {
    let two = Two::new("foreign_of_two");
    let (directory, bucket) = (two.directory(), two.bucket());
    label(&two.backup([&directory, &bucket], &[]));
    let fence = two.server.bucket_directory("repo").join("main/identity-0001.json");
    let text = std::fs::read_to_string(&fence).unwrap();
    let own: Value = serde_json::from_str(&text).unwrap();
    std::fs::write(&fence, text.replace(own["system_identifier"].as_str().unwrap(), "7000000000000000001")).unwrap();
    let before = files_below(&two.server.bucket_directory("repo"));
    let ran = two.backup([&directory, &bucket], &[]);
    let (_, error) = two.label_of_half(&ran, &directory, &bucket);
    assert!(error.as_str().unwrap().contains("belongs to another cluster"), "{error}");
    assert_eq!(files_below(&two.server.bucket_directory("repo")), before, "nothing of ours stays there");
}

#[test]
fn an_incremental_goes_where_its_prior_is() {
    let two = Two::new("prior_of_two");
    let (directory, bucket) = (two.directory(), two.bucket());
    label(&two.backup([&directory, &bucket], &[]));
    let only_here = two.place.backup_label(&two.place.backup_arguments());
    let ran = two.backup([&directory, &bucket], &["--type", "incr"]);
    let (_, error) = two.label_of_half(&ran, &directory, &bucket);
    assert!(error.as_str().unwrap().contains(&only_here), "{error}");
    assert_eq!(two.complete(&bucket).len(), 1);
}

#[test]
fn a_repository_given_twice_or_beside_stripes_elsewhere_is_refused() {
    let two = Two::new("same_twice");
    let (directory, bucket) = (two.directory(), two.bucket());
    two.backup([&directory, &directory], &[]).assert_error(2, &["two of them are the same"]);
    let other_way = format!("{bucket}&parallel=2");
    two.backup([&bucket, &other_way], &[]).assert_error(2, &["two of them are the same"]);
    let link = two.place.repo().with_file_name("link");
    std::os::unix::fs::symlink(&directory, &link).unwrap();
    two.backup([&directory, link.to_str().unwrap()], &[]).assert_error(2, &["two of them are the same"]);
    two.backup([&directory, "NUL"], &[]).assert_error(2, &["NUL keeps nothing"]);
    two.backup([&directory, &bucket], &["--stripe-to", "/nowhere"]).assert_error(2, &["--stripe-to"]);
    two.server.faults.arm(S3Fault::Reset, 0..usize::MAX);
    let ran = two.backup([&bucket, &directory], &[]);
    two.server.faults.disarm();
    assert_eq!(ran.code, Some(30), "a repository that is away from the beginning: {ran}");
    assert_eq!(two.complete(&directory).len(), 1);
}
