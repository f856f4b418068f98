//! Ways to a store: over TLS, only if its certificate is of an authority that is trusted, for its name, and valid; through a
//! proxy; over IPv6; over several endpoints; slowly.

use std::path::Path;
use std::time::{Duration, Instant};

use pagehaul_testkit::certificates::{Certificate, make_authority};
use pagehaul_testkit::forwarder::{Forwarder, Manner};
use pagehaul_testkit::role_server::RoleServer;
use pagehaul_testkit::s3_faults::S3Fault;
use pagehaul_testkit::s3_server::{ACCESS_KEY, ROLE_PREFIX, S3Server, SECRET_KEY};

use super::bench::{Place, Ran};

/// A certificate for `names` by `authority`, for so many days.
fn certificate(directory: &Path, authority: &str, name: &str, names: &str, days: i32) {
    Certificate { name, subject: name, extension: &format!("subjectAltName={names}"), days }.make(directory, authority);
}

#[test]
fn s09_a_store_is_only_believed_with_a_certificate_that_is_right() {
    let place = Place::new("s09_certificates");
    let made = tempfile::tempdir().unwrap();
    let directory = made.path();
    ["ours", "theirs"].iter().for_each(|name| make_authority(directory, name));
    certificate(directory, "ours", "right", "IP:127.0.0.1", 30);
    certificate(directory, "ours", "elsewhere", "DNS:elsewhere.example", 30);
    certificate(directory, "theirs", "stranger", "IP:127.0.0.1", 30);
    certificate(directory, "ours", "expired", "IP:127.0.0.1", -1);
    let file = |name: &str| directory.join(name);
    let ask = |server: &S3Server, endpoint: &str, authority: Option<&str>| {
        let option = authority.map(|name| format!("&ca-file={}", file(name).display())).unwrap_or_default();
        let repo = format!("s3://repo?endpoint={endpoint}&timeout=3s&retries=1{option}");
        let arguments = place.backup_arguments_to(&repo);
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Ran::of(place.pagehaul(&words).envs(server.environment()))
    };
    let start = |name: &str| {
        let (certificate, key) = (file(&format!("{name}.crt")), file(&format!("{name}.key")));
        S3Server::start_with_tls(&["repo"], &certificate, &key)
    };
    let right = start("right");
    let ran = ask(&right, &right.endpoint(), Some("ours.crt"));
    assert_eq!(ran.code, Some(0), "{ran}");
    assert!(right.bucket_directory("repo").join("main").exists());
    let refused = |ran: &Ran, cause: &str| {
        ran.assert_error(30, &["certificate", "\nhint: "]);
        assert!(ran.stderr.contains(cause), "{cause:?} is not in {ran}");
    };
    refused(&ask(&right, &right.endpoint(), None), "UnknownIssuer");
    for (name, cause) in [("elsewhere", "not valid for name"), ("stranger", "UnknownIssuer"), ("expired", "Expired")] {
        let server = start(name);
        refused(&ask(&server, &server.endpoint(), Some("ours.crt")), cause);
        assert_eq!(
            std::fs::read_dir(server.bucket_directory("repo")).unwrap().count(),
            0,
            "{name}: it was sent something"
        );
    }
    // Who asks for TLS does not go on without.
    let clear = S3Server::start(&["repo"]);
    let ran = ask(&clear, &clear.endpoint().replace("http:", "https:"), Some("ours.crt"));
    ran.assert_error(30, &["\nhint: "]);
    assert_eq!(std::fs::read_dir(clear.bucket_directory("repo")).unwrap().count(), 0);
}

fn backup_to(place: &Place, server: &S3Server, repo: &str, environment: &[(&str, &str)]) -> Ran {
    let mut arguments = place.backup_arguments_to(repo);
    arguments.extend(["--json", "--stripes", "4"].map(str::to_owned));
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Ran::of(place.pagehaul(&words).envs(server.environment()).envs(environment.iter().copied()))
}

#[test]
fn a_proxy_of_the_environment_is_the_way_to_a_store_that_only_it_knows() {
    let place = Place::new("proxy");
    let made = tempfile::tempdir().unwrap();
    make_authority(made.path(), "ours");
    certificate(made.path(), "ours", "store", "DNS:store.example", 30);
    let file = |name: &str| made.path().join(name);
    let server = S3Server::start_with_tls(&["repo"], &file("store.crt"), &file("store.key"));
    let manner = Manner { proxy_for: Some("store.example"), ..Manner::default() };
    let forwarder = Forwarder::start(&server.endpoint(), &manner).unwrap();
    let proxy = format!("http://{}", forwarder.address());
    let authority = file("ours.crt").display().to_string();
    let repo = "s3://repo?endpoint=https://store.example:9000&timeout=3s&retries=1";
    let environment = [("HTTPS_PROXY", proxy.as_str()), ("AWS_CA_BUNDLE", &authority)];
    let ran = backup_to(&place, &server, repo, &environment);
    assert_eq!(ran.code, Some(0), "{ran}");
    assert!(forwarder.connections() > 0);
    backup_to(&place, &server, repo, &environment[1..]).assert_error(30, &["store.example", "\nhint: "]);
}

