//! A network that is cut, for a while or for good, that drips, or that has forgotten a name.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pagehaul_testkit::forwarder::{Cut, Drip, Forwarder, Manner};
use pagehaul_testkit::s3_server::S3Server;

use super::bench::{Place, Ran};

/// Longer than a request waits, shorter than its attempts together.
const A_WHILE: Duration = Duration::from_secs(2);
/// Longer than a test takes.
const FOR_GOOD: Duration = Duration::from_secs(3600);
/// By then a command has given up what does not come, with the time-outs below.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(90);

/// A store behind a line, and a place.
struct Scene {
    place: Place,
    server: S3Server,
}

impl Scene {
    fn new(name: &str) -> Self {
        Scene { place: Place::new(name), server: S3Server::start(&["repo"]) }
    }

    fn way(&self, manner: &Manner<'_>) -> Forwarder {
        Forwarder::start(&self.server.endpoint(), manner).unwrap()
    }

    fn target(way: &Forwarder, retries: u32) -> String {
        format!("s3://repo?endpoint=http://{}&part-size=5MiB&timeout=1s&retries={retries}", way.address())
    }

    /// Two parts for each stripe.
    fn backup(&self, repo: &str) -> Ran {
        let arguments = self.place.backup_arguments_to(repo);
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.run(&[&words[..], &["--compression", "none", "--stripes", "4", "--json"]].concat())
    }

    fn run(&self, words: &[&str]) -> Ran {
        Ran::of(self.place.pagehaul(words).envs(self.server.environment()))
    }

    fn restore(&self, repo: &str, to: &str) -> Ran {
        let target = self.place.directory.join(to).display().to_string();
        self.run(&["restore", "main", "--repo", repo, "--target-dir", &target, "--json"])
    }

    fn assert_sound(&self, set: &Ran) {
        assert_eq!(set.code, Some(0), "{set}");
        let label = set.json()["label"].as_str().unwrap().to_owned();
        let ran = self.run(&["verify", "main", "--repo", &self.server.target("repo"), "--set", &label]);
        assert_eq!(ran.code, Some(0), "{ran}");
    }

    fn complete_sets(&self) -> usize {
        let ran = self.run(&["info", "--json", "--repo", &self.server.target("repo")]);
        assert_eq!(ran.code, Some(0), "{ran}");
        let sets = ran.json()[0]["sets"].as_array().unwrap().clone();
        sets.iter().filter(|set| set["state"] == "complete").count()
    }
}

fn carried(way: &Forwarder) -> u64 {
    way.bytes() + way.bytes_back()
}

#[test]
fn f23_a_line_to_the_store_that_is_cut_for_a_while_costs_time_and_no_second_read() {
    let scene = Scene::new("f23_while");
    let whole = scene.way(&Manner::default());
    let first = scene.backup(&Scene::target(&whole, 5));
    scene.assert_sound(&first);
    let bytes = |ran: &Ran, key: &str| ran.json()[key].as_u64().unwrap();
    // Others of the bench write WAL, now more, now less.
    let least = bytes(&first, "stored_bytes") - (bytes(&first, "wal_segment_count") << 20);
    // At its begin, amid the content, and near its end.
    for percent in [1, 50, 100] {
        let cut = Some(Cut { after_bytes: least * percent / 100, lasts: A_WHILE });
        let way = scene.way(&Manner { cut, ..Manner::default() });
        let ran = scene.backup(&Scene::target(&way, 5));
        assert!(way.was_cut(), "{percent}");
        scene.assert_sound(&ran);
        assert!(bytes(&ran, "read_bytes") <= bytes(&ran, "source_bytes"), "{percent}: {ran}");
    }
    let restore = |way: &Forwarder, to: &str| {
        let target = scene.place.directory.join(to).display().to_string();
        let repo = Scene::target(way, 5);
        scene.run(&["restore", "main", "--repo", &repo, "--target-dir", &target, "--readers", "2", "--json"])
    };
    let whole = scene.way(&Manner::default());
    assert_eq!(restore(&whole, "whole").code, Some(0));
    let cut = Some(Cut { after_bytes: carried(&whole) / 2, lasts: A_WHILE });
    let way = scene.way(&Manner { cut, ..Manner::default() });
    let ran = restore(&way, "cut");
    assert!(ran.code == Some(0) && way.was_cut(), "{ran}");
    scene.place.assert_whole(&scene.place.directory.join("cut"));
    // What had arrived was not asked for again, but for what was under way: with two readers two answers of 4 MiB.
    assert!(way.bytes_back() < whole.bytes_back() + (9 << 20), "{} and {}", way.bytes_back(), whole.bytes_back());
}

