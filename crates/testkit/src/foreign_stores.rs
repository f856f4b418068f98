//! Servers of objects that others wrote, if `PAGEHAUL_TEST_STORES_DIR` has them: a second opinion on what a store does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// A server with an empty bucket or container named `bucket`; it ends when it is dropped.
pub struct ForeignStore {
    child: Child,
    address: String,
    /// Text of the bucket up to where a prefix would follow, and what stands behind it.
    target: (String, String),
    environment: Vec<(&'static str, &'static str)>,
}

/// The account that Azurite's manual names, and its key.
const ACCOUNT: &str = "devstoreaccount1";
const ACCOUNT_KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

impl ForeignStore {
    /// Moto's S3; None, and said so, if it is not there.
    ///
    /// # Panics
    /// If it does not start.
    pub fn moto() -> Option<Self> {
        Self::moto_with_bucket("")
    }

    /// The same with a bucket that was made with object lock.
    ///
    /// # Panics
    /// If it does not start.
    pub fn moto_with_object_lock() -> Option<Self> {
        Self::moto_with_bucket("x-amz-bucket-object-lock-enabled: true\r\n")
    }

    fn moto_with_bucket(headers: &str) -> Option<Self> {
        let packages = installed("moto", "moto/server.py")?;
        let mut command = with_one_output("python3".as_ref());
        command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]).env("PYTHONPATH", packages);
        let mut store = Self::start(command);
        assert!(store.ask("PUT /bucket", headers).starts_with("HTTP/1.1 200"));
        store.target = ("s3://bucket".to_owned(), format!("?endpoint=http://{}", store.address));
        store.environment = vec![("AWS_ACCESS_KEY_ID", "pagehaul"), ("AWS_SECRET_ACCESS_KEY", "canary-of-moto")];
        Some(store)
    }

    /// Azurite, which speaks what Azure Blob does; None, and said so, if it is not there.
    ///
    /// # Panics
    /// If it does not start.
    pub fn azurite() -> Option<Self> {
        let program = installed("azurite", "node_modules/.bin/azurite-blob")?.join("node_modules/.bin/azurite-blob");
        let mut command = with_one_output(&program);
        command.args(["--blobPort", "0", "--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence"]);
        let mut store = Self::start(command);
        let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&jiff::Timestamp::now());
        let version = "2021-12-02";
        let signed = format!(
            "PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{}\nx-ms-version:{version}\n/{ACCOUNT}/{ACCOUNT}/bucket\nrestype:container",
            date.as_ref().unwrap()
        );
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &STANDARD.decode(ACCOUNT_KEY).unwrap());
        let signature = STANDARD.encode(ring::hmac::sign(&key, signed.as_bytes()));
        let headers = format!(
            "x-ms-date: {}\r\nx-ms-version: {version}\r\nAuthorization: SharedKey {ACCOUNT}:{signature}\r\n",
            date.unwrap()
        );
        let answer = store.ask(&format!("PUT /{ACCOUNT}/bucket?restype=container"), &headers);
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
        store.target = ("azblob://bucket".to_owned(), format!("?endpoint=http://{}/{ACCOUNT}", store.address));
        store.environment = vec![("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT), ("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY)];
        Some(store)
    }

    /// The target that names `prefix` in its bucket.
    pub fn target(&self, prefix: &str) -> String {
        format!("{}/{prefix}{}", self.target.0, self.target.1)
    }

    /// What a client needs in its environment.
    pub fn environment(&self) -> &[(&'static str, &'static str)] {
        &self.environment
    }

    /// Key and version of everything that was ever stored in Moto's bucket, without what only marks a deletion.
    pub fn versions(&self) -> Vec<(String, String)> {
        let answer = self.ask("GET /bucket?versions&max-keys=100000", "");
        let within = |text: &str, name: &str| {
            let (_, behind) = text.split_once(&format!("<{name}>"))?;
            Some(behind.split_once('<')?.0.to_owned())
        };
        let all = answer.split("<Version>").skip(1);
        all.filter_map(|version| Some((within(version, "Key")?, within(version, "VersionId")?))).collect()
    }

    /// Deletes a version for good, as somebody with every right but that of ending a protection would; false if Moto refuses.
    pub fn delete_version(&self, key: &str, version: &str) -> bool {
        let key = key.replace(' ', "%20").replace('+', "%2B");
        // Moto believes every signature, and asks for one.
        let signed = "Authorization: AWS4-HMAC-SHA256 Credential=pagehaul/20261121/us-east-1/s3/aws4_request, \
                      SignedHeaders=host, Signature=0\r\n";
        let answer = self.ask(&format!("DELETE /bucket/{key}?versionId={version}"), signed);
        assert!(["204", "403"].iter().any(|code| answer.starts_with(&format!("HTTP/1.1 {code}"))), "{answer}");
        answer.starts_with("HTTP/1.1 204")
    }

    /// Starts it at a port that it chooses, and says in a line.
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut all = String::new();
        let address = loop {
            let mut line = String::new();
            assert!(said.read_line(&mut line).unwrap() > 0, "it ended: {all}");
            all.push_str(&line);
            if let Some((_, address)) = line.trim().split_once("http://") {
                break address.to_owned();
            }
        };
        // As long as it runs: a server that cannot say what it does ends, or waits for ever.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        ForeignStore { child, address, target: Default::default(), environment: Vec::new() }
    }

    /// One request without a body, and the answer's beginning.
    fn ask(&self, what: &str, headers: &str) -> String {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        let host = &self.address;
        let text =
            format!("{what} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Length: 0\r\nConnection: close\r\n\r\n");
        socket.write_all(text.as_bytes()).unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }
}

impl Drop for ForeignStore {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The program with its errors in its output.
fn with_one_output(program: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" \"$@\" 2>&1"]).arg(program);
    command
}

fn installed(name: &str, file: &str) -> Option<PathBuf> {
    let directory = std::env::var_os("PAGEHAUL_TEST_STORES_DIR").map(|all| PathBuf::from(all).join(name));
    let found = directory.filter(|directory| directory.join(file).exists());
    if found.is_none() {
        eprintln!("SKIPPED: PAGEHAUL_TEST_STORES_DIR has no {name}: object stores are tried with one server less");
    }
    found
}