#[test]
fn a_store_is_reached_over_ipv6() {
    let server = S3Server::start(&["repo"]);
    let Some(forwarder) = Forwarder::start(&server.endpoint(), &Manner { listen: "[::1]:0", ..Manner::default() })
    else {
        eprintln!("SKIPPED: this machine has no IPv6: stores are only reached over IPv4");
        return;
    };
    let place = Place::new("ipv6");
    let ran = backup_to(&place, &server, &format!("s3://repo?endpoint=http://{}", forwarder.address()), &[]);
    assert_eq!(ran.code, Some(0), "{ran}");
    assert!(forwarder.connections() > 0);
}

#[test]
fn f61_an_endpoint_that_goes_away_leaves_its_work_to_the_others() {
    let (place, server) = (Place::new("f61_endpoints"), S3Server::start(&["repo"]));
    let start = |dies_after_bytes| {
        Forwarder::start(&server.endpoint(), &Manner { dies_after_bytes, ..Manner::default() }).unwrap()
    };
    let target = |ways: &[&Forwarder]| {
        let options: Vec<String> = ways.iter().map(|way| format!("endpoint=http://{}", way.address())).collect();
        format!("s3://repo?{}&part-size=5MiB&retries=2", options.join("&"))
    };
    let (one, two) = (start(u64::MAX), start(u64::MAX));
    let both = target(&[&one, &two]);
    let ran = backup_to(&place, &server, &both, &[]);
    assert_eq!(ran.code, Some(0), "{ran}");
    let total = one.bytes() + two.bytes();
    assert!(one.bytes().min(two.bytes()) > total / 10, "{} and {}", one.bytes(), two.bytes());
    let weak = start(total / 16);
    let ran = backup_to(&place, &server, &target(&[&weak, &two]), &[]);
    assert_eq!(ran.code, Some(0), "{ran}");
    assert!(weak.is_gone(), "it carried {} bytes only", weak.bytes());
    // Recorded places of sets are those that were named, and one that is left suffices to read.
    drop((one, weak));
    let words = ["verify", "main", "--repo", &both];
    let verified = Ran::of(place.pagehaul(&words).envs(server.environment()));
    assert_eq!(verified.code, Some(0), "{verified}");
}

#[test]
fn f61_a_store_that_is_far_slower_costs_time_alone() {
    let (place, server) = (Place::new("f61_slow"), S3Server::start(&["repo"]));
    let repo = server.target("repo");
    assert_eq!(backup_to(&place, &server, &repo, &[]).code, Some(0));
    server.faults.arm(S3Fault::Slow, 0..usize::MAX);
    let ran = backup_to(&place, &server, &repo, &[]);
    assert_eq!(ran.code, Some(0), "{ran}");
    server.faults.disarm();
    let words = ["verify", "main", "--repo", &repo];
    let verified = Ran::of(place.pagehaul(&words).envs(server.environment()));
    assert_eq!(verified.code, Some(0), "{verified}");
}

#[test]
fn f61_who_waits_for_an_answer_that_does_not_come_says_so() {
    let (place, server) = (Place::new("f61_stuck"), S3Server::start(&["repo"]));
    assert_eq!(backup_to(&place, &server, &server.target("repo"), &[]).code, Some(0));
    // The answer is given up a little after it has been told of.
    let repo = format!("{}&timeout=35s", server.target("repo"));
    let restore = |to: &str| {
        let target = place.directory.join(to).display().to_string();
        let words = ["restore", "main", "--quiet", "--repo", &repo, "--target-dir", &target];
        Ran::of(place.pagehaul(&words).envs(server.environment()))
    };
    server.faults.disarm();
    let ran = restore("quick");
    assert!(ran.code == Some(0) && !ran.stderr.contains("waiting"), "{ran}");
    // The last six requests give the lease back, the ten before are for content.
    let content = server.faults.disarm() - 10;
    server.faults.arm(S3Fault::Stall, content..content + 1);
    let ran = restore("stuck");
    assert_eq!(ran.code, Some(0), "{ran}");
    let told: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("waiting: ")).collect();
    let is_told =
        matches!(told[..], [first, then] if first.contains("read stripe") && then.contains("is asked again (1 of 6)"));
    assert!(is_told, "{ran}");
}

#[test]
fn f61_who_looks_at_a_store_that_is_not_there_hears_that_it_is_asked_again() {
    let place = Place::new("f61_told_at_once");
    let server = S3Server::start(&["repo"]);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let info = |repo: &str, more: &[&str]| {
        let words = [&["info", "--repo", repo, "--json"], more].concat();
        Ran::of(place.pagehaul(&words).envs(server.environment()))
    };
    let away = format!("s3://repo?endpoint=http://{nobody}");
    let ran = info(&format!("{away}&retries=4"), &["--quiet"]);
    assert_eq!(ran.code, Some(30), "{ran}");
    let told = format!("waiting: {away}&retries=4 is asked again (4 of 4), after ");
    assert_eq!(ran.stderr.matches("waiting:").count(), 1, "{ran}");
    assert!(ran.stderr.contains(&told) && ran.stderr.contains("refused"), "{ran}");
    // What is over in a moment is not worth a word.
    assert!(!info(&format!("{away}&retries=2"), &[]).stderr.contains("waiting:"));
    let ran = info(&server.target("nobucket"), &[]);
    ran.assert_error(30, &["NoSuchBucket", "\nhint: make the bucket first"]);
}