#[test]
fn f23_a_line_to_the_store_that_stays_cut_is_named_in_time_and_harms_nothing() {
    let scene = Scene::new("f23_good");
    let whole = scene.way(&Manner::default());
    // A machine that is busy with other tests lets a part wait for more than its second, too.
    let earlier = scene.backup(&Scene::target(&whole, 8));
    scene.assert_sound(&earlier);
    for percent in [0, 50] {
        let cut = Some(Cut { after_bytes: carried(&whole) * percent / 100, lasts: FOR_GOOD });
        let way = scene.way(&Manner { cut, ..Manner::default() });
        let started = Instant::now();
        let ran = scene.backup(&Scene::target(&way, 1));
        assert!(started.elapsed() < GIVEN_UP_WITHIN, "{percent}: {:?}: {ran}", started.elapsed());
        ran.assert_error(30, &["127.0.0.1", "\nhint: "]);
        assert_eq!(scene.complete_sets(), 1, "{percent}");
    }
    scene.assert_sound(&earlier);
    // Who reads is not told that what could not be asked for is damaged.
    let cut = || scene.way(&Manner { cut: Some(Cut { after_bytes: 8 << 20, lasts: FOR_GOOD }), ..Manner::default() });
    let started = Instant::now();
    scene.restore(&Scene::target(&cut(), 1), "cut").assert_error(30, &["127.0.0.1", "\nhint: "]);
    scene.run(&["verify", "main", "--repo", &Scene::target(&cut(), 1)]).assert_error(30, &["127.0.0.1", "\nhint: "]);
    assert!(started.elapsed() < GIVEN_UP_WITHIN, "{:?}", started.elapsed());
}

#[test]
fn f23_f25_a_store_of_stripes_that_does_not_answer_is_made_up_for_by_parity() {
    let scene = Scene::new("f23_parity");
    let other = S3Server::start(&["repo"]);
    let quick = |server: &S3Server| format!("{}&timeout=1s&retries=1", server.target("repo"));
    let repo = scene.place.repo().display().to_string();
    let (here, there) = (quick(&scene.server), quick(&other));
    let to = ["--stripes", "2", "--stripe-to", &here, "--stripe-to", &there, "--parity", "1", "--parity-to", &repo];
    let arguments = scene.place.backup_arguments();
    let made = scene.run(&[&arguments.iter().map(String::as_str).collect::<Vec<_>>()[..], &to, &["--json"]].concat());
    assert_eq!(made.code, Some(0), "{made}");
    drop(other);
    let verified = scene.run(&["verify", "main", "--repo", &repo]);
    assert!(verified.code == Some(40) && verified.stderr.contains("DEGRADED"), "{verified}");
    let restored = scene.restore(&repo, "degraded");
    assert!(restored.code == Some(0) && restored.json()["repaired_frame_count"].as_u64() > Some(0), "{restored}");
    scene.place.assert_whole(&scene.place.directory.join("degraded"));
    scene.run(&["repair", "main", "--repo", &repo]).assert_error(30, &["127.0.0.1", "\nhint: "]);
    let to = scene.place.directory.join("copy").display().to_string();
    let copied = scene.run(&["copy", "main", "--repo", &repo, "--to", &to]);
    assert_eq!(copied.code, Some(0), "{copied}");
    assert_eq!(scene.run(&["verify", "main", "--repo", &to]).code, Some(0));
    // Two are more than parity gives back, and neither is lost.
    let Scene { place, server } = scene;
    let environment = server.environment();
    drop(server);
    let target = place.directory.join("neither").display().to_string();
    for words in [&["verify", "main"][..], &["restore", "main", "--target-dir", &target]] {
        let mut command = place.pagehaul(&[words, &["--repo", &repo]].concat());
        Ran::of(command.envs(environment)).assert_error(30, &["127.0.0.1", "\nhint: "]);
    }
}

#[test]
fn f23_f61_answers_that_drip_are_asked_for_again_elsewhere() {
    let scene = Scene::new("f23_drip");
    let whole = scene.way(&Manner::default());
    assert_eq!(scene.backup(&Scene::target(&whole, 2)).code, Some(0));
    let drip = |after_bytes, is_lasting| Manner { drip: Some(Drip { after_bytes, is_lasting }), ..Manner::default() };
    // Connections that exist drip from then on, new ones do not. A backup's answers are short.
    let amid_backup = whole.bytes_back() / 2;
    let way = scene.way(&drip(amid_backup, false));
    scene.assert_sound(&scene.backup(&Scene::target(&way, 2)));
    let way = scene.way(&drip(2 << 20, false));
    let ran = scene.restore(&Scene::target(&way, 2), "again");
    assert_eq!(ran.code, Some(0), "{ran}");
    scene.place.assert_whole(&scene.place.directory.join("again"));
    let started = Instant::now();
    let way = scene.way(&drip(2 << 20, true));
    scene.restore(&Scene::target(&way, 2), "never").assert_error(30, &["127.0.0.1", "\nhint: "]);
    assert!(started.elapsed() < GIVEN_UP_WITHIN, "{:?}", started.elapsed());
    let started = Instant::now();
    let way = scene.way(&drip(amid_backup, true));
    scene.backup(&Scene::target(&way, 2)).assert_error(30, &["127.0.0.1", "\nhint: "]);
    assert!(started.elapsed() < GIVEN_UP_WITHIN, "{:?}", started.elapsed());
    assert_eq!(scene.complete_sets(), 2);
}

