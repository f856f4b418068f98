//! Encrypted connections to real servers, with certificates of our own making.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use pagehaul_engine::backup::{BackupOutcome, BackupRequest, backup};
use pagehaul_engine::error::{Error, ErrorKind};
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::source::postgres::client::Connection;
use pagehaul_engine::source::postgres::conninfo::{ConnectSettings, Secret};
use pagehaul_engine::source::postgres::pg_install::PgInstall;
use pagehaul_engine::source::postgres::scratch_server::{InitOptions, ScratchServer};
use pagehaul_testkit::certificates::{Certificate, make_authority, openssl};
use pagehaul_testkit::cluster::{default_install, installs, work_directory};
use pagehaul_testkit::cluster_template::init_cluster;

/// `name.crt` and `name.key`, signed by `authority`, for `subject` and the names in `extension`.
fn make_certificate(directory: &Path, authority: &str, name: &str, subject: &str, extension: &str) {
    Certificate { name, subject, extension, days: 30 }.make(directory, authority);
}

/// A server that listens on a port of this machine.
struct Listening {
    server: ScratchServer,
    port: u16,
    certificates: PathBuf,
}

const RULES: &str = "local all all trust\n\
    hostssl all scram 127.0.0.1/32 scram-sha-256\n\
    hostssl all certified 127.0.0.1/32 cert\n\
    hostssl all postgres 127.0.0.1/32 trust\n\
    hostssl replication postgres 127.0.0.1/32 trust\n\
    hostnossl all plain 127.0.0.1/32 trust\n";

impl Listening {
    fn start(install: &PgInstall, work: &Path) -> Self {
        let certificates = work.join("certificates");
        std::fs::create_dir(&certificates).unwrap();
        make_authority(&certificates, "authority");
        make_authority(&certificates, "stranger");
        make_certificate(&certificates, "authority", "server", "db", "subjectAltName=DNS:localhost");
        make_certificate(&certificates, "authority", "client", "certified", "basicConstraints=CA:FALSE");
        make_certificate(&certificates, "stranger", "forged", "certified", "basicConstraints=CA:FALSE");
        let server = init_cluster(install, &work.join("pgdata"), &InitOptions::default());
        std::fs::write(server.data_directory().join("pg_hba.conf"), RULES).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let listening = Listening { server, port, certificates };
        listening.give("server", "authority");
        let socket = listening.server.connect_settings().host;
        let options =
            format!("-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={socket} -c fsync=off");
        let data = listening.server.data_directory().display().to_string();
        let log = work.join("pgdata/log").display().to_string();
        let output =
            listening.server.run_tool("pg_ctl", &["start", "-w", "-D", &data, "-l", &log, "-o", &options]).unwrap();
        assert!(output.status.success(), "{output:?}");
        listening.local(&[
            "ALTER SYSTEM SET ssl = on",
            "ALTER SYSTEM SET ssl_ca_file = 'root.crt'",
            "SET password_encryption = 'scram-sha-256'",
            "CREATE ROLE scram LOGIN PASSWORD 'secret'",
            "CREATE ROLE certified LOGIN",
            "CREATE ROLE plain LOGIN",
        ]);
        listening.reload();
        listening
    }

