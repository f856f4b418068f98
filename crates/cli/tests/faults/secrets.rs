//! Secrets that were given to the command stay with it: in no argument, no environment of what it starts, no text, no log and
//! no object.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use pagehaul_testkit::damage::files_below;
use pagehaul_testkit::s3_server::{S3Server, SECRET_KEY};

use super::bench::{Place, Ran};

/// In the environment; nobody else has them.
const PASSWORD: &str = "canary-4711-of-a-server";
const ACCOUNT_KEY: &str = "canary-4712-of-an-account";
/// In a file.
const PASSPHRASE: &str = "canary-4713 of a passphrase";

/// Looks at all processes of this machine until it is told to stop; what shows one of `secrets` where it must not.
fn watch(secrets: &[&str], stop: &AtomicBool) -> Vec<String> {
    let own = std::env::current_exe().unwrap();
    let mut found = Vec::new();
    while !stop.load(SeqCst) {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        for process in processes.filter(|entry| entry.file_name().to_string_lossy().starts_with(char::is_numeric)) {
            // Whoever has gone meanwhile shows nothing.
            let text = |name: &str| {
                String::from_utf8_lossy(&std::fs::read(process.path().join(name)).unwrap_or_default())
                    .replace('\0', " ")
            };
            let program: PathBuf = std::fs::read_link(process.path().join("exe")).unwrap_or_default();
            let mut shown = vec![("arguments", text("cmdline"))];
            // They were given to the command itself, by this process.
            if program != own && program.file_name().is_none_or(|name| name != "pagehaul") {
                shown.push(("environment", text("environ")));
            }
            for (place, text) in shown {
                if let Some(secret) = secrets.iter().find(|secret| text.contains(**secret)) {
                    found.push(format!("{secret} in the {place} of {}", program.display()));
                }
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    found
}

/// A place whose secrets are in use: in the environment, in files, and of a store.
struct Scene {
    place: Place,
    server: S3Server,
    repo: String,
    secrets: Vec<String>,
    recipient: String,
}

impl Scene {
    fn new() -> Self {
        let (place, server) = (Place::new("s01_secrets"), S3Server::start(&["repo"]));
        let identity = place.directory.join("identity");
        let made = Ran::of(&mut place.pagehaul(&["key", "new", "--output", &identity.display().to_string()]));
        assert_eq!(made.code, Some(0), "{made}");
        let key = std::fs::read_to_string(&identity).unwrap();
        let secret = key.lines().find(|line| line.starts_with("AGE-SECRET-KEY-1")).unwrap();
        let recipient = key.split_whitespace().find(|word| word.starts_with("age1")).unwrap().to_owned();
        let passphrase = place.directory.join("passphrase");
        std::fs::write(&passphrase, PASSPHRASE).unwrap();
        std::fs::set_permissions(&passphrase, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let secrets = [SECRET_KEY, PASSWORD, ACCOUNT_KEY, PASSPHRASE, secret].map(str::to_owned).to_vec();
        let repo = server.target("repo");
        Scene { place, server, repo, secrets, recipient }
    }

    fn path(&self, name: &str) -> String {
        self.place.directory.join(name).display().to_string()
    }

    /// Hooks that write down their environment.
    fn write_settings(&self, more: &str) {
        let hook = |moment: &str| format!("{moment} = [\"sh\", \"-c\", \"env >> {}\"]\n", self.path("hooked"));
        let settings = format!("[hooks]\n{more}{}{}", hook("before-backup"), hook("after-prove"));
        std::fs::write(self.place.directory.join("pagehaul.toml"), settings).unwrap();
    }

    /// Runs the command, and looks for the secrets in all that it says.
    fn run(&self, words: &[&str]) -> Ran {
        let mut command = self.place.pagehaul(words);
        command.envs(self.server.environment()).env("PAGEHAUL_HISTORY", self.path("history"));
        let ran = Ran::of(command.env("PGPASSWORD", PASSWORD).env("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY));
        self.assert_hidden(&format!("what {words:?} says"), &format!("{}{}", ran.stdout, ran.stderr));
        ran
    }

    fn run_well(&self, words: &[&str]) {
        let ran = self.run(words);
        assert_eq!(ran.code, Some(0), "{ran}");
    }

    fn backup(&self, flags: &[&str]) {
        let arguments = self.place.backup_arguments_to(&self.repo);
        self.run_well(&[&arguments.iter().map(String::as_str).collect::<Vec<_>>()[..], flags].concat());
    }

    fn assert_hidden(&self, place: &str, text: &str) {
        let shown = self.secrets.iter().find(|secret| text.contains(&***secret));
        assert!(shown.is_none(), "{shown:?} is in {place}: {text}");
    }

    /// Whatever has to do with secrets, and some of it in vain.
    fn do_everything(&self) {
        let (identity, passphrase) = (self.path("identity"), self.path("passphrase"));
        let bin = self.place.bench.cluster.server.install().bin_directory().display().to_string();
        self.backup(&["--recipient", &self.recipient, "--explain"]);
        self.backup(&["--recipient", &self.recipient]);
        let reading = ["--repo", &self.repo, "--identity", &identity];
        self.run_well(&[&["verify", "main"][..], &reading].concat());
        self.run_well(&[&["restore", "main", "--target-dir", &self.path("restored")][..], &reading].concat());
        let proof = ["prove", "main", "--pg-bin", &bin, "--scratch-dir", &self.path("scratch")];
        self.run_well(&[&proof[..], &reading].concat());
        self.backup(&["--passphrase-file", &passphrase]);
        let (copy, both) = (self.path("copy"), [&reading[..], &["--passphrase-file", &passphrase]].concat());
        self.run_well(&["copy", "main", "--repo", &self.repo, "--to", &copy]);
        self.run_well(&[&["key", "rotate", "main", "--recipient", &self.recipient][..], &both].concat());
        self.run_well(&["metrics", "--repo", &self.repo]);
        self.run_well(&["expire", "main", "--keep-full", "1", "--confirm", "--repo", &self.repo]);
        let nowhere = "s3://no-such-bucket/x?endpoint=http://127.0.0.1:9&retries=0";
        for words in [
            &["verify", "main", "--repo", &self.repo][..],
            &["verify", "main", "--repo", &self.repo, "--passphrase-file", &identity],
            &["info", "--repo", nowhere],
            &["repair", "main", "--repo", &self.repo],
            &["wal", "push", "--repo", &self.repo, "--source", "main", "/nowhere/000000010000000000000001"],
        ] {
            assert_ne!(self.run(words).code, Some(0), "{words:?}");
        }
    }
}

#[test]
fn s01_s02_no_secret_leaves_the_command() {
    let scene = Scene::new();
    scene.write_settings("");
    let stop = AtomicBool::new(false);
    // Others of this machine's tests speak to stores with the same key.
    let own: Vec<&str> = scene.secrets.iter().map(String::as_str).filter(|secret| *secret != SECRET_KEY).collect();
    let found = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&own, &stop));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scene.do_everything()));
        stop.store(true, SeqCst);
        let found = watcher.join().unwrap();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        found
    });
    assert_eq!(found, Vec::<String>::new());
    let told = std::fs::read_to_string(scene.path("hooked")).unwrap();
    assert!(told.contains("PAGEHAUL_VERB=backup") && told.contains("PAGEHAUL_VERB=prove"), "{told}");
    scene.assert_hidden("the environment of hooks", &told);
    for path in files_below(&scene.server.bucket_directory("repo")).into_iter().chain([scene.path("history").into()]) {
        let content = std::fs::read(&path).unwrap();
        scene.assert_hidden(&path.display().to_string(), &String::from_utf8_lossy(&content));
    }

    // One that calls pagehaul gets them when its owner says so.
    scene.write_settings("inherit-secrets = true\n");
    scene.backup(&["--recipient", &scene.recipient]);
    let told = std::fs::read_to_string(scene.path("hooked")).unwrap();
    assert!(told.contains(PASSWORD) && told.contains(SECRET_KEY), "{told}");
}
