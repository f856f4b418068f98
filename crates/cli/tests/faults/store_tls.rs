//! A store over TLS is only talked to if its certificate is of an authority that is trusted, for its name, and valid.

use std::path::Path;
use std::process::Command;

use pagehaul_testkit::s3_server::S3Server;

use super::bench::{Place, Ran};

/// Runs openssl in `directory`.
fn openssl(directory: &Path, arguments: &str) {
    let output = Command::new("openssl").args(arguments.split(' ')).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

fn authority(directory: &Path, name: &str) {
    openssl(directory, &format!("req -x509 {KEY} -keyout {name}.key -out {name}.crt -subj /CN={name} -days 30"));
}

/// A certificate for `names` by `authority`, for as long as `validity` says.
fn certificate(directory: &Path, authority: &str, name: &str, names: &str, validity: &str) {
    openssl(directory, &format!("req {KEY} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
    std::fs::write(directory.join(format!("{name}.ext")), format!("subjectAltName={names}\n")).unwrap();
    let by = format!("-CA {authority}.crt -CAkey {authority}.key -CAcreateserial -extfile {name}.ext");
    openssl(directory, &format!("x509 -req -in {name}.csr {by} -out {name}.crt {validity}"));
}

#[test]
fn s09_a_store_is_only_believed_with_a_certificate_that_is_right() {
    let place = Place::new("s09_certificates");
    let made = tempfile::tempdir().unwrap();
    let directory = made.path();
    ["ours", "theirs"].iter().for_each(|name| authority(directory, name));
    certificate(directory, "ours", "right", "IP:127.0.0.1", "-days 30");
    certificate(directory, "ours", "elsewhere", "DNS:elsewhere.example", "-days 30");
    certificate(directory, "theirs", "stranger", "IP:127.0.0.1", "-days 30");
    certificate(directory, "ours", "expired", "IP:127.0.0.1", "-days -1");
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