    /// Puts a certificate and its key where the server finds them.
    fn give(&self, name: &str, root: &str) {
        let data = self.server.data_directory();
        let owner = std::fs::metadata(data).unwrap();
        for (from, to) in [
            (format!("{name}.crt"), "server.crt"),
            (format!("{name}.key"), "server.key"),
            (format!("{root}.crt"), "root.crt"),
        ] {
            let to = data.join(to);
            std::fs::copy(self.certificates.join(from), &to).unwrap();
            std::fs::set_permissions(&to, PermissionsExt::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(&to, Some(owner.uid()), Some(owner.gid())).unwrap();
        }
    }

    /// A connection over the Unix socket.
    fn connection(&self) -> Connection {
        let settings = ConnectSettings { port: self.port, ..self.server.connect_settings() };
        Connection::connect(&settings).unwrap()
    }

    /// Statements over such a connection.
    fn local(&self, statements: &[&str]) {
        let mut connection = self.connection();
        for statement in statements {
            connection.query(statement).unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
    }

    /// Waits until new connections see the settings: they have them, and when these were read, from the postmaster.
    fn reload(&self) {
        let read_at = || self.connection().query_value("SELECT pg_conf_load_time()").unwrap();
        let before = read_at();
        self.local(&["SELECT pg_reload_conf()"]);
        while read_at() == before {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// What a connection says; `{c}` in `extra` is the directory of certificates.
    fn conninfo(&self, host: &str, user: &str, extra: &str) -> String {
        let extra = extra.replace("{c}", &self.certificates.display().to_string());
        format!("host={host} port={} user={user} dbname=postgres connect_timeout=5 {extra}", self.port)
    }

    /// Whether the connection is encrypted.
    fn connect_to(&self, host: &str, user: &str, extra: &str) -> Result<bool, Error> {
        let mut settings = ConnectSettings::parse(&self.conninfo(host, user, extra))?;
        settings.password = Some(Secret::new("secret"));
        let mut connection = Connection::connect(&settings)?;
        let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        Ok(connection.query_value(sql).map_err(|error| error.into_error("ask"))? == "t")
    }

    fn connect(&self, user: &str, extra: &str) -> Result<bool, Error> {
        self.connect_to("127.0.0.1", user, extra)
    }

    /// The error of a connection that must not come to be.
    #[track_caller]
    fn refused(&self, host: &str, user: &str, extra: &str, word: &str) -> Error {
        let error = self.connect_to(host, user, extra).unwrap_err();
        assert!(error.to_string().contains(word), "{extra}: {error}");
        error
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let data = self.server.data_directory().display().to_string();
        self.server.run_tool("pg_ctl", &["stop", "-w", "-D", &data, "-m", "immediate"]).ok();
    }
}

fn servers() -> Vec<PgInstall> {
    let mut found = vec![default_install()];
    found.extend(installs().pop().filter(|newest| newest.major() != found[0].major()));
    found
}

#[test]
fn s10_every_sslmode_does_what_libpq_does() {
    for install in servers() {
        eprintln!("PostgreSQL {}", install.major());
        let work = work_directory();
        let server = Listening::start(&install, work.path());
        assert!(server.connect("postgres", "sslmode=require").unwrap());
        assert!(server.connect("postgres", "").unwrap(), "prefer is the default");
        assert!(server.connect("postgres", "sslmode=allow").unwrap(), "the server wants it");
        assert!(!server.connect("plain", "sslmode=allow").unwrap());
        assert!(!server.connect("plain", "sslmode=prefer").unwrap(), "the server lets this user in only without");
        let shut_out = server.refused("127.0.0.1", "postgres", "sslmode=disable", "28000");
        assert_eq!(shut_out.kind(), ErrorKind::Source);
        server.refused("127.0.0.1", "plain", "sslmode=require", "28000");

        let root = "sslrootcert={c}/authority.crt";
        assert!(server.connect("postgres", &format!("sslmode=verify-ca {root}")).unwrap());
        let by_name = format!("hostaddr=127.0.0.1 sslmode=verify-full {root}");
        assert!(server.connect_to("localhost", "postgres", &by_name).unwrap());
        let error =
            server.refused("127.0.0.1", "postgres", &format!("sslmode=verify-full {root}"), "is not for 127.0.0.1");
        assert!(error.hint_text().unwrap().contains("subjectAltName"), "{error}");
        server.refused("db", "postgres", &by_name, "is not for db");
        for mode in ["require", "verify-ca", "verify-full"] {
            let stranger = format!("hostaddr=127.0.0.1 sslmode={mode} sslrootcert={{c}}/stranger.crt");
            let error = server.refused("localhost", "postgres", &stranger, "not from an authority");
            assert_eq!(error.kind(), ErrorKind::Source);
        }
        let error = server.refused("127.0.0.1", "postgres", "sslmode=verify-ca sslrootcert=/nowhere", "/nowhere");
        assert_eq!(error.kind(), ErrorKind::Configuration);
        server.refused("127.0.0.1", "postgres", "sslmode=verify-ca sslrootcert={c}/server.key", "there is none in it");

        // A server with a certificate that it signed itself, which its clients have.
        let own = "req -x509 -newkey rsa:2048 -nodes -keyout own.key -out own.crt -subj /CN=own -days 30 -addext";
        openssl(&server.certificates, &format!("{own} subjectAltName=DNS:localhost"));
        server.give("own", "authority");
        server.reload();
        let own = "hostaddr=127.0.0.1 sslmode=verify-full sslrootcert={c}/own.crt";
        assert!(server.connect_to("localhost", "postgres", own).unwrap());
        server.refused("db", "postgres", own, "is not for db");

        server.local(&["ALTER SYSTEM SET ssl = off"]);
        server.reload();
        server.refused("127.0.0.1", "plain", "sslmode=require", "does not offer TLS");
        assert!(!server.connect("plain", "sslmode=prefer").unwrap());
    }
}

#[test]
fn s10_certificates_of_clients_and_bound_passwords() {
    for install in servers() {
        let work = work_directory();
        let server = Listening::start(&install, work.path());
        let own = "sslmode=require sslcert={c}/client.crt sslkey={c}/client.key";
        assert!(server.connect("certified", own).unwrap());
        server.refused("127.0.0.1", "postgresql", own, "28000");
        server.refused("127.0.0.1", "certified", "sslmode=require", "certificate");
        let forged = "sslmode=require sslcert={c}/forged.crt sslkey={c}/forged.key";
        let error = server.refused("127.0.0.1", "certified", forged, "alert");
        assert_eq!(error.kind(), ErrorKind::Source);
        server.refused(
            "127.0.0.1",
            "certified",
            "sslmode=require sslcert={c}/client.crt sslkey={c}/forged.key",
            "client.crt",
        );
        std::fs::set_permissions(server.certificates.join("client.key"), PermissionsExt::from_mode(0o644)).unwrap();
        let error = server.refused("127.0.0.1", "certified", own, "other users may read");
        assert_eq!((error.kind(), error.hint_text().unwrap().contains("chmod")), (ErrorKind::Configuration, true));

        for binding in ["disable", "prefer", "require"] {
            assert!(
                server.connect("scram", &format!("sslmode=require channel_binding={binding}")).unwrap(),
                "{binding}"
            );
        }
        let error =
            server.refused("127.0.0.1", "postgres", "sslmode=require channel_binding=require", "channel_binding");
        assert_eq!(error.kind(), ErrorKind::Source);
    }
}

#[test]
fn a_remote_backup_is_encrypted_too() {
    for install in servers() {
        let work = work_directory();
        let server = Listening::start(&install, work.path());
        server
            .local(&["CREATE TABLE public.words AS SELECT i, md5(i::text) AS x FROM generate_series(1, 200000) AS i"]);
        let extra = "hostaddr=127.0.0.1 sslmode=verify-full sslrootcert={c}/authority.crt";
        let request = BackupRequest {
            connection: Some(server.conninfo("localhost", "postgres", extra)),
            remote: true,
            ..BackupRequest::new("main".parse().unwrap(), work.path().join("repo").display().to_string())
        };
        let BackupOutcome::Done(report) = backup(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"))
        else {
            panic!("it was only planned");
        };
        assert!(report.source_bytes > 20 << 20);
    }
}