#[test]
fn a_target_keeps_to_the_rate_that_it_names() {
    let (place, server) = (Place::new("rate"), S3Server::start(&["repo"]));
    let repo = format!("throttle:write=10MB/s:{}", server.target("repo"));
    let started = Instant::now();
    let ran = backup_to(&place, &server, &repo, &[]);
    assert_eq!(ran.code, Some(0), "{ran}");
    // At most: what waits elsewhere comes on top.
    let seconds = ran.json()["stored_bytes"].as_f64().unwrap() / 10e6;
    assert!(started.elapsed().as_secs_f64() > seconds * 0.9, "{seconds}: {ran}");
}

/// Where the store's own tools keep credentials, ours are found too. With several endpoints requests are signed elsewhere.
#[test]
fn f60_credentials_come_from_a_profile() {
    let (place, server) = (Place::new("f60_profiles"), S3Server::start(&["repo"]));
    let keys = place.directory.join("keys");
    let profile = |name: &str, secret: &str| {
        format!("[{name}]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {secret}\n")
    };
    std::fs::write(&keys, profile("default", "another-secret") + &profile("kept", SECRET_KEY)).unwrap();
    let one = server.target("repo");
    let two = format!("{one}&endpoint={}", server.endpoint().replace("127.0.0.1", "localhost"));
    for repo in [one, two] {
        let ran = |profile: &str| {
            let words: Vec<String> = place.backup_arguments_to(&repo);
            let words: Vec<&str> = words.iter().map(String::as_str).chain(["--json"]).collect();
            let mut command = place.pagehaul(&words);
            command.env("AWS_SHARED_CREDENTIALS_FILE", &keys).env("AWS_PROFILE", profile);
            Ran::of(command.env("AWS_EC2_METADATA_DISABLED", "true"))
        };
        let kept = ran("kept");
        assert_eq!(kept.code, Some(0), "{repo}: {kept}");
        let refused = ran("default");
        refused.assert_error(30, &["credentials"]);
        assert!(!refused.stderr.contains("another-secret"), "{refused}");
    }
}

/// A machine or a container has no keys but those of its role, which end while a backup runs: others are fetched in time. With several
/// endpoints requests are signed elsewhere.
#[test]
fn f60_credentials_of_a_role_are_renewed_during_a_backup() {
    let (place, server) = (Place::new("f60_role"), S3Server::start(&["repo"]));
    // They are renewed two minutes before they end.
    let role = RoleServer::start(Duration::from_millis(120_500));
    let slowly = |target: &str| format!("throttle:write=1MB/s:{target}");
    let one = server.target("repo");
    let two = format!("{one}&endpoint={}", server.endpoint().replace("127.0.0.1", "localhost"));
    let back_up = |repo: &str, (variable, value): (&str, String)| {
        let words = place.backup_arguments_to(repo);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Ran::of(place.pagehaul(&words).env(variable, value))
    };
    for (repo, variable) in [(&one, role.of_a_container()), (&one, role.of_a_machine()), (&two, role.of_a_machine())] {
        let ran = back_up(&slowly(repo), variable);
        assert_eq!(ran.code, Some(0), "{ran}");
        assert!(!ran.stderr.contains(SECRET_KEY), "{ran}");
        let signers = server.signers();
        let are_of_the_role = signers.iter().all(|key| key.starts_with(ROLE_PREFIX));
        assert!(signers.len() > 1 && are_of_the_role, "{repo}: {signers:?}");
    }
    // Who gives them is away when they are to be renewed, and the last ones are good for two minutes more, or for no more than what each
    // request wants.
    let brief = RoleServer::start(Duration::from_secs(12));
    for repo in [&one, &two] {
        role.give(1);
        let ran = back_up(&slowly(repo), role.of_a_machine());
        assert_eq!(ran.code, Some(0), "{ran}");
        server.signers();
        brief.give(1);
        let ran = back_up(&slowly(repo), brief.of_a_machine());
        ran.assert_error(30, &["credential", "\nhint: there are no credentials"]);
        assert!(!server.signers().is_empty(), "it had begun: {ran}");
    }
    role.give(0);
    for variable in [role.of_a_container(), role.of_a_machine()] {
        back_up(&one, variable).assert_error(30, &["credential", "\nhint: there are no credentials"]);
    }
    let verified = Ran::of(place.pagehaul(&["verify", "main", "--repo", &one]).envs(server.environment()));
    assert_eq!(verified.code, Some(0), "{verified}");
}
