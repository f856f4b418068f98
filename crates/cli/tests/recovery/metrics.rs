//! `metrics`: the figures are those of `info`, wherever they go.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use pagehaul_testkit::cluster::default_install;
use serde_json::Value;

use super::archived::{Archived, PROGRAM};
use super::ledger::Ledger;

/// The samples of OpenMetrics text, by name and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with("# EOF\n"), "{text}");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")))
    };
    lines.map(sample).collect()
}

fn seconds(text: &Value) -> f64 {
    text.as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_duration().as_secs_f64()
}

/// Asks as Prometheus does.
fn get(address: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

#[test]
fn figures_agree_with_info_in_a_file_and_over_http() {
    let archived = Archived::start(&default_install());
    let mut ledger = Ledger::create(&archived.cluster);
    ledger.write(&archived.cluster, 1, 10);
    archived.backup();
    ledger.write(&archived.cluster, 100, 10);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);
    archived.run_well(&["prove", "main"]);

    let text = archived.run_well(&["metrics"]).stdout;
    let figures = samples(&text);
    let info = archived.run_well(&["info", "--json"]).json();
    let (set, wal) = (&info[0]["sets"][0], &info[0]["wal"][0]);
    let figure = |name: &str, labels: &str| {
        let name = format!("pagehaul_{name}{labels}");
        *figures.get(&name).unwrap_or_else(|| panic!("{name} is not in {text}"))
    };
    let main = "{source=\"main\"}";
    assert_eq!(figure("sets", "{source=\"main\",kind=\"full\",state=\"complete\"}"), 1.0);
    assert_eq!(figure("stored_bytes", main), set["stored_bytes"].as_f64().unwrap());
    assert_eq!(figure("last_set_source_bytes", main), set["source_bytes"].as_f64().unwrap());
    assert_eq!(figure("last_set_bad_pages", main), 0.0);
    let finished = figure("last_set_timestamp_seconds", "{source=\"main\",kind=\"full\"}");
    assert!((finished - seconds(&set["finished_at"])).abs() < 1e-3);
    let proven = figure("last_proof_timestamp_seconds", "{source=\"main\",result=\"proven\"}");
    assert!((proven - seconds(&set["proof"]["proved_at"])).abs() < 1e-3);
    assert_eq!(figure("last_proof_recovery_seconds", main), set["proof"]["recovery_s"].as_f64().unwrap());
    assert_eq!(figure("wal_readable", main), 1.0);
    let cluster = wal["system_identifier"].as_str().unwrap();
    let point = figure("wal_newest_point_timestamp_seconds", &format!("{{source=\"main\",cluster=\"{cluster}\"}}"));
    assert!((point - seconds(&wal["newest_point"]["time"])).abs() < 1e-3);
    let line = format!("{{source=\"main\",cluster=\"{cluster}\",timeline=\"1\"}}");
    assert_eq!(figure("wal_gap_segments", &line), 0.0);
    assert!(figure("window_end_timestamp_seconds", &line) >= figure("window_begin_timestamp_seconds", &line));

    let file = archived.cluster.server_directory("textfile").join("pagehaul.prom");
    for _ in 0..2 {
        archived.run_well(&["metrics", "main", "--textfile", &file.display().to_string()]);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
        let written = samples(&std::fs::read_to_string(&file).unwrap());
        assert_eq!(written.keys().collect::<Vec<_>>(), figures.keys().collect::<Vec<_>>());
    }
    over_http(&archived, &figures);
}

fn over_http(archived: &Archived, figures: &BTreeMap<String, f64>) {
    let mut command = Command::new(PROGRAM);
    let repo = archived.repo.display().to_string();
    command.args(["metrics", "--history", "NUL", "--repo", &repo, "--listen", "127.0.0.1:0"]).stderr(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(server.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let address = said.trim().split("http://").nth(1).and_then(|rest| rest.strip_suffix("/metrics"));
    let address = address.unwrap_or_else(|| panic!("{said}"));
    let (status, body) = get(address, "/metrics");
    assert!(status.contains("200"), "{status} {body}");
    assert_eq!(samples(&body).keys().collect::<Vec<_>>(), figures.keys().collect::<Vec<_>>());
    assert!(get(address, "/").0.contains("404"));
    // A repository that cannot be read is no set of zeros.
    let (marker, away) = (archived.repo.join("pagehaul-repository.json"), archived.repo.join("away"));
    std::fs::rename(&marker, &away).unwrap();
    let (status, body) = get(address, "/metrics");
    assert!(status.contains("503") && body.contains("unable to"), "{status} {body}");
    std::fs::rename(&away, &marker).unwrap();
    assert!(get(address, "/metrics").0.contains("200"));
    let pid = server.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(server.wait().unwrap().success(), "a signal is how it ends");
}
