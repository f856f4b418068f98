//! A headless Chromium for tests of the report: what the page's DOM is when its script has run, and what was asked for
//! on the network meanwhile.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A page takes two seconds; more than this is a browser that hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// A browser that is installed here.
pub(crate) struct Browser {
    program: PathBuf,
}

/// A page after its script has run.
pub(crate) struct Page {
    /// The document, without the text of its scripts.
    pub(crate) dom: String,
    /// Addresses that the browser tried to load from a network, of whatever protocol.
    pub(crate) requests: Vec<String>,
}

impl Browser {
    /// The browser, or None, and then it says why the test is skipped.
    pub(crate) fn find() -> Option<Browser> {
        let named = std::env::var_os("PAGEHAUL_CHROMIUM").map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program = named.or_else(|| {
            let places = std::env::split_paths(&path);
            places
                .flat_map(|place| [place.join("chromium"), place.join("chromium-browser")])
                .find(|file| file.is_file())
        });
        if program.is_none() {
            eprintln!(
                "SKIPPED: no chromium in PATH, nor named by PAGEHAUL_CHROMIUM: the report is not looked at (scripts/setup.sh --test installs it)"
            );
        }
        Some(Browser { program: program? })
    }

    /// Opens the HTML text as a file and lets its script run.
    pub(crate) fn open(&self, html: &str) -> Page {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("report.html");
        std::fs::write(&file, html).unwrap();
        let log = place.path().join("net.json");
        let dom = self.run(place.path(), &log, &format!("file://{}", file.display()));
        Page { dom: without_scripts(&dom), requests: requests(&std::fs::read_to_string(&log).unwrap()) }
    }

    fn run(&self, place: &Path, log: &Path, address: &str) -> String {
        // Files, not pipes: a browser that hangs is then killed, with nobody waiting for its output.
        let [out, err] = ["out", "err"].map(|name| place.join(name));
        let mut child = Command::new(&self.program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--disable-extensions",
            ])
            .args(["--disable-dev-shm-usage", "--window-size=1280,900", "--virtual-time-budget=15000"])
            .arg(format!("--user-data-dir={}", place.join("profile").display()))
            .arg(format!("--log-net-log={}", log.display()))
            .args(["--net-log-capture-mode=Everything", "--dump-dom", address])
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&out).unwrap())
            .stderr(std::fs::File::create(&err).unwrap())
            .spawn()
            .unwrap();
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > LIMIT {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{} hangs: {}", self.program.display(), std::fs::read_to_string(&err).unwrap());
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(status.success(), "{status}: {}", std::fs::read_to_string(&err).unwrap());
        std::fs::read_to_string(&out).unwrap()
    }
}

/// Every address that the page asked for on a network, from the browser's own log.
///
/// The browser asks on its own behalf, too (its clock, its updates), whatever it is told; such requests have no page
/// as their initiator.
fn requests(log: &str) -> Vec<String> {
    let log: serde_json::Value = serde_json::from_str(log).unwrap();
    let events = log["events"].as_array().unwrap();
    assert!(!events.is_empty(), "an empty log proves nothing");
    let by_page = events
        .iter()
        .filter(|event| event["params"]["initiator"].as_str().is_some_and(|initiator| initiator != "not an origin"));
    let mut found: Vec<String> =
        by_page.filter_map(|event| event["params"]["url"].as_str()).map(str::to_owned).collect();
    found.sort();
    found.dedup();
    found
}

fn without_scripts(dom: &str) -> String {
    let mut kept = String::new();
    let mut rest = dom;
    while let Some((before, after)) = rest.split_once("<script") {
        kept += before;
        rest = after.split_once("</script>").map_or("", |(_, behind)| behind);
    }
    kept + rest
}