#[test]
fn f23_a_server_that_vanishes_is_noticed_and_one_that_comes_back_goes_on() {
    let place = Place::new("f23_server");
    let socket = place.bench.cluster.server.connect_settings().socket_path().display().to_string();
    let start = |cut| Forwarder::start(&socket, &Manner { cut, ..Manner::default() }).unwrap();
    let backup = |way: &Forwarder| {
        let connection = format!(
            "host=127.0.0.1 port={} user=f23_server keepalives_idle=1 keepalives_interval=1 keepalives_count=4",
            way.address().port()
        );
        let repo = place.repo().display().to_string();
        Ran::of(&mut place.pagehaul(&[
            "backup",
            "main",
            "--remote",
            "--connection",
            &connection,
            "--repo",
            &repo,
            "--json",
        ]))
    };
    let whole = start(None);
    let earlier = backup(&whole);
    assert_eq!(earlier.code, Some(0), "{earlier}");
    let middle = carried(&whole) / 2;
    let way = start(Some(Cut { after_bytes: middle, lasts: Duration::from_secs(2) }));
    let ran = backup(&way);
    assert!(ran.code == Some(0) && way.was_cut(), "{ran}");
    place.assert_sound(ran.json()["label"].as_str().unwrap());
    let complete = place.complete_sets();
    for after_bytes in [1000, middle] {
        let way = start(Some(Cut { after_bytes, lasts: FOR_GOOD }));
        let started = Instant::now();
        let ran = backup(&way);
        ran.assert_error(20, &["127.0.0.1", "\nhint: "]);
        assert!(started.elapsed() < GIVEN_UP_WITHIN, "{after_bytes}: {:?}", started.elapsed());
        drop(way);
        assert_eq!(place.complete_sets(), complete);
        place.assert_no_leftovers();
        place.assert_server_is_free();
    }
}

/// The command where names are those of `hosts`, whatever the machine knows; None if this machine lets nobody do that.
fn with_names(scene: &Scene, hosts: &Path, words: &[&str]) -> Option<Command> {
    let order = hosts.with_extension("order");
    std::fs::write(&order, "hosts: files\npasswd: files\ngroup: files\n").unwrap();
    let mut unshare = vec!["--mount"];
    if !rustix::process::geteuid().is_root() {
        unshare.push("--map-root-user");
    }
    let bound = "mount --bind \"$0\" /etc/hosts && mount --bind \"$1\" /etc/nsswitch.conf && shift && exec \"$@\"";
    let start = |program: &str, words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(&unshare).args(["sh", "-c", bound]).arg(hosts).arg(&order).arg(program).args(words);
        scene.place.tidy_environment(&mut command);
        command.envs(scene.server.environment());
        command
    };
    if !start("true", &[]).output().is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: nobody here may give a command names of its own (unshare --mount)");
        return None;
    }
    Some(start(env!("CARGO_BIN_EXE_pagehaul"), words))
}

#[test]
fn f23_a_name_that_is_not_known_for_a_while_is_asked_for_again() {
    let scene = Scene::new("f23_names");
    let port = scene.server.endpoint().rsplit(':').next().unwrap().to_owned();
    let hosts = scene.place.directory.join("hosts");
    std::fs::write(&hosts, "127.0.0.1 localhost\n").unwrap();
    let target = |retries: u32| format!("s3://repo?endpoint=http://store.invalid:{port}&timeout=5s&retries={retries}");
    let words = scene.place.backup_arguments_to(&target(1));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let Some(mut command) = with_names(&scene, &hosts, &words) else { return };
    Ran::of(&mut command).assert_error(30, &["store.invalid", "\nhint: "]);
    let words = [scene.place.backup_arguments_to(&target(6)), vec!["--json".to_owned()]].concat();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = with_names(&scene, &hosts, &words).unwrap();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    // In its place: another file of that name would be another one.
    std::fs::write(&hosts, "127.0.0.1 localhost store.invalid\n").unwrap();
    scene.assert_sound(&Ran::from(child.wait_with_output().unwrap()));
}
