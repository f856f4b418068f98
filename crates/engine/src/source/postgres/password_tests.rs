//! Logging in to real servers with a password, by every method that PostgreSQL has.

use std::fs;

use super::client::Connection;
use super::conninfo::{ConnectSettings, Secret};
use super::scratch_server::{InitOptions, ScratchServer};
use super::server_tests::{execute, installs, test_directory};

#[test]
fn passwords() {
    for install in installs() {
        eprintln!("PostgreSQL {}", install.major());
        let directory = test_directory();
        let mut server =
            ScratchServer::init(&install, &directory.path().join("data"), &InitOptions::default()).unwrap();
        let rules = "local all postgres trust\nlocal all scram scram-sha-256\nlocal all md5 md5\n\
                     local all plain password\nlocal all nosuch peer\n";
        fs::write(server.data_directory().join("pg_hba.conf"), rules).unwrap();
        server.start(&[("fsync", "off")]).unwrap();
        let mut superuser = server.connect().unwrap();
        execute(
            &mut superuser,
            &[
                "SET password_encryption = 'scram-sha-256'",
                "CREATE ROLE scram LOGIN PASSWORD 'p\u{e4}ss'",
                "CREATE ROLE plain LOGIN PASSWORD 'p\u{e4}ss'",
                "CREATE ROLE nosuch LOGIN",
                "SET password_encryption = 'md5'",
                "CREATE ROLE md5 LOGIN PASSWORD 'p\u{e4}ss'",
            ],
        );
        let log_in = |user: &str, password: Option<&str>| {
            let password = password.map(Secret::new);
            Connection::connect(&ConnectSettings { user: user.into(), password, ..server.connect_settings() })
        };
        for user in ["scram", "md5", "plain"] {
            let mut connection = log_in(user, Some("p\u{e4}ss")).unwrap();
            assert_eq!(connection.query_value("SELECT current_user").unwrap(), user);
            let error = log_in(user, Some("wrong")).unwrap_err();
            assert!(error.message().contains("28P01") && !error.to_string().contains("wrong"), "{error}");
            let error = log_in(user, None).unwrap_err();
            assert!(error.hint_text().unwrap().contains(".pgpass"), "{error}");
        }
        let error = log_in("nosuch", None).unwrap_err();
        assert!(error.hint_text().unwrap().contains("run as the OS user postgres"), "{error}");
        let error = log_in("missing", None).unwrap_err();
        assert!(error.message().contains("28000"), "{error}");
    }
}
